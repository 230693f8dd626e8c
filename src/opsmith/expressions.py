"""What an elementwise operator computes, as a tree: `x * sigmoid(x)` until a backend prints it.

    f.select(f.less(x, f.zero_like(x)), x * alpha, x)

`f.<name>` applies a function of the backend's library; + - * / & | ^ and the unary - and ~ are operators of their own. Types
are not in the tree: a printer knows whether it writes vectors or scalars.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from onnx_ir import DataType


class Expr:
    """A value of one element. Expressions are compared as trees, so `==` is Python's; use f.equal. A plain number is a float."""

    def __add__(self, other: Operand) -> Expr:
        return _binary("+", self, other)

    def __radd__(self, other: float) -> Expr:
        return _binary("+", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return _binary("-", self, other)

    def __rsub__(self, other: float) -> Expr:
        return _binary("-", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return _binary("*", self, other)

    def __rmul__(self, other: float) -> Expr:
        return _binary("*", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return _binary("/", self, other)

    def __rtruediv__(self, other: float) -> Expr:
        return _binary("/", other, self)

    def __and__(self, other: Expr) -> Expr:
        return _binary("&", self, other)

    def __or__(self, other: Expr) -> Expr:
        return _binary("|", self, other)

    def __xor__(self, other: Expr) -> Expr:
        return _binary("^", self, other)

    def __neg__(self) -> Expr:
        return Op("-", (self,))

    def __invert__(self) -> Expr:
        return Op("~", (self,))


@dataclass(frozen=True)
class Var(Expr):
    """An operand, an earlier result, or the accumulator that a kernel hands to its epilogue."""

    name: str


@dataclass(frozen=True)
class Literal(Expr):
    value: float
    dtype: DataType


@dataclass(frozen=True)
class Op(Expr):
    """A function or operator on its arguments; `target` is the type that a conversion leads to."""

    function: str
    arguments: tuple[Expr, ...]
    target: DataType | None = None


Operand: TypeAlias = "Expr | float"


def _expression(x: Operand) -> Expr:
    return x if isinstance(x, Expr) else Literal(x, DataType.FLOAT)


def _binary(function: str, a: Operand, b: Operand) -> Expr:
    return Op(function, (_expression(a), _expression(b)))


class _Functions:
    def __getattr__(self, name: str) -> Callable[..., Expr]:
        return lambda *arguments: Op(name, tuple(map(_expression, arguments)))


f = _Functions()


def convert(function: str, x: Expr, target: DataType) -> Expr:
    """A conversion to `target`: `cast`, `round_to` (through a narrower float) or `cut_to` (a float cut to an integer)."""
    return Op(function, (x,), target)


ACCUMULATOR = Var("acc")
