"""Elementwise operators, by the table in ops.py: types, broadcasting, and the same operators on the numbers of shape arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from opsmith import ops
from opsmith.analysis.registry import Infer, Key, Node, key_of
from opsmith.analysis.values import FLOATS, HALVES, INTEGERS, Abstract, Array, Constant, DataType, Unsupported, kind
from opsmith.sizes import ONE, Number, Real, RealApply, Scalar, Size, apply, as_size, broadcast, holds, never_negative


def find(key: Key) -> Infer | None:
    """The inference of an elementwise operator, if it is one."""
    return infer if key in ops.TABLE else None


def infer(node: Node) -> list[Abstract]:
    operator = ops.TABLE[key_of(node.ir)]
    dtype = _result_type(node, operator)
    present = [v for v in node.inputs if v is not None]
    if node.op == "CastLike":
        present = present[:1]
    for value in (*present, Abstract(dtype, ())):
        if kind(value.dtype) == "?" or kind(dtype) == "8":
            raise Unsupported(f"element type {value.dtype.name} stays with ONNX Runtime")
        allowed = operator.kinds + ("b" if operator.result in ("bool", "second") else "")
        if kind(value.dtype) not in allowed:
            raise Unsupported(f"{node.op} on {value.dtype.name} stays with ONNX Runtime")
    if any(v.squeezed for v in present):
        return [_squeezed(present, dtype)]
    dims: tuple[Size, ...] = ()
    for value in present:
        dims = broadcast_dims(node, dims, value.dims)
    elements = _elements(node, operator, present, dims, dtype)
    return [Abstract(dtype, dims, elements, _widened(node, dtype) or _weight(node, dtype, dims))]


def _squeezed(inputs: Sequence[Abstract], dtype: DataType) -> Abstract:
    """Beside single numbers, a value of unknown rank keeps its shape."""
    shapes = {(v.dims, v.squeezed) for v in inputs if v.dims}
    if len(shapes) > 1:
        raise Unsupported("the rank of its input is known only when it runs")
    ((dims, _),) = shapes
    return Abstract(dtype, dims, squeezed=True)


def _result_type(node: Node, operator: ops.Operator) -> DataType:
    if operator.result == "bool":
        return DataType.BOOL
    if operator.result == "second":
        return node.input(1).dtype
    if operator.result == "cast":
        return node.input(1).dtype if node.op == "CastLike" else DataType(int(node.attribute("to")))
    return node.input(0).dtype


def _widened(node: Node, dtype: DataType) -> Constant | None:
    """Weights stored in half precision and cast to float are still weights."""
    constant = node.input(0).constant
    if node.op not in ("Cast", "CastLike") or constant is None or dtype != DataType.FLOAT:
        return None
    return constant.widened(dtype) if constant.dtype in (DataType.FLOAT16, DataType.BFLOAT16) else None


_ON_WEIGHTS: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}


def _weight(node: Node, dtype: DataType, dims: tuple[Size, ...]) -> Constant | None:
    """Weights that are kept as integers and scaled by a chain of nodes, computed when they are read."""
    constants = [v.constant for v in node.inputs if v is not None and v.constant is not None]
    sizes = tuple(d.value for d in dims if d.value is not None)
    if dtype != DataType.FLOAT or len(constants) != len(node.inputs) or len(sizes) != len(dims):
        return None
    key = f"{node.op}({', '.join(c.key for c in constants)})"
    if node.op == "Cast" and constants[0].dtype in INTEGERS:
        return Constant(key, dtype, sizes, lambda: constants[0].read().astype(np.float32))
    if node.op not in _ON_WEIGHTS or len(constants) != 2:
        return None

    def compute() -> Array:
        with np.errstate(all="ignore"):
            return _ON_WEIGHTS[node.op](constants[0].read(), constants[1].read())

    return Constant(key, dtype, sizes, compute)


def broadcast_dims(node: Node, a: tuple[Size, ...], b: tuple[Size, ...]) -> tuple[Size, ...]:
    rank = max(len(a), len(b))
    x, y = (ONE,) * (rank - len(a)) + a, (ONE,) * (rank - len(b)) + b
    for i, j in zip(x, y):
        if i != j and i != 1 and j != 1:
            if i.value is not None and j.value is not None:
                raise Unsupported(f"shapes {a} and {b} do not broadcast")
            node.require(holds("can_broadcast", i, j), "shapes do not broadcast")
    return tuple(broadcast(i, j, node.given) for i, j in zip(x, y))


# --- shape arithmetic ---


def _elements(
    node: Node, operator: ops.Operator, inputs: list[Abstract], dims: tuple[Size, ...], dtype: DataType
) -> tuple[Scalar, ...] | None:
    if len(dims) > 1 or any(v.elements is None for v in inputs):
        return None
    count = dims[0].value if dims else 1
    if count is None:
        return None
    columns = [v.elements if len(v.elements) == count else v.elements * count for v in inputs if v.elements is not None]
    result: list[Scalar] = []
    for operands in zip(*columns):
        value = _fold(node, operator, operands, dtype)
        if value is None or not _holds(dtype, value):
            return None
        result.append(value)
    return tuple(result)


def _holds(dtype: DataType, value: Scalar) -> bool:
    """Whether arithmetic on sizes and floats is that of the type: it neither wraps nor rounds to a half."""
    if isinstance(value, Real):
        return dtype not in HALVES or (
            value.value is not None and float(dtype.numpy().type(value.value)) == value.value
        )
    if dtype == DataType.BOOL:
        return True
    return dtype in (DataType.INT64, DataType.INT32) if value.value is None else _fits(value.value, dtype)


def _fits(number: int, dtype: DataType) -> bool:
    signed = dtype.name.startswith("INT")
    low, high = (-(1 << dtype.bitwidth - 1), 1 << dtype.bitwidth - 1) if signed else (0, 1 << dtype.bitwidth)
    return low <= number < high


def _fold(node: Node, operator: ops.Operator, x: Sequence[Scalar], dtype: DataType) -> Scalar | None:
    if operator.result == "cast":
        return _cast(x[0], node.type_of(0), dtype)
    sizes = [e for e in x if isinstance(e, Size)]
    if len(sizes) == len(x):
        if node.op == "Mod" and node.flag("fmod") and not all(never_negative(s, node.given) for s in sizes):
            return None  # the sign of the dividend, where sizes have the divisor's
        return None if operator.on_sizes is None else operator.on_sizes(node.given, sizes)
    if node.op == "Where" and isinstance(x[0], Size) and x[0].value is not None:
        return x[1] if x[0].value else x[2]
    reals = [e for e in x if isinstance(e, Real)]
    if operator.on_reals is None or len(reals) != len(x) or len(x) != operator.arity:
        return None
    return ops.on_reals(operator.on_reals, reals, dtype != DataType.DOUBLE)


def _cast_to_integer(x: Scalar, dtype: DataType) -> Scalar | None:
    """The number as an integer; None where it may not fit: sizes know no narrow or unsigned arithmetic."""
    if x.value is not None and math.isfinite(x.value):
        number = int(x.value)
        return as_size(number) if _fits(number, dtype) else None
    if dtype not in (DataType.INT64, DataType.INT32):
        return None
    if isinstance(x, Size):
        return x
    return apply("to_integer" if dtype == DataType.INT64 else "to_int32", x)


def _cast(x: Scalar, source: DataType, dtype: DataType) -> Scalar | None:
    if dtype in INTEGERS:
        return _cast_to_integer(x, dtype)
    if dtype == DataType.BOOL:
        return as_size(int(x.value != 0)) if isinstance(x, Size) and x.value is not None else None
    if isinstance(x, Real):
        if dtype == DataType.FLOAT and source == DataType.DOUBLE:
            return ops.on_reals("*", (x, Number(1.0)), True)
        return x if dtype in (DataType.FLOAT, DataType.DOUBLE) else None
    if dtype not in FLOATS and dtype != DataType.DOUBLE:
        return None
    single = dtype != DataType.DOUBLE
    return ops.real_number(float(x.value), single) if x.value is not None else RealApply("size", (x,), single)
