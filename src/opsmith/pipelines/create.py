"""The one-call form: export, compile (both cached) and run.

app = opsmith.create_stable_diffusion("stabilityai/stable-diffusion-2-1", height=512, width=512, search=0)
app.generate_image("prompt", "negative prompt")[0].save("out.png")
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

import opsmith
from opsmith import progress, settings, store
from opsmith._version import __version__
from opsmith.errors import OpsmithError
from opsmith.pipelines import homes
from opsmith.pipelines.diffusion import DiffusionApp, Generated
from opsmith.pipelines.diffusion.parts import components
from opsmith.pipelines.diffusion.split import write_pieces


class StableDiffusion(DiffusionApp):
    """A DiffusionApp with a size of its own."""

    height: int | None = None
    width: int | None = None

    def generate_image(
        self, prompt: str | Sequence[str], negative_prompt: str | Sequence[str] = "", **options: Any
    ) -> list[Image.Image]:
        """Pictures; OPTIONS are those of `generate`, or diffusers' words for them."""
        return self(prompt, negative_prompt=negative_prompt, **options).images

    def __call__(self, prompt: str | Sequence[str] = "", **words: Any) -> Generated:
        return super().__call__(prompt, **{"height": self.height, "width": self.width, **words})


def create_stable_diffusion(
    source: str | os.PathLike[str],
    *,
    height: int | None = None,
    width: int | None = None,
    search: int = 0,
    regions: str = "auto",
    precision: str | None = None,
    folder: store.PathLike | None = None,
    threads: int | None = None,
    low_memory: bool = False,
    pieces: bool = False,
    kernel_search_space: int | None = None,
) -> StableDiffusion:
    """SOURCE is a Hugging Face id, a folder in its layout (both need torch, once), or an exported pipeline folder.

    What is made is kept in FOLDER, by default in the cache folder under a key of the source; a second call only loads it.
    PIECES compiles the UNet's pieces too, for the savings and `fast` (see docs/imagine.md); it takes as much time and disk again.
    KERNEL_SEARCH_SPACE is the older word for SEARCH.
    """
    search = search if kernel_search_space is None else kernel_search_space
    given = Path(source)
    if (given / "unet").is_dir() and store.variants(given / "unet"):
        if folder is not None and Path(folder).absolute() != given.absolute():
            raise OpsmithError(f"{given} is exported already and is compiled where it is", "leave folder= away")
        home = given
    else:
        home = Path(folder) if folder is not None else cached_home(source)
        if not (home / "model_index.json").is_file():
            _make(source, home, shared=folder is None)
    compile_components(home, search=search, regions=regions, precision=precision)
    if pieces:
        names = [folder.name for folder in write_pieces(home)]
        compile_components(home, names, search=search, precision=precision)  # what depends on the prompt is no whole
    app = StableDiffusion(home, threads=threads, low_memory=low_memory)
    app.height, app.width = height, width
    return app


def _make(source: str | os.PathLike[str], home: Path, *, shared: bool) -> None:
    """Export SOURCE into HOME; SHARED: unless the cache has its components already, from whoever."""
    root = Path(source)
    keys = homes.keys_of_source(root) if shared and (root / "model_index.json").is_file() else None
    found = homes.find(homes.cache(), keys) if keys else None
    if found is not None and (found / "vae_encoder").is_dir():
        homes.view(found, root, home)
    else:
        opsmith.export(source, home)


def compile_components(
    home: Path,
    names: Sequence[str] | None = None,
    *,
    search: int = 0,
    regions: str = "auto",
    precision: str | None = None,
) -> None:
    """Each of the NAMES, or every component, gets a compiled variant, unless it has one for this search level and precision."""
    names = components(home) if names is None else names
    wanted = {"search": search, "regions": regions, "precision": settings.get(precision=precision).precision}
    with progress.task("compile", total=len(names)) as step:
        for name in names:
            step(name)
            if not (home / name).is_dir():
                continue
            found = store.variants(home / name)
            plain = [v for v in found if v.record.get("verb") != "compile"]
            if not plain:
                continue
            dest = home / name / f"{plain[-1].name}_compiled"
            made = store.read_record(dest / "model.onnx").get("options") or {}
            if {k: made.get(k, "fp32" if k == "precision" else None) for k in wanted} != wanted:
                opsmith.compile(plain[-1], dest, search=search, regions=regions, precision=precision)


def cached_home(source: str | os.PathLike[str]) -> Path:
    """Where the pipeline that is exported from SOURCE is kept."""
    return homes.cache() / _key(source)


def _key(source: str | os.PathLike[str]) -> str:
    """Of the source's name and, for a folder, the names, sizes and times of its files."""
    digest = hashlib.sha256(f"{__version__} {os.fspath(source)}".encode())
    root = Path(source)
    if root.is_dir():
        for file in sorted(f for f in root.rglob("*") if f.is_file()):
            stat = file.stat()
            digest.update(f"{file.relative_to(root)} {stat.st_size} {stat.st_mtime_ns}".encode())
    return f"{Path(os.fspath(source)).name}-{digest.hexdigest()[:16]}"
