"""FLOPs and bytes moved, per node.

A multiply-add is two operations, an elementwise function one per element, moving data none. Shapes come from ONNX's
shape inference with numbers put in for the symbols; where that ends (custom ops, data-dependent shapes), one run under
ONNX Runtime's profiler tells them. Calls of model-local functions count what their bodies do.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx.inliner
import onnx_ir as ir

from opsmith import bounds, session, store
from opsmith.check import inputs as generate
from opsmith.check.feed import judged_feed
from opsmith.check.inputs import Dims, Fixed
from opsmith.check.op_costs import Shape, is_known, node_flops
from opsmith.check.values import random_inputs
from opsmith.errors import OpsmithError
from opsmith.nodes import operator_name, subgraphs

_Known: TypeAlias = "dict[str, tuple[Shape, int]]"  # value -> (shape, bits per element)


@dataclasses.dataclass(frozen=True)
class NodeCost:
    """What one node of the graph costs. None where its shapes or its op are unknown."""

    name: str
    op: str  # op type, with its domain if it is not ONNX's own
    outputs: tuple[str, ...]
    flops: int | None
    bytes: int | None  # of all inputs and outputs, weights included


@dataclasses.dataclass(frozen=True)
class Cost:
    nodes: tuple[NodeCost, ...]
    dims: Dims  # the numbers used for the symbols
    measured: bool  # shapes come from a run, because inference did not suffice
    note: str | None = None  # why some nodes have no figure

    @property
    def total(self) -> int:
        return sum(node.flops or 0 for node in self.nodes)

    @property
    def unknown(self) -> list[NodeCost]:
        return [node for node in self.nodes if node.flops is None]

    def by_op(self) -> dict[str, tuple[int, int]]:
        """op -> (how many, their FLOPs), the most expensive first."""
        count: collections.Counter[str] = collections.Counter(node.op for node in self.nodes)
        work: collections.Counter[str] = collections.Counter()
        for node in self.nodes:
            work[node.op] += node.flops or 0
        return {op: (count[op], work[op]) for op in sorted(count, key=lambda op: (-work[op], -count[op], op))}


def flops(model: store.ModelLike, dims: Fixed | None = None, *, run: bool = True) -> Cost:
    """The cost of every node of the main graph, in its order.

    DIMS fixes symbols or input shapes; the other symbols get small defaults, reported in the result. RUN allows one
    run of the model where shape inference does not reach.
    """
    opened = store.open_model(model)
    try:
        numbers = generate.default_dims(wanted := generate.specs(opened), dims)
    except OpsmithError:
        if dims:
            raise
        numbers, wanted = {}, []
    proto = _light_proto(model, opened)
    flat, owners = _inline(proto)
    values = _inferred(flat, wanted, numbers)
    costs = _costs(proto, flat, owners, values)
    measured, note = False, None
    shapes = {name: shape for name, (shape, _) in values.items()}
    if run and any(is_known(node) and node_flops(node, shapes) is None for node in flat.graph.node):
        try:
            # other sizes are searched for without a limit of time, which a loop may not end within
            found, used = _measured(model, opened, numbers, free=not dims and not _loops(opened))
            if used != numbers:
                numbers, values = used, _inferred(flat, wanted, used)
            values |= found
            measured = True
            costs = _costs(proto, flat, owners, values)
        except OpsmithError as error:
            note = f"shapes could not be measured: {error}"
    return Cost(tuple(costs), numbers, measured, note)


# --- the graph with its functions inlined, each node knowing which node of the main graph it belongs to ------


def _light_proto(model: store.ModelLike, opened: ir.Model) -> onnx.ModelProto:
    """The model without the bytes of its weights."""
    if isinstance(model, (ir.Model, onnx.ModelProto)):
        proto = ir.serde.serialize_model(opened)
    else:
        proto = store.read_proto(store.find_model(model))
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) > 4096:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
    return proto


def _inline(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, list[int]]:
    """A copy without function calls, and for each of its nodes the index of the node it came from.

    The inliner keeps the order: a call becomes as many nodes as its function has, in one run.
    """
    flat = onnx.inliner.inline_local_functions(proto)
    left = {(f.domain, f.name, f.overload) for f in flat.functions}  # written for another opset
    bodies = {key: f.node for f in proto.functions if (key := (f.domain, f.name, f.overload)) not in left}

    @functools.cache
    def size(call: tuple[str, str, str]) -> int:
        return sum(size((n.domain, n.op_type, n.overload)) for n in bodies[call]) if call in bodies else 1

    owners = [i for i, n in enumerate(proto.graph.node) for _ in range(size((n.domain, n.op_type, n.overload)))]
    for number, node in enumerate(flat.graph.node):
        node.name = f"{owners[number]}/{number}"  # unique, so that the profiler's events can be told apart
        for inner, one in enumerate(_within(node)):
            one.name = f"{node.name}/{inner}"
    return flat, owners


def _within(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The nodes in a node's branches or loop body, and in theirs."""
    for graph in subgraphs(node):
        for inner in graph.node:
            yield inner
            yield from _within(inner)


def _costs(proto: onnx.ModelProto, flat: onnx.ModelProto, owners: Sequence[int], values: _Known) -> list[NodeCost]:
    """Per node of the main graph: what it or, for a call, the body of its function does."""
    shapes = {name: shape for name, (shape, _) in values.items()}
    work: dict[int, list[int | None]] = collections.defaultdict(list)
    for inner, owner in zip(flat.graph.node, owners):
        work[owner].append(node_flops(inner, shapes))
    costs = []
    for index, node in enumerate(proto.graph.node):
        parts = [w for w in work[index] if w is not None]
        counted = sum(parts) if len(parts) == len(work[index]) else None
        op = operator_name(node)
        costs.append(NodeCost(node.name, op, tuple(node.output), counted, _bytes(node, values)))
    return costs


VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size"}  # they move nothing


def _bytes(node: onnx.NodeProto, known: _Known) -> int | None:
    if node.op_type in VIEWS or node.op_type == "Constant":
        return 0
    total = 0
    for name in {n for n in (*node.input, *node.output) if n}:
        if name not in known:
            return None
        shape, bits = known[name]
        total += math.prod(shape) * bits // 8
    return total


# --- shapes -----------------------------------------------------------------------------------------------


def _inferred(proto: onnx.ModelProto, wanted: Sequence[generate.Input], dims: Mapping[str, int]) -> _Known:
    shapes = {spec.name: generate.shape_of(spec, dims) for spec in wanted}
    for value in proto.graph.input:
        if value.name in shapes:
            for dim, number in zip(value.type.tensor_type.shape.dim, shapes[value.name]):
                dim.dim_value = number
    for value in (*proto.graph.value_info, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                value_here = generate.evaluate(dim.dim_param, dims)
                if value_here is not None:
                    dim.dim_value = value_here
    try:
        inferred = bounds.infer_shapes(proto)
    except Exception:  # a stale or wrong value_info; the run below tells the truth
        inferred = proto
    values: _Known = {}
    _collect(inferred.graph, values)
    return values


def _bits(kind: int) -> int:
    """The bits of one element; those of a string are not counted."""
    return ir.DataType(kind).bitwidth if kind != onnx.TensorProto.STRING else 0


def _collect(graph: onnx.GraphProto, values: _Known) -> None:
    for value in (*graph.value_info, *graph.input, *graph.output):
        tensor = value.type.tensor_type
        if tensor.elem_type and tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            values[value.name] = tuple(d.dim_value for d in tensor.shape.dim), _bits(tensor.elem_type)
    for tensor in graph.initializer:
        values[tensor.name] = tuple(tensor.dims), _bits(tensor.data_type)
    for node in graph.node:
        for inner in subgraphs(node):
            _collect(inner, values)


LONGEST_LOOP = 2.0  # seconds; a file of 200 bytes can ask for 2^62 rounds, and the profiler notes each of their nodes


def _loops(model: ir.Model) -> bool:
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    return any(node.op_type in ("Loop", "Scan") for body in bodies for node in body.all_nodes())


_BITS = {"bool": 8, "float16": 16, "bfloat16": 16, "float": 32, "double": 64}
_BITS |= {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (8, 16, 32, 64)}


def _measured(model: store.ModelLike, opened: ir.Model, dims: Dims, free: bool) -> tuple[_Known, Dims]:
    """Each node's output shapes in a run at DIMS; where they do not run and are FREE, at those found to run, returned."""
    try:
        return _profiled(model, opened, random_inputs(opened, dims)), dims
    except OpsmithError:
        judged = judged_feed(model) if free else None
        if judged is None or judged.feed is None:
            raise
        return _profiled(model, opened, judged.feed), {**dims, **judged.dims}


def _profiled(model: store.ModelLike, opened: ir.Model, feed: Mapping[str, Any]) -> _Known:
    """Run once under the profiler, unoptimized, and read each node's output shapes."""
    written: dict[str, list[str]] = {}

    def edit(proto: onnx.ModelProto) -> None:
        flat, _ = _inline(proto)
        proto.CopyFrom(flat)
        nodes = (n for node in proto.graph.node for n in (node, *_within(node)))
        written.update({node.name: [o for o in node.output if o] for node in nodes})

    with store.on_disk(model) as path, tempfile.TemporaryDirectory(prefix="opsmith-flops-") as folder:
        running = session.load(path, optimize=False, profile_prefix=str(Path(folder) / "run"), edit=edit)
        try:
            session.run(running, feed, seconds=LONGEST_LOOP if _loops(opened) else None)
        finally:
            trace = running.end_profiling()
        events = json.loads(Path(trace).read_text(encoding="utf-8"))
    values: _Known = {}
    for event in events:
        name = str(event.get("name", "")).removesuffix("_kernel_time")
        if event.get("cat") != "Node" or name not in written:
            continue
        shapes = [next(iter(entry.items())) for entry in event["args"].get("output_type_shape", [])]
        if len(shapes) == len(written[name]):
            values |= {out: (tuple(s), _BITS.get(kind, 32)) for out, (kind, s) in zip(written[name], shapes)}
    return values
