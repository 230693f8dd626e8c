"""The picture models that a studio can choose from, and how another one joins them.

starter      inside the package
pipelines    --model, those added before, those in the cache (create_stable_diffusion), those in ./models
others       a folder in Hugging Face's layout, or an id on its hub: exported into the cache, where create_stable_diffusion
             finds them too. Size and licence are told before anything is fetched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opsmith import settings, store
from opsmith.errors import OpsmithError
from opsmith.exporter import source as sources
from opsmith.pipelines.create import cached_home
from opsmith.pipelines.diffusion import DiffusionApp
from opsmith.pipelines.diffusion.parts import needed
from opsmith.starter import in_use
from opsmith.studio.verbs import run_opsmith

STARTER = "starter"
UNSTATED = "not stated"
HUB_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """One that can be used now."""

    id: str  # its folder, or "starter"
    title: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Offer:
    """What is known of a model before anything is fetched or exported."""

    source: str
    title: str
    bytes: int  # of the files that are used
    licence: str
    fetched: bool  # whether they come from the hub
    exported: bool  # whether it is made into a pipeline folder first


class Pipelines:
    def __init__(self, given: Path | None = None) -> None:
        self.given = given
        self.closed = ""  # why none can be added, if so
        self._file = settings.get().cache / "studio" / "pipelines.json"

    def all(self) -> list[Pipeline]:
        found = [Pipeline(STARTER, "starter pictures", _size(in_use.folder("pictures"), 0))]
        for folder in dict.fromkeys(path.resolve() for path in self._candidates()):
            if is_pipeline(folder):
                found.append(Pipeline(str(folder), folder.name, _size(folder, (folder / "unet").stat().st_mtime_ns)))
        return found

    def _candidates(self) -> list[Path]:
        nearby = [Path("models"), settings.get().cache / "pipelines"]
        inside = [path for home in nearby if home.is_dir() for path in sorted(home.iterdir())]
        return [*([self.given] if self.given else []), *self._kept(), *inside]

    def folder(self, identity: str) -> Path | None:
        """Of one of them; None is the starter."""
        if identity not in (known := [pipeline.id for pipeline in self.all()]):
            raise OpsmithError(f"there is no picture model {identity!r}", f"there are: {', '.join(known)}")
        return None if identity == STARTER else Path(identity)

    def look(self, source: str) -> Offer:
        """What SOURCE is: a folder, or an id on the hub."""
        if self.closed:
            raise OpsmithError(self.closed)
        name = source.strip()
        if not name:
            raise OpsmithError(
                "the model's name is empty", "a folder, or a Hugging Face id such as stabilityai/sd-turbo"
            )
        folder = Path(name).expanduser()
        if folder.is_dir():
            return _look_at_folder(folder.resolve())
        if "/" not in name or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            raise OpsmithError(f"{name!r} is neither a folder nor a Hugging Face id", "an id is OWNER/NAME")
        return _look_at_hub(name)

    def add(self, source: str, stopped: Callable[[], bool]) -> Path:
        """The pipeline folder of what `look` found, exported if need be."""
        offer = self.look(source)
        folder = Path(offer.source)
        if offer.exported:
            folder = cached_home(offer.source)
            if not is_pipeline(folder):
                run_opsmith(["export", offer.source, str(folder)], stopped)
        DiffusionApp(folder)  # reads its configs: what cannot be used is told now
        self._keep(folder.resolve())
        return folder.resolve()

    def _kept(self) -> list[Path]:
        try:
            kept = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        return [Path(path) for path in kept if isinstance(path, str)] if isinstance(kept, list) else []

    def _keep(self, folder: Path) -> None:
        kept = list(dict.fromkeys([*map(str, self._kept()), str(folder)]))
        with contextlib.suppress(OSError):  # a full disk costs the memory of it, not its use
            settings.cache_folder("studio")
            partial = self._file.with_name(f".{self._file.name}.{os.getpid()}.tmp")
            partial.write_text(json.dumps(kept, indent=1), encoding="utf-8")
            partial.replace(self._file)


def is_pipeline(folder: Path) -> bool:
    return all((folder / name).is_dir() and store.variants(folder / name) for name in needed(folder))


@functools.lru_cache(maxsize=64)
def _size(folder: Path, changed: int) -> int:
    """Bytes of all files; CHANGED makes it look again."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _look_at_folder(folder: Path) -> Offer:
    if is_pipeline(folder):
        return Offer(str(folder), folder.name, _size(folder, 0), _licence(folder), fetched=False, exported=False)
    if not (folder / "model_index.json").is_file():
        raise OpsmithError(
            f"{folder} is no picture model", "it holds neither exported components nor a model_index.json"
        )
    return Offer(str(folder), folder.name, _size(folder, 0), _licence(folder), fetched=False, exported=True)


def _look_at_hub(name: str) -> Offer:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise OpsmithError("huggingface_hub is not installed", 'pip install ".[export]"') from error
    try:
        info = HfApi().model_info(name, files_metadata=True, timeout=HUB_SECONDS)
    except Exception as error:  # the client raises what its transport raises
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise OpsmithError(
            f"{name} cannot be looked up on the hub: {first[:200]}", "a local folder works too"
        ) from error
    files = {entry.rfilename: entry.size or 0 for entry in info.siblings or []}
    if "model_index.json" not in files:
        raise OpsmithError(f"{name} is no picture model", "it has no model_index.json")
    wanted = sources.pipeline_files(list(files))
    card: Any = info.card_data
    licence = getattr(card, "license_name", None) or getattr(card, "license", None) or UNSTATED
    return Offer(name, name, sum(files[file] for file in wanted), str(licence), fetched=True, exported=True)


def _licence(folder: Path) -> str:
    """As the model card or a licence file says."""
    with contextlib.suppress(OSError):
        card = re.match(r"---\n(.*?)\n---", (folder / "README.md").read_text(encoding="utf-8", errors="replace"), re.S)
        said = card and re.search(r"^license(?:_name)?:\s*(\S.*)$", card[1], re.M)
        if said:
            return str(said[1]).strip().strip("\"'")
    for name in ("LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE"):
        with contextlib.suppress(OSError):
            lines = (folder / name).read_text(encoding="utf-8", errors="replace").split("\n")
            return next((line.strip()[:80] for line in lines if line.strip()), UNSTATED)
    return UNSTATED
