"""quantize for a whole pipeline: every component by itself, with its quality; tokenizers, scheduler and configs come along.

PIPELINE/unet/dynamo  ->  DEST/unet/dynamo_int8

Of each component the newest variant is taken whose weights are still floats (fp32, or stored as fp16); compiled ones are passed over.
A component that has nothing to make smaller is copied as it is, and said. DEST is there whole, or not at all.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from opsmith import progress, store
from opsmith.compress.quantize import NothingSmaller, QuantizeResult, quantize, short_name
from opsmith.errors import OpsmithError
from opsmith.plain import Shown

INDEX = "model_index.json"


@dataclasses.dataclass(frozen=True, repr=False)
class PipelineResult(Shown):
    folder: Path
    components: dict[str, QuantizeResult]
    kept: dict[str, str]  # components that are copied as they are -> why


def is_pipeline(folder: store.ModelLike) -> bool:
    return isinstance(folder, (str, os.PathLike)) and (Path(folder) / INDEX).is_file()


def quantize_pipeline(
    src: store.PathLike, dest: store.PathLike, *, method: str = "weight-only", overwrite: bool = False, **options: Any
) -> PipelineResult:
    """OPTIONS are those of `quantize`."""
    if options.get("shapes"):
        raise OpsmithError(
            "a shape is one model's, and a pipeline has several", f"quantize {src}'s components one by one"
        )
    source, target = Path(src), Path(dest)
    chosen = {name: _source(source / name) for name in components(source)}
    if not chosen:
        raise OpsmithError(f"{source} is not exported: its components have no variants", "opsmith export makes them")
    if target.exists() and not overwrite:
        raise OpsmithError(f"{target} exists already", "choose another place, or --overwrite")
    if target.resolve() in (source.resolve(), *source.resolve().parents):
        raise OpsmithError(f"{target} holds the pipeline itself", "choose another place")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        draft = Path(temporary) / target.name
        shutil.copytree(source, draft, ignore=lambda folder, names: _variant_names(Path(folder), names))
        made: dict[str, QuantizeResult] = {}
        kept: dict[str, str] = {}
        with progress.task("quantize", total=len(chosen)) as step:
            for name, variant in chosen.items():
                step(name)
                home = draft / name
                try:
                    place = home / f"{variant.name}_{short_name(method, options)}"
                    made[name] = quantize(variant, place, method=method, **options)
                except NothingSmaller as error:
                    shutil.copytree(variant.folder, home / variant.name)
                    kept[name] = error.message
        if not made:
            raise OpsmithError(f"{source} has nothing that {method} quantization could make smaller")
        if target.exists():
            shutil.rmtree(target)
        draft.rename(target)
    moved = {
        name: dataclasses.replace(result, variant=store.Variant(target / result.variant.path.relative_to(draft)))
        for name, result in made.items()
    }
    return PipelineResult(target, moved, kept)


def components(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir() if f.is_dir() and store.variants(f))


def _variant_names(folder: Path, names: list[str]) -> set[str]:
    """Of a component everything but its variants is copied."""
    return {v.name for v in store.variants(folder)} & set(names)


def _source(folder: Path) -> store.Variant:
    floats = [
        v
        for v in store.variants(folder)
        if not store.libraries(v.path)
        and (v.record.get("verb") != "quantize" or (v.record.get("options") or {}).get("method") == "fp16")
    ]
    if not floats:
        raise OpsmithError(f"{folder} has no variant with float weights", "quantize the variant it was made from")
    return floats[-1]
