"""Symbolic sizes: `batch * (past + sequence) * 64` as a value that can be compared, divided and written as C++.

A Dim is a polynomial with integer coefficients over atoms. An atom is the C++ text of a run-time integer: the
name of a graph dimension, an element of a small input, or an operation that polynomials cannot express
(`floor_div(height + 1, 2)`). Polynomials are kept in one normal form, so equal sizes compare equal and a
reshape's `-1` is found by exact division. Everything else in the compiler treats sizes as opaque.

Exporters write one size in several ways: a convolution halves an image by `floor_div`, shape arithmetic by `trunc_div`. They
are one where the dividend is not negative, and that is known where a check of the generated code says so: `assuming`.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, Union

Monomial: TypeAlias = tuple[str, ...]  # sorted atoms, with repetition; () is the constant term
DimLike: TypeAlias = Union["Dim", int]


class Dim:
    """An immutable polynomial; `terms` maps a monomial to its coefficient."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = {m: c for m, c in sorted(terms.items()) if c != 0}
        self._hash = hash(tuple(self.terms.items()))

    @property
    def value(self) -> int | None:
        """The number, if this is one."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    def __add__(self, other: DimLike) -> Dim:
        terms = dict(self.terms)
        for m, c in dim(other).terms.items():
            terms[m] = terms.get(m, 0) + c
        return Dim(terms)

    def __neg__(self) -> Dim:
        return Dim({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: DimLike) -> Dim:
        return self + (-dim(other))

    def __mul__(self, other: DimLike) -> Dim:
        terms: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            for n, d in dim(other).terms.items():
                key = tuple(sorted(m + n))
                terms[key] = terms.get(key, 0) + c * d
        return Dim(terms)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: DimLike) -> Dim:
        return dim(other) - self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.value == other
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self.cpp()

    def cpp(self) -> str:
        """C++ text of this size; a single atom or number comes without parentheses."""
        if not self.terms:
            return "0"
        parts: list[str] = []
        for monomial, coefficient in sorted(self.terms.items(), key=lambda t: (-len(t[0]), t[0])):
            factors = list(monomial)
            if abs(coefficient) != 1 or not factors:
                factors.append(str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            parts.append(f" {sign} " + " * ".join(factors))
        text = "".join(parts).strip()
        text = text[2:] if text.startswith("+ ") else "-" + text[2:]
        return text if len(self.terms) == 1 and "*" not in text else f"({text})"

    def atoms(self) -> set[str]:
        return {a for m in self.terms for a in m}


def dim(value: DimLike) -> Dim:
    return value if isinstance(value, Dim) else Dim({(): int(value)})


def atom(text: str) -> Dim:
    return Dim({(text,): 1})


ZERO, ONE = dim(0), dim(1)


def product(values: Iterable[DimLike]) -> Dim:
    result = ONE
    for v in values:
        result = result * v
    return result


def exact_div(a: DimLike, b: DimLike) -> Dim | None:
    """a / b where the division leaves nothing over for every value of the atoms; None if that is not certain."""
    rest, divisor = dim(a), dim(b)
    if not divisor.terms:
        return None
    lead = _lead(divisor)
    quotient: dict[Monomial, int] = {}
    for _ in range(64):
        if not rest.terms:
            return Dim(quotient)
        top = _lead(rest)
        factor = _divide_monomial(top, lead)
        if factor is None or rest.terms[top] % divisor.terms[lead]:
            return None
        coefficient = rest.terms[top] // divisor.terms[lead]
        quotient[factor] = quotient.get(factor, 0) + coefficient
        rest = rest - divisor * Dim({factor: coefficient})
    return None


def _lead(d: Dim) -> Monomial:
    """The leading monomial: by degree, then by name; compatible with multiplication, as division needs."""
    return max(d.terms, key=lambda m: (len(m), [(-ord(ch)) for a in m for ch in a]))


def _divide_monomial(a: Monomial, b: Monomial) -> Monomial | None:
    rest = list(a)
    for x in b:
        if x not in rest:
            return None
        rest.remove(x)
    return tuple(rest)


# --- what is known not to be negative ---

_assumed: contextvars.ContextVar[frozenset[Dim]] = contextvars.ContextVar("assumed", default=frozenset())
_divisions: dict[str, tuple[Dim, Dim]] = {}  # C++ text of a division -> its operands


@contextlib.contextmanager
def assuming(sizes: Iterable[Dim]) -> Iterator[None]:
    """Inside, these sizes count as not negative. Whoever says so must check it in the generated code."""
    before = _assumed.set(frozenset(sizes))
    try:
        yield
    finally:
        _assumed.reset(before)


def is_assumed(size: Dim) -> bool:
    return size in _assumed.get()


def truncated(sizes: Iterable[Dim]) -> set[Dim]:
    """What is divided by `trunc_div` anywhere in these sizes."""
    text = " ".join(d.cpp() for d in set(sizes))
    return {x for division, (x, _) in _divisions.items() if division.startswith("trunc_div(") and division in text}


def never_negative(size: DimLike) -> bool:
    """Whether a size is certain to be 0 or more."""
    least = lower_bound(dim(size))
    return least is not None and least >= 0


def lower_bound(size: Dim) -> int | None:
    """What a size is at least, as far as is known."""
    total = 0
    for monomial, coefficient in size.terms.items():
        for name in monomial:
            least = _least(name)
            if coefficient < 0 or least is None or least < 0:
                return None
            coefficient *= least
        total += coefficient
    return total


def _least(text: str) -> int | None:
    """Of one atom: names are sizes of inputs, and what is assumed of it is  atom - least >= 0."""
    known = [-(rest.value or 0) for size in _assumed.get() if (rest := size - atom(text)).value is not None]
    if text.isidentifier():
        known.append(0)
    if (parts := _divisions.get(text)) is not None and (parts[1].value or 0) > 0:
        least = lower_bound(parts[0])
        if least is not None and least >= 0:
            known.append(least // (parts[1].value or 1))
    return max(known, default=None)


def floor_div(a: DimLike, b: DimLike) -> Dim:
    """Integer division towards minus infinity."""
    x, y = dim(a), dim(b)
    if x.value is not None and y.value:
        return dim(x.value // y.value)
    exact = exact_div(x, y)
    if exact is not None:
        return exact
    if y.value is not None and y.value > 0:
        # (3 y + r) / y = 3 + r / y
        whole = Dim({m: c // y.value for m, c in x.terms.items() if c % y.value == 0 or not m})
        if whole.terms:
            return whole + floor_div(x - whole * y, y)
        # ((u / v) + c) / y = (u + c v) / (v y)
        inner = [_divisions[m[0]] for m, c in x.terms.items() if c == 1 and len(m) == 1 and _is_floor(m[0])]
        rest = x.terms.get((), 0)
        if len(inner) == 1 and len(x.terms) == 1 + (rest != 0) and (inner[0][1].value or 0) > 0:
            (u, v) = inner[0]
            return floor_div(u + rest * v, v * y)
    return _division("floor_div", x, y)


def trunc_div(a: DimLike, b: DimLike) -> Dim:
    """C-style division, as ONNX's integer Div."""
    x, y = dim(a), dim(b)
    if x.value is not None and y.value:
        q = abs(x.value) // abs(y.value)
        return dim(q if (x.value < 0) == (y.value < 0) else -q)
    exact = exact_div(x, y)
    if exact is not None:
        return exact
    if (y.value or 0) > 0 and never_negative(x):
        return floor_div(x, y)
    return _division("trunc_div", x, y)


def _is_floor(text: str) -> bool:
    return text.startswith("floor_div(") and text in _divisions


def _division(name: str, x: Dim, y: Dim) -> Dim:
    text = f"{name}({x.cpp()}, {y.cpp()})"
    _divisions[text] = (x, y)
    return atom(text)


def minimum(a: DimLike, b: DimLike) -> Dim:
    return _pick("min", a, b)


def maximum(a: DimLike, b: DimLike) -> Dim:
    return _pick("max", a, b)


def _pick(name: str, a: DimLike, b: DimLike) -> Dim:
    x, y = dim(a), dim(b)
    gap = (x - y).value
    if gap is not None:
        smaller, larger = (x, y) if gap <= 0 else (y, x)
        return smaller if name == "min" else larger
    return atom(f"{name}<i64>({x.cpp()}, {y.cpp()})")


def call(name: str, *arguments: DimLike) -> Dim:
    """An integer function of sizes that only the generated code can evaluate."""
    return atom(f"{name}({', '.join(dim(a).cpp() for a in arguments)})")


def broadcast(a: DimLike, b: DimLike) -> Dim:
    """The size of a dimension after broadcasting; decided at run time where the names do not settle it."""
    x, y = dim(a), dim(b)
    if x == y or y == 1:
        return x
    if x == 1:
        return y
    if x.value is not None:  # the other one is 1 or equal to it
        return x
    if y.value is not None:
        return y
    for size in sorted((x, y), key=lambda d: len(d.cpp())):
        if never_negative(size - 2):  # never 1: the other one is 1 or equal to it
            return size
    first, second = sorted((x.cpp(), y.cpp()))
    return atom(f"broadcast({first}, {second})")


def contiguous(dims: Sequence[DimLike], order: Sequence[int] | None = None) -> tuple[Dim, ...]:
    """Strides of a dense tensor whose axes lie in memory in `order` (outermost first)."""
    order = range(len(dims)) if order is None else order
    strides = [ONE] * len(dims)
    step = ONE
    for axis in reversed(list(order)):
        strides[axis] = step
        step = step * dims[axis]
    return tuple(strides)


# --- numbers for planning: what sizes will typically be ---


def typical(name: str) -> int:
    """A usual value of a dynamic dim, guessed from its name; only speed depends on it, never a result."""
    lowered = name.lower()
    if "batch" in lowered:
        return 1
    if any(word in lowered for word in ("seq", "past", "length", "token")):
        return 128
    return 64


class _Guess(dict[str, object]):
    def __missing__(self, name: str) -> object:
        return typical(name)


_FUNCTIONS: dict[str, object] = {
    "floor_div": lambda a, b: a // b if b else 0,
    "trunc_div": lambda a, b: int(a / b) if b else 0,
    "broadcast": lambda a, b: b if a == 1 else a,
    "spread": lambda size, stride: 0 if size == 1 else stride,
    "min": min,
    "max": max,
    "pick": lambda c, a, b: a if c else b,
}


def estimate(value: DimLike, sizes: Mapping[str, int] | None = None) -> int:
    """The size with the given or else typical numbers put in; 64 for what cannot be guessed."""
    total = 0
    for monomial, coefficient in dim(value).terms.items():
        factor = coefficient
        for name in monomial:
            factor *= _estimate_atom(name, sizes or {})
        total += factor
    return total


def _estimate_atom(text: str, sizes: Mapping[str, int]) -> int:
    if text.isidentifier():
        return sizes[text] if text in sizes else typical(text)
    try:
        found = eval(text.replace("<i64>", ""), {"__builtins__": {}}, _Guess({**_FUNCTIONS, **sizes}))
    except Exception:  # C++ that is not Python: a cast, an element of an input
        return 64
    return int(found) if isinstance(found, (int, float)) else 64
