"""What definitions of operators are put together from: operands, attributes, and lines of ONNX's text."""

from __future__ import annotations

import onnx_ir as ir

from opsmith.analysis.values import Abstract, DataType
from opsmith.compiler.quantized_bodies import Inputs, given
from opsmith.rewriter.rule import attribute


def operand(inputs: Inputs, index: int) -> Abstract | None:
    return inputs[index] if given(inputs, index) else None


def real(node: ir.Node, name: str, default: float) -> float:
    return float(attribute(node, name, default))


def integer(node: ir.Node, name: str, default: int = 0) -> int:
    return int(attribute(node, name, default))


def is_asked(node: ir.Node, *indices: int) -> bool:
    """Whether one of these outputs is read."""
    outputs = (node.outputs[i] for i in indices if i < len(node.outputs))
    return any(o.uses() or o.is_graph_output() for o in outputs)


def constant(name: str, number: float, dtype: DataType) -> str:
    if dtype == DataType.FLOAT:
        return f"{name} = Constant <value_float: float = {number!r}> ()"
    return f"{name}_wide = Constant <value_float: float = {number!r}> () {name} = Cast <to: int = {int(dtype)}> ({name}_wide)"


def ints(name: str, *numbers: int) -> str:
    return f"{name} = Constant <value_ints: ints = [{', '.join(map(str, numbers))}]> ()"


def by_heads(name: str, source: str, heads: int, size: int) -> list[str]:
    """(B, S, heads * size) as (B, heads, S, size)"""
    return [
        ints(f"{name}_sizes", 0, 0, heads, size),
        f"{name}_heads = Reshape ({source}, {name}_sizes)",
        f"{name} = Transpose <perm: ints = [0, 2, 1, 3]> ({name}_heads)",
    ]


def size_lines(name: str, source: str, axis: int) -> list[str]:
    """One size of a value, as a vector of one element and as a scalar; `zero` is [0]."""
    return [
        ints(f"{name}_from", axis),
        ints(f"{name}_to", axis + 1),
        f"{name}_all = Shape ({source})",
        f"{name} = Slice ({name}_all, {name}_from, {name}_to)",
        f"{name}_number = Squeeze ({name}, zero)",
    ]
