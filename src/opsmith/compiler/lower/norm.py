"""Norms: layer, RMS, group, instance; with and without a residual, with whatever elementwise nodes follow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opsmith.analysis.norm import group_count
from opsmith.analysis.registry import Node
from opsmith.analysis.values import Unsupported
from opsmith.compiler.kernel import EPILOGUE, SPACE, Kernel, Space, read, real, size, sizes, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.fuse import Extra, Group, anchored
from opsmith.compiler.lower.products import even_rows, row_stride
from opsmith.compiler.lower.registry import anchors, lowers
from opsmith.compiler.program import Argument, Epilogue, View, even
from opsmith.expressions import f
from opsmith.sizes import ONE, Size, as_size, product

_X = [*sizes("rows", "cols"), read("x"), size("x_stride")]
_Y = [real("eps"), write("y"), size("y_stride"), EPILOGUE, size("rows_per_outer")]
LAYER_NORM = Kernel("layer_norm", "norm.hpp", [*_X, read("scale"), read("bias", like="scale"), *_Y], "layer norm")
RMS_NORM = Kernel("rms_norm", "norm.hpp", [*_X, read("scale"), *_Y], "rms norm")
_SKIP = [*_X, read("skip"), size("skip_stride"), read("scale")]
_SUM = [real("eps"), write("y"), size("y_stride"), write("sum", like="x"), size("sum_stride")]
SKIP_LAYER_NORM = Kernel("skip_layer_norm", "norm.hpp", [*_SKIP, read("bias"), *_SUM], "skip layer norm")
SKIP_RMS_NORM = Kernel("skip_rms_norm", "norm.hpp", [*_SKIP, *_SUM], "skip rms norm")
_IMAGE = [*sizes("batch", "pixels", "channels", "groups"), read("x")]
_SCALED = [read("scale"), read("bias"), real("eps"), write("y")]
_SPACE = Space("group_norm_workspace", ("batch", "channels", "groups"))
GROUP_NORM_NHWC = Kernel(
    "group_norm_nhwc",
    "norm.hpp",
    [*_IMAGE, *sizes("x_batch", "x_stride"), *_SCALED, *sizes("y_batch", "y_stride"), SPACE, EPILOGUE],
    "group norm",
    _SPACE,
)
GROUP_NORM_NCHW = Kernel("group_norm_nchw", "norm.hpp", [*_IMAGE, *_SCALED, SPACE, EPILOGUE], "group norm", _SPACE)


def _epsilon(node: Node) -> float:
    return float(node.attribute("epsilon", 1e-5))


@anchors("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization", "opsmith::RmsNorm")
def _layer_norm(node: Node, builder: Builder, group: Group) -> None:
    rms = node.op != "LayerNormalization"
    x = builder.tensor(node.ir.inputs[0])
    last = len(x.dims) - 1
    axis = node.axis(len(x.dims)) if node.op != "RmsNorm" else last
    cols = product(x.dims[axis:])
    if axis != last:
        x = builder.dense(x)
        x = x.with_((*x.dims[:axis], cols), (*x.strides[:axis], ONE))
    x = even_rows(x, builder)
    rows = product(x.dims[:-1])
    scales: dict[str, Argument] = {"scale": builder.rows(node.ir.inputs[1])}
    if not rms:
        scales["bias"] = builder.optional(node, 2)

    def emit(target: View, epilogue: Epilogue) -> None:
        builder.call(
            RMS_NORM if rms else LAYER_NORM,
            scales,
            rows=rows,
            cols=cols,
            x=x,
            x_stride=row_stride(x),
            eps=_epsilon(node),
            y=target,
            y_stride=cols,
            epilogue=epilogue,
            rows_per_outer=product(target.dims[1:-1]),
            comment=f"({rows}, {cols})",
            flops=rows * cols * 8,
        )

    # rows that are longer than the last axis have no epilogue by column
    anchored(node, builder, group, emit, apart=axis != last)


@lowers("opsmith::SkipLayerNorm", "opsmith::SkipRmsNorm")
def _skip_norm(node: Node, builder: Builder) -> None:
    rms = node.op == "SkipRmsNorm"
    x, skip = (even_rows(builder.tensor(v), builder) for v in node.ir.inputs[:2])
    scales = {n: builder.rows(node.ir.inputs[i]) for i, n in ((2, "scale"), (3, "bias")) if n == "scale" or not rms}
    y = builder.result(node.ir.outputs[0])
    wanted = len(node.ir.outputs) > 1 and (node.ir.outputs[1].uses() or node.ir.outputs[1].is_graph_output())
    total = builder.result(node.ir.outputs[1]) if wanted else None
    cols, rows = x.dims[-1], product(x.dims[:-1])
    builder.call(
        SKIP_RMS_NORM if rms else SKIP_LAYER_NORM,
        scales,
        rows=rows,
        cols=cols,
        x=x,
        x_stride=row_stride(x),
        skip=skip,
        skip_stride=row_stride(skip),
        eps=_epsilon(node),
        y=y,
        y_stride=cols,
        sum=total,
        sum_stride=cols,
        comment=f"({rows}, {cols})",
        flops=rows * cols * 9,
    )


# --- norms over images ---


@anchors("opsmith::GroupNorm", "opsmith::GroupNormSilu", "GroupNormalization", "InstanceNormalization")
def _group_norm(node: Node, builder: Builder, group: Group) -> None:
    x = builder.tensor(node.ir.inputs[0])
    rank = len(x.dims)
    groups = x.dims[1] if node.op == "InstanceNormalization" else as_size(group_count(node))
    scale, bias = (_channel_operand(node, builder, i) for i in (1, 2))
    order = (0, *range(2, rank), 1)
    last = _is_channels_last(x, order)
    if not last:
        x = builder.dense(x)
    batch, channels, pixels = x.dims[0], x.dims[1], product(x.dims[2:])
    silu = node.op == "GroupNormSilu"
    extras = [Extra(lambda acc, _: f.silu(acc))] if silu else []  # belongs to the operator itself
    steps: dict[str, Argument] = {}
    if last:
        steps = {
            "x_batch": x.strides[0],
            "x_stride": _pixel_stride(x),
            "y_batch": pixels * channels,
            "y_stride": channels,
        }
    kernel = GROUP_NORM_NHWC if last else GROUP_NORM_NCHW

    def emit(target: View, epilogue: Epilogue) -> None:
        builder.call(
            kernel,
            steps,
            batch=batch,
            pixels=pixels,
            channels=channels,
            groups=groups,
            x=x,
            scale=scale,
            bias=bias,
            eps=_epsilon(node),
            y=target,
            epilogue=epilogue,
            label=f"{kernel.name}_silu" if silu else kernel.name,
            comment=f"{groups} groups of {channels} channels, {pixels} pixels",
            flops=product(x.dims) * 10,
        )

    anchored(node, builder, group, emit, extras, order=order if last else None, apart=not last)


def _channel_operand(node: Node, builder: Builder, index: int) -> View:
    """Scale or bias per channel; opset 18 gives them per group."""
    fact = node.input(index)
    channels = node.input(0).dims[1]
    if fact.dims == (channels,):
        return builder.rows(node.ir.inputs[index])
    if fact.constant is None or channels.value is None:
        raise Unsupported("scale or bias per group is not constant")
    repeat = channels.value // fact.constant.dims[0]
    return builder.weight(fact.constant.map(f"repeat{repeat}", (channels.value,), lambda a: np.repeat(a, repeat)))


def _is_channels_last(x: View, order: Sequence[int]) -> bool:
    """Channels contiguous, pixels evenly spaced; the batch may have any stride."""
    if x.strides[1] != 1 or all(d == 1 for d in x.dims[2:]):
        return False
    return even([x.strides[a] for a in order[1:-1]], [x.dims[a] for a in order[1:-1]])


def _pixel_stride(x: View) -> Size:
    return next(s for s, d in zip(reversed(x.strides[2:]), reversed(x.dims[2:])) if d != 1)
