"""Quantized tensors: QuantizeLinear, DequantizeLinear, and the integer products and convolutions."""

from __future__ import annotations

import numpy as np

from opsmith.analysis.elementwise import broadcast_dims
from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import FLOATS, Abstract, Array, Constant, DataType, Unsupported, abstract
from opsmith.analysis.window import conv_window
from opsmith.sizes import ONE, ZERO, Size, as_size, product

_BYTES = (DataType.INT8, DataType.UINT8)
QUANTIZED = frozenset({*_BYTES, DataType.INT16, DataType.UINT16})

# --- QuantizeLinear, DequantizeLinear ---


def scale_layout(node: Node) -> dict[str, Size]:
    """How scales lie along x (outer, axis, inner): ScaleLayout in linear_quant.hpp."""
    x, scale = node.input(0), node.input(1)
    names = ("outer", "axis", "inner", "block", "per_outer", "per_axis", "per_inner")
    if product(scale.dims) == 1 and scale.rank <= 1:
        return dict(zip(names, (ONE, ONE, x.size, ONE, ZERO, ZERO, ZERO)))
    axis = node.axis(x.rank, 1)
    outer, size, inner = product(x.dims[:axis]), x.dims[axis], product(x.dims[axis + 1 :])
    block = int(node.attribute("block_size", 0))
    if scale.rank == 1:
        if scale.dims[0] != size:
            raise Unsupported("the scales do not fit the axis")
        return dict(zip(names, (outer, size, inner, ONE, ZERO, ONE, ZERO)))
    if block < 1 or scale.rank != x.rank or size.value is None:
        raise Unsupported("the scales do not fit the tensor")
    blocks = -(-size.value // block)
    if scale.dims != (*x.dims[:axis], as_size(blocks), *x.dims[axis + 1 :]):
        raise Unsupported("the scales do not fit the blocks")
    return dict(zip(names, (outer, size, inner, as_size(block), inner * blocks, inner, ONE)))


def one_scale(node: Node) -> bool:
    """Whether one scale serves the whole tensor and everything is float: then the node is elementwise."""
    x, scale = node.input(0), node.input(1)
    result = node.outputs[0]
    wide = x if node.op == "QuantizeLinear" else result
    narrow = result if node.op == "QuantizeLinear" else x
    return (
        product(scale.dims) == 1
        and scale.rank <= min(1, x.rank)
        and wide.dtype == scale.dtype == DataType.FLOAT
        and narrow.dtype in QUANTIZED
        and (not node.has(2) or node.input(2).rank <= min(1, x.rank))
    )


def _check_zero(node: Node) -> None:
    if node.has(2) and node.input(2).dims != node.input(1).dims:
        if product(node.input(2).dims) == 1 and product(node.input(1).dims) == 1:
            return
        raise Unsupported("zero points and scales differ in shape")


@infers("QuantizeLinear")
def _quantize(node: Node) -> list[Abstract]:
    x = node.input(0)
    wanted = DataType(int(node.attribute("output_dtype", 0))) if node.attribute("output_dtype", 0) else None
    dtype = node.input(2).dtype if node.has(2) else wanted or DataType.UINT8
    if dtype not in QUANTIZED or (x.dtype not in FLOATS and x.dtype != DataType.INT32):
        raise Unsupported(f"QuantizeLinear from {x.dtype.name} to {dtype.name}")
    if node.input(1).dtype not in FLOATS or node.attribute("precision", 0) not in (0, int(DataType.FLOAT)):
        raise Unsupported("a scale or precision other than float")
    _check_zero(node)
    scale_layout(node)
    return [Abstract(dtype, x.dims)]


@infers("DequantizeLinear")
def _dequantize(node: Node) -> list[Abstract]:
    x, scale = node.input(0), node.input(1)
    if x.dtype not in (*QUANTIZED, DataType.INT32) or scale.dtype not in FLOATS:
        raise Unsupported(f"DequantizeLinear of {x.dtype.name}")
    if node.has(2) and node.input(2).dtype != x.dtype:
        raise Unsupported("a zero point of another type")
    _check_zero(node)
    scale_layout(node)
    wanted = int(node.attribute("output_dtype", 0))
    if wanted and DataType(wanted) not in FLOATS:
        raise Unsupported(f"DequantizeLinear to {DataType(wanted).name}")
    dtype = DataType(wanted) if wanted else scale.dtype
    return [Abstract(dtype, x.dims, constant=_dequantized_weight(node, dtype))]


def _dequantized_weight(node: Node, dtype: DataType) -> Constant | None:
    """A constant, dequantized when it is read: a weight is still a weight."""
    x, scale, zero = (node.input(i).constant if node.has(i) else None for i in range(3))
    if x is None or scale is None or (node.has(2) and zero is None) or dtype != DataType.FLOAT:
        return None
    layout = {name: size.value for name, size in scale_layout(node).items()}
    outer, axis, inner, block = (layout[n] or 0 for n in ("outer", "axis", "inner", "block"))

    def spread(values: Array) -> Array:
        """The scales, repeated: one per element of (outer, axis, inner)."""
        if values.size == 1:
            return values.reshape(1, 1, 1)
        if values.ndim == 1:
            return values.reshape(1, -1, 1)
        return np.repeat(values.reshape(outer, -1, inner), block, axis=1)[:, :axis]

    def read() -> Array:
        q = x.read().reshape(outer, axis, inner).astype(np.int64)
        if zero is not None:
            q = q - spread(zero.read().astype(np.int64))
        return (q.astype(np.float32) * spread(scale.read().astype(np.float32))).reshape(x.dims)

    return Constant(f"dequantized({x.key}, {scale.key}, {zero.key if zero else 0})", dtype, x.dims, read)


@infers("DynamicQuantizeLinear")
def _dynamic(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype != DataType.FLOAT:
        raise Unsupported(f"DynamicQuantizeLinear of {x.dtype.name}")
    return [Abstract(DataType.UINT8, x.dims), Abstract(DataType.FLOAT, ()), Abstract(DataType.UINT8, ())]


# --- integer products ---


def product_dims(node: Node, a: Abstract, b: Abstract) -> tuple[list[Size], list[Size]]:
    """Batch dims and (M, N, K) of a product of quantized matrices."""
    if a.dtype not in _BYTES or b.dtype not in _BYTES or a.rank < 2 or b.rank < 2:
        raise Unsupported(f"{node.op} of {a.dtype.name} and {b.dtype.name}, rank {a.rank} and {b.rank}")
    node.expect(a.dims[-1], "==", b.dims[-2], "the inner sizes of the product differ")
    lead = list(broadcast_dims(node, a.dims[:-2], b.dims[:-2]))
    for side in (a, b):
        if product(side.dims[:-2]) != 1 and list(side.dims[:-2]) != lead:
            raise Unsupported("the batch dims broadcast in part")
    return lead, [a.dims[-2], b.dims[-1], a.dims[-1]]


def zero_step(node: Node, index: int, count: Size) -> Size:
    """0 for one zero point, 1 for one per row or column."""
    if not node.has(index) or product(node.input(index).dims) == 1:
        return ZERO
    if product(node.input(index).dims) != count or node.input(index).rank > 2:
        raise Unsupported("the zero points do not fit")
    return ONE


@infers("MatMulInteger")
def _matmul_integer(node: Node) -> list[Abstract]:
    lead, (m, n, _) = product_dims(node, node.input(0), node.input(1))
    zero_step(node, 2, m)
    zero_step(node, 3, n)
    return [abstract(DataType.INT32, [*lead, m, n])]


# --- integer convolutions ---


def _check_conv(node: Node, x: int, w: int, x_zero: int, w_zero: int) -> None:
    a, b = node.input(x), node.input(w)
    if a.dtype not in _BYTES or b.dtype not in _BYTES:
        raise Unsupported(f"{node.op} of {a.dtype.name} and {b.dtype.name}")
    if node.has(x_zero) and product(node.input(x_zero).dims) != 1:
        raise Unsupported("a zero point per channel of the image")
    if node.has(w_zero) and product(node.input(w_zero).dims) not in (ONE, b.dims[0]):
        raise Unsupported("the zero points do not fit the weights")


@infers("ConvInteger")
def _conv_integer(node: Node) -> list[Abstract]:
    _check_conv(node, 0, 1, 2, 3)
    x, w = node.input(0), node.input(1)
    window, _ = conv_window(node, x, w)
    return [abstract(DataType.INT32, [x.dims[0], w.dims[0], *window.out])]
