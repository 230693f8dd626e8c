"""Elementwise operators: each is a line of C++ on its operands, and a type rule.

The same text serves vectors (F, and I for masks) and scalars, because math.hpp and elementwise.hpp overload every function
for both. To add an operator is to add a line here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from opsmith.compile.dims import Dim, broadcast, maximum, minimum, trunc_div
from opsmith.compile.lower.registry import Node, infers, key
from opsmith.compile.values import (
    CPP,
    FLOATS,
    INTEGERS,
    Abstract,
    Constant,
    DataType,
    Element,
    FloatScalar,
    Unsupported,
    abstract,
    float_element,
    float_literal,
    of_constant,
)

Text = Callable[[Node, list[str]], str]


@dataclasses.dataclass(frozen=True)
class Spec:
    """How an elementwise operator is written."""

    text: Text
    result: str = "same"  # "same" as the first input, "second", "bool", or "cast"
    kinds: str = "fidb"  # allowed element kinds: f float/half/bfloat16, d double, i integer, b bool
    cost: int = 1  # floating point operations, roughly


SPECS: dict[tuple[str, str], Spec] = {}


def plain(op: str, template: str, result: str = "same", kinds: str = "fdi", cost: int = 1) -> None:
    SPECS[key(op)] = Spec(lambda node, x: template.format(*x), result, kinds, cost)


def spec(op: str, result: str = "same", kinds: str = "fd", cost: int = 1) -> Callable[[Text], Text]:
    def register(f: Text) -> Text:
        SPECS[key(op)] = Spec(f, result, kinds, cost)
        return f

    return register


def const(node: Node, value: float) -> str:
    """A literal in the type of the node's first input."""
    dtype = node.input(0).dtype
    if dtype in FLOATS:
        return f"splat({float_literal(value)})"
    if dtype == DataType.DOUBLE:
        return float_literal(value, "double")
    return f"({CPP[dtype]})({int(value)}ll)"


# --- arithmetic ---
plain("Add", "{0} + {1}")
plain("Sub", "{0} - {1}")
plain("Mul", "{0} * {1}")
plain("Neg", "-{0}")
plain("Abs", "abs({0})")
plain("Sign", "sign({0})")
plain("Reciprocal", "reciprocal({0})", kinds="fd")
plain("Sqrt", "sqrt({0})", kinds="fd", cost=4)
plain("Floor", "floor({0})", kinds="fd")
plain("Ceil", "ceil({0})", kinds="fd")
plain("Round", "round({0})", kinds="fd")
for _name in (
    "Exp",
    "Log",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Tanh",
    "Asinh",
    "Acosh",
    "Atanh",
    "Erf",
):
    plain(_name, f"{_name.lower()}({{0}})", kinds="fd", cost=16)
plain("BitwiseAnd", "{0} & {1}", kinds="i")
plain("BitwiseOr", "{0} | {1}", kinds="i")
plain("BitwiseXor", "{0} ^ {1}", kinds="i")
plain("BitwiseNot", "~{0}", kinds="i")
plain("And", "both({0}, {1})", kinds="b")
plain("Or", "either({0}, {1})", kinds="b")
plain("Xor", "differ({0}, {1})", kinds="b")
plain("Not", "negate({0})", kinds="b")
plain("Equal", "equal({0}, {1})", result="bool", kinds="fdib")
plain("Greater", "greater({0}, {1})", result="bool")
plain("GreaterOrEqual", "greater_equal({0}, {1})", result="bool")
plain("Less", "less({0}, {1})", result="bool")
plain("LessOrEqual", "less_equal({0}, {1})", result="bool")
plain("Where", "select({0}, {1}, {2})", result="second", kinds="fdib")
plain("IsNaN", "isnan({0})", result="bool", kinds="fd")
plain("PRelu", "select(less({0}, zero_like({0})), {0} * {1}, {0})")

# --- activations ---
plain("Relu", "relu({0})")
plain("Sigmoid", "sigmoid({0})", kinds="fd", cost=20)
plain("Softplus", "softplus({0})", kinds="fd", cost=32)
plain("Softsign", "{0} / (abs({0}) + splat(1.0f))", kinds="f", cost=6)
plain("Mish", "{0} * tanh(softplus({0}))", kinds="f", cost=48)
plain("opsmith::Gelu", "gelu({0})", kinds="f", cost=20)
plain("opsmith::GeluTanh", "gelu_tanh({0})", kinds="f", cost=24)
plain("opsmith::QuickGelu", "quick_gelu({0})", kinds="f", cost=20)
plain("opsmith::Silu", "silu({0})", kinds="f", cost=20)
plain("com.microsoft::QuickGelu", "quick_gelu({0})", kinds="f", cost=20)
plain("com.microsoft::Gelu", "gelu({0})", kinds="f", cost=20)


@spec("Div", kinds="fdi", cost=4)
def _div(node: Node, x: list[str]) -> str:
    return f"divide({x[0]}, {x[1]})" if node.input(0).dtype in INTEGERS else f"{x[0]} / {x[1]}"


@spec("Pow", kinds="fdi", cost=24)
def _pow(node: Node, x: list[str]) -> str:
    """Small constant exponents are products; others go through pow of the first operand's type."""
    exponent = node.input(1)
    if exponent.constant is not None and exponent.constant.size == 1 and node.input(0).dtype in FLOATS:
        value = float(exponent.constant.read().reshape(-1)[0])
        if value == 2:
            return f"{x[0]} * {x[0]}"
        if value == 3:
            return f"{x[0]} * {x[0]} * {x[0]}"
        if value == 1:
            return x[0]
        if value == 0.5:
            return f"sqrt({x[0]})"
        if value == -1:
            return f"reciprocal({x[0]})"
    return f"pow({x[0]}, {x[1]})"


@spec("Mod", kinds="fdi", cost=8)
def _mod(node: Node, x: list[str]) -> str:
    name = "fmod" if node.attribute("fmod", 0) else "modulo"
    return f"{name}({x[0]}, {x[1]})"


@spec("BitShift", kinds="i")
def _shift(node: Node, x: list[str]) -> str:
    return f"shift_{node.attribute('direction').lower()}({x[0]}, {x[1]})"


@spec("Max", kinds="fdi")
def _max(node: Node, x: list[str]) -> str:
    return _fold("maximum", x)


@spec("Min", kinds="fdi")
def _min(node: Node, x: list[str]) -> str:
    return _fold("minimum", x)


@spec("Sum", kinds="fd")
def _sum(node: Node, x: list[str]) -> str:
    return " + ".join(x)


@spec("Mean", kinds="fd")
def _mean(node: Node, x: list[str]) -> str:
    return f"({' + '.join(x)}) / {const(node, len(x))}"


def _fold(name: str, x: list[str]) -> str:
    text = x[0]
    for other in x[1:]:
        text = f"{name}({text}, {other})"
    return text


@spec("Clip", kinds="fdi")
def _clip(node: Node, x: list[str]) -> str:
    """min(max(x, low), high): ONNX lets high win where low > high."""
    text = x[0]
    low, high = (1 if node.has(1) else None), (2 if node.has(2) else None)
    if node.opset < 11:
        for name, attribute in (("maximum", "min"), ("minimum", "max")):
            if (value := node.attribute(attribute)) is not None:
                text = f"{name}({text}, {const(node, value)})"
        return text
    if low is not None:
        text = f"maximum({text}, {x[1]})"
    if high is not None:
        text = f"minimum({text}, {x[-1]})"
    return text


@spec("LeakyRelu")
def _leaky_relu(node: Node, x: list[str]) -> str:
    return f"select(less({x[0]}, zero_like({x[0]})), {x[0]} * {const(node, node.attribute('alpha', 0.01))}, {x[0]})"


@spec("ThresholdedRelu")
def _thresholded_relu(node: Node, x: list[str]) -> str:
    return f"select(greater({x[0]}, {const(node, node.attribute('alpha', 1.0))}), {x[0]}, zero_like({x[0]}))"


@spec("Elu", cost=20)
def _elu(node: Node, x: list[str]) -> str:
    a, one = const(node, node.attribute("alpha", 1.0)), const(node, 1)
    return f"select(less({x[0]}, zero_like({x[0]})), {a} * (exp({x[0]}) - {one}), {x[0]})"


@spec("Selu", cost=20)
def _selu(node: Node, x: list[str]) -> str:
    a, g = node.attribute("alpha", 1.67326319217681884765625), node.attribute("gamma", 1.05070102214813232421875)
    one = const(node, 1)
    return (
        f"{const(node, g)} * select(greater({x[0]}, zero_like({x[0]})), {x[0]}, "
        f"{const(node, a)} * (exp({x[0]}) - {one}))"
    )


@spec("Celu", cost=20)
def _celu(node: Node, x: list[str]) -> str:
    a, zero, one = const(node, node.attribute("alpha", 1.0)), f"zero_like({x[0]})", const(node, 1)
    return f"maximum({zero}, {x[0]}) + minimum({zero}, {a} * (exp({x[0]} / {a}) - {one}))"


@spec("HardSigmoid")
def _hard_sigmoid(node: Node, x: list[str]) -> str:
    a, b = const(node, node.attribute("alpha", 0.2)), const(node, node.attribute("beta", 0.5))
    return f"maximum(zero_like({x[0]}), minimum({const(node, 1)}, {a} * {x[0]} + {b}))"


@spec("HardSwish")
def _hard_swish(node: Node, x: list[str]) -> str:
    a, b = const(node, 1 / 6), const(node, 0.5)
    return f"{x[0]} * maximum(zero_like({x[0]}), minimum({const(node, 1)}, {a} * {x[0]} + {b}))"


@spec("Swish", cost=20)
def _swish(node: Node, x: list[str]) -> str:
    return f"{x[0]} * sigmoid({x[0]} * {const(node, node.attribute('alpha', 1.0))})"


@spec("Gelu", kinds="f", cost=24)
def _gelu(node: Node, x: list[str]) -> str:
    return f"gelu_tanh({x[0]})" if node.attribute("approximate", "none") == "tanh" else f"gelu({x[0]})"


@spec("Shrink", kinds="fd")
def _shrink(node: Node, x: list[str]) -> str:
    bias, lambd = const(node, node.attribute("bias", 0.0)), const(node, node.attribute("lambd", 0.5))
    inner = f"select(greater({x[0]}, {lambd}), {x[0]} - {bias}, zero_like({x[0]}))"
    return f"select(less({x[0]}, -({lambd})), {x[0]} + {bias}, {inner})"


@spec("IsInf", result="bool", kinds="fd")
def _is_inf(node: Node, x: list[str]) -> str:
    up, down = node.attribute("detect_positive", 1), node.attribute("detect_negative", 1)
    inf, ninf = const(node, float("inf")), const(node, float("-inf"))
    if up and down:
        return f"equal(abs({x[0]}), {inf})"
    if not up and not down:
        return f"differ(equal({x[0]}, {x[0]}), equal({x[0]}, {x[0]}))"
    return f"equal({x[0]}, {inf if up else ninf})"


@spec("Cast", result="cast", kinds="fdib")
def _cast(node: Node, x: list[str]) -> str:
    source, target = node.input(0).dtype, node.outputs[0].dtype
    if source == DataType.BOOL and target in FLOATS:
        return f"from_mask({x[0]})"
    if target == DataType.BOOL:
        return f"to_mask({x[0]})"
    if source in FLOATS and target in FLOATS:
        return f"round_to<{CPP[target]}>({x[0]})" if target != DataType.FLOAT else x[0]
    if source == DataType.DOUBLE and target in FLOATS:
        return f"(float)({x[0]})" if target == DataType.FLOAT else f"round_to<{CPP[target]}>((float)({x[0]}))"
    if source in FLOATS or source == DataType.DOUBLE:
        return f"to_number<{CPP[target]}>({x[0]})"
    return f"({'float' if target in FLOATS else CPP[target]})({x[0]})"


SPECS[key("CastLike")] = Spec(_cast, "cast", "fdib")


# Casts of these kinds never need rounding inside a float expression; everything else is decided per group.


def kind(dtype: DataType) -> str:
    if dtype in FLOATS:
        return "f"
    if dtype == DataType.DOUBLE:
        return "d"
    if dtype == DataType.BOOL:
        return "b"
    return "i" if dtype in INTEGERS else "?"


def _result_type(node: Node, s: Spec) -> DataType:
    if s.result == "bool":
        return DataType.BOOL
    if s.result == "second":
        return node.input(1).dtype
    if s.result == "cast":
        if node.ir.op_type == "CastLike":
            return node.input(1).dtype
        return DataType(int(node.attribute("to")))
    return node.input(0).dtype


def infer(node: Node) -> list[Abstract]:
    s = SPECS[key_of_node(node)]
    dtype = _result_type(node, s)
    present = [v for v in node.inputs if v is not None]
    if node.ir.op_type == "CastLike":
        present = present[:1]
    for value in (*present, Abstract(dtype, ())):
        if kind(value.dtype) == "?":
            raise Unsupported(f"element type {value.dtype.name} stays with ONNX Runtime")
        allowed = s.kinds + ("b" if s.result in ("bool", "second") else "")
        if kind(value.dtype) not in allowed:
            raise Unsupported(f"{node.ir.op_type} on {value.dtype.name} stays with ONNX Runtime")
    if node.ir.op_type == "Cast" and node.input(0).dtype in FLOATS and kind(dtype) == "?":
        raise Unsupported(f"Cast to {dtype.name} stays with ONNX Runtime")
    dims: tuple[Dim, ...] = ()
    for value in present:
        dims = broadcast_dims(node, dims, value.dims)
    elements = _elements(node, present, dims, dtype)
    return [Abstract(dtype, dims, elements, _widened(node, dtype))]


def _widened(node: Node, dtype: DataType) -> Constant | None:
    """Weights stored in half precision and cast to float are still weights."""
    constant = node.input(0).constant
    if node.ir.op_type not in ("Cast", "CastLike") or constant is None or dtype != DataType.FLOAT:
        return None
    return constant.widened(dtype) if constant.dtype in (DataType.FLOAT16, DataType.BFLOAT16) else None


def key_of_node(node: Node) -> tuple[str, str]:
    return ("" if node.ir.domain == "ai.onnx" else node.ir.domain), node.ir.op_type


def broadcast_dims(node: Node, a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[Dim, ...]:
    rank = max(len(a), len(b))
    one = Dim({(): 1})
    x, y = (one,) * (rank - len(a)) + a, (one,) * (rank - len(b)) + b
    for i, j in zip(x, y):
        if i != j and i != 1 and j != 1:
            if i.value is not None and j.value is not None:
                raise Unsupported(f"shapes {a} and {b} do not broadcast")
            node.checks.append((f"can_broadcast({i.cpp()}, {j.cpp()})", "shapes do not broadcast"))
    return tuple(broadcast(i, j) for i, j in zip(x, y))


# --- shape arithmetic: the same operators on small integer values known as symbolic sizes ---


def _elements(node: Node, inputs: list[Abstract], dims: tuple[Dim, ...], dtype: DataType) -> tuple[Element, ...] | None:
    if len(dims) > 1 or any(v.elements is None for v in inputs):
        return None
    count = dims[0].value if dims else 1
    if count is None:
        return None
    columns: list[tuple[Element, ...]] = []
    for v in inputs:
        assert v.elements is not None
        columns.append(v.elements if len(v.elements) == count else v.elements * count)
    result: list[Element] = []
    for row in zip(*columns):
        value = _fold_scalar(node, row, dtype)
        if value is None:
            return None
        result.append(value)
    return tuple(result)


def _fold_scalar(node: Node, x: tuple[Element, ...], dtype: DataType) -> Element | None:
    op = node.ir.op_type
    if op in ("Cast", "CastLike"):
        return _cast_scalar(x[0], dtype)
    if all(isinstance(e, Dim) for e in x):
        return _integer(op, [e for e in x if isinstance(e, Dim)])
    if op == "Where" and isinstance(x[0], Dim) and x[0].value is not None:
        return x[1] if x[0].value else x[2]
    if all(isinstance(e, FloatScalar) for e in x):
        return _float(op, [e for e in x if isinstance(e, FloatScalar)], dtype)
    return None


def _integer(op: str, x: list[Dim]) -> Dim | None:
    if op in ("Add", "Sum"):
        return x[0] + x[1] if len(x) == 2 else None
    if op == "Sub":
        return x[0] - x[1]
    if op == "Mul":
        return x[0] * x[1]
    if op == "Div":
        return trunc_div(x[0], x[1]) if x[1].value != 0 else None
    if op == "Neg":
        return -x[0]
    if op == "Max":
        return maximum(x[0], x[1]) if len(x) == 2 else None
    if op == "Min":
        return minimum(x[0], x[1]) if len(x) == 2 else None
    if op == "Abs" and x[0].value is not None:
        return Dim({(): abs(x[0].value)})
    if op == "Where":
        if x[0].value is not None:
            return x[1] if x[0].value else x[2]
        if x[1] == x[2]:
            return x[1]
        return _call("pick", x)
    if op in _COMPARE:
        gap = (x[0] - x[1]).value
        if gap is not None:
            return Dim({(): int(_COMPARE[op][1](gap))})
        if op == "Equal" and _never_zero(x[0] - x[1]):
            return Dim({(): 0})
        return _call(_COMPARE[op][0], x)
    if op in ("Not", "And", "Or"):
        values = [v.value for v in x]
        if all(v is not None for v in values):
            numbers = [bool(v) for v in values]
            return Dim({(): int(not numbers[0] if op == "Not" else all(numbers) if op == "And" else any(numbers))})
        return _call({"Not": "host_not", "And": "host_and", "Or": "host_or"}[op], x)
    if op == "Mod" and x[1].value:
        return _call("modulo<i64>", x) if x[0].value is None else Dim({(): x[0].value % x[1].value})
    return None


def _never_zero(gap: Dim) -> bool:
    """A size is never negative, so `batch + 1` is never 0: exporters ask whether a size equals -1."""
    sizes_only = all("[" not in a and "to_integer" not in a for a in gap.atoms())
    return sizes_only and gap.terms.get((), 0) != 0 and len({c > 0 for c in gap.terms.values()}) == 1


_COMPARE: dict[str, tuple[str, Callable[[int], bool]]] = {
    "Equal": ("host_equal", lambda g: g == 0),
    "Greater": ("host_greater", lambda g: g > 0),
    "GreaterOrEqual": ("host_greater_equal", lambda g: g >= 0),
    "Less": ("host_less", lambda g: g < 0),
    "LessOrEqual": ("host_less_equal", lambda g: g <= 0),
}


def _call(name: str, x: list[Dim]) -> Dim:
    from opsmith.compile.dims import call

    return call(name, *x)


def _float(op: str, x: list[FloatScalar], dtype: DataType) -> Element | None:
    known = [e.value for e in x]
    if all(v is not None for v in known):
        folded = _fold_known(op, [float(v) for v in known if v is not None], dtype)
        if folded is not None:
            return folded
    binary = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/"}
    if op in binary and len(x) == 2:
        return FloatScalar(_in_type(f"({x[0].text}) {binary[op]} ({x[1].text})", dtype))
    if op in ("Floor", "Ceil", "Sqrt", "Neg"):
        name = {"Floor": "floor", "Ceil": "ceil", "Sqrt": "sqrt", "Neg": "-"}[op]
        return FloatScalar(_in_type(f"{name}({x[0].text})", dtype))
    return None


def _in_type(text: str, dtype: DataType) -> str:
    return f"(double)({CPP[dtype] if dtype == DataType.DOUBLE else 'float'})({text})"


def _fold_known(op: str, x: list[float], dtype: DataType) -> Element | None:
    functions: dict[str, Callable[..., float]] = {
        "Add": lambda a, b: a + b,
        "Sub": lambda a, b: a - b,
        "Mul": lambda a, b: a * b,
        "Div": lambda a, b: a / b if b else float("nan"),
        "Floor": np.floor,
        "Ceil": np.ceil,
        "Sqrt": lambda a: float(np.sqrt(a)) if a >= 0 else float("nan"),
        "Neg": lambda a: -a,
    }
    if op not in functions or len(x) > 2 or any(np.isnan(x)):
        return None
    value = float(functions[op](*x))
    return float_element(float(np.float32(value)) if dtype != DataType.DOUBLE else value)


def _cast_scalar(x: Element, dtype: DataType) -> Element | None:
    if dtype in INTEGERS:
        if isinstance(x, Dim):
            return x
        if x.value is not None and np.isfinite(x.value):
            return Dim({(): int(x.value)})
        return Dim({(f"to_integer({x.text})",): 1})
    if dtype == DataType.BOOL:
        if isinstance(x, Dim):
            return Dim({(): int(x.value != 0)}) if x.value is not None else None
        return None
    if isinstance(x, Dim):
        if x.value is not None:
            value = float(x.value)
            return float_element(float(np.float32(value)) if dtype != DataType.DOUBLE else value)
        return FloatScalar(_in_type(x.cpp(), dtype))
    return x if dtype in (DataType.FLOAT, DataType.DOUBLE) else None


for _op in list(SPECS):
    infers("::".join(_op) if _op[0] else _op[1])(infer)

__all__ = ["SPECS", "Spec", "abstract", "broadcast_dims", "infer", "kind", "of_constant"]
