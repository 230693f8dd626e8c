"""`--precision auto`: per product the cheapest precision that keeps the whole model within `--max-error` of its source.

1. The model is lowered with everything in int8 that can be, and its source runs once: every product's own error, in int8 and in bf16,
   follows from what rounding does to the activations that it reads and to its weights.
2. The products are ordered by error per operation. A ladder of plans takes them, the worst first, from int8 to bf16, then to fp32.
3. Plans are built and the whole model is verified; the fastest one that stays within the bound is found by halving.

The bound holds for the whole model, as measured. A product's own error is an estimate that only orders them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from opsmith.analysis.values import Constant
from opsmith.compiler import pack
from opsmith.compiler.cut import Cut
from opsmith.compiler.find_wrong import Values
from opsmith.compiler.precision import BF16, FP32, INT8, Precision
from opsmith.sizes import estimate

MAX_ERROR = 2e-2  # of each output's scale, where the user says nothing
MARGIN = 0.9  # of the bound that a plan may use: another cut, without the nodes that were slow, rounds differently
STEPS = 8  # of the ladder, from int8 to bf16 and again from bf16 to fp32
MOST_ROWS = 512  # of activations that an error is estimated from
USUAL = {BF16.name: 2.3e-3, INT8.name: 9e-3}  # errors of a product that cannot be looked at alone
SPEED = {FP32.name: 1, BF16.name: 2, INT8.name: 4}  # products per time, where the CPU has instructions for them

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Layer:
    """A product of the model, and what it loses in each precision that it can run in: root mean square, relative."""

    node: str
    operations: float  # share of those of all products
    errors: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """One line of the table."""

    node: str
    precision: str
    gain: float  # share of the time of all products in fp32 that it saves, by the arithmetic alone
    error: float  # its own


def layers(pieces: Cut, values: Values) -> list[Layer]:
    """The products of a model that was lowered in int8, with their errors on these values."""
    facts = pieces.source.scopes[0].analysis.facts
    nodes = {n.name or "": n for r in pieces.regions for n in r.nodes}
    calls = [c for p in pieces.programs for c in p.calls if c.precision in (INT8, BF16)]
    products: dict[str, tuple[float, dict[str, float]]] = {}
    for call in calls:
        node, operations = nodes.get(call.node), float(estimate(call.flops))
        if node is None:  # made of several nodes of the model while it was lowered
            products[call.node] = (operations, {p.name: USUAL[p.name] for p in (BF16, call.precision) if p is not None})
            continue
        fact = facts.get(node.inputs[1]) if node.inputs[1] is not None else None
        weights = fact.constant if fact is not None else None
        products[call.node] = (operations, _loss(node, weights, values, call.precision is INT8))
    total = sum(operations for operations, _ in products.values()) or 1.0
    return [Layer(name, operations / total, errors) for name, (operations, errors) in products.items()]


def _loss(node: ir.Node, weights: Constant | None, values: Values, bytes_too: bool) -> dict[str, float]:
    """What a product loses in each precision that it can run in."""
    x = values.get(node.inputs[0].name or "") if node.inputs[0] is not None else None
    in_blocks = node.op_type == "MatMulNBits"
    if x is None or weights is None or in_blocks:  # or attention, or a body whose values change from turn to turn
        return {p.name: USUAL[p.name] for p in ((BF16, INT8) if bytes_too else (BF16,))}
    w = np.asarray(weights.read(), np.float32)
    linear = node.op_type in ("MatMul", "Gemm")
    x = x.T if _is_set(node, "transA") else x
    matrix = (w.T if _is_set(node, "transB") else w) if linear else w.reshape(len(w), -1).T  # (K, N)
    rows = _rows(np.asarray(x, np.float32), linear, w.shape[1])
    errors = {BF16.name: _together(_rounded(rows), _rounded(matrix))}
    if bytes_too:
        errors[INT8.name] = _int8_error(rows, matrix, linear, w)
    return errors


def _is_set(node: ir.Node, attribute: str) -> bool:
    return attribute in node.attributes and node.attributes[attribute].as_int() == 1


def _rows(x: Floats, linear: bool, channels: int) -> Floats:
    """Tokens or pixels (rows, K), some of them."""
    rows = x.reshape(-1, x.shape[-1]) if linear else np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])[:, :channels]
    return rows[:: max(1, len(rows) // MOST_ROWS)]


def _int8_error(rows: Floats, matrix: Floats, linear: bool, w: Floats) -> float:
    if linear:
        block = pack.rotation_block(rows.shape[1])
        turned = pack.rotated(rows.T * pack.row_factors(matrix)[:, None], block).T
        q, scales = pack.int8_columns(matrix, block)
        plain = pack.rotated(matrix / pack.row_factors(matrix)[:, None], block)
        return _together(_in_bytes(turned, per_row=True), _relative(q * scales, plain))
    q, scales = pack.int8_channels(w)
    weights = _relative(q.reshape(len(q), -1).T * scales, matrix)
    return _together(_in_bytes(rows, per_row=all(t == 1 for t in w.shape[2:])), weights)


def _in_bytes(rows: Floats, per_row: bool) -> float:
    """What rows lose as bytes: quantize_rows.hpp."""
    axis = 1 if per_row else None
    low = np.minimum(rows.min(axis=axis, keepdims=True, initial=0.0), 0)
    high = np.maximum(rows.max(axis=axis, keepdims=True, initial=0.0), 0)
    scale = np.where(high - low >= 1e-30, (high - low) / 255, 1)
    return _relative(np.rint(rows / scale) * scale, rows)


def _rounded(x: Floats) -> float:
    return _relative(x.astype(pack.BF16).astype(np.float32), x)


def _relative(got: npt.NDArray[np.floating[Any]], want: Floats) -> float:
    power = float(np.square(want, dtype=np.float64).sum())
    return math.sqrt(float(np.square(got - want, dtype=np.float64).sum()) / power) if power else 0.0


def _together(first: float, second: float) -> float:
    return math.hypot(first, second)


# --- plans ---


def plan(products: Sequence[Layer], step: int) -> dict[str, Precision]:
    """Step 0: all as cheap as can be; STEPS: all in bf16; 2 * STEPS: all in fp32."""
    chosen = {p.node: INT8 if INT8.name in p.errors else BF16 for p in products}
    for low, high, begin in ((INT8, BF16, 0), (BF16, FP32, STEPS)):
        able = [p for p in products if low.name in p.errors]
        able.sort(key=lambda p: -(p.errors[low.name] ** 2) / max(p.operations, 1e-9))
        share = min(max(step - begin, 0), STEPS) / STEPS
        chosen |= {p.node: high for p in able[: math.ceil(share * len(able))]}
    return chosen


def search(products: Sequence[Layer], within: Callable[[dict[str, Precision]], bool]) -> dict[str, Precision]:
    """The first plan of the ladder that stays within the bound, found by halving; all in fp32 if none does."""
    wrong, right = -1, 2 * STEPS
    step = 0
    while right - wrong > 1:
        if within(plan(products, step)):
            right = step
        else:
            wrong = step
        step = (wrong + right) // 2
    return plan(products, right)


def table(products: Sequence[Layer], chosen: Mapping[str, Precision]) -> list[Choice]:
    """What was chosen, the largest gain first."""
    lines = [
        Choice(p.node, (c := chosen[p.node]).name, p.operations * (1 - 1 / SPEED[c.name]), p.errors.get(c.name, 0.0))
        for p in products
    ]
    return sorted(lines, key=lambda line: -line.gain)
