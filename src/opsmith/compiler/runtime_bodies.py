"""Definitions of the operators that ONNX Runtime's own optimizer writes into BERT, GPT, Whisper and CNNs, in standard operators.

Products, convolutions and norms with what follows them; attention_bodies.py has the attentions. See bodies.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from opsmith.analysis.values import DataType
from opsmith.compiler.body_text import constant, integer, ints, is_asked, operand, real
from opsmith.compiler.quantized_bodies import Inputs, attributes, given
from opsmith.rewriter.rule import attribute


def _turned(rank: int, trans: bool, batch: bool) -> list[int]:
    """How an operand of FusedMatMul is transposed: BATCH moves the first axis behind the batch, TRANS turns the last two."""
    order = [*range(1, rank - 1), 0, rank - 1] if batch else list(range(rank))
    return [*order[:-2], order[-1], order[-2]] if trans else order


# --- products and convolutions with what follows them ---

_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "ThresholdedRelu", "HardSigmoid", "Softplus", "Softsign")
_PARAMETERS = ("alpha", "beta")


def _activated(name: str, parameters: Sequence[float]) -> str | None:
    """y = activation (sum), in ONNX's text; None for one that is not known."""
    if not name:
        return "y = Identity (sum)"
    if name == "Clip" and len(parameters) == 2:
        low, high = (constant(n, p, DataType.FLOAT) for n, p in zip(("low", "high"), parameters))
        return f"{low} {high} near = CastLike (low, sum) far = CastLike (high, sum) y = Clip (sum, near, far)"
    if name == "HardSwish" and not parameters:
        return "y = HardSwish (sum)"
    if name not in _ACTIVATIONS or len(parameters) > len(_PARAMETERS):
        return None
    texts = ", ".join(f"{n}: float = {p!r}" for n, p in zip(_PARAMETERS, parameters))
    return f"y = {name} {f'<{texts}>' if texts else ''} (sum)"


def fused_matmul(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    """alpha * A @ B, each turned first"""
    a, b = operand(inputs, 0), operand(inputs, 1)
    if a is None or b is None:
        return None
    lines = []
    for name, value in (("A", a), ("B", b)):
        turn, batch = bool(integer(node, f"trans{name}")), bool(integer(node, f"transBatch{name}"))
        order = _turned(value.rank, turn, batch) if value.rank > 1 else [0]
        plain = order == list(range(value.rank))
        perm = f"<perm: ints = [{', '.join(map(str, order))}]>"
        lines.append(f"{name.lower()} = " + (f"Identity ({name})" if plain else f"Transpose {perm} ({name})"))
    alpha = real(node, "alpha", 1.0)
    if alpha == 1.0:
        lines.append("y = MatMul (a, b)")
    else:
        lines += ["product = MatMul (a, b)", constant("alpha", alpha, a.dtype), "y = Mul (product, alpha)"]
    return f"{node.op_type} (A, B) => (y) {{ {' '.join(lines)} }}"


def fused_gemm(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    named = [node.attributes.get(f"activation_{p}") for p in ("alpha", "beta", "gamma")]
    parameters = [float(p.value) for p in named if p is not None]
    end = _activated(str(attribute(node, "activation", "")), parameters)
    if end is None:
        return None
    names = "A, B, C" if given(inputs, 2) else "A, B"
    options = attributes(node, "alpha", "beta", "transA", "transB")
    return f"FusedGemm ({names}) => (y) {{ sum = Gemm {options} ({names}) {end} }}"


def fused_conv(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    """activation(Conv(x, w, b) + z)"""
    parameters = [float(p) for p in attribute(node, "activation_params", ())]
    end = _activated(str(attribute(node, "activation", "")), parameters)
    if end is None:
        return None
    options = attributes(node, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    names = "x, w, b" if given(inputs, 2) else "x, w"
    residual = "sum = Add (product, z)" if given(inputs, 3) else "sum = Identity (product)"
    return f"FusedConv (x, w, b, z) => (y) {{ product = Conv {options} ({names}) {residual} {end} }}"


# --- norms ---


def skip_layer_norm(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    """LayerNormalization(x + skip + bias), and the sum itself as the fourth output; simplified: without mean and beta"""
    x, skip = operand(inputs, 0), operand(inputs, 1)
    if x is None or skip is None or skip.rank > x.rank or is_asked(node, 1, 2):
        return None
    simple = node.op_type.startswith("SkipSimplified")
    names = "x, skip, gamma, bias" if simple else "x, skip, gamma, beta, bias"
    biased = given(inputs, 3 if simple else 4)
    total = "both = Add (x, skip) sum = Add (both, bias)" if biased else "sum = Add (x, skip)"
    norm = "SimplifiedLayerNormalization" if simple else "LayerNormalization"
    scales = "gamma, beta" if not simple and given(inputs, 3) else "gamma"
    epsilon = real(node, "epsilon", 1e-12)
    return f"""{node.op_type} ({names}) => (y, mean, deviation, sum) {{
        {total}
        y = {norm} <axis: int = -1, epsilon: float = {epsilon!r}> (sum, {scales})
        mean = Constant <value_float: float = 0.0> ()
        deviation = Constant <value_float: float = 0.0> ()
    }}"""


def embed_layer_norm(node: ir.Node, inputs: Inputs, opset: int) -> str | None:
    """LayerNormalization(words[ids] + positions[0..S] + segments[...]); the number of ones in the mask of each text"""
    if opset < 13 or any(operand(inputs, i) is None for i in (0, 2, 3, 5, 6)):
        return None
    lines = ["w = Gather (words, ids)"]
    if given(inputs, 8):
        lines.append("p = Gather (positions, position_ids)")
    else:
        lines += [ints("zero", 0), ints("one", 1), ints("two", 2), "size = Shape (ids)"]
        lines += ["length = Slice (size, one, two)", "p = Slice (positions, zero, length, zero)"]
    if given(inputs, 1) and given(inputs, 4):
        lines += ["wp = Add (w, p)", "s = Gather (segments, segment_ids)", "sum = Add (wp, s)"]
    else:
        lines.append("sum = Add (w, p)")
    epsilon = real(node, "epsilon", 1e-12)
    lines.append(f"y = LayerNormalization <axis: int = -1, epsilon: float = {epsilon!r}> (sum, gamma, beta)")
    if not is_asked(node, 1):
        lines.append("count = Constant <value_int: int = 0> ()")
    elif given(inputs, 7):
        lines += ["unit = Constant <value_int: int = 1> ()", "whole = Cast <to: int = 7> (mask)"]
        lines += ["kept = Equal (whole, unit)", "ones = Cast <to: int = 6> (kept)", ints("last", 1)]
        lines.append("count = ReduceSum <keepdims: int = 0> (ones, last)")
    else:
        lines += [ints("at", 0), ints("to", 1), "shape = Shape (ids)", "texts = Slice (shape, at, to)"]
        lines += ["none = Constant <value_int: int = 0> ()", "zeros = Cast <to: int = 6> (none)"]
        lines.append("count = Expand (zeros, texts)")
    names = "ids, segment_ids, words, positions, segments, gamma, beta, mask, position_ids"
    return f"EmbedLayerNormalization ({names}) => (y, count, sum) {{ {' '.join(lines)} }}"


BODIES = {
    ("com.microsoft", "FusedMatMul"): fused_matmul,
    ("com.microsoft", "TransposeMatMul"): fused_matmul,
    ("com.microsoft", "FusedGemm"): fused_gemm,
    ("com.microsoft", "FusedConv"): fused_conv,
    ("com.microsoft", "SkipLayerNormalization"): skip_layer_norm,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): skip_layer_norm,
    ("com.microsoft", "EmbedLayerNormalization"): embed_layer_norm,
}
