"""What is in a model: inputs, outputs, opsets, parameters, size, operators and their FLOPs, dynamic dims."""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from opsmith import model_checks, session, store
from opsmith.check.flops import Cost, flops
from opsmith.check.inputs import Dims, Fixed, dim_name
from opsmith.errors import OpsmithError
from opsmith.nodes import operator_name
from opsmith.plain import Shown


@dataclasses.dataclass(frozen=True)
class ValueInfo:
    name: str
    dtype: str
    shape: tuple[int | str, ...] | None  # None: the rank is not declared


@dataclasses.dataclass(frozen=True)
class OpCount:
    op: str
    count: int
    flops: int
    share: float  # of all FLOPs counted


@dataclasses.dataclass(frozen=True, repr=False)
class ModelInfo(Shown):
    """One model."""

    path: str | None
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    opsets: dict[str, int]
    ir_version: int
    producer: str
    functions: tuple[str, ...]
    nodes: int
    parameters: int | None  # None for a compiled model, whose weights are packed
    size: int | None  # bytes on disk, with external data and libraries; None for a model in memory
    external: tuple[str, ...]
    dynamic_dims: dict[str, tuple[str, ...]]  # symbol -> where it appears
    ops: tuple[OpCount, ...]
    flops: int | None  # None: not asked for
    flops_dims: Dims  # the numbers that the FLOPs are for
    flops_measured: bool
    not_counted: tuple[str, ...]  # ops without a figure
    flops_note: str | None  # why, if a run was tried and failed
    record: dict[str, Any]
    kind: str = "model"


@dataclasses.dataclass(frozen=True)
class VariantInfo:
    name: str
    path: str
    verb: str
    parent: str
    size: int
    created: str
    test_sets: int


@dataclasses.dataclass(frozen=True, repr=False)
class FolderInfo(Shown):
    """The variants of a model, or the components of a pipeline with theirs."""

    path: str
    kind: str  # "model folder" or "pipeline"
    variants: dict[str, tuple[VariantInfo, ...]]  # component -> variants; one entry, "", for a model folder
    other: tuple[str, ...] = ()  # components without a model: tokenizer, scheduler ...
    pipeline_class: str = ""


def inspect(
    model: store.ModelLike, *, dims: Fixed | None = None, count_flops: bool = True, run: bool = True
) -> ModelInfo | FolderInfo:
    """Look at a model, or list what a model folder or pipeline folder holds.

    DIMS gives numbers for symbols when counting FLOPs; RUN allows a run where shape inference does not suffice.
    """
    if not isinstance(model, (ir.Model, onnx.ModelProto, store.Variant)) and Path(model).is_dir():
        folder = _folder(Path(model))
        if folder is not None:
            return folder
    return _model(model, dims, count_flops, run)


def _model(model: store.ModelLike, dims: Fixed | None, count_flops: bool, run: bool) -> ModelInfo:
    path = None if isinstance(model, (ir.Model, onnx.ModelProto)) else store.find_model(model)
    info = _graph(store.open_model(model))
    packed = path is not None and store.is_packed(path)  # the graph is inside the library, and so are the weights
    if packed:
        info = dataclasses.replace(info, parameters=None)
    if count_flops and not packed:
        info = _with_flops(info, flops(model, dims, run=run))
    return info if path is None else _with_files(info, path)


def _graph(model: ir.Model) -> ModelInfo:
    """What the graph itself tells: no FLOPs, no files."""
    return ModelInfo(
        path=None,
        inputs=tuple(_value(v) for v in model.graph.inputs if v.name not in model.graph.initializers),
        outputs=tuple(_value(v) for v in model.graph.outputs),
        opsets=dict(sorted(model.opset_imports.items())),
        ir_version=model.ir_version or 0,
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        functions=tuple(sorted({f"{f.domain}.{f.name}" for f in model.functions.values()})),
        nodes=len(model.graph),
        parameters=parameters(model),
        size=None,
        external=(),
        dynamic_dims=_dynamic_dims(model),
        ops=_ops(model),
        flops=None,
        flops_dims={},
        flops_measured=False,
        not_counted=(),
        flops_note=None,
        record={},
    )


def _with_flops(info: ModelInfo, cost: Cost) -> ModelInfo:
    total = cost.total
    shares = ((op, count, work, work / (total or 1)) for op, (count, work) in cost.by_op().items())
    return dataclasses.replace(
        info,
        ops=tuple(OpCount(*share) for share in shares),
        flops=total,
        flops_dims=cost.dims,
        flops_measured=cost.measured,
        not_counted=tuple(sorted({n.op for n in cost.unknown})),
        flops_note=cost.note,
    )


def _with_files(info: ModelInfo, path: Path) -> ModelInfo:
    return dataclasses.replace(
        info,
        path=str(path),
        size=session.size_on_disk(path),
        external=tuple(sorted(f.name for f in model_checks.external_files(path))),
        record=store.read_record(path),
    )


def _value(value: ir.Value) -> ValueInfo:
    dtype = _type_name(value)
    shape = None
    if value.shape is not None:
        shape = tuple(dim_name(d, value.name or "", axis) for axis, d in enumerate(value.shape))
    return ValueInfo(value.name or "", dtype, shape)


def _type_name(value: ir.Value) -> str:
    if value.dtype is None:
        return "unknown"
    element = "string" if value.dtype == ir.DataType.STRING else value.dtype.numpy().name
    return element if isinstance(value.type, ir.TensorType) else f"{type(value.type).__name__} of {element}"


def _dynamic_dims(model: ir.Model) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = collections.defaultdict(list)
    for value in (*model.graph.inputs, *model.graph.outputs):
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int):
                found[str(dim_name(dim, value.name or "", axis))].append(f"{value.name}[{axis}]")
    return {symbol: tuple(places) for symbol, places in found.items()}


def parameters(model: ir.Model) -> int:
    """Elements of all weights. Integers of 32 bits and more are indices and shapes, not weights."""
    graphs = [model.graph, *(f.graph for f in model.functions.values())]
    tensors = [v.const_value for g in graphs for v in g.initializers.values()]
    for node in model.graph.all_nodes():
        if node.op_type == "Constant" and (attribute := node.attributes.get("value")) is not None:
            tensors.append(attribute.value)
    numbers = [t for t in tensors if t is not None and t.dtype != ir.DataType.STRING]
    kept = [t for t in numbers if t.dtype.is_floating_point() or t.dtype.bitwidth < 32]
    return sum(t.size for t in kept)


def _ops(model: ir.Model) -> tuple[OpCount, ...]:
    counts = collections.Counter(operator_name(n) for n in model.graph)
    return tuple(OpCount(op, count, 0, 0.0) for op, count in counts.most_common())


# --- folders ----------------------------------------------------------------------------------------------


def _folder(path: Path) -> FolderInfo | None:
    """None if the folder is a variant or holds a single one."""
    components = {c.name: v for c in _subfolders(path) if (v := store.variants(c) or _single(c))}
    index = path / "model_index.json"
    if index.is_file():
        other = tuple(c.name for c in _subfolders(path) if c.name not in components)
        return FolderInfo(str(path), "pipeline", {n: _rows(v) for n, v in components.items()}, other, _class(index))
    if any(path.glob("*.onnx")):
        return None
    own = store.variants(path)
    if len(own) > 1:
        return FolderInfo(str(path), "model folder", {"": _rows(own)})
    if own or not components:
        return None
    return FolderInfo(str(path), "pipeline", {n: _rows(v) for n, v in components.items()})


def _subfolders(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _single(folder: Path) -> list[store.Variant]:
    """A component folder that is itself a variant: a model.onnx without a variant level."""
    files = sorted(folder.glob("*.onnx"))
    return [store.Variant(files[0])] if len(files) == 1 else []


def _class(index: Path) -> str:
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except ValueError as error:
        raise OpsmithError(f"{index} is not valid JSON: {error}") from error
    return str(content.get("_class_name", "")) if isinstance(content, dict) else ""


def _rows(found: list[store.Variant]) -> tuple[VariantInfo, ...]:
    return tuple(
        VariantInfo(
            name=v.name,
            path=str(v.path),
            verb=str(v.record.get("verb", "")),
            parent=str(v.record.get("parent") or ""),
            size=session.size_on_disk(v.path),
            created=str(v.record.get("created", "")),
            test_sets=len(list(v.folder.glob("test_data_set_*"))),
        )
        for v in found
    )
