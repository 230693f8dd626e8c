"""Which products run in less than fp32, and which values may therefore be stored so.

A value that only such products read is stored in their operands' type by the kernel that makes it: they would round it to the same
numbers. Everything else stays in fp32, and a product that finds it so converts it first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from opsmith import ops
from opsmith.analysis.registry import Node, key_of
from opsmith.analysis.resize import whole_factors
from opsmith.analysis.values import DataType
from opsmith.compiler.precision import BF16, FP32, INT8, Precision
from opsmith.compiler.program import Target
from opsmith.nodes import ONNX

MOST_SUMMED = 16384  # numbers of a row that is quantized: most_columns in quantize_rows.hpp
MOST_WORDS = 65536  # products of two bytes that surely fit into a sum of 32 bits
LEAST = 16  # rows and columns of a weight, at least: smaller products cost nothing, and would add an error
_ATTENTION = frozenset(ops.ATTENTIONS)
_NORMS = frozenset(("LayerNormalization", "RmsNorm", "GroupNorm", "GroupNormSilu", "SkipLayerNorm", "SkipRmsNorm"))
_MULTIPLYING = _ATTENTION | {"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN"}
# Operators that give a view of what they read, in whatever type that lies.
VIEWS = frozenset(("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity"))
_PARTS = frozenset(("Split", "Slice"))


def plan_precisions(nodes: Iterable[Node], target: Target) -> dict[ir.Node, Precision]:
    """The products that run in the precision asked for, or in the nearest that they can run in; all others run in fp32."""
    products = [n for n in nodes if _is_product(n)]
    wanted = {n.ir: target.precision_of(n.name) for n in products}
    outer = _outermost(n.ir for n in products) if INT8 in wanted.values() else frozenset()
    for node in products:
        if wanted[node.ir] is INT8 and (not _fits_bytes(node) or (node.ir in outer and not target.chosen(node.name))):
            wanted[node.ir] = BF16
    return {n: p for n, p in wanted.items() if p is not FP32}


def is_depthwise(groups: int, weights: Sequence[int]) -> bool:
    """Whether every channel has a filter of its own: weights (C, 1, ...)."""
    return groups > 1 and tuple(weights[:2]) == (groups, 1)


def _fits_bytes(node: Node) -> bool:
    """Whether there is a kernel of bytes for this product."""
    weights = node.input(1).constant if node.op in ("MatMul", "Gemm", "Conv") else None
    if weights is None:
        return False
    if node.op == "Conv":
        if is_depthwise(node.attribute("group", 1), weights.dims):
            return False
        _, c, *taps = weights.dims
        return len(taps) < 3 and c <= MOST_SUMMED and c * int(np.prod(taps)) <= MOST_WORDS
    return weights.dims[1 if node.attribute("transB", 0) else 0] <= MOST_SUMMED


def settle_winograd(
    precisions: Mapping[ir.Node, Precision], algorithms: Mapping[ir.Node, str]
) -> dict[ir.Node, Precision]:
    """Convolutions that go through Winograd's transform in bf16 instead of bytes: as fast (16.0 to 17.0 ms against 16.8 to 17.2 at 64 px
    x 320, 32 px x 640 and 16 px x 1280 channels, one thread of a Zen 4), and several times more exact."""
    return {n: BF16 if p is INT8 and n in algorithms else p for n, p in precisions.items()}


def _outermost(products: Iterable[ir.Node]) -> frozenset[ir.Node]:
    """The first and the last products of the model: those that read what no product computed, or whose results none reads. What the
    first ones lose spreads to all that follows, and nothing follows the last ones that could even it out."""
    graph = next((n.graph for n in products), None)
    made: set[ir.Value] = set()  # by a product, directly or not
    first: set[ir.Node] = set()
    for node in graph or ():
        behind = any(v in made for v in node.inputs)
        if node.op_type in _MULTIPLYING and not behind:
            first.add(node)
        if behind or node.op_type in _MULTIPLYING:
            made.update(node.outputs)
    read: set[ir.Value] = set()  # what some product reads, directly or not
    last: set[ir.Node] = set()
    for node in reversed(list(graph or ())):
        reaches = any(v in read for v in node.outputs)
        if node.op_type in _MULTIPLYING and not reaches:
            last.add(node)
        if reaches or node.op_type in _MULTIPLYING:
            read.update(v for v in node.inputs if v is not None)
    return frozenset(first | last)


def _is_product(node: Node) -> bool:
    if node.ir.domain in ONNX and node.op in ("MatMul", "Gemm"):
        right = node.input(1).constant
        floats = {node.input(0).dtype, node.input(1).dtype} == {DataType.FLOAT}
        return floats and right is not None and len(right.dims) == 2 and min(right.dims) >= LEAST
    if node.ir.domain in ONNX and node.op == "Conv":
        weights, groups = node.input(1).constant, int(node.attribute("group", 1))
        floats = {node.input(0).dtype, node.input(1).dtype} == {DataType.FLOAT}
        if not floats or weights is None:
            return False
        if is_depthwise(groups, weights.dims):
            return len(weights.dims) < 5 and groups >= LEAST
        return min(weights.dims[0] // groups, weights.dims[1]) >= LEAST
    return node.op in _ATTENTION and {node.input(i).dtype for i in range(3)} == {DataType.FLOAT}


def plan_narrow(
    nodes: Iterable[Node], precisions: Mapping[ir.Node, Precision], outputs: Collection[ir.Value], target: Target
) -> dict[ir.Value, DataType]:
    """The values that are stored in the type in which all their readers multiply them, which is narrower than fp32, by kernels that
    can store it. What moves numbers as they are stands for its own readers."""
    nodes = list(nodes)
    if not target.isa.multiplies_bf16:
        return {}
    read_as = _types_of_readers(nodes, precisions, outputs)
    narrow: dict[ir.Value, DataType] = {}
    for node in nodes:
        for value, facts in zip(node.ir.outputs, node.outputs):
            if facts.dtype == DataType.FLOAT and _stores_any_float(node, value, narrow):
                types = read_as.get(value, {None})
                if len(types) == 1 and (dtype := next(iter(types))) is not None:
                    narrow[value] = dtype
    return narrow


def _types_of_readers(
    nodes: Sequence[Node], precisions: Mapping[ir.Node, Precision], outputs: Collection[ir.Value]
) -> dict[ir.Value, set[DataType | None]]:
    """The types in which values are multiplied; None stands for any other use. Readers come first, so every node is asked once."""
    inside = {n.ir for n in nodes}
    read_as: dict[ir.Value, set[DataType | None]] = {}
    for node in reversed(nodes):
        for out in node.ir.outputs:
            if out in outputs or any(use.node not in inside for use in out.uses()):
                read_as[out] = {None}
        types: set[DataType | None] = set()
        for out in node.ir.outputs:
            types |= read_as.get(out, set())
        for index, value in enumerate(node.ir.inputs):
            if value is None:
                continue
            if index in _moved(node):
                read_as.setdefault(value, set()).update(types or {None})
            elif index in _multiplied(node.ir) and node.ir in precisions:
                read_as.setdefault(value, set()).add(precisions[node.ir].stored)
            else:
                read_as.setdefault(value, set()).add(None)
    return read_as


def _moved(node: Node) -> Iterable[int]:
    """The inputs whose numbers an operator gives on as they are: it commutes with rounding."""
    if node.ir.domain not in ONNX:
        return ()
    if node.op == "Concat":
        return range(len(node.ir.inputs))
    largest = node.op == "MaxPool" and len(node.ir.outputs) == 1
    repeated = node.op in ("Resize", "Upsample") and whole_factors(node) is not None
    return (0,) if node.op in VIEWS | _PARTS or largest or repeated else ()


def _stores_any_float(node: Node, value: ir.Value, narrow: Collection[ir.Value]) -> bool:
    if node.op in ("MatMul", "Gemm", "Conv", "Concat"):
        return True
    if node.op == "MaxPool":  # in the type that it reads
        return node.ir.inputs[0] in narrow
    if node.op in ("Resize", "Upsample"):  # repeated pixels are copied; others are computed in the type that is read
        return whole_factors(node) is not None
    return value is node.ir.outputs[0] and (key_of(node.ir) in ops.TABLE or node.op in _NORMS or node.op in _ATTENTION)


def _multiplied(node: ir.Node) -> tuple[int, ...]:
    """The inputs that a product rounds to its operands' type."""
    return (0, 1, 2) if node.op_type in _ATTENTION else (0,)
