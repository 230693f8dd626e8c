"""The models of a studio: where they lie, which variants they have, how fast each was measured, and the loaded sessions.

The starter models lie inside the package, which may be read-only. What is compiled of them is kept in the user's cache,
under a hash of the files, together with a copy of them: `opsmith bench` and `opsmith report` then see both variants.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opsmith import session, settings, starter, store
from opsmith._version import __version__
from opsmith.errors import OpsmithError
from opsmith.pipelines.diffusion import COMPONENTS, DiffusionApp
from opsmith.pipelines.embed import TextEncoder
from opsmith.pipelines.masks import Segmenter
from opsmith.pipelines.prompts import Style, style_of
from opsmith.pipelines.shared import SharedWriter
from opsmith.pipelines.text import TextGenerator

SMALL = 500 * 2**20  # pipelines of which two variants may stay loaded


@dataclasses.dataclass(frozen=True)
class Choice:
    """A variant of the picture model as the page offers it."""

    name: str
    compiled: bool
    seconds_per_step: float | None  # measured here, at the model's own size, with guidance


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
        self._lock = threading.Lock()
        self._apps: dict[str, DiffusionApp] = {}
        self._writer: TextGenerator | None = None
        self._shared: SharedWriter | None = None
        self._segmenter: Segmenter | None = None
        self._embedder: TextEncoder | None = None
        self._speeds = _read_json(self._speed_file)
        for name, folder in {**self.given, "embedder": embedder}.items():
            if folder is not None and not folder.is_dir():
                raise OpsmithError(f"the {name} folder {folder} does not exist")
        first = DiffusionApp(self.home("pictures"), variant=self.variants()[0].name)  # reads configs, loads no session
        self.native = (first.native[1], first.native[0])
        self.inpaints_only = first.unet_channels > first.latent_channels
        self.edits = "vae_encoder" in first.paths
        self.guidance = first.guidance

    # --- where they lie ----------------------------------------------------------------------------------

    def home(self, name: str) -> Path:
        """The folder in use: the one given, or the starter's, or its compiled copy in the cache."""
        given = self.given[name]
        if given is not None:
            return given
        copy = self._cache / name
        return copy if copy.is_dir() else starter.folder(name)

    @property
    def _cache(self) -> Path:
        return settings.cache_folder("studio") / _starter_key()

    @property
    def _speed_file(self) -> Path:
        return settings.cache_folder("studio") / "speeds.json"

    def title(self, name: str) -> str:
        given = self.given[name]
        return given.resolve().name if given is not None else f"starter {name}"

    def parts(self) -> dict[str, Path]:
        """Model folders that can be compiled and measured: the pipeline's components, the writer, the mask finder."""
        pipeline = self.home("pictures")
        names = sorted(COMPONENTS, key=lambda name: name != "unet")  # the one that takes the time comes first
        found = {name: pipeline / name for name in names if (pipeline / name).is_dir()}
        return {**found, "writer": self.home("writer"), "masks": self.home("masks")}

    # --- variants ----------------------------------------------------------------------------------------

    def variants(self) -> list[Choice]:
        """Of the picture model; originals first."""
        home = self.home("pictures")
        if not (home / "unet").is_dir():
            raise OpsmithError(f"{home} is not a pipeline folder: it has no unet", "see docs/imagine.md")
        choices = []
        for variant in store.variants(home / "unet"):
            speed = self._speeds.get(self._speed_key(variant.name))
            choices.append(Choice(variant.name, _compiled(variant), speed))
        if not choices:
            raise OpsmithError(f"{home / 'unet'} has no variant")
        return sorted(choices, key=lambda c: c.compiled)

    def best(self) -> str:
        """The variant to take when none is named: measured fastest, else the newest compiled one."""
        choices = self.variants()
        timed = [c for c in choices if c.seconds_per_step is not None]
        if len(timed) == len(choices):
            return min(timed, key=lambda c: c.seconds_per_step or 0).name
        return choices[-1].name

    def note_speed(self, variant: str, step_seconds: Sequence[float]) -> bool:
        """Keep the median of a run at the model's own size, without its first step, which warms up.

        The lowest of all runs stays: other programs can only make a run slower. True if this one is it.
        """
        if len(step_seconds) < 4:
            return False
        key = self._speed_key(variant)
        now = round(statistics.median(step_seconds[1:]), 5)
        if now >= self._speeds.get(key, float("inf")):
            return False
        self._speeds[key] = now
        with contextlib.suppress(OSError):  # a full disk costs the memory of a speed, not the picture
            partial = self._speed_file.with_name(f".speeds.{os.getpid()}.tmp")
            partial.write_text(json.dumps(self._speeds, indent=1), encoding="utf-8")
            partial.replace(self._speed_file)
        return True

    def _speed_key(self, variant: str) -> str:
        given = self.given["pictures"]
        where = _starter_key() if given is None else str(given.resolve())
        return f"{where} {variant} {self.threads or 'all'} threads"

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

    def uncompiled(self) -> list[str]:
        return [name for name, folder in self.parts().items() if not any(map(_compiled, store.variants(folder)))]

    def compile(self, tell: Callable[[int, int, str], None], stopped: Callable[[], bool]) -> list[str]:
        """Give every part a compiled variant; returns remarks on those that could not be compiled.

        Each part is compiled by a process of its own: what the compiler needs of memory goes away with it, and it can
        be ended at any time.
        """
        if any(folder is None for folder in self.given.values()):
            self._copy_starter()
        wanted = self.uncompiled()
        remarks = []
        for i, name in enumerate(wanted):
            tell(i, len(wanted), f"compiling {name}")
            original = store.variants(self.parts()[name])[-1]
            dest = original.folder.with_name(f"{original.name}_compiled")
            try:
                run_opsmith(["compile", str(original.folder), str(dest)], stopped)
            except OpsmithError as error:
                if name == "unet":
                    raise
                remarks.append(f"{name} stays as it is: {error}")
        tell(len(wanted), len(wanted), "compiled")
        with self._lock:
            self._writer = self._shared = self._segmenter = None  # loaded again, compiled, when they are next needed
        return remarks

    def _copy_starter(self) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        for name, given in self.given.items():
            target = self._cache / name
            if given is None and not target.is_dir():
                partial = self._cache / f".{name}.{os.getpid()}.tmp"
                shutil.copytree(starter.folder(name), partial)
                partial.rename(target)

    def report_file(self, part: str) -> Path:
        folder = self.parts().get(part)
        if folder is None:
            raise OpsmithError(f"there is no part {part!r}", f"there are: {', '.join(self.parts())}")
        key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        target = settings.cache_folder("studio") / "reports" / key
        target.mkdir(parents=True, exist_ok=True)
        return target / f"{part}.html"


def run_opsmith(arguments: list[str], stopped: Callable[[], bool]) -> None:
    """Run a verb in a process of its own; its one line of error becomes ours."""
    from opsmith.pipelines.diffusion import Cancelled

    process = subprocess.Popen(
        [sys.executable, "-m", "opsmith", "--quiet", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while True:
            try:
                _, words = process.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                if stopped():
                    raise Cancelled("cancelled") from None
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode:
        lines = [line for line in words.strip().splitlines() if line.strip()]
        raise OpsmithError(lines[-1].removeprefix("error: ") if lines else f"exit code {process.returncode}")


def _folder_name(folder: Path | None) -> list[str]:
    return [] if folder is None else [folder.resolve().name]


def _compiled(variant: store.Variant) -> bool:
    return bool((variant.record.get("compiled") or {}).get("library"))


def _starter_key() -> str:
    """Of the version and of all starter models that the studio uses."""
    digest = hashlib.sha256(__version__.encode())
    for name in ("pictures", "writer", "masks"):
        folder = starter.folder(name)
        for file in sorted(f for f in folder.rglob("*") if f.is_file()):
            stat = file.stat()
            digest.update(f"{name}/{file.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}".encode())
    return f"starter-{digest.hexdigest()[:16]}"


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
