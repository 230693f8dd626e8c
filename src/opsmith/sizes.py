"""Sizes: `batch * (past + sequence) * 64` as a value that can be compared, divided, bounded, evaluated and printed.

    Size       a polynomial with integer coefficients over atoms, in one normal form: equal sizes compare equal
    Atom       Name("batch")               a dynamic dim of an input
               Element("ids", 0)           an integer that an input holds
               Apply("floor_div", (a, b))  an operation that polynomials cannot express
    Real       a float that shape arithmetic computes: a Number, a RealElement, or an operation (RealApply)
    Condition  what must hold of sizes when a program runs: a Compare, a Holds, AnyOf or AllOf

What is known besides a size itself (that an image is not smaller than its window) is an explicit argument: `given`, a set of
sizes that are not negative. Printing (`write`), bounds (`lower_bound`), evaluation (`evaluate`, `estimate`) and the names that
models give their dims (dim_names.py) are functions over these values; nothing looks into a text.

Exporters write one size in several ways: a convolution halves an image by `floor_div`, shape arithmetic by `trunc_div`. They
are one where the dividend is not negative, which `given` may say if a check of the generated code makes it so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, Union

SizeLike: TypeAlias = Union["Size", int]
Monomial: TypeAlias = "tuple[Atom, ...]"  # in order of their text, with repetition; () is the constant term
Argument: TypeAlias = Union["Size", "Real", "tuple[Size, ...]", bool]  # of an operation
Given: TypeAlias = "frozenset[Size]"  # sizes that are known not to be negative
NOTHING: Given = frozenset()


# --- atoms ---


@dataclass(frozen=True)
class Name:
    """A dynamic dim, as the model calls it."""

    name: str

    @property
    def text(self) -> str:
        return self.name


@dataclass(frozen=True)
class Element:
    """An integer element of a small input, which can be read while sizes are computed."""

    source: str  # the value's name in the model
    index: int

    @functools.cached_property
    def text(self) -> str:
        return f"{self.source}[{self.index}]"


@dataclass(frozen=True)
class Apply:
    """An operation on sizes; `FUNCTIONS` says which there are."""

    function: str
    arguments: tuple[Argument, ...]

    @functools.cached_property
    def text(self) -> str:
        return write_call(self.function, self.arguments, _own_text, _real_text)


Atom: TypeAlias = Name | Element | Apply


# --- sizes ---


class Size:
    """An immutable polynomial; `terms` maps a monomial to its coefficient."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        kept = [(m, c) for m, c in terms.items() if c != 0]
        if len(kept) > 1:
            kept.sort(key=lambda t: _key(t[0]))
        self.terms: dict[Monomial, int] = dict(kept)
        self._hash = hash(tuple(kept))

    @property
    def value(self) -> int | None:
        """The number, if this is one."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def name(self) -> str | None:
        """The dim, if this is just one."""
        if len(self.terms) != 1:
            return None
        ((monomial, coefficient),) = self.terms.items()
        if coefficient != 1 or len(monomial) != 1 or not isinstance(monomial[0], Name):
            return None
        return monomial[0].name

    def __add__(self, other: SizeLike) -> Size:
        terms = dict(self.terms)
        for m, c in as_size(other).terms.items():
            terms[m] = terms.get(m, 0) + c
        return Size(terms)

    def __neg__(self) -> Size:
        return Size({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: SizeLike) -> Size:
        return self + (-as_size(other))

    def __mul__(self, other: SizeLike) -> Size:
        terms: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            for n, d in as_size(other).terms.items():
                key = tuple(sorted(m + n, key=_text_of)) if m and n else m + n
                terms[key] = terms.get(key, 0) + c * d
        return Size(terms)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: SizeLike) -> Size:
        return as_size(other) - self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.value == other
        return isinstance(other, Size) and self._hash == other._hash and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return write(self, _own_text)

    __repr__ = __str__

    def atoms(self) -> set[Atom]:
        return {a for m in self.terms for a in m}


def _text_of(atom: Atom) -> str:
    return atom.text


def _key(monomial: Monomial) -> tuple[str, ...]:
    return tuple(a.text for a in monomial)


def as_size(value: SizeLike) -> Size:
    return value if isinstance(value, Size) else Size({(): int(value)})


def of_atom(atom: Atom) -> Size:
    return Size({(atom,): 1})


def name(text: str) -> Size:
    """The dynamic dim of this name."""
    return of_atom(Name(text))


def element(source: str, index: int) -> Size:
    return of_atom(Element(source, index))


def apply(function: str, *arguments: SizeLike | Real | Sequence[SizeLike]) -> Size:
    """An operation that only a run, or `evaluate`, can carry out."""
    return of_atom(Apply(function, tuple(_argument(a) for a in arguments)))


def _argument(value: SizeLike | Real | Sequence[SizeLike]) -> Argument:
    if isinstance(value, (bool, Real)):
        return value
    return as_size(value) if isinstance(value, (int, Size)) else tuple(as_size(v) for v in value)


ZERO, ONE = as_size(0), as_size(1)


def product(values: Iterable[SizeLike]) -> Size:
    result = ONE
    for v in values:
        result = result * v
    return result


# --- floats of shape arithmetic ---


class Real:
    """A float that is known when a program runs, if not now."""

    value: float | None = None


@dataclass(frozen=True)
class Number(Real):
    value: float


@dataclass(frozen=True)
class RealElement(Real):
    """A float element of a small input."""

    source: str
    index: int


@dataclass(frozen=True)
class RealApply(Real):
    """An operation on reals and sizes; `single`: its result is rounded to float32, None: left as it is."""

    function: str  # one of "+ - * /", "-" of one argument, floor, ceil, sqrt, "size" (a size as it is), or of sizes.hpp
    arguments: tuple[Argument, ...]
    single: bool | None = None


Scalar: TypeAlias = Size | Real


# --- conditions ---


@dataclass(frozen=True)
class Compare:
    relation: str  # == != < <= > >=
    left: Size
    right: Size


@dataclass(frozen=True)
class Holds:
    """A yes or no question to sizes.hpp."""

    function: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class AnyOf:
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class AllOf:
    conditions: tuple[Condition, ...]


Condition: TypeAlias = Compare | Holds | AnyOf | AllOf


def compare(left: SizeLike, relation: str, right: SizeLike) -> Compare:
    return Compare(relation, as_size(left), as_size(right))


def holds(function: str, *arguments: SizeLike | Sequence[SizeLike]) -> Holds:
    return Holds(function, tuple(_argument(a) for a in arguments))


def equal(a: SizeLike, b: SizeLike, given: Given = NOTHING) -> bool | None:
    """Whether two sizes are the same: True, False, or None where that is only known when the program runs."""
    gap = as_size(a) - as_size(b)
    if gap.value is not None:
        return gap.value == 0
    if (lower_bound(gap, given) or 0) > 0 or (lower_bound(-gap, given) or 0) > 0:
        return False
    return None


# --- text ---


def write(size: Size, atom_text: Callable[[Atom], str]) -> str:
    """The size as an expression; a single atom or number comes without parentheses."""
    if not size.terms:
        return "0"
    parts: list[str] = []
    for monomial, coefficient in sorted(
        (([atom_text(a) for a in m], c) for m, c in size.terms.items()), key=lambda t: (-len(t[0]), t[0])
    ):
        factors = sorted(monomial)
        if abs(coefficient) != 1 or not factors:
            factors.append(str(abs(coefficient)))
        parts.append(f" {'-' if coefficient < 0 else '+'} " + " * ".join(factors))
    text = "".join(parts).strip()
    text = text[2:] if text.startswith("+ ") else "-" + text[2:]
    return text if len(size.terms) == 1 and "*" not in text else f"({text})"


def write_call(
    function: str, arguments: Sequence[Argument], atom_text: Callable[[Atom], str], real_text: Callable[[Real], str]
) -> str:
    """`floor_div(height, 2)`; a list of sizes is `Sizes{2, {a, b}}`."""
    return (
        f"{_SPELLED.get(function, function)}({', '.join(write_argument(a, atom_text, real_text) for a in arguments)})"
    )


def write_argument(argument: Argument, atom_text: Callable[[Atom], str], real_text: Callable[[Real], str]) -> str:
    if isinstance(argument, bool):
        return str(argument).lower()
    if isinstance(argument, Size):
        return write(argument, atom_text)
    if isinstance(argument, Real):
        return real_text(argument)
    return f"Sizes{{{len(argument)}, {{{', '.join(write(a, atom_text) for a in argument)}}}}}"


_SPELLED = {"min": "min<i64>", "max": "max<i64>", "modulo": "modulo<i64>"}


def _own_text(atom: Atom) -> str:
    return atom.text


def _real_text(value: Real) -> str:
    if isinstance(value, RealApply):
        return f"{value.function}({', '.join(write_argument(a, _own_text, _real_text) for a in value.arguments)})"
    return str(value.value) if isinstance(value, Number) else str(value)


# --- looking inside ---


def walk(values: Iterable[Argument]) -> Iterator[Atom | Real]:
    """Every atom and real of these values, also inside the arguments of operations."""
    for value in values:
        if isinstance(value, Size):
            for atom in value.atoms():
                yield atom
                if isinstance(atom, Apply):
                    yield from walk(atom.arguments)
        elif isinstance(value, Real):
            yield value
            if isinstance(value, RealApply):
                yield from walk(value.arguments)
        elif isinstance(value, tuple):
            yield from walk(value)


def names(size: Size) -> set[str]:
    """The dims that a size depends on."""
    return {a.name for a in walk([size]) if isinstance(a, Name)}


def reads_data(size: Size) -> bool:
    """Whether a size depends on what an input holds, not only on shapes."""
    return any(isinstance(a, (Element, RealElement)) for a in walk([size]))


def is_count(size: Size) -> bool:
    """Whether everything in it counts something, so that no atom is negative: not data, and not a float cut to an integer."""
    return all(_counts(atom) for atom in size.atoms())


def _counts(atom: Atom) -> bool:
    if not isinstance(atom, Apply):
        return isinstance(atom, Name)
    if atom.function in ("to_integer", "to_int32") or any(
        isinstance(a, (Element, RealElement)) for a in walk(atom.arguments)
    ):
        return False
    sizes = [a for a in atom.arguments if isinstance(a, Size)]
    if atom.function == "trunc_div":  # -1 / 2 is 0, but -2 / 2 is not
        dividend, divisor = sizes
        least = lower_bound(dividend)
        return _is_sum_of_counts(dividend) or (least is not None and least > -(divisor.value or 0))
    if atom.function == "max":
        return any(_is_sum_of_counts(s) for s in sizes)
    if atom.function in ("min", "broadcast", "pick"):
        return all(_is_sum_of_counts(s) for s in sizes)
    return all(_counts(a) for a in walk(atom.arguments) if not isinstance(a, Real))


def _is_sum_of_counts(size: Size) -> bool:
    return all(c >= 0 for c in size.terms.values()) and is_count(size)


def truncated(sizes: Iterable[Size]) -> set[Size]:
    """What is divided by `trunc_div` anywhere in these sizes."""
    divisions = (a for a in walk(set(sizes)) if isinstance(a, Apply) and a.function == "trunc_div")
    return {a.arguments[0] for a in divisions if isinstance(a.arguments[0], Size)}


# --- bounds ---


def never_negative(size: SizeLike, given: Given = NOTHING) -> bool:
    """Whether a size is certain to be 0 or more."""
    least = lower_bound(as_size(size), given)
    return least is not None and least >= 0


def lower_bound(size: Size, given: Given = NOTHING) -> int | None:
    """What a size is at least, as far as is known."""
    total = 0
    for monomial, coefficient in size.terms.items():
        for atom in monomial:
            least = _least(atom, given)
            if coefficient < 0 or least is None or least < 0:
                return None
            coefficient *= least
        total += coefficient
    return total


def _least(atom: Atom, given: Given) -> int | None:
    """Of one atom: names are sizes of inputs, and what is given of it is  atom - least >= 0."""
    bounds = [-(rest.value or 0) for size in given if (rest := size - of_atom(atom)).value is not None]
    if isinstance(atom, Name):
        bounds.append(0)
    if (division := _division(atom)) is not None and (division[1].value or 0) > 0:
        least = lower_bound(division[0], given)
        if least is not None and least >= 0:
            bounds.append(least // (division[1].value or 1))
    return max(bounds, default=None)


def _division(atom: Atom, *functions: str) -> tuple[Size, Size] | None:
    """Dividend and divisor, if the atom is a division; the operands of another function of two."""
    if not isinstance(atom, Apply) or atom.function not in (functions or ("floor_div", "trunc_div")):
        return None
    a, b = atom.arguments
    assert isinstance(a, Size) and isinstance(b, Size)
    return a, b


def certainly_at_most(a: SizeLike, b: SizeLike) -> bool:
    """a <= b for every value of the sizes in them, which count something and so are never negative."""
    return _is_sum_of_counts(as_size(b) - as_size(a))


def never_zero(gap: Size) -> bool:
    """Nothing counted is negative, so `batch + 1` is never 0: exporters ask whether a size equals -1."""
    return is_count(gap) and gap.terms.get((), 0) != 0 and len({c > 0 for c in gap.terms.values()}) == 1


# --- arithmetic beyond polynomials ---


def exact_div(a: SizeLike, b: SizeLike) -> Size | None:
    """a / b where the division leaves nothing over for every value of the atoms; None if that is not certain."""
    rest, divisor = as_size(a), as_size(b)
    if not divisor.terms:
        return None
    lead = _lead(divisor)
    quotient: dict[Monomial, int] = {}
    for _ in range(64):
        if not rest.terms:
            return Size(quotient)
        top = _lead(rest)
        factor = _divide_monomial(top, lead)
        if factor is None or rest.terms[top] % divisor.terms[lead]:
            return None
        coefficient = rest.terms[top] // divisor.terms[lead]
        quotient[factor] = quotient.get(factor, 0) + coefficient
        rest = rest - divisor * Size({factor: coefficient})
    return None


def _lead(size: Size) -> Monomial:
    """The leading monomial: by degree, then by name; compatible with multiplication, as division needs."""
    return max(size.terms, key=lambda m: (len(m), [(-ord(ch)) for a in m for ch in a.text]))


def _divide_monomial(a: Monomial, b: Monomial) -> Monomial | None:
    rest = list(a)
    for x in b:
        if x not in rest:
            return None
        rest.remove(x)
    return tuple(rest)


def floor_div(a: SizeLike, b: SizeLike) -> Size:
    """Integer division towards minus infinity."""
    x, y = as_size(a), as_size(b)
    if x.value is not None and y.value:
        return as_size(x.value // y.value)
    exact = exact_div(x, y)
    if exact is not None:
        return exact
    if y.value is not None and y.value > 0:
        # (3 y + r) / y = 3 + r / y
        whole = Size({m: c // y.value for m, c in x.terms.items() if c % y.value == 0 or not m})
        if whole.terms:
            return whole + floor_div(x - whole * y, y)
        # ((u / v) + c) / y = (u + c v) / (v y)
        single = [_division(m[0], "floor_div") for m, c in x.terms.items() if c == 1 and len(m) == 1]
        inner = [d for d in single if d is not None]
        rest = x.terms.get((), 0)
        if len(inner) == 1 and len(x.terms) == 1 + (rest != 0) and (inner[0][1].value or 0) > 0:
            (u, v) = inner[0]
            return floor_div(u + rest * v, v * y)
    return apply("floor_div", x, y)


def trunc_div(a: SizeLike, b: SizeLike, given: Given = NOTHING) -> Size:
    """C-style division, as ONNX's integer Div."""
    x, y = as_size(a), as_size(b)
    if x.value is not None and y.value:
        q = abs(x.value) // abs(y.value)
        return as_size(q if (x.value < 0) == (y.value < 0) else -q)
    exact = exact_div(x, y)
    if exact is not None:
        return exact
    if (y.value or 0) > 0 and never_negative(x, given):
        return floor_div(x, y)
    return apply("trunc_div", x, y)


def modulo(a: SizeLike, b: SizeLike) -> Size:
    """The remainder, with the sign of the divisor."""
    x, y = as_size(a), as_size(b)
    return as_size(x.value % y.value) if x.value is not None and y.value else apply("modulo", x, y)


def minimum(a: SizeLike, b: SizeLike) -> Size:
    return _pick("min", a, b)


def maximum(a: SizeLike, b: SizeLike) -> Size:
    return _pick("max", a, b)


def _pick(function: str, a: SizeLike, b: SizeLike) -> Size:
    x, y = as_size(a), as_size(b)
    gap = (x - y).value
    if gap is not None:
        smaller, larger = (x, y) if gap <= 0 else (y, x)
        return smaller if function == "min" else larger
    return apply(function, x, y)


def broadcast(a: SizeLike, b: SizeLike, given: Given = NOTHING) -> Size:
    """The size of a dimension after broadcasting; decided at run time where the names do not settle it."""
    x, y = as_size(a), as_size(b)
    if x == y or y == 1:
        return x
    if x == 1:
        return y
    if x.value is not None:  # the other one is 1 or equal to it
        return x
    if y.value is not None:
        return y
    for size, other in ((x, y), (y, x)):
        if _capped(other, size):
            return size
    for size in sorted((x, y), key=lambda d: len(str(d))):
        if never_negative(size - 2, given):  # never 1: the other one is 1 or equal to it
            return size
    # All that were broadcast into either, each once: residual connections would nest the same two again and again.
    *others, last = sorted({*_broadcast_from(x), *_broadcast_from(y)}, key=str)
    return functools.reduce(lambda rest, size: apply("broadcast", size, rest), reversed(others), last)


def _broadcast_from(size: Size) -> list[Size]:
    pair = _arguments(size, "broadcast")
    return [size] if pair is None else [part for side in pair for part in _broadcast_from(side)]


def _capped(size: Size, whole: Size) -> bool:
    """Whether SIZE is WHOLE, but at most a number from 2 up, or at least 0: where the two can be broadcast they are equal, as in
    a table of 512 positions beside any sequence, or in what a Slice from the front leaves."""
    least, most = _arguments(size, "max"), _arguments(size, "min")
    if least is not None and whole in least and ZERO in least:
        return True
    return most is not None and any(a == whole and (b.value or 0) >= 2 for a, b in (most, most[::-1]))


def _arguments(size: Size, function: str) -> tuple[Size, Size] | None:
    """a and b, if the size is function(a, b)."""
    ((monomial, coefficient),) = size.terms.items() if len(size.terms) == 1 else (((), 0),)
    return _division(monomial[0], function) if coefficient == 1 and len(monomial) == 1 else None


def spread(size: Size, wanted: Size, stride: Size) -> Size:
    """The stride of a dim under broadcasting to `wanted`; decided at run time where the names do not settle it."""
    if size == 1:
        return ZERO
    return stride if size == wanted else apply("spread", size, stride)


def contiguous(dims: Sequence[SizeLike], order: Sequence[int] | None = None) -> tuple[Size, ...]:
    """Strides of a dense tensor whose axes lie in memory in `order` (outermost first)."""
    strides = [ONE] * len(dims)
    step = ONE
    for axis in reversed(range(len(dims)) if order is None else order):
        strides[axis] = step
        step = step * dims[axis]
    return tuple(strides)


# --- numbers ---

# What operations compute; those of sizes.hpp that are not here are known to run-time code only.
FUNCTIONS: dict[str, Callable[..., int | None]] = {
    "floor_div": lambda a, b: a // b if b else None,
    "trunc_div": lambda a, b: trunc_div(a, b).value if b else None,
    "broadcast": lambda a, b: b if a == 1 else a,
    "spread": lambda size, stride: 0 if size == 1 else stride,
    "min": min,
    "max": max,
    "pick": lambda c, a, b: a if c else b,
    "modulo": lambda a, b: a % b if b else None,
    "from_front": lambda at, size: at + size if at < 0 else at,
}


def evaluate(size: Size, atom_value: Callable[[Atom], int | None]) -> int | None:
    """The number that a size is when its names and elements have these values; None if one is not known, or divides by 0."""
    total = 0
    for monomial, coefficient in size.terms.items():
        for atom in monomial:
            value = atom_value(atom)
            if value is None and isinstance(atom, Apply):
                value = _carry_out(atom, atom_value)
            if value is None:
                return None
            coefficient *= value
        total += coefficient
    return total


def _carry_out(atom: Apply, atom_value: Callable[[Atom], int | None]) -> int | None:
    function = FUNCTIONS.get(atom.function)
    values = [evaluate(a, atom_value) if isinstance(a, Size) else None for a in atom.arguments]
    if function is None or any(v is None for v in values):
        return None
    return function(*values)


def at(size: Size, dims: Mapping[str, int]) -> int | None:
    """The number that a size is at these dims; None if it depends on others."""
    return evaluate(size, lambda atom: dims.get(atom.name) if isinstance(atom, Name) else None)


def typical(dim: str) -> int:
    """A usual value of a dynamic dim, guessed from its name; only speed depends on it, never a result."""
    lowered = dim.lower()
    if "batch" in lowered:
        return 1
    if any(word in lowered for word in ("seq", "past", "length", "token")):
        return 128
    return 64


def estimate(value: SizeLike, sizes: Mapping[str, int] | None = None) -> int:
    """The size with the given or else typical numbers put in; 64 for what cannot be guessed."""
    numbers = sizes or {}

    def inside(atom: Atom) -> int | None:
        if isinstance(atom, Name):
            return numbers[atom.name] if atom.name in numbers else typical(atom.name)
        return None

    def outside(atom: Atom) -> int | None:
        known = inside(atom)
        if known is None and isinstance(atom, Apply):
            known = _carry_out(atom, inside)
        return 64 if known is None else known

    return evaluate(as_size(value), outside) or 0
