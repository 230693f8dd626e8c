"""Operators that move numbers: Concat, Gather, Pad, Tile, DepthToSpace, SpaceToDepth, BitCast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from opsmith.analysis.indexing import block_size
from opsmith.analysis.pad import fill_of, pads_of
from opsmith.analysis.registry import Node
from opsmith.analysis.values import Abstract
from opsmith.compiler.kernel import SPACE, Kernel, Space, fixed, read, size, size_list, sizes, value, write
from opsmith.compiler.lower.builder import Builder, Place, shape_text
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.program import Argument, Enumerator, View, layout_order, memory_order
from opsmith.sizes import ONE, ZERO, AllOf, Size, apply, as_size, compare, never_negative, product

GATHER = Kernel(
    "gather",
    "memory.hpp",
    [*sizes("outer", "axis", "inner"), read("data"), size("count"), read("indices"), write("y")],
    inline=True,
    check="an index is out of range",
)
PAD = Kernel(
    "pad",
    "remap.hpp",
    [
        *(size_list(n) for n in ("dims", "source_dims", "strides", "begin")),
        fixed("border"),
        read("x"),
        value("fill", like="x"),
        write("y"),
        SPACE,
    ],
    "elements of another tensor, with a border",
    Space("remap_workspace", ("dims",)),
)
COPY_BYTES = Kernel("copy_bytes", "memory.hpp", [write("y"), read("x"), size("count")], pool=False, inline=True)


@lowers("Concat")
def _concat(node: Node, builder: Builder) -> None:
    views = [builder.tensor(v) for v in node.ir.inputs]
    axis = node.axis(len(views[0].dims))
    order = next((o for v in views if (o := layout_order(v)) is not None), None)
    target = builder.begun(node.ir.outputs[0]) or builder.result(node.ir.outputs[0], order, strided=True)
    order = layout_order(target)
    offset = target.offset
    for view in views:
        part = target.with_([*target.dims[:axis], view.dims[axis], *target.dims[axis + 1 :]], target.strides, offset)
        there = view.buffer is part.buffer and view.offset == part.offset
        if view.dims[axis] != 0 and not there:
            builder.copy_into(view, part, order)
        offset = offset + view.dims[axis] * target.strides[axis]


def plan_places(nodes: Iterable[Node], facts: Mapping[ir.Value, Abstract]) -> dict[ir.Value, Place]:
    """Values that a Concat of channels reads can be written in its memory at once, each by the first Concat that wants it; so can
    a value that is only split into some of its inputs, in order."""
    nodes = [n for n in nodes if n.op == "Concat" and n.ir.domain == "" and n.outputs[0].rank > 2]
    places: dict[ir.Value, Place] = {}
    for node in nodes:
        whole, values = node.ir.outputs[0], list(node.ir.inputs)
        if node.axis(node.outputs[0].rank) != 1 or not facts[whole].runs or len(set(values)) < len(values):
            continue
        offset = ZERO
        for i, part in enumerate(values):
            assert part is not None
            for candidate in (_split_into(values[i:]), part):
                if candidate is not None and facts[candidate].runs and facts[candidate].dtype == facts[whole].dtype:
                    places.setdefault(candidate, Place(whole, offset))
            offset = offset + facts[part].dims[1]
    return places


def _split_into(values: Sequence[ir.Value | None]) -> ir.Value | None:
    """The value whose channels these begin with, if they begin with all outputs of a Split."""
    split = values[0].producer() if values[0] is not None else None
    if split is None or split.op_type != "Split" or list(split.outputs) != list(values[: len(split.outputs)]):
        return None
    axis = split.attributes.get("axis")
    return split.inputs[0] if axis is not None and axis.as_int() == 1 else None


@lowers("Gather")
def _gather(node: Node, builder: Builder) -> None:
    value = node.ir.outputs[0]
    axis = node.axis(node.input(0).rank, 0)
    picked = node.input(1).elements
    if picked is not None and len(picked) == 1 and isinstance(picked[0], Size):  # one index: a view
        builder.alias(value, _picked(builder, builder.tensor(node.ir.inputs[0]), axis, picked[0], node.input(1).rank))
        return
    data, indices = builder.inputs(node, 0, 1)
    target = builder.result(value)
    outer, rows, inner = product(data.dims[:axis]), data.dims[axis], product(data.dims[axis + 1 :])
    count = product(indices.dims)
    builder.call(
        GATHER,
        outer=outer,
        axis=rows,
        inner=inner,
        data=data,
        count=count,
        indices=indices,
        y=target,
        comment=f"{count} of {rows} rows of {inner}",
    )


def _picked(builder: Builder, view: View, axis: int, at: Size, kept: int) -> View:
    """One slice along an axis; `kept` dims of size 1 stay in its place."""
    size = view.dims[axis]
    if at.value is not None and at.value < 0:
        at = size + at
    elif not never_negative(at):
        at = apply("from_front", at, size)
    builder.check(AllOf((compare(at, ">=", 0), compare(at, "<", size))), "an index is out of range")
    dims = [*view.dims[:axis], *[ONE] * kept, *view.dims[axis + 1 :]]
    strides = [*view.strides[:axis], *[ONE] * kept, *view.strides[axis + 1 :]]
    return view.with_(dims, strides, view.offset + at * view.strides[axis])


# --- Pad, Tile ---


@lowers("Pad")
def _pad(node: Node, builder: Builder) -> None:
    x = builder.tensor(node.ir.inputs[0])
    mode = node.attribute("mode", "constant")
    fill = fill_of(node) if mode == "constant" else None
    before, _ = pads_of(node, len(x.dims))
    target = builder.result(node.ir.outputs[0], memory_order(x))
    pad(builder, x, target, before, mode, 0.0 if fill is None else fill)


def pad(builder: Builder, x: View, target: View, before: Sequence[Size], mode: str, fill: Argument = 0.0) -> None:
    """The axes in the order of the target's memory, so that an image with its channels last is padded as it lies."""
    order = memory_order(target) or range(len(target.dims))
    builder.call(
        PAD,
        dims=[target.dims[a] for a in order],
        source_dims=[x.dims[a] for a in order],
        strides=[x.strides[a] for a in order],
        begin=[before[a] for a in order],
        border=Enumerator(f"Border::{mode}"),
        x=x,
        fill=fill,
        y=target,
        label=f"pad_{mode}",
        comment=f"{shape_text(target)}, {mode}",
    )


@lowers("Tile")
def _tile(node: Node, builder: Builder) -> None:
    x = builder.tensor(node.ir.inputs[0])
    pad(builder, x, builder.result(node.ir.outputs[0], memory_order(x)), [ZERO] * len(x.dims), "wrap")


# --- DepthToSpace, SpaceToDepth: a copy between two views of rank 6 ---


@lowers("DepthToSpace")
def _depth_to_space(node: Node, builder: Builder) -> None:
    x, b = builder.tensor(node.ir.inputs[0]), as_size(block_size(node))
    target = builder.result(node.ir.outputs[0])
    n, depth, _, _ = target.dims
    h, w = x.dims[2], x.dims[3]
    sn, sc, sh, sw = x.strides
    tn, tc, th, tw = target.strides
    # channel = (row, column, depth) in mode DCR, (depth, row, column) in mode CRD
    if node.attribute("mode", "DCR") == "DCR":
        source = [sn, sc, sh, sc * depth * b, sw, sc * depth]
    else:
        source = [sn, sc * b * b, sh, sc * b, sw, sc]
    dims = [n, depth, h, b, w, b]
    builder.copy_into(x.with_(dims, source), target.with_(dims, [tn, tc, th * b, th, tw * b, tw]))


@lowers("SpaceToDepth")
def _space_to_depth(node: Node, builder: Builder) -> None:
    x, b = builder.tensor(node.ir.inputs[0]), as_size(block_size(node))
    target = builder.result(node.ir.outputs[0])
    n, c = x.dims[:2]
    h, w = target.dims[2:]
    sn, sc, sh, sw = x.strides
    tn, tc, th, tw = target.strides
    dims = [n, b, b, c, h, w]
    # channel = (row, column, depth) in mode DCR, which was the only one before opset 28; (depth, row, column) in mode CRD
    channel = [tc * c * b, tc * c, tc] if node.attribute("mode", "DCR") == "DCR" else [tc * b, tc, tc * b * b]
    builder.copy_into(x.with_(dims, [sn, sh, sw, sc, sh * b, sw * b]), target.with_(dims, [tn, *channel, th, tw]))


@lowers("BitCast")
def _bit_cast(node: Node, builder: Builder) -> None:
    x = builder.rows(node.ir.inputs[0])
    target = builder.result(node.ir.outputs[0])
    builder.call(
        COPY_BYTES,
        y=target,
        x=x,
        count=product(x.dims) * int(x.dtype.itemsize),
        comment=f"the bytes of {x.dtype.name} as {target.dtype.name}",
    )
