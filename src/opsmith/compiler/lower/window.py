"""Sliding windows in plain loops: convolutions whose weights are computed or have 3 spatial dims, their transposes,
Col2Im, LRN. x (N, C, spatial...) -> (N, C', spatial...), all row-major; window.hpp says what each kernel computes."""

from __future__ import annotations

from opsmith.analysis.registry import Node
from opsmith.analysis.values import DataType
from opsmith.analysis.window import Window, col2im_window, conv_window, transposed_window
from opsmith.compiler.kernel import (
    SPACE,
    Kernel,
    Parameter,
    Struct,
    doubles,
    read,
    size,
    sizes,
    struct,
    value,
    write,
)
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.program import StructValue, View
from opsmith.sizes import ONE, ZERO, Size, as_size, product

WINDOW = Struct("Window", "window.hpp", ("batch", "channels", "in", "out", "kernel", "stride", "pad", "dilation"))


def _kernel(name: str, *parameters: Parameter) -> Kernel:
    return Kernel(name, "window.hpp", [struct("window", WINDOW), *parameters], f"{name.replace('_', ' ')}, plain loops")


_WEIGHTED = (size("outputs"), size("groups"), read("x"), read("weights"), read("bias", like="y"), write("y"))
CONV_PLAIN = _kernel(
    "conv_plain",
    *_WEIGHTED,
    Parameter("x_zero", value("x_zero", "").kind, dtype=DataType.INT64),
    read("w_zero", like="weights"),
    size("w_zeros"),
)
CONV_TRANSPOSED_PLAIN = _kernel("conv_transposed_plain", *_WEIGHTED, SPACE)
COL2IM = _kernel("col2im", read("columns"), write("y"))
LRN = Kernel(
    "lrn",
    "window.hpp",
    [*sizes("batch", "channels", "inner", "size"), *doubles("alpha", "beta", "bias"), read("x"), write("y")],
    "local response normalization",
)


def window_value(window: Window, batch: Size, channels: Size) -> StructValue:
    """Three spatial dims always: missing ones are in front."""
    missing = 3 - len(window.sizes)
    columns = {
        "in": (window.sizes, ONE),
        "out": (window.out, ONE),
        "kernel": (window.kernel, ONE),
        "stride": ([as_size(s) for s in window.strides], ONE),
        "pad": (window.before, ZERO),
        "dilation": ([as_size(d) for d in window.dilations], ONE),
    }
    lists = {name: [fill] * missing + list(values) for name, (values, fill) in columns.items()}
    return StructValue(WINDOW, {"batch": batch, "channels": channels, **lists})


# --- convolutions with computed weights ---


def lower_conv(node: Node, builder: Builder) -> None:
    x, w = builder.inputs(node, 0, 1)
    window, groups = conv_window(node, node.input(0), node.input(1))
    bias = builder.optional(node, 2)
    conv(builder, window, groups, x, w, bias, builder.result(node.ir.outputs[0]))


def conv(
    builder: Builder,
    window: Window,
    groups: int,
    x: View,
    w: View,
    bias: View | None,
    target: View,
    x_zero: View | None = None,
    w_zero: View | None = None,
) -> None:
    """A convolution, also of integers with zero points: one of x; one of w, or one per output."""
    builder.call(
        CONV_PLAIN,
        window=window_value(window, x.dims[0], x.dims[1]),
        outputs=w.dims[0],
        groups=groups,
        x=x,
        weights=w,
        bias=bias,
        y=target,
        x_zero=0 if x_zero is None else x_zero,
        w_zero=w_zero,
        w_zeros=0 if w_zero is None else product(w_zero.dims),
        flops=product(target.dims) * product(w.dims[1:]) * 2,
    )


def lower_transposed(node: Node, builder: Builder) -> None:
    x, w = builder.inputs(node, 0, 1)
    window, groups = transposed_window(node)
    bias = builder.optional(node, 2)
    target = builder.result(node.ir.outputs[0])
    builder.call(
        CONV_TRANSPOSED_PLAIN,
        window=window_value(window, x.dims[0], x.dims[1]),
        outputs=target.dims[1],
        groups=groups,
        x=x,
        weights=w,
        bias=bias,
        y=target,
        workspace=product(target.dims) * 8,
        flops=product(x.dims) * product(w.dims[1:]) * 2,
    )


@lowers("Col2Im")
def _col2im(node: Node, builder: Builder) -> None:
    x = builder.rows(node.ir.inputs[0])
    window, channels = col2im_window(node)
    target = builder.result(node.ir.outputs[0])
    shape = window_value(window, x.dims[0], channels)
    builder.call(COL2IM, window=shape, columns=x, y=target, flops=product(x.dims))


@lowers("LRN")
def _lrn(node: Node, builder: Builder) -> None:
    """Sums over a window of channels."""
    x = builder.rows(node.ir.inputs[0])
    numbers = {a: float(node.attribute(a, d)) for a, d in (("alpha", 0.0001), ("beta", 0.75), ("bias", 1.0))}
    builder.call(
        LRN,
        numbers,
        batch=x.dims[0],
        channels=x.dims[1],
        inner=product(x.dims[2:]),
        size=int(node.attribute("size")),
        x=x,
        y=builder.result(node.ir.outputs[0]),
        flops=product(x.dims) * 8,
    )
