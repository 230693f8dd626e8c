"""Pooling. Images are pooled as they lie, channels-last between convolutions or row-major: x (N, C, spatial...) -> (N, C, spatial...).

pool.hpp has the vectors; positions of maxima and doubles go through the plain loops of window.hpp.
"""

from __future__ import annotations

from opsmith.analysis.registry import Node
from opsmith.analysis.values import DataType
from opsmith.analysis.window import Window, pool_window
from opsmith.compiler.kernel import Kernel, Struct, doubles, flag, read, size_list, struct, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.lower.window import WINDOW, window_value
from opsmith.compiler.program import Enumerator, StructValue, View, channels_last_order, pixel_stride
from opsmith.sizes import ONE, ZERO, Size, product

LAYOUT = Struct("ImageLayout", "images.hpp", ("outer", "inner", "x_outer", "x_pixel", "y_outer", "y_pixel"))
POOL = Kernel(
    "pool_windows",
    "pool.hpp",
    [
        struct("window", WINDOW),
        struct("layout", LAYOUT),
        size_list("after"),
        flag("include"),
        *doubles("power"),
        read("x"),
        write("y"),
    ],
    "pooling",
)
_PLAIN = (struct("window", WINDOW), read("x"), write("y"))
MAX_POOL = Kernel(
    "max_pool", "window.hpp", [*_PLAIN, write("indices", dtype=DataType.INT64), flag("column_major")], "max pooling"
)
AVERAGE_POOL = Kernel(
    "average_pool", "window.hpp", [*_PLAIN, size_list("after"), flag("include")], "average pooling, plain loops"
)
LP_POOL = Kernel("lp_pool", "window.hpp", [*_PLAIN, *doubles("power")], "Lp pooling, plain loops")


@lowers("MaxPool", "AveragePool", "LpPool")
def _pool(node: Node, builder: Builder) -> None:
    pool(node, builder, pool_window(node, node.input(0).dims))


@lowers("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
def _global_pool(node: Node, builder: Builder) -> None:
    sizes = list(node.input(0).dims[2:])  # one window over the whole image
    if len(sizes) > 3:
        sizes = [*sizes[:2], product(sizes[2:])]
    n = len(sizes)
    pool(node, builder, Window(sizes, sizes, [1] * n, [1] * n, [ZERO] * n, [ZERO] * n, [ONE] * n))


def pool(node: Node, builder: Builder, window: Window) -> None:
    x = builder.tensor(node.ir.inputs[0])
    if len(node.ir.outputs) > 1 or x.dtype == DataType.DOUBLE:
        _plain(node, builder, builder.dense(x), window)
        return
    order = None
    if pixel_stride(x) is not None and x.dims[1] != 1:
        order = channels_last_order(len(x.dims))
    else:
        x = builder.dense(x)
    y = builder.result(node.ir.outputs[0], order, strided=order is not None)
    x = builder.as_type(x, y.dtype)
    shape = window_value(window, x.dims[0], x.dims[1])
    kind = node.op.removeprefix("Global")
    builder.call(
        POOL,
        window=shape,
        layout=StructValue(LAYOUT, dict(zip(LAYOUT.fields, _layout(x, y)))),
        after=_after(window),
        include=kind == "AveragePool" and node.flag("count_include_pad"),
        power=float(node.attribute("p", 2)),
        x=x,
        y=y,
        templates=(Enumerator({"MaxPool": "PoolMax", "AveragePool": "PoolAverage", "LpPool": "PoolLp"}[kind]),),
        label=node.op.lower(),
        comment=f"{' x '.join(map(str, window.kernel))} windows of {x.dims[1]} channels",
        flops=product(y.dims) * product(window.kernel),
    )


def _layout(x: View, y: View) -> list[Size]:
    from_pixel, to_pixel = pixel_stride(x), pixel_stride(y)
    if from_pixel is not None and to_pixel is not None and x.dims[1] != 1:
        return [x.dims[0], x.dims[1], x.strides[0], from_pixel, y.strides[0], to_pixel]
    return [x.dims[0] * x.dims[1], ONE, product(x.dims[2:]), ONE, product(y.dims[2:]), ONE]


def _after(window: Window) -> tuple[Size, ...]:
    return tuple([ZERO] * (3 - len(window.after)) + window.after)


def _plain(node: Node, builder: Builder, x: View, window: Window) -> None:
    y = builder.result(node.ir.outputs[0])
    shape = window_value(window, x.dims[0], x.dims[1])
    flops = product(y.dims) * product(window.kernel)
    kind = node.op.removeprefix("Global")
    if kind == "MaxPool":
        indices = builder.result(node.ir.outputs[1]) if len(node.ir.outputs) > 1 else None
        column_major = node.flag("storage_order")
        builder.call(MAX_POOL, window=shape, x=x, y=y, indices=indices, column_major=column_major, flops=flops)
    elif kind == "AveragePool":
        include = node.flag("count_include_pad")
        builder.call(AVERAGE_POOL, window=shape, x=x, y=y, after=_after(window), include=include, flops=flops)
    else:
        builder.call(LP_POOL, window=shape, x=x, y=y, power=float(node.attribute("p", 2)), flops=flops)
