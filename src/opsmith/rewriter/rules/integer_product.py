"""Product(DequantizeLinear(x), DequantizeLinear(w)) -> Cast(ProductInteger(x, w)) * (x_scale * w_scale)

1. MatMul, of two activations or with a weight that has a scale for all or one per column
2. Gemm with such a weight, whatever its alpha, beta and transB
3. Conv with a weight that has a scale for all or one per output channel

The sum of products of integers is exact, and the scales come out of it: what the graph says in floats, without their rounding.
For the compiler alone, which has integer kernels; ORT finds the pattern by itself and would not know the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.rewriter.passes import weights
from opsmith.rewriter.rule import Site, attribute, input_of, is_op, rank_of, rule, tensor_of

_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


@dataclass(frozen=True)
class Dequantized:
    """The integers behind a dequantized value."""

    q: ir.Value
    zero: ir.Value | None
    scale: np.ndarray[Any, Any]  # float32, of one element or 1-D
    axis: int  # that a scale of several elements runs along


def dequantized(site: Site, value: ir.Value | None) -> Dequantized:
    """What VALUE was dequantized from: bytes, by constant scales of fp32."""
    node = value.producer() if value is not None else None
    if node is None or not is_op(node, "DequantizeLinear"):
        site.miss("an operand is not dequantized")
    q, zero, scale = input_of(node, 0), input_of(node, 2), tensor_of(input_of(node, 1))
    assert q is not None
    site.need(scale is not None and scale.dtype == ir.DataType.FLOAT and len(scale.shape) <= 1, "scales", node)
    site.need(not attribute(node, "block_size", 0), "a scale per block", node)
    zeros = tensor_of(zero)
    site.need(zero is None or zeros is not None, "the zero point is not constant", node)
    dtype = zeros.dtype if zeros is not None else q.dtype
    site.need(dtype in _BYTES, f"{dtype} are not bytes", node)
    assert scale is not None
    return Dequantized(q, zero, np.asarray(scale.numpy(), np.float32), int(attribute(node, "axis", 1)))


def activation(site: Site, value: ir.Value | None) -> Dequantized:
    operand = dequantized(site, value)
    site.need(operand.scale.size == 1, "an activation with a scale per channel")
    return operand


def _sums(site: Site, operator: str, x: Dequantized, w: ir.Value, zero: ir.Value | None, **attributes: Any) -> ir.Value:
    sums = site.op(operator, x.q, w, x.zero, _one_for_all(site, zero), **attributes)
    value: ir.Value = site.op("Cast", sums, to=int(ir.DataType.FLOAT))
    return value


def _one_for_all(site: Site, zero: ir.Value | None) -> ir.Value | None:
    """A zero point per channel that is the same in all: symmetric weights. ORT's ConvInteger takes no other, and the working copy
    has to run there where the parts of a compiled model are compared with it."""
    zeros = tensor_of(zero)
    values = None if zeros is None else zeros.numpy()
    if values is None or values.size < 2 or (values != values.flat[0]).any():
        return zero
    single: ir.Value = site.constant(values.flat[0], values.dtype.type)
    return single


def _scaled(site: Site, sums: ir.Value, scale: np.ndarray[Any, Any]) -> ir.Value:
    value: ir.Value = site.op("Mul", sums, site.constant(scale if scale.size > 1 else scale.reshape(()), np.float32))
    return value


@rule("integer_matmul", "MatMul(DQ(a), DQ(b)) -> Cast(MatMulInteger(a, b)) * scale", roots=("MatMul",))
def integer_matmul(site: Site) -> None:
    a, b = activation(site, input_of(site.root, 0)), dequantized(site, input_of(site.root, 1))
    for side in (a, b):
        site.need((rank_of(side.q) or 0) >= 2, "a vector, or an operand of unknown rank")
    last = (rank_of(b.q) or 0) - 1
    site.need(b.scale.size == 1 or b.axis in (last, -1), "the scales do not run along the columns")
    sums = _sums(site, "MatMulInteger", a, b.q, b.zero)
    site.replace(site.root.outputs[0], _scaled(site, sums, a.scale * b.scale))


@rule("integer_gemm", "Gemm(DQ(a), DQ(b), c) -> Cast(MatMulInteger(a, b)) * scale + c", roots=("Gemm",))
def integer_gemm(site: Site) -> None:
    a, b = activation(site, input_of(site.root, 0)), dequantized(site, input_of(site.root, 1))
    site.need(not attribute(site.root, "transA", 0), "transA")
    transposed = bool(attribute(site.root, "transB", 0))
    site.need(b.scale.size == 1 or b.axis % 2 == (0 if transposed else 1), "the scales do not run along the columns")
    weight = tensor_of(b.q)
    if weight is None:
        site.miss("the weight is not a constant")
    value = b.q
    if transposed:
        name, (n, k) = f"{weight.name or 'weight'}_transposed", weight.shape.numpy()
        value = site.weight(weights.lazy(lambda: weight.numpy().T, weight.dtype, [k, n], name), name)
    sums = _sums(site, "MatMulInteger", a, value, b.zero)
    result = _scaled(site, sums, a.scale * b.scale * np.float32(attribute(site.root, "alpha", 1.0)))
    if (c := input_of(site.root, 2)) is not None:
        if (beta := float(attribute(site.root, "beta", 1.0))) != 1.0:
            c = site.op("Mul", c, site.constant(beta, np.float32))
        result = site.op("Add", result, c)
    site.replace(site.root.outputs[0], result)


@rule("integer_conv", "Conv(DQ(x), DQ(w), b) -> Cast(ConvInteger(x, w)) * scale + b", roots=("Conv",))
def integer_conv(site: Site) -> None:
    x, w = activation(site, input_of(site.root, 0)), dequantized(site, input_of(site.root, 1))
    weight = tensor_of(w.q)
    if weight is None:
        site.miss("the weight is not a constant")
    site.need(w.scale.size == 1 or w.axis == 0, "the scales do not run along the output channels")
    shape = [-1, *[1] * (len(weight.shape) - 2)]
    attributes = {a.name: a.value for a in site.root.attributes.values()}
    sums = _sums(site, "ConvInteger", x, w.q, w.zero, **attributes)
    scale = x.scale * w.scale
    result = _scaled(site, sums, scale.reshape(shape) if scale.size > 1 else scale)
    if (bias := input_of(site.root, 2)) is not None:
        result = site.op("Add", result, site.op("Reshape", bias, site.constant(shape)))
    site.replace(site.root.outputs[0], result)
