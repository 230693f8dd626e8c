"""NonZero, Compress, NonMaxSuppression: one call counts, then the result has its memory, then another call writes it."""

from __future__ import annotations

from opsmith.analysis.counted import compressed_axis, count_of, most_boxes
from opsmith.analysis.registry import Node
from opsmith.analysis.values import DataType
from opsmith.compiler.kernel import SPACE, Kernel, Space, flag, read, size, size_list, sizes, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.registry import lowers
from opsmith.sizes import as_size, minimum, product

_HEADER = "counted.hpp"
COUNT_SET = Kernel("count_set", _HEADER, [size("total"), read("x")], pool=False, inline=True, counts=True)
NON_ZERO = Kernel(
    "non_zero", _HEADER, [size_list("dims"), size("count"), read("x"), write("y")], pool=False, inline=True
)
COMPRESS = Kernel(
    "compress",
    _HEADER,
    [*sizes("outer", "axis", "inner", "length", "count"), read("condition"), read("x"), write("y")],
    inline=True,
)
SELECT_BOXES = Kernel(
    "select_boxes",
    _HEADER,
    [
        *sizes("batch", "classes", "boxes", "most"),
        flag("centers"),
        *(read(n) for n in ("corners", "scores")),
        read("wanted", dtype=DataType.INT64),
        *(read(n, dtype=DataType.FLOAT) for n in ("overlap", "lowest")),
        write("selected"),
        SPACE,
    ],
    "boxes that no better one covers",
    Space("suppression_workspace", ("batch", "classes", "boxes", "most")),
    inline=True,
    counts=True,
)
TAKE_SELECTED = Kernel("take_selected", _HEADER, [size("count"), read("selected"), write("y")], pool=False, inline=True)


@lowers("NonZero")
def _non_zero(node: Node, builder: Builder) -> None:
    x, count = builder.rows(node.ir.inputs[0]), count_of(node.ir)
    builder.call(COUNT_SET, total=product(x.dims), x=x, binds=count, comment="how many are not 0")
    builder.call(NON_ZERO, dims=x.dims, count=count, x=x, y=builder.result(node.ir.outputs[0]), comment="where")


@lowers("Compress")
def _compress(node: Node, builder: Builder) -> None:
    x, condition = builder.inputs(node, 0, 1)
    axis, count = compressed_axis(node), count_of(node.ir)
    dims = (product(x.dims),) if axis is None else x.dims
    axis = axis or 0
    length = minimum(condition.dims[0], dims[axis])
    builder.call(COUNT_SET, total=length, x=condition, binds=count, comment="how many are wanted")
    builder.call(
        COMPRESS,
        outer=product(dims[:axis]),
        axis=dims[axis],
        inner=product(dims[axis + 1 :]),
        length=length,
        count=count,
        condition=condition,
        x=x,
        y=builder.result(node.ir.outputs[0]),
        comment=f"along axis {axis}",
    )


@lowers("NonMaxSuppression")
def _non_max_suppression(node: Node, builder: Builder) -> None:
    boxes, scores = builder.inputs(node, 0, 1)
    wanted, overlap, lowest = (builder.optional(node, i) for i in (2, 3, 4))
    most, count = most_boxes(node), count_of(node.ir)
    batch, classes, n = scores.dims
    selected = builder.allocate([batch * classes * most, as_size(3)], DataType.INT64, hint="selected")
    builder.call(
        SELECT_BOXES,
        batch=batch,
        classes=classes,
        boxes=n,
        most=most,
        centers=int(node.attribute("center_point_box", 0)) == 1,
        corners=boxes,
        scores=scores,
        wanted=wanted,
        overlap=overlap,
        lowest=lowest,
        selected=selected,
        binds=count,
        comment=f"of {n} boxes and {classes} classes",
    )
    y = builder.result(node.ir.outputs[0])
    builder.call(TAKE_SELECTED, count=count, selected=selected, y=y, comment="copy")
