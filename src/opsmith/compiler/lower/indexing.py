"""Reading and writing at indices that are data, and small constructions. Indices out of range end the run with an error."""

from __future__ import annotations

from opsmith.analysis.indexing import combination, one_hot_axis, tuples, wanted_count
from opsmith.analysis.registry import Node
from opsmith.analysis.values import DataType
from opsmith.compiler.kernel import Kernel, Parameter, flag, read, size, size_list, sizes, update, value, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.memory import GATHER
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.program import Enumerator, View
from opsmith.sizes import ONE, ZERO, product


def _checked(name: str, *parameters: Parameter) -> Kernel:
    """A kernel that says whether all its indices were in range."""
    return Kernel(name, "indexing.hpp", parameters, pool=False, inline=True, check="an index is out of range")


def _plain(name: str, *parameters: Parameter, pool: bool = True) -> Kernel:
    return Kernel(name, "indexing.hpp", parameters, pool=pool, inline=True)


_AXIS = (size_list("dims"), size_list("picked"), size("axis"))
_SLICES = sizes("count", "width", "inner")
GATHER_ELEMENTS = _checked("gather_elements", *_AXIS, read("data"), read("indices"), write("y"))
SCATTER_ELEMENTS = _checked("scatter_elements", *_AXIS, read("indices"), read("updates"), update("y"))
GATHER_ND = _checked(
    "gather_nd", size_list("dims"), *sizes("batch_dims", "batch"), *_SLICES, read("data"), read("indices"), write("y")
)
SCATTER_ND = _checked("scatter_nd", size_list("dims"), *_SLICES, read("indices"), read("updates"), update("y"))
TENSOR_SCATTER = _checked(
    "tensor_scatter",
    *sizes("batch", "middle", "axis", "steps", "inner"),
    read("update"),
    read("at", dtype=DataType.INT64),
    update("y"),
)
REVERSE_SEQUENCE = _checked(
    "reverse_sequence", *sizes("first", "second", "inner"), flag("batch_first"), read("lengths"), read("x"), write("y")
)
ONE_HOT = _plain(
    "one_hot",
    *sizes("outer", "depth", "inner"),
    read("indices"),
    value("off", like="y"),
    value("on", like="y"),
    write("y"),
)
TOP_K = _plain("top_k", *sizes("outer", "axis", "inner", "k"), read("x"), write("values"), write("indices"))
TRILU = _plain("trilu", *sizes("batch", "rows", "cols", "k"), flag("upper"), read("x"), write("y"))
EYE = _plain("eye", *sizes("rows", "cols", "k"), value("one", like="y"), write("y"), pool=False)


def _scattered(node: Node, builder: Builder, *others: int) -> tuple[View, ...]:
    """What a scatter writes into, as a copy of the data; the data; and its other inputs."""
    data = builder.tensor(node.ir.inputs[0])
    rest = tuple(builder.inputs(node, *others))
    target = builder.result(node.ir.outputs[0])
    builder.copy_into(data, target)
    return target, data, *rest


@lowers("GatherElements")
def _gather_elements(node: Node, builder: Builder) -> None:
    data, indices = builder.inputs(node, 0, 1)
    axis = node.axis(len(data.dims), 0)
    builder.call(
        GATHER_ELEMENTS,
        dims=data.dims,
        picked=indices.dims,
        axis=axis,
        data=data,
        indices=indices,
        y=builder.result(node.ir.outputs[0]),
        comment=f"along axis {axis}",
    )


@lowers("ScatterElements", "Scatter")
def _scatter_elements(node: Node, builder: Builder) -> None:
    target, data, indices, updates = _scattered(node, builder, 1, 2)
    axis = node.axis(len(data.dims), 0)
    builder.call(
        SCATTER_ELEMENTS,
        templates=(Enumerator(f"Combine::{combination(node)}"),),
        dims=data.dims,
        picked=indices.dims,
        axis=axis,
        indices=indices,
        updates=updates,
        y=target,
        comment=f"along axis {axis}",
    )


@lowers("TensorScatter")
def _tensor_scatter(node: Node, builder: Builder) -> None:
    target, cache, update = _scattered(node, builder, 1)
    axis = node.axis(len(cache.dims), -2)
    builder.call(
        TENSOR_SCATTER,
        templates=(node.attribute("mode", "linear") == "circular",),
        batch=cache.dims[0],
        middle=product(cache.dims[1:axis]),
        axis=cache.dims[axis],
        steps=update.dims[axis],
        inner=product(cache.dims[axis + 1 :]),
        update=update,
        at=builder.optional(node, 2),
        y=target,
        comment=f"along axis {axis}",
    )


@lowers("ai.onnx.ml::ArrayFeatureExtractor")
def _array_feature_extractor(node: Node, builder: Builder) -> None:
    x, columns = builder.inputs(node, 0, 1)
    builder.call(
        GATHER,
        outer=product(x.dims[:-1]),
        axis=x.dims[-1],
        inner=ONE,
        data=x,
        count=product(columns.dims),
        indices=columns,
        y=builder.result(node.ir.outputs[0]),
        comment="columns",
    )


@lowers("GatherND")
def _gather_nd(node: Node, builder: Builder) -> None:
    data, indices = builder.inputs(node, 0, 1)
    batch, width = tuples(node, node.input(0), node.input(1))
    count, inner = product(indices.dims[batch:-1]), product(data.dims[batch + width :])
    builder.call(
        GATHER_ND,
        dims=data.dims,
        batch_dims=batch,
        batch=product(data.dims[:batch]),
        count=count,
        width=width,
        inner=inner,
        data=data,
        indices=indices,
        y=builder.result(node.ir.outputs[0]),
        comment=f"{count} slices of {inner}",
    )


@lowers("ScatterND")
def _scatter_nd(node: Node, builder: Builder) -> None:
    target, data, indices, updates = _scattered(node, builder, 1, 2)
    _, width = tuples(node, node.input(0), node.input(1))
    count, inner = product(indices.dims[:-1]), product(data.dims[width:])
    builder.call(
        SCATTER_ND,
        templates=(Enumerator(f"Combine::{combination(node)}"),),
        dims=data.dims,
        count=count,
        width=width,
        inner=inner,
        indices=indices,
        updates=updates,
        y=target,
        comment=f"{count} slices of {inner}",
    )


@lowers("OneHot")
def _one_hot(node: Node, builder: Builder) -> None:
    indices, pair = builder.inputs(node, 0, 2)
    target = builder.result(node.ir.outputs[0])
    axis = one_hot_axis(node)
    off, on = (pair.with_((), (), pair.offset + i) for i in (0, 1))
    builder.call(
        ONE_HOT,
        outer=product(indices.dims[:axis]),
        depth=target.dims[axis],
        inner=product(indices.dims[axis:]),
        indices=indices,
        off=off,
        on=on,
        y=target,
        comment=f"depth {target.dims[axis]}",
    )


@lowers("TopK")
def _top_k(node: Node, builder: Builder) -> None:
    x = builder.rows(node.ir.inputs[0])
    values, indices = (builder.result(o) for o in node.ir.outputs)
    axis, k = node.axis(len(x.dims), -1), wanted_count(node)
    builder.call(
        TOP_K,
        templates=(node.flag("largest", True),),
        outer=product(x.dims[:axis]),
        axis=x.dims[axis],
        inner=product(x.dims[axis + 1 :]),
        k=k,
        x=x,
        values=values,
        indices=indices,
        comment=f"{k} of {x.dims[axis]}",
    )


@lowers("ReverseSequence")
def _reverse_sequence(node: Node, builder: Builder) -> None:
    x, lengths = builder.inputs(node, 0, 1)
    builder.call(
        REVERSE_SEQUENCE,
        first=x.dims[0],
        second=x.dims[1],
        inner=product(x.dims[2:]),
        batch_first=int(node.attribute("batch_axis", 1)) == 0,
        lengths=lengths,
        x=x,
        y=builder.result(node.ir.outputs[0]),
        comment="sequences reversed",
    )


@lowers("Trilu")
def _trilu(node: Node, builder: Builder) -> None:
    x = builder.rows(node.ir.inputs[0])
    upper = node.flag("upper", True)
    builder.call(
        TRILU,
        batch=product(x.dims[:-2]),
        rows=x.dims[-2],
        cols=x.dims[-1],
        k=node.elements(1, "k")[0] if node.has(1) else ZERO,
        upper=upper,
        x=x,
        y=builder.result(node.ir.outputs[0]),
        comment="upper triangle" if upper else "lower triangle",
    )


@lowers("EyeLike")
def _eye_like(node: Node, builder: Builder) -> None:
    y = builder.result(node.ir.outputs[0])
    rows, cols = y.dims
    builder.call(EYE, rows=rows, cols=cols, k=int(node.attribute("k", 0)), one=1, y=y, comment="ones on a diagonal")
