"""AffineGrid, DeformConv, MaxUnpool: images read or written where data says."""

from __future__ import annotations

from opsmith.analysis.registry import Node
from opsmith.analysis.values import DataType
from opsmith.analysis.warp import deform_window
from opsmith.compiler.kernel import Kernel, Struct, flag, read, size, size_list, sizes, struct, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.matmul import product_of
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.program import IDENTITY, Epilogue, Let, RowOperand, StructValue, permuted
from opsmith.expressions import ACCUMULATOR, Var
from opsmith.sizes import ONE, as_size, product

AFFINE_GRID = Kernel(
    "affine_grid",
    "warp.hpp",
    [size("batch"), size_list("out"), flag("align_corners"), read("theta"), write("y")],
    "positions of pixels, moved",
)
DEFORM_SHAPE = Struct(
    "DeformShape",
    "warp.hpp",
    (
        *("batch", "channels", "height", "width", "out_height", "out_width", "kernel_h", "kernel_w"),
        *("stride_h", "stride_w", "pad_top", "pad_left", "dilation_h", "dilation_w", "offset_groups"),
    ),
)
DEFORM_COLUMNS = Kernel(
    "deform_columns",
    "warp.hpp",
    [
        struct("shape", DEFORM_SHAPE),
        *(read(n) for n in ("x", "offset")),
        read("mask", dtype=DataType.FLOAT),
        write("y"),
    ],
    "pixels at moved positions, one row per result",
)
MAX_UNPOOL = Kernel(
    "max_unpool",
    "warp.hpp",
    [*sizes("count", "total"), read("x"), read("indices"), write("y")],
    pool=False,
    inline=True,
    check="an index is out of range",
)


@lowers("AffineGrid")
def _affine_grid(node: Node, builder: Builder) -> None:
    theta, y = builder.rows(node.ir.inputs[0]), builder.result(node.ir.outputs[0])
    builder.call(
        AFFINE_GRID,
        batch=theta.dims[0],
        out=y.dims[1:-1],
        align_corners=node.flag("align_corners"),
        theta=theta,
        y=y,
    )


@lowers("DeformConv")
def _deform_conv(node: Node, builder: Builder) -> None:
    """columns (N, OH, OW, G, K) @ w (G, K, O / G) -> (G, N, OH, OW, O / G)"""
    x, w, offset = (builder.dense(builder.as_float(builder.tensor(v))) for v in node.ir.inputs[:3])
    bias, mask = (
        builder.dense(builder.as_float(builder.tensor(node.ir.inputs[i]))) if node.has(i) else None for i in (3, 4)
    )
    window = deform_window(node)
    groups = as_size(int(node.attribute("group", 1)))
    (n, c, h, wide), (o, _, kh, kw) = x.dims, w.dims
    per_group, k = as_size((o.value or 0) // (groups.value or 1)), product(w.dims[1:])
    columns = builder.allocate([n, *window.out, groups, k], DataType.FLOAT, hint="columns")
    parts = as_size(int(node.attribute("offset_group", 1)))
    strides, dilations = ([as_size(v) for v in values] for values in (window.strides, window.dilations))
    fields = [n, c, h, wide, *window.out, kh, kw, *strides, *window.before, *dilations, parts]
    shape = StructValue(DEFORM_SHAPE, dict(zip(DEFORM_SHAPE.fields, fields)))
    builder.call(DEFORM_COLUMNS, shape=shape, x=x, offset=offset, mask=mask, y=columns)
    rows = n * product(window.out)
    epilogue = IDENTITY
    if bias is not None:
        operand = RowOperand("bias", bias, dense=True, row="outer", step=per_group)
        epilogue = Epilogue((operand,), (), (Let("acc", DataType.FLOAT, ACCUMULATOR + Var("bias")),))
    target = builder.allocate([groups, n, *window.out, per_group], DataType.FLOAT, hint="convolved")
    left = columns.with_((groups, rows, k), (k, groups * k, ONE))
    right = w.with_((groups, k, per_group), (per_group * k, ONE, k))
    product_of(builder, left, right, target, rows, per_group, k, groups, epilogue)
    y = builder.result(node.ir.outputs[0])
    split = y.with_((n, groups, per_group, *y.dims[2:]), (y.strides[0], y.strides[1] * per_group, *y.strides[1:]))
    builder.copy_into(permuted(target, (1, 0, 4, 2, 3)), split)


@lowers("MaxUnpool")
def _max_unpool(node: Node, builder: Builder) -> None:
    x, indices = builder.inputs(node, 0, 1)
    y = builder.result(node.ir.outputs[0])
    builder.call(
        MAX_UNPOOL, count=product(x.dims), total=product(y.dims), x=x, indices=indices, y=y, comment="maxima put back"
    )
