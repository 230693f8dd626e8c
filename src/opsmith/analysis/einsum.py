"""Einsum of one or two operands: "bhid,bhjd->bhij"."""

from __future__ import annotations

import string
from dataclasses import dataclass

from opsmith.analysis.elementwise import broadcast_dims
from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import FLOATS, Abstract, Unsupported, abstract
from opsmith.sizes import Size


@dataclass
class Equation:
    operands: list[str]  # one letter per dim
    result: str
    sizes: dict[str, Size]


def equation_of(node: Node) -> Equation:
    text = str(node.attribute("equation", "")).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    present = [node.input(i) for i in range(len(node.inputs))]
    if len(terms) != len(present) or not 1 <= len(terms) <= 2:
        raise Unsupported(f"Einsum of {len(present)} operands")
    free = [c for c in string.ascii_uppercase + string.ascii_lowercase if c not in text]
    spread = max((x.rank - len(t.replace("...", "")) for t, x in zip(terms, present) if "..." in t), default=0)
    dots = "".join(free[:spread])
    operands = [_labels(term, x.rank, dots) for term, x in zip(terms, present)]
    if arrow:
        result = right.replace("...", dots)
    else:
        letters = sorted(c for c in set("".join(operands)) - set(dots))
        result = dots + "".join(c for c in letters if sum(o.count(c) for o in operands) == 1)
    sizes = _label_sizes(node, operands, present)
    if len(set(result)) != len(result) or not set(result) <= set(sizes):
        raise Unsupported("the result repeats a label or names an unknown one")
    return Equation(operands, result, sizes)


def _labels(term: str, rank: int, dots: str) -> str:
    """The term with one letter per dim: `...` written out."""
    count = rank - len(term.replace("...", ""))
    if ("..." not in term and count != 0) or count < 0:
        raise Unsupported("the equation does not fit the ranks")
    return term.replace("...", dots[len(dots) - count :] if count else "")


def _label_sizes(node: Node, operands: list[str], present: list[Abstract]) -> dict[str, Size]:
    """The size of each label. One that is 1 in one operand is stretched there, as ONNX Runtime does: also when that shows only
    when the program runs."""
    sizes: dict[str, Size] = {}
    for labels, x in zip(operands, present):
        if len(set(labels)) != len(labels):
            raise Unsupported("a label that is repeated within one operand")
        for label, size in zip(labels, x.dims):
            (sizes[label],) = broadcast_dims(node, (sizes.get(label, size),), (size,))
    return sizes


@infers("Einsum")
def _einsum(node: Node) -> list[Abstract]:
    equation = equation_of(node)
    dtype = node.input(0).dtype
    if any(v is None or v.dtype != dtype for v in node.inputs) or dtype not in FLOATS:
        raise Unsupported(f"Einsum on {dtype.name}")
    return [abstract(dtype, [equation.sizes[c] for c in equation.result])]
