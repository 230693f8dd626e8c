"""Symbolic dimensions: integer polynomials over named sizes, compared by their normal form.

    2 * batch + seq  ->  {("batch",): 2, ("seq",): 1}

Exporters name a dimension in many ways (`s10*s21`, `s21 + s29`, or not at all). Two dimensions are equal here if
their polynomials are; everything that is no polynomial (`floor(x/2)`) becomes a symbol named by its text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

Monomial: TypeAlias = "tuple[str, ...]"

_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_][\w.:/-]*?(?=[\s*+]|$)|[*+])")


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
    total: Size = 0
    product: Size | None = None
    position, expects_factor = 0, True
    text = text.strip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or (found.group(1) in "*+") == expects_factor:
            return symbol(text)
        token = found.group(1)
        position = found.end()
        if token == "+":
            total = add(total, product if product is not None else 0)
            product = None
        elif token != "*":
            factor: Size = int(token) if token.isdigit() else symbol(token)
            product = factor if product is None else multiply(product, factor)
        expects_factor = token in "*+"
    if expects_factor or product is None:
        return symbol(text)
    return add(total, product)


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
