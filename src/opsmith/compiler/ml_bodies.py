"""Definitions in standard operators for the operators of ai.onnx.ml that are arithmetic: what stands before and behind a network.

    Scaler, Imputer, Binarizer, Normalizer, LinearRegressor

Trees, SVMs, maps and strings stay with ONNX Runtime. Each gives float, whatever it reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir
from onnx_ir import DataType

from opsmith.analysis.values import Abstract

Body = Callable[[ir.Node, list["Abstract | None"], int], "str | None"]

_NUMBERS = (DataType.FLOAT, DataType.DOUBLE, DataType.INT64, DataType.INT32)


def scaler(node: ir.Node, inputs: list[Abstract | None], opset: int) -> str | None:
    """y = (x - offset) * scale, per column"""
    x = _table(inputs)
    if x is None:
        return None
    # A double is scaled as one; what is no float becomes one first.
    wide = int(DataType.DOUBLE if x.dtype == DataType.DOUBLE else DataType.FLOAT)
    columns = x.dims[-1].value
    offset, scale = _floats(node, "offset"), _floats(node, "scale")
    if not {len(offset), len(scale)} <= {1, columns} - {None}:
        return None
    return f"""Scaler (x) => (y) {{
        number = Cast <to: int = {wide}> (x)
        offset = Constant <value_floats: floats = {_list(offset)}> ()
        scale = Constant <value_floats: floats = {_list(scale)}> ()
        offset_wide = Cast <to: int = {wide}> (offset)
        scale_wide = Cast <to: int = {wide}> (scale)
        moved = Sub (number, offset_wide)
        scaled = Mul (moved, scale_wide)
        y = Cast <to: int = 1> (scaled)
    }}"""


def imputer(node: ir.Node, inputs: list[Abstract | None], opset: int) -> str | None:
    """y = x, and where x is the value that stands for nothing, the one to put there"""
    x = _table(inputs)
    values = _floats(node, "imputed_value_floats")
    missing = node.attributes.get_float("replaced_value_float", 0.0)
    if x is None or x.dtype != DataType.FLOAT or len(values) not in (1, x.dims[-1].value) or math.isinf(missing):
        return None
    is_missing = (
        "is_missing = IsNaN (x)"
        if math.isnan(missing)
        else f"missing = Constant <value_float: float = {missing!r}> ()  is_missing = Equal (x, missing)"
    )
    return f"""Imputer (x) => (y) {{
        {is_missing}
        values = Constant <value_floats: floats = {_list(values)}> ()
        y = Where (is_missing, values, x)
    }}"""


def binarizer(node: ir.Node, inputs: list[Abstract | None], opset: int) -> str | None:
    """y = 1 where x > threshold, else 0"""
    x = inputs[0]
    if x is None or x.dtype != DataType.FLOAT:
        return None
    return f"""Binarizer (x) => (y) {{
        threshold = Constant <value_float: float = {node.attributes.get_float("threshold", 0.0)!r}> ()
        above = Greater (x, threshold)
        y = Cast <to: int = 1> (above)
    }}"""


def normalizer(node: ir.Node, inputs: list[Abstract | None], opset: int) -> str | None:
    """y = x / |x|, per row, and x where the norm is 0"""
    x = _table(inputs)
    norm = {"L1": "ReduceL1", "L2": "ReduceL2"}.get(node.attributes.get_string("norm", "MAX"))
    if x is None or x.dtype != DataType.FLOAT or norm is None or opset < 18:
        return None
    return f"""Normalizer (x) => (y) {{
        axes = Constant <value_ints: ints = [-1]> ()
        size = {norm} <keepdims: int = 1> (x, axes)
        zero = Constant <value_float: float = 0.0> ()
        one = Constant <value_float: float = 1.0> ()
        empty = Equal (size, zero)
        divisor = Where (empty, one, size)
        y = Div (x, divisor)
    }}"""


def linear_regressor(node: ir.Node, inputs: list[Abstract | None], opset: int) -> str | None:
    """y = x @ coefficients^T + intercepts"""
    x = _table(inputs)
    targets = node.attributes.get_int("targets", 1)
    coefficients, intercepts = _floats(node, "coefficients"), _floats(node, "intercepts") or [0.0]
    plain = node.attributes.get_string("post_transform", "NONE") == "NONE"
    if x is None or x.rank != 2 or not plain or x.dims[1].value is None:
        return None
    if len(coefficients) != targets * x.dims[1].value or len(intercepts) not in (1, targets):
        return None
    return f"""LinearRegressor (x) => (y) {{
        number = Cast <to: int = 1> (x)
        flat = Constant <value_floats: floats = {_list(coefficients)}> ()
        shape = Constant <value_ints: ints = [{targets}, {x.dims[1].value}]> ()
        coefficients = Reshape (flat, shape)
        intercepts = Constant <value_floats: floats = {_list(intercepts)}> ()
        y = Gemm <transB: int = 1> (number, coefficients, intercepts)
    }}"""


def _table(inputs: list[Abstract | None]) -> Abstract | None:
    """The first input, if it is rows of numbers, or one row."""
    x = inputs[0] if inputs else None
    return x if x is not None and x.rank in (1, 2) and x.dtype in _NUMBERS else None


def _floats(node: ir.Node, name: str) -> list[float]:
    """Empty also where one of them cannot be written as a number."""
    values = [float(v) for v in node.attributes.get_floats(name, ())]
    return values if all(map(math.isfinite, values)) else []


def _list(values: Sequence[float]) -> str:
    return f"[{', '.join(map(repr, values))}]"


BODIES: dict[tuple[str, str], Body] = {
    ("ai.onnx.ml", "Scaler"): scaler,
    ("ai.onnx.ml", "Imputer"): imputer,
    ("ai.onnx.ml", "Binarizer"): binarizer,
    ("ai.onnx.ml", "Normalizer"): normalizer,
    ("ai.onnx.ml", "LinearRegressor"): linear_regressor,
}
