"""The models of a studio: where they lie, which variants they have, how fast each is, and the loaded sessions."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from opsmith import session, settings, starter, store
from opsmith.errors import OpsmithError
from opsmith.pipelines.diffusion import COMPONENTS, DiffusionApp
from opsmith.pipelines.embed import TextEncoder
from opsmith.pipelines.masks import Segmenter
from opsmith.pipelines.prompts import Style, style_of
from opsmith.pipelines.shared import SharedWriter
from opsmith.pipelines.text import TextGenerator
from opsmith.starter import in_use
from opsmith.studio.forge import Forge, Part, Tell
from opsmith.studio.speeds import Speeds

SMALL = 500 * 2**20  # pipelines of which two variants may stay loaded


@dataclasses.dataclass(frozen=True)
class Choice:
    """A variant of the picture model as the page offers it."""

    name: str
    kind: str  # what it is, in words: "original", "rewritten", "compiled, bf16"
    compiled: bool
    seconds_per_step: float | None  # measured here, at the model's own size, with guidance
    together: bool  # measured in turn with all other variants: they may be compared
    busy: bool  # while other programs used the CPU


class Models:
    def __init__(
        self,
        pictures: Path | None = None,
        writer: Path | None = None,
        masks: Path | None = None,
        threads: int | None = None,
        embedder: Path | None = None,
    ) -> None:
        """None: the starter model. Nothing is loaded before it is needed; wrong folders are found now."""
        self.threads = threads if threads is not None else settings.get().threads
        self.given = {"pictures": pictures, "writer": writer, "masks": masks}
        self.given_embedder = embedder
        self.forge = Forge(settings.cache_folder("studio") / "forge.json")
        self._lock = threading.Lock()
        self._apps: dict[str, DiffusionApp] = {}
        self._writer: TextGenerator | None = None
        self._shared: SharedWriter | None = None
        self._segmenter: Segmenter | None = None
        self._embedder: TextEncoder | None = None
        self._speeds = Speeds(settings.cache_folder("studio") / "speeds.json")
        for name, folder in {**self.given, "embedder": embedder}.items():
            if folder is not None and not folder.is_dir():
                raise OpsmithError(f"the {name} folder {folder} does not exist")
        self._read()

    def use(self, pictures: Path | None) -> None:
        """Another picture model. Called by the pictures worker only; if it cannot be used, the one before stays."""
        before = self.given["pictures"]
        self.given["pictures"] = pictures
        try:
            self._read()
        except OpsmithError:
            self.given["pictures"] = before
            self._read()
            raise
        for app in self._apps.values():
            app.release()
        self._apps.clear()

    def _read(self) -> None:
        """What the picture model's configs say; no session is loaded."""
        first = DiffusionApp(self.home("pictures"), variant=self.variants()[0].name)
        self.native = (first.native[1], first.native[0])
        self.edits = "vae_encoder" in first.paths
        self.guidance = first.guidance
        self.unknown_words = first.tokenizer.unknown

    # --- where they lie ----------------------------------------------------------------------------------

    def home(self, name: str) -> Path:
        """The folder in use: the one given, or the starter's, or its compiled copy in the cache."""
        return self.given[name] or in_use.folder(name)

    def title(self, name: str) -> str:
        given = self.given[name]
        return given.resolve().name if given is not None else f"starter {name}"

    def draws(self) -> dict[str, list[str]]:
        """What the picture model can draw, where that is a small world that is known: the starter's."""
        return starter.draws() if self.given["pictures"] is None else {}

    def parts(self) -> dict[str, Path]:
        """Model folders that can be compiled and measured: the pipeline's components, the writer, the mask finder."""
        pipeline = self.home("pictures")
        names = sorted(COMPONENTS, key=lambda name: name != "unet")  # the one that takes the time comes first
        found = {name: pipeline / name for name in names if (pipeline / name).is_dir()}
        return {**found, "writer": self.home("writer"), "masks": self.home("masks")}

    # --- variants ----------------------------------------------------------------------------------------

    def variants(self) -> list[Choice]:
        """Of the picture model; originals first."""
        found = self._stored()
        keys = [self._speed_key(variant) for variant in found]
        together = self._speeds.together(keys) if len(found) > 1 else None
        choices = []
        for key, variant in zip(keys, found):
            seconds = together.seconds[key] if together else self._speeds.alone(key)
            compiled = is_compiled(variant)
            busy = together is not None and together.busy
            choices.append(Choice(variant.name, _kind(variant, found), compiled, seconds, together is not None, busy))
        return sorted(choices, key=lambda c: c.compiled)

    def _stored(self) -> Sequence[store.Variant]:
        home = self.home("pictures")
        if not (home / "unet").is_dir():
            raise OpsmithError(f"{home} is not a pipeline folder: it has no unet", "see docs/imagine.md")
        found = store.variants(home / "unet")
        if not found:
            raise OpsmithError(f"{home / 'unet'} has no variant")
        return found

    def best(self) -> str:
        """The variant to take when none is named: the fastest of those measured together, else the newest compiled one."""
        choices = self.variants()
        if all(c.together for c in choices):
            return min(choices, key=lambda c: c.seconds_per_step or 0).name
        return choices[-1].name

    def note_speed(self, variant: str, step_seconds: Sequence[float]) -> bool:
        """A picture of the model's own size was made. True if that is news."""
        found = next((v for v in self._stored() if v.name == variant), None)
        return found is not None and self._speeds.note(self._speed_key(found), step_seconds)

    def untimed(self) -> bool:
        """Whether there are several variants that were not measured in turn, or only on a busy machine."""
        choices = self.variants()
        return len(choices) > 1 and any(not c.together or c.busy for c in choices)

    def time_variants(self, stopped: Callable[[], bool]) -> None:
        """All variants in turn, on the same input, in processes of their own."""
        app = DiffusionApp(self.home("pictures"), variant=self.variants()[0].name, threads=self.threads)
        feed = app.step_feed("a picture")
        app.release()
        self._speeds.measure({self._speed_key(v): v.folder for v in self._stored()}, feed, self.threads, stopped)

    def _speed_key(self, variant: store.Variant) -> str:
        where = self.given["pictures"]
        home = in_use.key() if where is None else str(where.resolve())
        return f"{home} {variant.name} {variant.path.stat().st_mtime_ns} {self.threads or 'all'} threads"

    # --- loaded ------------------------------------------------------------------------------------------

    def app(self, variant: str | None) -> DiffusionApp:
        """Called by the pictures worker only."""
        name = variant or self.best()
        if name not in (names := [c.name for c in self.variants()]):
            raise OpsmithError(f"there is no variant {name!r}", f"there are: {', '.join(names)}")
        if name not in self._apps:
            app = DiffusionApp(self.home("pictures"), variant=name, threads=self.threads)
            if sum(session.size_on_disk(path) for path in app.paths.values()) > SMALL:
                for other in self._apps.values():
                    other.release()
                self._apps.clear()
            self._apps[name] = app
        return self._apps[name]

    def writer(self) -> TextGenerator:
        with self._lock:
            if self._writer is None:
                self._writer = TextGenerator(self.home("writer"), threads=self.threads)
            return self._writer

    def shared_writer(self) -> SharedWriter:
        """The writer for several requests at once."""
        writer = self.writer()
        with self._lock:
            if self._shared is None or self._shared.generator is not writer:
                self._shared = SharedWriter(writer)
                if self._shared.slots == 1:
                    why = "export and compile it again" if writer.in_place else "it is not compiled"
                    print(f"writer: requests are answered one after the other ({why})", file=sys.stderr)
            return self._shared

    def writer_names(self) -> list[str]:
        """As the API calls it; a folder of the user's own also by its name."""
        return ["writer", *_folder_name(self.given["writer"])]

    def embedder(self) -> TextEncoder:
        """Called by the embedder's worker only. The starter's is CLIP's text tower."""
        if self._embedder is None:
            folder = self.given_embedder or starter.folder("clip") / "text_model"
            self._embedder = TextEncoder(folder, threads=self.threads)
        return self._embedder

    def embedder_names(self) -> list[str]:
        return ["embedder", *_folder_name(self.given_embedder)]

    def style(self) -> Style:
        """How the writer is asked."""
        return style_of(self.writer())

    def segmenter(self) -> Segmenter:
        with self._lock:
            if self._segmenter is None:
                self._segmenter = Segmenter(self.home("masks"), threads=self.threads)
            return self._segmenter

    # --- forging -----------------------------------------------------------------------------------------

    def uncompiled(self, precision: str = "fp32") -> list[Part]:
        """What has no compiled variant of this precision. Only pictures are made in bf16: text and masks are quick."""
        parts = self.parts()
        if precision != "fp32":
            parts = {name: folder for name, folder in parts.items() if name in COMPONENTS}
        found = []
        for name, folder in parts.items():
            variants = store.variants(folder)
            compiled = [store.precision_of(v.path) for v in variants if is_compiled(v)]
            plain = [v for v in variants if not is_compiled(v)]
            if plain and precision not in compiled:
                found.append(Part(name, plain[-1]))
        return found

    def compile(self, precision: str, tell: Tell, stopped: Callable[[], bool]) -> list[str]:
        """Give every part a compiled variant; returns remarks on those that could not be compiled."""
        for name, folder in self.given.items():
            if folder is None:
                in_use.copy(name)
        remarks = self.forge.compile(self.uncompiled(precision), precision, tell, stopped, needed=("unet",))
        with self._lock:
            self._writer = self._shared = self._segmenter = None  # loaded again, compiled, when they are next needed
        return remarks

    def report_file(self, part: str) -> Path:
        folder = self.parts().get(part)
        if folder is None:
            raise OpsmithError(f"there is no part {part!r}", f"there are: {', '.join(self.parts())}")
        key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        target = settings.cache_folder("studio") / "reports" / key
        target.mkdir(parents=True, exist_ok=True)
        return target / f"{part}.html"


def _folder_name(folder: Path | None) -> list[str]:
    return [] if folder is None else [folder.resolve().name]


_MADE_BY = {"optimize": "rewritten", "quantize": "quantized", "prune": "pruned"}


def _kind(variant: store.Variant, beside: Sequence[store.Variant]) -> str:
    """In words; what was made of a variant that is not there is an original itself."""
    if is_compiled(variant):
        return f"compiled, {store.precision_of(variant.path)}"
    parent = Path(str(variant.record.get("parent") or "")).name
    made = _MADE_BY.get(str(variant.record.get("verb")), "original")
    return made if parent in {v.name for v in beside} else "original"


def is_compiled(variant: store.Variant) -> bool:
    return bool((variant.record.get("compiled") or {}).get("library"))
