"""Quantized tensors: products and convolutions of bytes (gemm_bytes.hpp), and the quantizers that are not elementwise.

QuantizeLinear and DequantizeLinear with one scale are elementwise (ops.py), so what stands around a product (dequantize, bias,
activation, quantize) is its epilogue as with floats. QLinearMatMul, QLinearConv and their kin are made of these (bodies.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from opsmith.analysis.quantized import product_dims, scale_layout, zero_step
from opsmith.analysis.registry import Node
from opsmith.analysis.values import Array, Constant, DataType
from opsmith.analysis.window import ImageWindow, Window, conv_window
from opsmith.compiler import pack
from opsmith.compiler.kernel import EPILOGUE, SPACE, Kernel, Space, Struct, read, size, sizes, struct, write
from opsmith.compiler.lower import window
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.convolution import CONV_SHAPE, Convolution, as_image, channels_last
from opsmith.compiler.lower.fuse import Group, anchored, lower_rest
from opsmith.compiler.lower.products import even_rows, row_stride, rows_kernel, rows_product, with_epilogue
from opsmith.compiler.lower.registry import anchors, lowers
from opsmith.compiler.program import (
    Argument,
    Epilogue,
    StructValue,
    View,
    channels_last_order,
    layout_order,
)
from opsmith.sizes import ZERO, product

SCALE_LAYOUT = Struct(
    "ScaleLayout", "linear_quant.hpp", ("outer", "axis", "inner", "block", "per_outer", "per_axis", "per_inner")
)
_SCALED = [struct("layout", SCALE_LAYOUT), read("x"), read("scales")]
QUANTIZE = Kernel("quantize", "linear_quant.hpp", [*_SCALED, read("zeros", like="y"), write("y")], "quantize linearly")
DEQUANTIZE = Kernel(
    "dequantize", "linear_quant.hpp", [*_SCALED, read("zeros", like="x"), write("y")], "dequantize linearly"
)

DYNAMIC_QUANTIZE = Kernel(
    "dynamic_quantize",
    "linear_quant.hpp",
    [size("count"), read("x"), write("y"), write("scale"), write("zero")],
    "quantize to the range of the data",
)

ROW_ZEROS = Struct("RowZeros", "gemm_bytes.hpp", ("at", "step"), template="at")
_COLUMNS = [read("b", dtype=DataType.INT8), read("b_sums", dtype=DataType.INT32), read("b_zeros", dtype=DataType.INT32)]
GEMM_BYTES = rows_kernel(
    "gemm_bytes",
    "gemm_bytes.hpp",
    [read("a"), size("lda"), struct("a_zero", ROW_ZEROS)],
    _COLUMNS,
    "product of bytes with packed weights",
)
MATMUL_BYTES = Kernel(
    "matmul_bytes",
    "gemm_bytes.hpp",
    [
        *sizes("batch", "m", "n", "k"),
        read("a"),
        *sizes("a_batch", "a_row"),
        struct("a_zero", ROW_ZEROS),
        read("b"),
        *sizes("b_batch", "b_row", "b_col"),
        read("b_zero", like="b"),
        size("b_step"),
        write("c"),
        SPACE,
        EPILOGUE,
    ],
    "product of two tensors of bytes",
    Space("matmul_bytes_workspace", ("batch", "n", "k")),
)


@lowers("QuantizeLinear", "DequantizeLinear")
def _linear(node: Node, builder: Builder) -> None:
    """Those with scales per channel or block, or of half precision; the others are elementwise."""
    x, scales = builder.inputs(node, 0, 1)
    zeros = builder.optional(node, 2)
    builder.call(
        QUANTIZE if node.op == "QuantizeLinear" else DEQUANTIZE,
        layout=StructValue(SCALE_LAYOUT, scale_layout(node)),
        x=x,
        scales=scales,
        zeros=zeros,
        y=builder.result(node.ir.outputs[0]),
        flops=product(x.dims) * 3,
    )


@lowers("DynamicQuantizeLinear")
def _dynamic(node: Node, builder: Builder) -> None:
    x = builder.tensor(node.ir.inputs[0])
    order = layout_order(x)
    x = builder.dense(x, order)
    y, scale, zero = (builder.result(o, order if i == 0 else None) for i, o in enumerate(node.ir.outputs))
    builder.call(DYNAMIC_QUANTIZE, count=product(x.dims), x=x, y=y, scale=scale, zero=zero, flops=product(x.dims) * 6)


# --- products ---


@anchors("MatMulInteger")
def _matmul_integer(node: Node, builder: Builder, group: Group) -> None:
    """(a - za) @ (b - zb), a (..., M, K) and b (K, N) or (..., K, N)"""
    lead, (m, n, k) = product_dims(node, node.input(0), node.input(1))
    weights = node.input(1).constant
    constant = weights is not None and (not node.has(3) or node.input(3).constant is not None)
    a_zero = _row_zeros(node, builder, zero_step(node, 2, m))
    if constant and weights is not None and all(d == 1 for d in weights.dims[:-2]) and a_zero.fields["step"] == ZERO:
        _linear_product(node, builder, group, weights, a_zero)
        return
    a, b = even_rows(builder.tensor(node.ir.inputs[0]), builder), builder.rows(node.ir.inputs[1])
    if product(lead) != 1 and product(lead) == product(a.dims[:-2]):
        a = builder.dense(a)
    a_batch, b_batch = (ZERO if product(v.dims[:-2]) == 1 else v.dims[-2] * v.dims[-1] for v in (a, b))
    count = product(lead)

    def emit(target: View, epilogue: Epilogue) -> None:
        builder.call(
            MATMUL_BYTES,
            batch=count,
            m=m,
            n=n,
            k=k,
            a=a,
            a_batch=a_batch,
            a_row=row_stride(a),
            a_zero=a_zero,
            b=b,
            b_batch=b_batch,
            b_row=n,
            b_col=1,
            b_zero=builder.optional(node, 3),
            b_step=zero_step(node, 3, n),
            c=target,
            epilogue=epilogue,
            comment=with_epilogue(f"{count} x ({m}, {k}) @ ({k}, {n})", epilogue),
            flops=count * m * n * k * 2,
        )

    anchored(node, builder, group, emit, outer=False)


def _row_zeros(node: Node, builder: Builder, step: Argument) -> StructValue:
    return StructValue(ROW_ZEROS, {"at": builder.optional(node, 2), "step": step}, node.input(0).dtype)


def _linear_product(node: Node, builder: Builder, group: Group, weights: Constant, a_zero: StructValue) -> None:
    """a (..., K) @ packed b (K, N): all leading dims together are the rows."""
    a = even_rows(builder.tensor(node.ir.inputs[0]), builder)
    k, n = weights.dims[-2:]
    zero = node.input(3).constant if node.has(3) else None
    rows = product(a.dims[:-1])
    columns = byte_columns(builder, weights.map("matrix", (k, n), lambda w: w.reshape(k, n)), zero)
    given: dict[str, Argument] = {"a": a, "lda": row_stride(a), "a_zero": a_zero, **columns}

    def emit(target: View, epilogue: Epilogue) -> None:
        rows_product(builder, GEMM_BYTES, rows, k, n, given, target, epilogue)

    anchored(node, builder, group, emit)


def byte_columns(builder: Builder, weights: Constant, zero: Constant | None) -> dict[str, Argument]:
    """Weights (K, N) packed, with the sums and zero points of their columns."""
    k, n = weights.dims
    isa = builder.target.isa
    return _columns(
        builder,
        weights,
        zero,
        n,
        -(-k // 4) * 4 * isa.padded(n),
        lambda w: pack.pack_bytes(pack.signed_bytes(w), isa),
        lambda w, zeros: pack.column_sums(pack.signed_bytes(w), zeros),
    )


def _columns(
    builder: Builder,
    weights: Constant,
    zero: Constant | None,
    count: int,
    space: int,
    packed: Callable[[Array], Array],
    sums: Callable[[Array, Array], Array],
) -> dict[str, Argument]:
    key = f"bytes({weights.key}, {zero.key if zero else 0})"

    def read() -> Array:
        return np.ascontiguousarray(weights.read())

    zeros = pack.signed_zeros(None if zero is None else np.asarray(zero.read()), weights.dtype.numpy(), count)
    return {
        "b": builder.packed(key, DataType.INT8, space, lambda: packed(read())),
        "b_sums": builder.packed(f"sums({key})", DataType.INT32, count, lambda: sums(read(), zeros)),
        # symmetric weights need none, and then no sums of x
        "b_zeros": builder.packed(f"zeros({key})", DataType.INT32, count, lambda: zeros) if zeros.any() else None,
    }


# --- convolutions: images lie channels-last, as those of floats (conv.py) ---

CONV_BYTES = Kernel(
    "conv_bytes",
    "conv_bytes.hpp",
    [struct("shape", CONV_SHAPE), read("x"), read("x_zero", like="x"), *_COLUMNS, write("y"), SPACE, EPILOGUE],
    "convolution of bytes as an implicit matrix product",
    Space("conv_bytes_workspace", ("shape",)),
)
DEPTHWISE_BYTES = Kernel(
    "depthwise_bytes",
    "depthwise_bytes.hpp",
    [struct("shape", CONV_SHAPE), read("x"), read("x_zero", like="x"), read("weights"), write("y"), EPILOGUE],
    "depthwise convolution of bytes",
)


@anchors("ConvInteger")
def _conv_integer(node: Node, builder: Builder, group: Group) -> None:
    """x (N, C, H, W) less its zero point, by constant weights (O, C/groups, KH, KW) less theirs"""
    weights, zero = node.input(1).constant, node.input(3).constant if node.has(3) else None
    rank = node.input(0).rank
    slide, groups = conv_window(node, node.input(0), node.input(1))
    pads = [p.value for p in slide.before if p.value is not None and p.value >= 0]
    if weights is None or (node.has(3) and zero is None) or rank not in (3, 4) or len(pads) != rank - 2:
        _conv_plain(node, builder, slide, groups)
        lower_rest(group, builder)
        return
    view = ImageWindow(slide.strides, slide.dilations, pads, slide.out)
    conv = as_image(builder.tensor(node.ir.inputs[0]), weights, view, groups)
    conv = replace(conv, x=channels_last(conv.x, builder))
    x_zero = builder.optional(node, 2)
    given = _depthwise_weights(builder, conv, zero) if conv.depthwise else _conv_columns(builder, conv, zero)

    def emit(target: View, epilogue: Epilogue) -> None:
        builder.call(
            DEPTHWISE_BYTES if conv.depthwise else CONV_BYTES,
            given,
            shape=conv.shape(target, conv.fields()),
            x=conv.x,
            x_zero=x_zero,
            y=target,
            epilogue=epilogue,
            flops=conv.flops(),
            comment=with_epilogue(conv.comment, epilogue),
        )

    anchored(node, builder, group, emit, order=channels_last_order(rank), strided=True)


def _conv_columns(builder: Builder, conv: Convolution, zero: Constant | None) -> dict[str, Argument]:
    o, c, kh, kw = conv.weights.dims
    groups, isa = conv.groups, builder.target.isa
    return _columns(
        builder,
        conv.weights,
        zero,
        o,
        groups * kh * kw * -(-c // 4) * 4 * isa.padded(o // groups),
        lambda w: pack.pack_conv_bytes(w, groups, isa),
        lambda w, zeros: pack.conv_column_sums(w, zeros),
    )


def _depthwise_weights(builder: Builder, conv: Convolution, zero: Constant | None) -> dict[str, Argument]:
    """The weights less their zero points, in 16 bits."""
    weights = conv.weights

    def packed() -> Array:
        zeros = 0 if zero is None else np.asarray(zero.read()).astype(np.int16).reshape(-1, 1, 1, 1)
        return pack.pack_depthwise(np.asarray(weights.read()).astype(np.int16) - zeros)

    key = f"depthwise_bytes({weights.key}, {zero.key if zero else 0})"
    return {"weights": builder.packed(key, DataType.INT16, weights.size, packed)}


def _conv_plain(node: Node, builder: Builder, slide: Window, groups: int) -> None:
    """For computed weights, more spatial dims, or padding that depends on sizes."""
    x, w = builder.inputs(node, 0, 1)
    x_zero, w_zero = builder.optional(node, 2), builder.optional(node, 3)
    window.conv(builder, slide, groups, x, w, None, builder.result(node.ir.outputs[0]), x_zero, w_zero)
