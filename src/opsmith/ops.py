"""The table of elementwise operators: what each computes, on which types, and what it does to sizes in shape arithmetic.

    row("Sigmoid", f.sigmoid, arity=1, kinds="fd", cost=20)

To add an operator is to add a row here, or, for one of your own, to call `row` before compiling (examples/own_kernel.py). The
analysis infers by the table, the compiler fuses and prints by it, rewrite rules, pruning and FLOP counts ask it what is
elementwise (how many FLOPs people count for it, check/op_costs.py says). The functions of `f` are overloaded in kernels/math.hpp and kernels/elementwise.hpp for vectors and scalars alike.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from onnx_ir import DataType

from opsmith.expressions import Expr, Literal, Op, convert, f
from opsmith.sizes import (
    Given,
    Number,
    Real,
    RealApply,
    Size,
    apply,
    as_size,
    maximum,
    minimum,
    modulo,
    never_zero,
    trunc_div,
)

CAPPED = "Capped"  # before the name of an attention whose scores are cap * tanh(score / cap)
ATTENTIONS = tuple(
    f"{capped}{name}"
    for capped in ("", CAPPED)
    for name in ("Attention", "AttentionBias", "AttentionMask", "CausalAttention")
)
_FLOATS = (DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16)


class NodeLike(Protocol):
    """What a row may ask of the node it is used for."""

    opset: int

    def attribute(self, name: str, default: Any = None) -> Any: ...
    def has(self, index: int) -> bool: ...
    def type_of(self, index: int) -> DataType: ...
    def number(self, index: int) -> float | None: ...
    def result_type(self) -> DataType: ...


Expression: TypeAlias = Callable[[NodeLike, Sequence[Expr]], Expr]
OnSizes: TypeAlias = Callable[[Given, Sequence[Size]], Size | None]


@dataclass(frozen=True)
class Operator:
    """One row. `arity` None: any number of operands; inputs that a node leaves out are not among them."""

    domain: str
    name: str
    expression: Expression
    arity: int | None
    result: str  # type of the result: "same" as the first input, "second", "bool", or "cast"
    kinds: str  # element kinds it takes: f float/half/bfloat16, d double, i integer, b bool, 8 8-bit floats
    cost: int  # operations of our kernel per element, roughly
    on_sizes: OnSizes | None  # what it does to the integers of shape arithmetic; None: nothing is known of its result
    on_reals: str | None  # and to the floats: a function of RealApply


TABLE: dict[tuple[str, str], Operator] = {}
KINDS = "fdib8"
RESULTS = ("same", "second", "bool", "cast")


def row(
    name: str,
    expression: Callable[..., Expr],
    *,
    arity: int | None,
    result: str = "same",
    kinds: str = "fdi",
    cost: int = 1,
    node: bool = False,
    on_sizes: OnSizes | None = None,
    on_reals: str | None = None,
) -> None:
    """Add an operator, "Sigmoid" or "domain::Name". `expression` takes its operands, and before them the node if `node`."""
    domain, _, plain = name.rpartition("::")
    if not plain.isidentifier() or not kinds or set(kinds) - set(KINDS) or result not in RESULTS:
        raise ValueError(
            f"row {name}: a name is Op or domain::Op, kinds are of {KINDS}, the result is one of {RESULTS}"
        )

    def build(asking: NodeLike, operands: Sequence[Expr]) -> Expr:
        try:
            return expression(asking, *operands) if node else expression(*operands)
        except TypeError as error:
            raise TypeError(f"{name} with {len(operands)} operands: {error}") from error

    TABLE[domain, plain] = Operator(domain, plain, build, arity, result, kinds, cost, on_sizes, on_reals)


def names(arity: int | None = None, domain: str = "") -> frozenset[str]:
    """The operators of a domain; with `arity`, those of so many operands."""
    rows = (r for r in TABLE.values() if r.domain == domain)
    return frozenset(r.name for r in rows if arity is None or r.arity == arity)


def constant(node: NodeLike, value: float) -> Expr:
    """A number in the type of the node's first input."""
    return Literal(value, node.type_of(0))


# --- arithmetic ---


def _of_two(compute: Callable[[Size, Size], Size]) -> OnSizes:
    return lambda given, x: compute(x[0], x[1]) if len(x) == 2 else None


def _divided(given: Given, x: Sequence[Size]) -> Size | None:
    return trunc_div(x[0], x[1], given) if x[1].value != 0 else None


def _remainder(given: Given, x: Sequence[Size]) -> Size | None:
    return modulo(*x) if x[1].value else None


def _magnitude(given: Given, x: Sequence[Size]) -> Size | None:
    return as_size(abs(x[0].value)) if x[0].value is not None else None


def _divide(node: NodeLike, a: Expr, b: Expr) -> Expr:
    return a / b if node.type_of(0) in (*_FLOATS, DataType.DOUBLE) else f.divide(a, b)


def _power(node: NodeLike, x: Expr, y: Expr) -> Expr:
    """Small constant exponents are products; others go through pow of the first operand's type."""
    exponent = node.number(1) if node.type_of(0) in _FLOATS else None
    forms: dict[float, Callable[[], Expr]] = {
        2.0: lambda: x * x,
        3.0: lambda: x * x * x,
        1.0: lambda: x,
        0.5: lambda: f.sqrt(x),
        -1.0: lambda: f.reciprocal(x),
    }
    return forms[exponent]() if exponent in forms else f.pow(x, y)


def _fold(function: Callable[[Expr, Expr], Expr]) -> Callable[..., Expr]:
    def folded(first: Expr, *others: Expr) -> Expr:
        for other in others:
            first = function(first, other)
        return first

    return folded


def _mean(node: NodeLike, *x: Expr) -> Expr:
    return _fold(operator.add)(*x) / constant(node, len(x))


def _clip(node: NodeLike, x: Expr, *limits: Expr) -> Expr:
    """min(max(x, low), high): ONNX lets high win where low > high. A limit that is not given is the last finite number."""
    if node.opset < 11:
        low, high = (None if (v := node.attribute(a)) is None else constant(node, v) for a in ("min", "max"))
    else:
        low, high = limits[0] if node.has(1) else None, limits[-1] if node.has(2) else None
    kind = node.type_of(0)
    if kind.is_floating_point():
        low, high = (
            (constant(node, float(kind.min)) if low is None else low),
            (constant(node, float(kind.max)) if high is None else high),
        )
    x = x if low is None else f.maximum(x, low)
    return x if high is None else f.minimum(x, high)


row("Add", operator.add, arity=2, on_sizes=_of_two(operator.add), on_reals="+")
row("Sub", operator.sub, arity=2, on_sizes=_of_two(operator.sub), on_reals="-")
row("Mul", operator.mul, arity=2, on_sizes=_of_two(operator.mul), on_reals="*")
row("Div", _divide, arity=2, node=True, cost=4, on_sizes=_divided, on_reals="/")
row("Neg", operator.neg, arity=1, on_sizes=lambda given, x: -x[0], on_reals="-")
row("Abs", f.abs, arity=1, on_sizes=_magnitude)
row("Sign", f.sign, arity=1)
row("Reciprocal", f.reciprocal, arity=1, kinds="fd")
row("Sqrt", f.sqrt, arity=1, kinds="fd", cost=4, on_reals="sqrt")
row("Floor", f.floor, arity=1, kinds="fd", on_reals="floor")
row("Ceil", f.ceil, arity=1, kinds="fd", on_reals="ceil")
row("Round", f.round, arity=1, kinds="fd")
for _name in (
    *("Exp", "Log", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan"),
    *("Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Erf"),
):
    row(_name, getattr(f, _name.lower()), arity=1, kinds="fd", cost=16)
row("Pow", _power, arity=2, node=True, cost=24)
row(
    "Mod",
    lambda node, x, y: (f.fmod if node.attribute("fmod", 0) else f.modulo)(x, y),
    arity=2,
    node=True,
    cost=8,
    on_sizes=_remainder,
)
row("Max", _fold(f.maximum), arity=None, on_sizes=_of_two(maximum))
row("Min", _fold(f.minimum), arity=None, on_sizes=_of_two(minimum))
row("Sum", _fold(operator.add), arity=None, kinds="fd", on_sizes=_of_two(operator.add))
row("Mean", _mean, arity=None, node=True, kinds="fd")
row("Clip", _clip, arity=None, node=True)

# --- bits, logic, comparison ---


def _comparison(function: str, holds: Callable[[int], bool]) -> OnSizes:
    def on_sizes(given: Given, x: Sequence[Size]) -> Size | None:
        gap = x[0] - x[1]
        if gap.value is not None:
            return as_size(int(holds(gap.value)))
        if function == "host_equal" and never_zero(gap):
            return as_size(0)
        return apply(function, *x)

    return on_sizes


def _logic(function: str, holds: Callable[[Sequence[bool]], bool]) -> OnSizes:
    def on_sizes(given: Given, x: Sequence[Size]) -> Size | None:
        values = [v.value for v in x]
        return apply(function, *x) if None in values else as_size(int(holds([bool(v) for v in values])))

    return on_sizes


def _chosen(given: Given, x: Sequence[Size]) -> Size | None:
    if x[0].value is not None:
        return x[1] if x[0].value else x[2]
    return x[1] if x[1] == x[2] else apply("pick", *x)


def _shift(node: NodeLike, x: Expr, y: Expr) -> Expr:
    return (f.shift_left if node.attribute("direction").lower() == "left" else f.shift_right)(x, y)


def _is_inf(node: NodeLike, x: Expr) -> Expr:
    up, down = node.attribute("detect_positive", 1), node.attribute("detect_negative", 1)
    if up and down:
        return f.equal(f.abs(x), constant(node, math.inf))
    if not up and not down:
        return f.differ(f.equal(x, x), f.equal(x, x))
    return f.equal(x, constant(node, math.inf if up else -math.inf))


row("BitwiseAnd", operator.and_, arity=2, kinds="i")
row("BitwiseOr", operator.or_, arity=2, kinds="i")
row("BitwiseXor", operator.xor, arity=2, kinds="i")
row("BitwiseNot", operator.invert, arity=1, kinds="i")
row("BitShift", _shift, arity=2, node=True, kinds="i")
row("And", f.both, arity=2, kinds="b", on_sizes=_logic("host_and", all))
row("Or", f.either, arity=2, kinds="b", on_sizes=_logic("host_or", any))
row("Xor", f.differ, arity=2, kinds="b")
row("Not", f.negate, arity=1, kinds="b", on_sizes=_logic("host_not", lambda x: not x[0]))
for _name, _function, _relation in (
    ("Equal", "equal", lambda gap: gap == 0),
    ("Greater", "greater", lambda gap: gap > 0),
    ("GreaterOrEqual", "greater_equal", lambda gap: gap >= 0),
    ("Less", "less", lambda gap: gap < 0),
    ("LessOrEqual", "less_equal", lambda gap: gap <= 0),
):
    row(
        _name,
        getattr(f, _function),
        arity=2,
        result="bool",
        kinds="fdib" if _name == "Equal" else "fdi",
        on_sizes=_comparison(f"host_{_function}", _relation),
    )
row("Where", f.select, arity=3, result="second", kinds="fdib", on_sizes=_chosen)
row("IsNaN", f.isnan, arity=1, result="bool", kinds="fd")
row("IsInf", _is_inf, arity=1, node=True, result="bool", kinds="fd")

# --- activations ---


def _number(name: str, default: float) -> Callable[[NodeLike], Expr]:
    """An attribute as a number in the type of the first input."""
    return lambda node: constant(node, node.attribute(name, default))


_ALPHA = _number("alpha", 1.0)


def _negative(x: Expr, then: Expr, otherwise: Expr) -> Expr:
    return f.select(f.less(x, f.zero_like(x)), then, otherwise)


def _leaky_relu(node: NodeLike, x: Expr) -> Expr:
    return _negative(x, x * constant(node, node.attribute("alpha", 0.01)), x)


def _thresholded_relu(node: NodeLike, x: Expr) -> Expr:
    return f.select(f.greater(x, _ALPHA(node)), x, f.zero_like(x))


def _elu(node: NodeLike, x: Expr) -> Expr:
    return _negative(x, _ALPHA(node) * (f.exp(x) - constant(node, 1)), x)


def _selu(node: NodeLike, x: Expr) -> Expr:
    alpha = constant(node, node.attribute("alpha", 1.67326319217681884765625))
    gamma = constant(node, node.attribute("gamma", 1.05070102214813232421875))
    return gamma * f.select(f.greater(x, f.zero_like(x)), x, alpha * (f.exp(x) - constant(node, 1)))


def _celu(node: NodeLike, x: Expr) -> Expr:
    alpha, zero = _ALPHA(node), f.zero_like(x)
    return f.maximum(zero, x) + f.minimum(zero, alpha * (f.exp(x / alpha) - constant(node, 1)))


def _clamped(node: NodeLike, x: Expr, slope: float, offset: float) -> Expr:
    """max(0, min(1, slope x + offset))"""
    line = constant(node, slope) * x + constant(node, offset)
    return f.maximum(f.zero_like(x), f.minimum(constant(node, 1), line))


def _hard_sigmoid(node: NodeLike, x: Expr) -> Expr:
    return _clamped(node, x, node.attribute("alpha", 0.2), node.attribute("beta", 0.5))


def _gelu(node: NodeLike, x: Expr) -> Expr:
    return f.gelu_tanh(x) if node.attribute("approximate", "none") == "tanh" else f.gelu(x)


def _quick_gelu(node: NodeLike, x: Expr) -> Expr:
    return x * f.sigmoid(x * constant(node, node.attribute("alpha", 1.702)))


def _shrink(node: NodeLike, x: Expr) -> Expr:
    bias, limit = constant(node, node.attribute("bias", 0.0)), constant(node, node.attribute("lambd", 0.5))
    above = f.select(f.greater(x, limit), x - bias, f.zero_like(x))
    return f.select(f.less(x, -limit), x + bias, above)


def _binarizer(node: NodeLike, x: Expr) -> Expr:
    above = f.greater(x, constant(node, node.attribute("threshold", 0.0)))
    return f.select(above, constant(node, 1), f.zero_like(x))


row("Relu", f.relu, arity=1)
row("ai.onnx.ml::Binarizer", _binarizer, arity=1, node=True, kinds="fd")
row("PRelu", lambda x, slope: _negative(x, x * slope, x), arity=2)
row("LeakyRelu", _leaky_relu, arity=1, node=True, kinds="fd")
row("ThresholdedRelu", _thresholded_relu, arity=1, node=True, kinds="fd")
row("Elu", _elu, arity=1, node=True, kinds="fd", cost=20)
row("Selu", _selu, arity=1, node=True, kinds="fd", cost=20)
row("Celu", _celu, arity=1, node=True, kinds="fd", cost=20)
row("HardSigmoid", _hard_sigmoid, arity=1, node=True, kinds="fd")
row("HardSwish", lambda node, x: x * _clamped(node, x, 1 / 6, 0.5), arity=1, node=True, kinds="fd")
row("Swish", lambda node, x: x * f.sigmoid(x * _ALPHA(node)), arity=1, node=True, kinds="fd", cost=20)
row("Shrink", _shrink, arity=1, node=True, kinds="fd")
row("Sigmoid", f.sigmoid, arity=1, kinds="fd", cost=20)
row("Softplus", f.softplus, arity=1, kinds="fd", cost=32)
row("Softsign", lambda x: x / (f.abs(x) + Literal(1.0, DataType.FLOAT)), arity=1, kinds="f", cost=6)
row("Mish", lambda x: x * f.tanh(f.softplus(x)), arity=1, kinds="f", cost=48)
row("Gelu", _gelu, arity=1, node=True, kinds="f", cost=24)
row("opsmith::Gelu", f.gelu, arity=1, kinds="f", cost=20)
row("opsmith::GeluTanh", f.gelu_tanh, arity=1, kinds="f", cost=24)
row("opsmith::QuickGelu", f.quick_gelu, arity=1, kinds="f", cost=20)
row("opsmith::Silu", f.silu, arity=1, kinds="f", cost=20)
row("com.microsoft::QuickGelu", _quick_gelu, arity=1, node=True, kinds="f", cost=20)
row("com.microsoft::Gelu", f.gelu, arity=1, kinds="f", cost=20)
row("com.microsoft::BiasGelu", lambda x, bias: f.gelu(x + bias), arity=2, kinds="f", cost=21)
row("com.microsoft::FastGelu", lambda *x: f.gelu_tanh(_fold(operator.add)(*x)), arity=None, kinds="f", cost=24)

# --- conversions ---


def _cast(node: NodeLike, x: Expr, *like: Expr) -> Expr:
    source, target = node.type_of(0), node.result_type()
    if source.name.startswith("FLOAT8"):
        source, x = DataType.FLOAT, f.to_float(x)
    if source == DataType.BOOL and target in _FLOATS:
        return f.from_mask(x)
    if target == DataType.BOOL:
        return f.to_mask(x)
    if target in _FLOATS and source in (*_FLOATS, DataType.DOUBLE):
        x = x if source in _FLOATS else convert("cast", x, DataType.FLOAT)
        return x if target == DataType.FLOAT else convert("round_to", x, target)
    if source in (*_FLOATS, DataType.DOUBLE):
        return convert("cut_to", x, target)
    if target not in _FLOATS:
        return convert("cast", x, target)
    x = convert("cast", x, DataType.FLOAT)
    return x if target == DataType.FLOAT else convert("round_to", x, target)


row("Cast", _cast, arity=1, node=True, result="cast", kinds="fdib8")
row("CastLike", _cast, arity=1, node=True, result="cast", kinds="fdib8")


# --- quantizers: elementwise where one scale serves the whole tensor ---


def _zero(node: NodeLike, given: Sequence[Expr], dtype: DataType) -> Expr:
    return given[0] if given else Literal(0, dtype)


def _quantize(node: NodeLike, x: Sequence[Expr]) -> Expr:
    dtype = node.result_type()
    return Op("quantize_to", (x[0], x[1], _zero(node, x[2:], dtype)), dtype)


def _dequantize(node: NodeLike, x: Sequence[Expr]) -> Expr:
    return f.dequantized(x[0], x[1], _zero(node, x[2:], node.type_of(0)))


QUANTIZERS: dict[tuple[str, str], Operator] = {
    ("", name): Operator("", name, build, None, "", "", 4, None, None)
    for name, build in (("QuantizeLinear", _quantize), ("DequantizeLinear", _dequantize))
}


# --- floats of shape arithmetic ---

_KNOWN: dict[str, Callable[..., float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b=None: -a if b is None else a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else math.nan,
    "floor": math.floor,
    "ceil": math.ceil,
    "sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan,
}


def on_reals(function: str, x: Sequence[Real], single: bool) -> Real:
    """The result of one operation, computed now if its operands are known."""
    values = [v.value for v in x if v.value is not None]
    if len(values) == len(x) and all(math.isfinite(v) for v in values):
        return real_number(float(_KNOWN[function](*values)), single)
    return RealApply(function, tuple(x), single)


def real_number(value: float, single: bool) -> Number:
    return Number(float(np.float32(value)) if single else value)
