"""Which products run in less than fp32, and which values may therefore be stored so.

A value that only such products read is stored in their operands' type by the kernel that makes it: they would round it to the same
numbers. Everything else stays in fp32, and a product that finds it so converts it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from opsmith import ops
from opsmith.analysis.registry import Node, key_of
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


def _fits_bytes(node: Node) -> bool:
    """Whether there is a kernel of bytes for this product."""
    weights = node.input(1).constant if node.op in ("MatMul", "Gemm", "Conv") else None
    if weights is None:
        return False
    if node.op == "Conv":
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
        return floats and weights is not None and min(weights.dims[0] // groups, weights.dims[1]) > LEAST
    return node.op in _ATTENTION and {node.input(i).dtype for i in range(3)} == {DataType.FLOAT}


def stored_narrow(
    value: ir.Value, precisions: Mapping[ir.Node, Precision], outputs: Mapping[ir.Value, int], target: Target
) -> DataType | None:
    """The type in which all readers of a value multiply it, if that is one and narrower than fp32; only kernels that can store
    it so are asked."""
    producer = value.producer()
    if not target.isa.multiplies_bf16 or producer is None or not _stores_any_float(producer, value):
        return None
    types = _read_as(value, precisions, outputs)
    return next(iter(types)) if len(types) == 1 and None not in types else None


def _stores_any_float(node: ir.Node, value: ir.Value) -> bool:
    if node.op_type in ("MatMul", "Gemm", "Conv"):
        return True
    return value is node.outputs[0] and (
        key_of(node) in ops.TABLE or node.op_type in _NORMS or node.op_type in _ATTENTION
    )


def _read_as(
    value: ir.Value, precisions: Mapping[ir.Node, Precision], outputs: Mapping[ir.Value, int]
) -> set[DataType | None]:
    """The types in which it is multiplied; None stands for any other use."""
    if value in outputs or not value.uses():
        return {None}
    types: set[DataType | None] = set()
    for node, index in value.uses():
        if node.op_type in (VIEWS | _PARTS) and index == 0:
            for out in node.outputs:
                types |= _read_as(out, precisions, outputs)
        elif node in precisions and index in _multiplied(node):
            types.add(precisions[node].stored)
        else:
            types.add(None)
    return types


def _multiplied(node: ir.Node) -> tuple[int, ...]:
    """The inputs that a product rounds to its operands' type."""
    return (0, 1, 2) if node.op_type in _ATTENTION else (0,)
