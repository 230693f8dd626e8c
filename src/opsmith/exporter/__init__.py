"""`opsmith export`: a Hugging Face model -> a variant folder, proved equal to PyTorch.

    source      id, folder or known config -> a folder in Hugging Face's layout     (source.py)
    family      what graphs it gives, with which inputs and dynamic dims            (diffusion, causal_lm, ...)
    trace       dynamo or torchscript -> ONNX, test data, verification              (trace.py)

torch is imported here and in `training`, nowhere else, and only when an export runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from opsmith import content, progress, store
from opsmith.errors import OpsmithError, no_such
from opsmith.exporter import (
    autoencoder,
    causal_lm,
    diffusion,
    encoder,
    fixed,
    gguf,
    gguf_blocks,
    segmentation,
    seq2seq,
    trace,
)
from opsmith.exporter import dtype as dtypes
from opsmith.exporter import source as sources
from opsmith.exporter.graph import Graph, Part, Plan
from opsmith.plain import Shown

_FAMILIES = (
    (autoencoder.accepts, autoencoder.plan),
    (segmentation.accepts, segmentation.plan),
    (encoder.accepts, encoder.plan),
    (causal_lm.accepts, causal_lm.plan),
    (seq2seq.accepts, seq2seq.plan),
)


@dataclasses.dataclass(frozen=True, repr=False)
class Exported(Shown):
    """What an export wrote: the model or pipeline folder, and its variants."""

    folder: Path
    variants: Sequence[store.Variant]
    remarks: Sequence[str] = ()

    @property
    def max_abs_error(self) -> float:
        return max(float(v.record["verified"]["max_abs_error"]) for v in self.variants)

    def to_dict(self) -> dict[str, object]:
        files = {"folder": self.folder, "variants": list(self.variants)}
        return {**files, "remarks": list(self.remarks), "max_abs_error": self.max_abs_error}


def export(
    source: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    exporter: str = "dynamo",
    random_weights: bool = False,
    seed: int = 0,
    revision: str | None = None,
    opset: int | None = None,
    shapes: fixed.Shapes | None = None,
    task: str | None = None,
    floats: bool = False,
    dtype: str = dtypes.FP32,
    verbose: bool = False,
    overwrite: bool = False,
) -> Exported:
    """Export SOURCE into the model folder DEST, as the variant that bears the exporter's name (and that of DTYPE, if it is not fp32).

    SOURCE is a Hugging Face id, a folder in Hugging Face's layout or a GGUF file. A Stable Diffusion pipeline becomes a
    pipeline folder with a model folder per component. Nothing appears in DEST unless all of it verified.
    OPSET None: the exporter's own. SHAPES fix dynamic dims, as {"sequence": 32} or {"input_ids": (1, 32)}.
    DTYPE "fp16" or "bf16" rounds the weights to it and stores them so; what is computed stays fp32 (dtype.py).
    Weights that a GGUF file has in blocks of 8 or 4 bits stay blocks, unless FLOATS is asked for. TASK is what the model is for, where its type fits several: "feature-extraction", "fill-mask", "text-classification".
    """
    if exporter not in trace.EXPORTERS:
        raise no_such("exporter", exporter, trace.EXPORTERS)
    dtypes.check(dtype)
    _need_torch()
    target = Path(dest)
    options = {"exporter": exporter, "random_weights": random_weights, "seed": seed}
    if revision is not None:
        options["revision"] = revision
    if opset is not None:
        options["opset"] = opset
    if shapes:
        options["shapes"] = dict(shapes)
    if task is not None:
        options["task"] = task
    if floats:
        options["floats"] = floats
    file = Path(source) if Path(source).suffix == ".gguf" and not random_weights else None
    if floats and file is None:
        raise OpsmithError(f"--floats is about the blocks of a GGUF file, and {source} is none", "leave out --floats")
    kept: dict[str, int] = {}  # uses of each kind of blocks
    change = None if file is None or floats else _keep_blocks(file, kept)
    if dtype != dtypes.FP32:
        if change is not None:
            raise OpsmithError(f"--dtype {dtype}: the weights of a GGUF file stay in their blocks", "add --floats")
        options["dtype"], change = dtype, functools.partial(dtypes.store_as, dtype=dtype)
    with (
        trace.quiet(verbose),
        sources.open_source(os.fspath(source), random=random_weights, seed=seed, revision=revision) as opened,
    ):
        plan = _plan(opened, task)
        made: list[Path] = []
        static = _Fixed(shapes or {})
        with contextlib.ExitStack() as drafts:  # all variants move into place at the end, or none does
            for part in plan.parts:
                fixed_part = dataclasses.replace(part, load=_rounded(static.loader(part), dtype))
                made.append(
                    _write_part(
                        fixed_part,
                        target,
                        opened,
                        options,
                        drafts,
                        change=change,
                        verbose=verbose,
                        overwrite=overwrite,
                    )
                )
            static.check()
            _write_files(plan, opened, target)
    told = gguf.remarks(file, kept) if file is not None else []
    variants = [store.Variant(store.find_model(folder)) for folder in made]
    return Exported(target, variants, [*_remarks(plan, target), *told])


def _keep_blocks(file: Path, kept: dict[str, int]) -> Callable[[ir.Model], None]:
    def change(model: ir.Model) -> None:
        kept.update(gguf_blocks.keep(model, file))

    return change


def _rounded(load: Callable[[], Graph], dtype: str) -> Callable[[], Graph]:
    return load if dtype == dtypes.FP32 else lambda: dtypes.round_weights(load(), dtype)


class _Fixed:
    """Fixes dims in each part as it is loaded; at the end, what no part has is the user's mistake."""

    def __init__(self, shapes: fixed.Shapes) -> None:
        self.shapes = shapes
        self.unknown = set(shapes)
        self.dims: set[str] = set()

    def loader(self, part: Part) -> Callable[[], Graph]:
        def load() -> Graph:
            loaded = part.load()
            graph, known = fixed.fix(loaded, self.shapes)
            self.unknown -= known
            self.dims |= {*fixed.dims(loaded), *loaded.inputs}
            return graph

        return load

    def check(self) -> None:
        if self.unknown:
            raise OpsmithError(
                f"--shape: there is no {' or '.join(sorted(self.unknown))}",
                f"there are: {', '.join(sorted(self.dims))}",
            )


def _need_torch() -> None:
    missing = [name for name in ("torch", "transformers", "diffusers") if importlib.util.find_spec(name) is None]
    if missing:
        raise OpsmithError(f"export needs {' and '.join(missing)}", 'pip install ".[export]"')


def _plan(source: sources.Source, task: str | None) -> Plan:
    if source.holds("model_index.json"):
        _check_task(task, (), source.name)
        return diffusion.plan(source)
    config = source.config()
    for accepts, plan in _FAMILIES:
        if accepts(config):
            _check_task(task, _tasks(plan, config), source.name)
            return encoder.plan(source, task) if plan is encoder.plan else plan(source)
    kind = config.get("model_type") or config.get("_class_name") or "of unknown type"
    raise OpsmithError(
        f"{source.name} is {kind}, which export does not know",
        "known: decoders with a KV cache, encoder-decoders such as T5 and Whisper, BERT-type encoders, CLIP, CLIPSeg, Stable Diffusion pipelines and their autoencoders",
    )


def _tasks(plan: Callable[[sources.Source], Plan], config: dict[str, Any]) -> tuple[str, ...]:
    if plan is encoder.plan:
        return encoder.tasks(config)
    return (causal_lm.TASK,) if plan is causal_lm.plan else ()


def _check_task(task: str | None, known: Sequence[str], name: str) -> None:
    if task is None or task in known:
        return
    if not known:
        raise OpsmithError(f"--task {task}: {name} is exported in one way only", "leave out --task")
    near = difflib.get_close_matches(task, known, 1, 0.0)[0]
    raise OpsmithError(
        f"--task {task}: {name} is not exported as that", f"did you mean {near}? known: {', '.join(known)}"
    )


def _write_part(
    part: Part,
    target: Path,
    source: sources.Source,
    options: dict[str, Any],
    drafts: contextlib.ExitStack,
    *,
    change: Callable[[ir.Model], None] | None,
    verbose: bool,
    overwrite: bool,
) -> Path:
    dtype = options.get("dtype")
    folder = target / part.name / f"{options['exporter']}{f'_{dtype}' if dtype else ''}"
    draft = drafts.enter_context(
        store.new_variant(folder, verb="export", parent=source.name, options=options, overwrite=overwrite)
    )
    if part.origin is not None and not source.random:
        draft.record["content"] = content.key_of_folder(source.folder / part.origin)
    with progress.task(f"export {part.name or target.name}") as step:
        trace.write(
            part.load,
            draft,
            exporter=str(options["exporter"]),
            opset=options.get("opset"),
            seed=source.seed,
            verbose=verbose,
            step=step,
            change=change,
        )
    return folder


def _write_files(plan: Plan, source: sources.Source, target: Path) -> None:
    """Configs, tokenizer, scheduler: beside the variants, as Hugging Face has them."""
    jsons = {f"{part.name}/config.json": part.config for part in plan.parts if part.config} | dict(plan.written)
    with tempfile.TemporaryDirectory(prefix=".files.", suffix=".tmp", dir=target) as temporary:
        staged = Path(temporary)  # a full disk shows here, before anything of an earlier export is replaced
        for path, content in jsons.items():
            file = staged / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for copied in plan.copies:
            origin = source.folder / copied
            copy = shutil.copytree if origin.is_dir() else shutil.copyfile
            copy(origin, staged / copied)
        for file in [f for f in staged.rglob("*") if f.is_file()]:
            there = target / file.relative_to(staged)
            there.parent.mkdir(parents=True, exist_ok=True)
            file.replace(there)


def _remarks(plan: Plan, target: Path) -> list[str]:
    if plan.reads_text and not any((target / name).exists() for name in ("tokenizer", *sources.VOCABULARIES)):
        return ["the source has no tokenizer files; pipelines need them beside the model"]
    return []
