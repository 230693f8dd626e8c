"""Definitions in standard operators for operators that ONNX itself defines only in prose.

`expand` uses them as it uses the function bodies of ONNX's schemas. Each function gives the body as text in ONNX's own syntax,
or None where the node is of a form that the body does not cover.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir

from opsmith.analysis.registry import key_of
from opsmith.analysis.values import Abstract
from opsmith.compiler import attention_bodies, ml_bodies, quantized_bodies, runtime_bodies
from opsmith.rewriter.rule import attribute

Body = Callable[[ir.Node, list["Abstract | None"], int], "str | None"]


def batch_normalization(node: ir.Node, inputs: list[Abstract | None], opset: int) -> str | None:
    """y = x * k + (bias - mean * k) with k = scale / sqrt(var + epsilon), per channel"""
    x = inputs[0]
    operands = [i for i in inputs[:5] if i is not None]
    if x is None or len(operands) != 5 or len({i.dtype for i in operands}) != 1 or x.rank < 2:
        return None
    if attribute(node, "training_mode", 0) and opset >= 18:
        return _training(node, x.rank)
    if attribute(node, "training_mode", 0) or len(node.outputs) > 1 or opset < 9:
        return None
    shape = ", ".join(["-1", *["1"] * (x.rank - 2)])
    return f"""BatchNormalization (x, scale, bias, mean, var) => (y) {{
        shape = Constant <value_ints: ints = [{shape}]> ()
        small = Constant <value_float: float = {attribute(node, "epsilon", 1e-5)!r}> ()
        epsilon = CastLike (small, var)
        above = Add (var, epsilon)
        deviation = Sqrt (above)
        k = Div (scale, deviation)
        moved = Mul (mean, k)
        shift = Sub (bias, moved)
        factors = Reshape (k, shape)
        shifts = Reshape (shift, shape)
        scaled = Mul (x, factors)
        y = Add (scaled, shifts)
    }}"""


def _training(node: ir.Node, rank: int) -> str:
    """The same with the statistics of the batch, which the running ones move towards."""
    axes = ", ".join(str(a) for a in range(rank) if a != 1)
    shape = ", ".join(["-1", *["1"] * (rank - 2)])
    return f"""BatchNormalization (x, scale, bias, mean, var) => (y, running_mean, running_var) {{
        axes = Constant <value_ints: ints = [{axes}]> ()
        shape = Constant <value_ints: ints = [{shape}]> ()
        small = Constant <value_float: float = {attribute(node, "epsilon", 1e-5)!r}> ()
        epsilon = CastLike (small, x)
        share = Constant <value_float: float = {attribute(node, "momentum", 0.9)!r}> ()
        momentum = CastLike (share, mean)
        change = Constant <value_float: float = {1 - attribute(node, "momentum", 0.9)!r}> ()
        rest = CastLike (change, mean)
        center = ReduceMean <keepdims: int = 1> (x, axes)
        moved = Sub (x, center)
        squares = Mul (moved, moved)
        spread = ReduceMean <keepdims: int = 1> (squares, axes)
        above = Add (spread, epsilon)
        deviation = Sqrt (above)
        even = Div (moved, deviation)
        factors = Reshape (scale, shape)
        shifts = Reshape (bias, shape)
        scaled = Mul (even, factors)
        y = Add (scaled, shifts)
        flat_center = Squeeze (center, axes)
        flat_spread = Squeeze (spread, axes)
        batch_mean = CastLike (flat_center, mean)
        batch_var = CastLike (flat_spread, var)
        old_mean = Mul (mean, momentum)
        new_mean = Mul (batch_mean, rest)
        running_mean = Add (old_mean, new_mean)
        old_var = Mul (var, momentum)
        new_var = Mul (batch_var, rest)
        running_var = Add (old_var, new_var)
    }}"""


def lp_normalization(node: ir.Node, inputs: list[Abstract | None], opset: int) -> str | None:
    """y = x / norm along the axis, and 0 where the norm is 0"""
    if inputs[0] is None or opset < 18:
        return None
    norm = {1: "ReduceL1", 2: "ReduceL2"}.get(int(attribute(node, "p", 2)))
    if norm is None:
        return None
    return f"""LpNormalization (x) => (y) {{
        axes = Constant <value_ints: ints = [{int(attribute(node, "axis", -1))}]> ()
        norm = {norm} <keepdims: int = 1> (x, axes)
        nothing = Constant <value_float: float = 0.0> ()
        zero = CastLike (nothing, x)
        empty = Equal (norm, zero)
        ratio = Div (x, norm)
        y = Where (empty, zero, ratio)
    }}"""


BODIES: dict[tuple[str, str], Body] = {
    ("", "BatchNormalization"): batch_normalization,
    ("", "LpNormalization"): lp_normalization,
    **ml_bodies.BODIES,
    **quantized_bodies.BODIES,
    **runtime_bodies.BODIES,
    **attention_bodies.BODIES,
}


def body_of(node: ir.Node, inputs: list[Abstract | None], opset: int) -> onnx.FunctionProto | None:
    write = BODIES.get(key_of(node))
    text = None if write is None else write(node, inputs, opset)
    if text is None:
        return None
    return onnx.parser.parse_function(f'<domain: "opsmith.bodies", opset_import: ["" : {opset}]>\n{text}')
