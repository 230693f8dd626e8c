"""What one operator costs in floating-point operations, from the shapes of its inputs and outputs.

Conv     y [N,M,...], w [M,C/g,...]   2 * |y| * |w| / M
MatMul   a [...,M,K] @ b [...,K,N]    2 * |y| * K
Einsum   one product of all labels, times the operands
x + y    |y|; moving data costs nothing
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import onnx

from opsmith import ops

Shape: TypeAlias = "tuple[int, ...]"
Shapes: TypeAlias = "Mapping[str, Shape]"  # value name -> shape

_MOVES_DATA = frozenset(
    """
    BitCast Cast CastLike Compress Concat ConcatFromSequence Constant ConstantOfShape DepthToSpace Dropout Expand
    EyeLike Flatten Gather GatherElements GatherND Identity NonZero Not OneHot Optional OptionalGetElement
    OptionalHasElement Pad RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range ReorderInput
    ReorderOutput Reshape ReverseSequence Scatter ScatterElements ScatterND SequenceAt SequenceConstruct
    SequenceEmpty SequenceInsert SequenceLength Shape Size Slice SpaceToDepth Split SplitToSequence Squeeze
    TensorScatter Tile Transpose Trilu Unique Unsqueeze
    """.split()
)
# one operation per element of the output, besides the rows of ops.py
_ONE_EACH = frozenset("Bernoulli CumSum GridSample Resize TopK Upsample".split())
# operations per element of the output -> ops
_DEARER = {
    1: "Hardmax BiasDropout",
    2: "Silu Swish BatchNormalization Affine",
    3: "Elu Celu Selu LpNormalization RotaryEmbedding DynamicQuantizeLinear",
    4: "QuickGelu HardSwish Mish",
    5: "Gelu Softmax SimplifiedLayerNormalization RMSNormalization",
    6: "BiasGelu LogSoftmax SkipSimplifiedLayerNormalization MeanVarianceNormalization LRN BiasSoftmax",
    8: "FastGelu LayerNormalization GroupNormalization InstanceNormalization",
    9: "SkipLayerNormalization",
    10: "EmbedLayerNormalization",
}
_PER_OUTPUT = {op: operations for operations, ops in _DEARER.items() for op in ops.split()}
# one operation per element of the input
_REDUCES = {"ArgMax", "ArgMin", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"}
# a matrix product [..., M, K] @ [..., K, N]; the first operand is input 0
_MATMUL = """
    MatMul MatMulInteger QLinearMatMul FusedMatMul MatMulIntegerToFloat DynamicQuantizeMatMul MatMulNBits MatMulBnb4
""".split()
# where the weight is among the inputs
_CONV = {"Conv": 1, "FusedConv": 1, "ConvInteger": 1, "NhwcFusedConv": 1, "DeformConv": 1, "QLinearConv": 3}
_GEMM = {"Gemm", "FusedGemm", "QGemm"}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

_DOMAINS = ("", "ai.onnx", "com.microsoft")  # of the ops that are known here


def is_known(node: onnx.NodeProto) -> bool:
    """Whether missing shapes alone can keep its cost from being known."""
    return node.domain in _DOMAINS or (node.domain, node.op_type) in ops.TABLE


def node_flops(node: onnx.NodeProto, shapes: Shapes) -> int | None:
    """The FLOPs of a node; None if the op is not known or one of the shapes it takes is missing."""
    if not is_known(node):
        return None
    op, row = node.op_type, (node.domain.removeprefix("ai.onnx"), node.op_type)
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.ref_attr_name}
    try:
        if op in ("If", "Loop", "Scan", "SequenceMap"):
            return _subgraphs(attributes, shapes)
        if op in _MOVES_DATA:
            return 0
        if op in _PER_OUTPUT:
            return _PER_OUTPUT[op] * math.prod(shapes[node.output[0]])
        if op in _ONE_EACH or row in ops.TABLE or row in ops.QUANTIZERS:
            return math.prod(shapes[node.output[0]])
        if op in _REDUCES or op.startswith("Reduce"):
            return math.prod(shapes[node.input[0]])
        if op in ("AveragePool", "MaxPool", "LpPool"):
            return math.prod(shapes[node.output[0]]) * math.prod(int(k) for k in attributes["kernel_shape"])
        return _products(node, attributes, shapes)
    except (KeyError, IndexError, ValueError):  # a shape or attribute is missing, or of another rank
        return None


def _subgraphs(attributes: Mapping[str, Any], shapes: Shapes) -> int | None:
    """A branch costs what the dearer of those whose shapes are known does; a loop's body is counted once, its trips are
    not known here."""
    branches = []
    for graph in (a for a in attributes.values() if isinstance(a, onnx.GraphProto)):
        parts = [node_flops(node, shapes) for node in graph.node]
        branches.append(None if None in parts else sum(p for p in parts if p is not None))
    known = [b for b in branches if b is not None]
    return max(known) if known else None if branches else 0


def _products(node: onnx.NodeProto, attributes: Mapping[str, Any], shapes: Shapes) -> int | None:
    """Everything that multiplies and adds."""
    op = node.op_type
    ins: Callable[[int], Shape] = lambda i: shapes[node.input[i]]  # noqa: E731
    result = shapes[node.output[0]]
    with_bias = len(node.input) > 2 and not op.startswith("Q") and op != "ConvInteger"
    if op in _CONV:
        weight = ins(_CONV[op])  # [out channels, in channels / groups, kernel...]
        return math.prod(result) * (2 * math.prod(weight[1:]) + with_bias)
    if op == "ConvTranspose":  # each input element meets a weight [out channels / groups, kernel...]
        return 2 * math.prod(ins(0)) * math.prod(ins(1)[1:]) + with_bias * math.prod(result)
    if op in _GEMM:
        depth = ins(0)[0] if attributes.get("transA", 0) else ins(0)[1]
        return math.prod(result) * (2 * depth + with_bias)
    if op in _MATMUL:
        a = ins(0)
        depth = a[-2] if attributes.get("transA", 0) and len(a) > 1 else a[-1]
        return 2 * math.prod(result) * depth
    if op == "Einsum":
        return _einsum(attributes["equation"].decode(), [ins(i) for i in range(len(node.input))])
    if op in ("Attention", "MultiHeadAttention", "GroupQueryAttention"):
        return _attention(node, attributes, shapes)
    if op in _GATES:
        length, batch, width = ins(0)  # x [seq, batch, input], w [directions, gates * hidden, input]
        directions, rows, _ = ins(1)
        return 2 * directions * length * batch * rows * (width + rows // _GATES[op])
    return None


def _einsum(equation: str, shapes: Sequence[Shape]) -> int:
    """Every label once; a multiplication per further operand, and an addition where a label is summed over."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for term, shape in zip(left.split(","), shapes):
        before, dots, after = term.partition("...")
        labels = list(before)
        if dots:  # dims under the dots are named from the right, as broadcasting aligns them
            extra = len(shape) - len(before) - len(after)
            labels += [f".{extra - i}" for i in range(extra)] + list(after)
        for label, size in zip(labels, shape):
            sizes[label] = max(size, sizes.get(label, 1))
    kept = right if arrow else "".join(c for c in left if left.count(c) == 1)
    summed = any(len(label) == 1 and label not in kept for label in sizes)
    return math.prod(sizes.values()) * (len(shapes) - 1 + summed)


def _attention(node: onnx.NodeProto, attributes: Mapping[str, Any], shapes: Shapes) -> int:
    """q k^T and p v, two operations per multiply-add, and five per score for the softmax."""
    q, result = shapes[node.input[0]], shapes[node.output[0]]
    present = shapes[node.output[1]] if len(node.output) > 1 and node.output[1] else None
    heads = attributes.get("num_heads", attributes.get("q_num_heads", 1))
    projection = 0
    if len(q) == 4:  # q [B,H,S,D], out [B,H,S,Dv]
        batch, heads, length, _ = q
        width, value_width = heads * q[-1], heads * result[-1]
    else:  # q [B,S,H*D], or packed with k and v; out [B,S,H*Dv]
        batch, length, value_width = q[0], q[1], result[-1]
        packed = len(node.input) < 2 or not node.input[1]
        width = value_width if packed or node.op_type == "Attention" else q[-1]
    if node.op_type == "Attention" and node.domain == "com.microsoft":  # first x [B,S,C] @ w [C, 3 * hidden]
        projection = 2 * batch * length * math.prod(shapes[node.input[1]])
        keys = length
    else:
        k = shapes[node.input[1]] if len(node.input) > 1 and node.input[1] else q
        keys = k[-2] if len(k) == 4 else k[1]
    if present is not None:  # past and new keys together: [..., T, D]
        keys = max(keys, present[-2])
    score_work = 2 * (width + value_width) + 5 * int(heads)
    return projection + batch * length * keys * score_work
