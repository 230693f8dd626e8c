"""Definitions of the operators that compute on quantized tensors, in MatMulInteger, ConvInteger, QuantizeLinear and DequantizeLinear.

Sums are scaled as ORT does it: by one float, x_scale * w_scale / y_scale, then rounded half to even. See bodies.py.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from opsmith.analysis.values import Abstract, DataType
from opsmith.sizes import product

Inputs = list["Abstract | None"]

_SCALED = """
        whole = Cast <to: int = 1> (sums)
        sa = Cast <to: int = 1> (a_scale)
        sb = Cast <to: int = 1> (b_scale)
        scale = Mul (sa, sb)
"""
_QUANTIZED = """
        sy = Cast <to: int = 1> (y_scale)
        factor = Div (scale, sy)
        scaled = Mul (whole, factor)
        one = Constant <value_float: float = 1.0> ()
        y = QuantizeLinear (scaled, one, y_zero)
"""


def _single(value: Abstract | None) -> bool:
    return value is not None and product(value.dims) == 1


def given(inputs: Inputs, index: int) -> bool:
    return index < len(inputs) and inputs[index] is not None


def attributes(node: ir.Node, *names: str) -> str:
    """The named attributes of a convolution or pool, as ONNX's text has them."""
    texts = []
    for name in names:
        attribute = node.attributes.get(name)
        if attribute is None:
            continue
        if attribute.type == ir.AttributeType.INTS:
            texts.append(f"{name}: ints = [{', '.join(map(str, attribute.as_ints()))}]")
        elif attribute.type == ir.AttributeType.STRING:
            texts.append(f'{name}: string = "{attribute.as_string()}"')
        else:
            texts.append(f"{name}: {'int' if isinstance(attribute.value, int) else 'float'} = {attribute.value!r}")
    return f"<{', '.join(texts)}>" if texts else ""


# --- products ---


def qlinear_matmul(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    if not all(_single(inputs[i]) for i in (1, 2, 6, 7)):
        return None
    return f"""QLinearMatMul (a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero) => (y) {{
        sums = MatMulInteger (a, b, a_zero, b_zero)
        {_SCALED} {_QUANTIZED}
    }}"""


def matmul_integer_to_float(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    """A (..., K) @ B (K, N), both quantized -> float"""
    if not _single(inputs[2]):
        return None
    last = "y = Add (scaled, bias)" if given(inputs, 6) else "y = Identity (scaled)"
    return f"""MatMulIntegerToFloat (a, b, a_scale, b_scale, a_zero, b_zero, bias) => (y) {{
        sums = MatMulInteger (a, b, a_zero, b_zero)
        {_SCALED}
        scaled = Mul (whole, scale)
        {last}
    }}"""


def dynamic_quantize_matmul(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    last = "y = Add (scaled, bias)" if given(inputs, 4) else "y = Identity (scaled)"
    return f"""DynamicQuantizeMatMul (x, b, b_scale, b_zero, bias) => (y) {{
        a, a_scale, a_zero = DynamicQuantizeLinear (x)
        sums = MatMulInteger (a, b, a_zero, b_zero)
        {_SCALED}
        scaled = Mul (whole, scale)
        {last}
    }}"""


def qgemm(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    """alpha * A @ B + C, where C is int32 in units of alpha * a_scale * b_scale; float if there is no y_scale"""
    if not all(_single(inputs[i]) for i in (1, 2)):
        return None
    flags = {a: int(node.attributes[a].value) if a in node.attributes else 0 for a in ("transA", "transB")}
    alpha = float(node.attributes["alpha"].value) if "alpha" in node.attributes else 1.0
    turn = {n: f"Transpose <perm: ints = [1, 0]> ({n})" if flags[f"trans{n}"] else f"Identity ({n})" for n in "AB"}
    bias = "sums = Add (products, C)" if given(inputs, 6) else "sums = Identity (products)"
    last = _QUANTIZED if given(inputs, 7) else "y = Mul (whole, scale)"
    return f"""QGemm (A, a_scale, a_zero, B, plain_scale, b_zero, C, y_scale, y_zero) => (y) {{
        a = {turn["A"]}
        b = {turn["B"]}
        products = MatMulInteger (a, b, a_zero, b_zero)
        {bias}
        alpha = Constant <value_float: float = {alpha!r}> ()
        b_scale = Mul (plain_scale, alpha)
        {_SCALED} {last}
    }}"""


# --- convolution ---


def qlinear_conv(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    x, bias = inputs[0], inputs[8] if len(inputs) > 8 else None
    if x is None or x.rank < 3 or not all(_single(inputs[i]) for i in (1, 2, 6, 7)):
        return None
    if bias is not None and bias.dtype != DataType.INT32:
        return None
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    shape = ", ".join(["-1", *["1"] * (x.rank - 2)])
    add = (
        "spread = Reshape (bias, shape) sums = Add (products, spread)"
        if bias is not None
        else "sums = Identity (products)"
    )
    return f"""QLinearConv (x, a_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias) => (y) {{
        shape = Constant <value_ints: ints = [{shape}]> ()
        products = ConvInteger {attributes(node, *names)} (x, w, x_zero, w_zero)
        {add}
        b_scale = Reshape (w_scale, shape)
        {_SCALED} {_QUANTIZED}
    }}"""


# --- dequantize, compute, quantize ---


def _through_floats(count: int, compute: Callable[[ir.Node], str]) -> Callable[[ir.Node, Inputs, int], str | None]:
    """The first `count` operands come with scale and zero point each; then those of the result."""

    def body(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
        names = ", ".join(f"x{i}, s{i}, z{i}" for i in range(count))
        lines = " ".join(f"f{i} = DequantizeLinear (x{i}, s{i}, z{i})" for i in range(count))
        return f"""{node.op_type} ({names}, y_scale, y_zero) => (y) {{
            {lines}
            result = {compute(node)}
            y = QuantizeLinear (result, y_scale, y_zero)
        }}"""

    return body


def _pool(node: ir.Node) -> str:
    names = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    return f"{node.op_type.removeprefix('QLinear')} {attributes(node, *names)} (f0)"


def _channels_first(
    write: Callable[[ir.Node, Inputs, int], str | None],
) -> Callable[[ir.Node, Inputs, int], str | None]:
    def body(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
        last = node.attributes.get("channels_last")
        return None if last is not None and last.value else write(node, inputs, opset)

    return body


def qlinear_concat(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    count = (len(inputs) - 2) // 3
    names = ", ".join(f"x{i}, s{i}, z{i}" for i in range(count))
    lines = " ".join(f"f{i} = DequantizeLinear (x{i}, s{i}, z{i})" for i in range(count))
    return f"""QLinearConcat (y_scale, y_zero, {names}) => (y) {{
        {lines}
        result = Concat {attributes(node, "axis")} ({", ".join(f"f{i}" for i in range(count))})
        y = QuantizeLinear (result, y_scale, y_zero)
    }}"""


BODIES = {
    ("", "QLinearMatMul"): qlinear_matmul,
    ("", "QLinearConv"): qlinear_conv,
    ("com.microsoft", "MatMulIntegerToFloat"): matmul_integer_to_float,
    ("com.microsoft", "DynamicQuantizeMatMul"): dynamic_quantize_matmul,
    ("com.microsoft", "QGemm"): qgemm,
    ("com.microsoft", "QLinearAdd"): _through_floats(2, lambda node: "Add (f0, f1)"),
    ("com.microsoft", "QLinearMul"): _through_floats(2, lambda node: "Mul (f0, f1)"),
    ("com.microsoft", "QLinearSigmoid"): _through_floats(1, lambda node: "Sigmoid (f0)"),
    ("com.microsoft", "QLinearLeakyRelu"): _through_floats(
        1, lambda node: f"LeakyRelu {attributes(node, 'alpha')} (f0)"
    ),
    ("com.microsoft", "QLinearAveragePool"): _channels_first(_through_floats(1, _pool)),
    ("com.microsoft", "QLinearGlobalAveragePool"): _channels_first(_through_floats(1, _pool)),
    ("com.microsoft", "QLinearConcat"): qlinear_concat,
}
