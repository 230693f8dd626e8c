"""What If and Loop give, as far as their bodies declare it: type and rank, and the sizes in which all ways to a value agree.

If     output i          then_branch output i, else_branch output i
Loop   output i          its initial value (input 2 + i), body output 1 + i
       after those       body output 1 + i with the number of turns in front. A loop that takes no turn has nothing to
                         measure: ONNX Runtime then gives 0 for each size that was not declared, so only the rank is known
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import onnx_ir as ir

from opsmith.analysis.values import TYPES, Abstract, DataType
from opsmith.sizes import Size, as_size

Shape = tuple[int | None, ...]


def outputs_of_bodies(node: ir.Node, fresh: Callable[[], Size]) -> list[Abstract | None]:
    """Facts of the node's outputs; None where the bodies do not say enough."""
    ways = _ways(node)
    facts: list[Abstract | None] = []
    for i in range(len(node.outputs)):
        declared = [_declared(value, gathered) for value, gathered in (ways[i] if i < len(ways) else [])]
        known = [d for d in declared if d is not None]
        if not known or len(known) < len(declared) or len({(dtype, len(shape)) for dtype, shape in known}) > 1:
            facts.append(None)
            continue
        (dtype, _), shapes = known[0], [shape for _, shape in known]
        dims = tuple(as_size(d[0]) if d[0] is not None and len(set(d)) == 1 else fresh() for d in zip(*shapes))
        facts.append(Abstract(dtype, dims))
    return facts


class Gathered(enum.Enum):
    """Whether a value is gathered over the turns of a loop, and whether there is one."""

    NOT = enum.auto()
    SURELY = enum.auto()
    PERHAPS = enum.auto()


Way = tuple[ir.Value | None, Gathered]


def _ways(node: ir.Node) -> list[list[Way]]:
    """For each output the values that it can be."""
    if node.op_type == "If":
        branches: Sequence[ir.Graph] = [node.attributes[a].value for a in ("then_branch", "else_branch")]
        return [[(value, Gathered.NOT) for value in values] for values in zip(*(b.outputs for b in branches))]
    if node.op_type == "Loop":
        carried = len(node.inputs) - 2
        results = list(node.attributes["body"].value.outputs)[1:]
        first: list[list[Way]] = [
            [(node.inputs[2 + i], Gathered.NOT), (results[i], Gathered.NOT)] for i in range(carried)
        ]
        gathered = Gathered.SURELY if _takes_a_turn(node) else Gathered.PERHAPS
        return first + [[(value, gathered)] for value in results[carried:]]
    return []


def gathered_perhaps(node: ir.Node) -> Sequence[ir.Value]:
    """The outputs that a Loop gathers over its turns, of which there may be none."""
    if node.op_type != "Loop" or _takes_a_turn(node):
        return ()
    return node.outputs[len(node.inputs) - 2 :]


def _takes_a_turn(loop: ir.Node) -> bool:
    count, condition = loop.inputs[0], loop.inputs[1]
    turns = count is None or (count.const_value is not None and count.const_value.numpy().item() > 0)
    return turns and (condition is None or (condition.const_value is not None and condition.const_value.numpy().item()))


def _declared(value: ir.Value | None, gathered: Gathered) -> tuple[DataType, Shape] | None:
    if value is None or value.shape is None or value.dtype is None or value.dtype not in TYPES:
        return None
    shape: Shape = tuple(d if isinstance(d, int) else None for d in value.shape)
    if gathered is Gathered.NOT:
        return value.dtype, shape
    return value.dtype, (None, *(shape if gathered is Gathered.SURELY else (None,) * len(shape)))
