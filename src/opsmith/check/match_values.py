"""Which value of one graph is which value of another, where they share no names: by what they hold.

equals     values of the same type, shape and numbers, first what the same operator made; inputs are paired by name
parting    the first value of A that reads matched values only and has no match, beside what B makes of the same values
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

SAMPLED = 64  # elements that are looked at before all are


@dataclasses.dataclass(frozen=True)
class Match:
    equals: dict[str, list[str]]  # value of A -> values of B, in A's order
    parting: tuple[str, str] | None  # value of A, value of B

    @property
    def last(self) -> tuple[str, str] | None:
        """The last pair in A's order."""
        return next(((a, b[0]) for a, b in reversed(self.equals.items())), None)


def match(
    a: ir.Model,
    b: ir.Model,
    values_a: Mapping[str, Any],
    values_b: Mapping[str, Any],
    same: Callable[[str, Any, Any], bool],
) -> Match:
    """VALUES are what the nodes of each graph gave for one feed."""
    makers = {value.name or "": node.op_type for node in b.graph for value in node.outputs}
    alike: dict[tuple[Any, ...], list[str]] = collections.defaultdict(list)
    for name, value in values_b.items():
        alike[_kind(value)].append(name)
    equals: dict[str, list[str]] = {}
    for node in a.graph:
        for value in node.outputs:
            name = value.name or ""
            given = values_a.get(name)
            if not isinstance(given, np.ndarray) or given.size < 2:
                continue
            same_numbers = [
                n for n in alike[_kind(given)] if _near(given, values_b[n]) and same(name, given, values_b[n])
            ]
            if same_numbers:
                equals[name] = sorted(same_numbers, key=lambda n: makers[n] != node.op_type)
    inputs = {v.name or "" for v in (*a.graph.inputs, *b.graph.inputs)}
    return Match(equals, _parting(a, b, {**{n: [n] for n in inputs}, **equals}, values_a, values_b))


def _parting(
    a: ir.Model, b: ir.Model, equals: Mapping[str, list[str]], values_a: Mapping[str, Any], values_b: Mapping[str, Any]
) -> tuple[str, str] | None:
    made_from = _made_from(b)
    matched = {other for others in equals.values() for other in others}
    for node in a.graph:
        read = _computed_inputs(node)
        if not read or any(name not in equals for name in read):
            continue
        offered = [made for name in read for other in equals[name] for made in made_from[other]]
        free = {n: values_b[n] for n in offered if n in values_b and n not in matched}
        unmatched = {n: values_a[n] for n in _outputs(node) if n in values_a and n not in equals}
        if (pair := _first_alike(unmatched, free)) is not None:
            return pair
    return None


def _first_alike(some: Mapping[str, Any], others: Mapping[str, Any]) -> tuple[str, str] | None:
    return next(((x, y) for x in some for y in others if _kind(some[x]) == _kind(others[y])), None)


def _computed_inputs(node: ir.Node) -> list[str]:
    return [v.name or "" for v in node.inputs if v is not None and _varies(v)]


def _outputs(node: ir.Node) -> list[str]:
    return [v.name or "" for v in node.outputs]


def _made_from(model: ir.Model) -> Mapping[str, list[str]]:
    """Value -> what nodes make of it."""
    made: dict[str, list[str]] = collections.defaultdict(list)
    for node in model.graph:
        for value in node.inputs:
            if value is not None:
                made[value.name or ""] += _outputs(node)
    return made


def _varies(value: ir.Value) -> bool:
    producer = value.producer()
    return value.const_value is None and (producer is None or producer.op_type != "Constant")


def _kind(value: Any) -> tuple[Any, ...]:
    return (value.dtype.str, value.shape) if isinstance(value, np.ndarray) else (type(value).__name__,)


def _near(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays may be equal, by a few of their elements: a value is compared with every other of its shape."""
    if x.dtype.kind != "f":
        return True
    step = max(1, x.size // SAMPLED)
    a, b = (np.asarray(v.reshape(-1)[::step], np.float64) for v in (x, y))
    return not np.isfinite(a).all() or bool(np.abs(a - b).max() <= 0.1 * np.abs(a).max() + 1e-3)
