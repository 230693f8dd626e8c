"""Symbolic dimensions: integer polynomials over named sizes, compared by their normal form.

    2 * batch + seq  ->  {("batch",): 2, ("seq",): 1}

Exporters name a dimension in many ways (`s10*s21`, `s21 + s29`, or not at all). Two dimensions are equal here if
their polynomials are; a quotient that does not come out even is a symbol of its own, as is everything else.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

Monomial: TypeAlias = "tuple[str, ...]"


class Dim:
    """One size that is not a number. Numbers are plain ints: see `add`, `multiply`, `divide`."""

    __slots__ = ("_key", "terms")

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}
        self._key = tuple(sorted(self.terms.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        def text(monomial: Monomial, factor: int) -> str:
            parts = list(monomial) if factor == 1 and monomial else [str(factor), *monomial]
            return "*".join(parts)

        return " + ".join(text(m, c) for m, c in self._key) or "0"


Size: TypeAlias = "int | Dim"


def symbol(name: str) -> Dim:
    return Dim({(name,): 1})


def parse(text: str) -> Size:
    """The polynomial that a dimension's name spells, or one symbol if it spells something else."""
    if text.isidentifier():
        return symbol(text)
    try:
        found = _read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        found = None
    return symbol(text) if found is None else found


def _read(tree: ast.expr) -> Size | None:
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return tree.value
    if isinstance(tree, ast.Name):
        return symbol(tree.id)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        inner = _read(tree.operand)
        return None if inner is None else multiply(inner, -1)
    operation = _OPERATIONS.get(type(tree.op)) if isinstance(tree, ast.BinOp) else None
    if operation is None or not isinstance(tree, ast.BinOp):
        return None
    left, right = _read(tree.left), _read(tree.right)
    return None if left is None or right is None else operation(left, right)


def _terms(size: Size) -> dict[Monomial, int]:
    return dict(size.terms) if isinstance(size, Dim) else {(): size}


def _make(terms: dict[Monomial, int]) -> Size:
    dim = Dim(terms)
    if all(m == () for m in dim.terms):
        return dim.terms.get((), 0)
    return dim


def add(a: Size, b: Size) -> Size:
    terms = _terms(a)
    for monomial, factor in _terms(b).items():
        terms[monomial] = terms.get(monomial, 0) + factor
    return _make(terms)


def multiply(a: Size, b: Size) -> Size:
    terms: dict[Monomial, int] = {}
    for m, c in _terms(a).items():
        for n, d in _terms(b).items():
            key = tuple(sorted((*m, *n)))
            terms[key] = terms.get(key, 0) + c * d
    return _make(terms)


def subtract(a: Size, b: Size) -> Size:
    return add(a, multiply(b, -1))


def divide(a: Size, b: Size) -> Size | None:
    """a / b where it comes out even, else None. Truncation of non-negative numbers otherwise."""
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            return None
        return a // b if a * b >= 0 else -(-a // b)
    divisor = _terms(b)
    if len(divisor) != 1:
        return None
    (monomial, factor), *_ = divisor.items()
    if factor == 0:
        return None
    terms: dict[Monomial, int] = {}
    for m, c in _terms(a).items():
        rest = list(m)
        for name in monomial:
            if name not in rest:
                return None
            rest.remove(name)
        if c % factor:
            return None
        terms[tuple(rest)] = c // factor
    return _make(terms)


def floor_divide(a: Size, b: Size) -> Size | None:
    """a // b; where it does not come out even, a symbol named after the quotient. Both count as not negative."""
    exact = divide(a, b)
    if exact is not None or b == 0:
        return exact
    return symbol(f"(({a})//({b}))")


_OPERATIONS: dict[type[ast.operator], Callable[[Size, Size], Size | None]] = {
    ast.Add: add,
    ast.Sub: subtract,
    ast.Mult: multiply,
    ast.FloorDiv: floor_divide,
}


def product(sizes: Iterable[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = multiply(result, size)
    return result


def symbols(size: Size) -> set[str]:
    """The names that a size depends on."""
    return {name for monomial in _terms(size) for name in monomial}


def evaluate(size: Size, numbers: Mapping[str, int]) -> int:
    """The size when its symbols have these numbers."""
    return sum(c * math.prod(numbers[name] for name in m) for m, c in _terms(size).items())
