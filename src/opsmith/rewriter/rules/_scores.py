"""From a Softmax up to q k^T: the scale, the masks, the soft cap and the views on the way.

Numbers are in units of what the Softmax reads: a mask below a factor is scaled with the scores.
"""

from __future__ import annotations

import dataclasses
import enum

import onnx_ir as ir

from opsmith.rewriter.rule import (
    Site,
    attribute,
    constant_factor,
    input_of,
    ints_of,
    is_op,
    name_of,
    rank_of,
    scalar_of,
    size_of,
)
from opsmith.rewriter.rules._heads import Heads, heads_of, windows_of
from opsmith.rewriter.rules._norms import is_last_axis

LOWEST = -1e30  # adding a number below this to a score gives that number: the score is lost in rounding
# Where a score is replaced by this or less, the key has no weight beside others, and all that it hides have the same.
_UNSEEN = -1e9
_FARTHEST = 12  # nodes between a mask and q k^T


class Kind(enum.Enum):
    ADD = "scores + factor * value"
    KEEP = "Where(value, scores, floor)"
    DROP = "Where(value, floor, scores)"
    LEAST = "Max(scores, floor)"


@dataclasses.dataclass(frozen=True)
class Mask:
    kind: Kind
    value: ir.Value | None
    rank: int | None  # of the scores that it is applied to
    factor: float = 1.0
    floor: float = 0.0


@dataclasses.dataclass
class Scores:
    """What stands between the Softmax and q k^T."""

    contraction: ir.Node
    scale: float = 1.0
    cap: float | None = None  # of the scaled scores, before the masks
    masks: list[Mask] = dataclasses.field(default_factory=list)  # the last one applied comes first
    heads: Heads | None = None  # where there are views of three and of four dimensions
    windows: Heads | None = None  # where there are views of four and of five dimensions
    factors: list[ir.Value] = dataclasses.field(default_factory=list)  # of the scores, one for each head

    def seen(self, site: Site, node: ir.Node) -> None:
        """A Reshape on the way, which must be a view of the same heads as the others."""
        heads, windows = heads_of(node), windows_of(node)
        if windows is not None:
            site.need(self.windows in (None, windows), "views of different numbers of windows", node)
            self.windows = windows
            return
        site.need(heads is not None, "this Reshape does more than to part batch and heads", node)
        site.need(self.heads in (None, heads), "views of different numbers of heads", node)
        self.heads = heads


def before_softmax(site: Site) -> Scores:
    """Walk up through scale, masks and views to the contraction q k^T."""
    value = input_of(site.root, 0)
    scores = Scores(site.root)
    while True:
        node = value.producer() if value is not None else None
        if node is None:
            site.miss(f"the scores come from outside ({name_of(value)})")
        site.take(node)
        if is_op(node, "MatMul", "Einsum"):
            scores.contraction = node
            return scores
        value = _step(site, node, scores)


def _step(site: Site, node: ir.Node, scores: Scores) -> ir.Value | None:
    """The scores before NODE, which is noted."""
    factor, inner = constant_factor(node.outputs[0])
    if inner is not None:
        scores.scale *= factor
        return inner
    if is_op(node, "Mul") and scores.cap is None:
        return _multiplied(site, node, scores)
    if is_op(node, "Reshape"):
        scores.seen(site, node)
        return input_of(node, 0)
    if is_op(node, "Tanh") and not scores.factors:  # what stands above it is divided by the cap
        site.need(scores.cap is None and scores.scale > 0, "Tanh of the scores is no soft cap", node)
        scores.cap = scores.scale
        return input_of(node, 0)
    site.need(scores.cap is None, "a mask below the soft cap", node)
    site.need(not scores.factors, "a mask or a soft cap below the factors of heads", node)
    if is_op(node, "Add"):
        return _added(site, node, scores)
    if is_op(node, "Where"):
        return _chosen(site, node, scores)
    if is_op(node, "Max"):
        return _at_least(site, node, scores)
    if is_op(node, "Sub"):
        return _subtracted(site, node, scores)
    return site.miss(f"expected scale, mask or MatMul, found {node.op_type}", node)


def _multiplied(site: Site, node: ir.Node, scores: Scores) -> ir.Value | None:
    """scores [b, h, s, t] * temperature [h, 1, 1] (Swin v2, XCiT), which q can be multiplied with as well."""
    a, b = node.inputs
    value, factor = (a, b) if _distance(a) <= _distance(b) else (b, a)
    site.need(factor is not None and _distance(value) < _FARTHEST, "no operand is a product of matrices", node)
    assert factor is not None
    rank, known = rank_of(factor), [size_of(factor, axis) for axis in range(rank_of(factor) or 0)]
    each_head = rank in (3, 4) and known[-2:] == [1, 1] and (rank == 3 or known[0] == 1)
    site.need(each_head and _rank(site, node) == 4 and scores.heads is None, "not a factor for each head", node)
    scores.factors.append(factor)
    return value


def _added(site: Site, node: ir.Node, scores: Scores) -> ir.Value | None:
    """scores + mask, where the scores are nearer to a product."""
    a, b = node.inputs
    distance_a, distance_b = _distance(a), _distance(b)
    site.need(min(distance_a, distance_b) < _FARTHEST, "neither operand is a product of matrices", node)
    value, mask = (a, b) if distance_a <= distance_b else (b, a)
    scores.masks.append(Mask(Kind.ADD, mask, _rank(site, node), factor=scores.scale))
    return value


def _chosen(site: Site, node: ir.Node, scores: Scores) -> ir.Value | None:
    """Where(keep, scores, floor) or Where(drop, floor, scores)."""
    condition, yes, no = node.inputs
    floor, kind, value = scalar_of(no), Kind.KEEP, yes
    if floor is None:
        floor, kind, value = scalar_of(yes), Kind.DROP, no
    number = (floor or 0.0) * scores.scale
    hides = number <= LOWEST or (number <= _UNSEEN and not scores.masks)
    site.need(hides and 0 < scores.scale <= 1, "Where does not choose between the scores and -inf", node)
    scores.masks.append(Mask(kind, condition, _rank(site, node), floor=min(number, LOWEST)))
    return value


def _at_least(site: Site, node: ir.Node, scores: Scores) -> ir.Value | None:
    """Max(scores, lowest), which keeps masks that were added twice from becoming -inf."""
    a, b = (*node.inputs, None)[:2] if len(node.inputs) == 2 else (None, None)
    least, value = (scalar_of(b), a) if scalar_of(b) is not None else (scalar_of(a), b)
    site.need(least is not None and least <= LOWEST and scores.scale == 1.0, "Max of the scores and no lowest", node)
    assert least is not None
    scores.masks.append(Mask(Kind.LEAST, None, _rank(site, node), floor=least))
    return value


def _subtracted(site: Site, node: ir.Node, scores: Scores) -> ir.Value | None:
    """scores - mask, or scores - max(scores), which are the same scores to a Softmax."""
    value, other = node.inputs
    largest = other.producer() if other is not None else None
    if largest is None or not is_op(largest, "ReduceMax") or input_of(largest, 0) is not value:
        site.need(_distance(value) < _FARTHEST, "what is subtracted from is no product of matrices", node)
        scores.masks.append(Mask(Kind.ADD, other, _rank(site, node), factor=-scores.scale))
        return value
    site.take(largest)
    axes = attribute(largest, "axes") or ints_of(input_of(largest, 1)) or []
    whole = attribute(largest, "keepdims", 1) == 1
    last = value is not None and len(axes) == 1 and is_last_axis(axes[0], value)
    site.need(whole and last, "what is subtracted is not the largest score of each query", node)
    return value


def _rank(site: Site, node: ir.Node) -> int:
    rank = rank_of(node.outputs[0])
    site.need(rank is not None, "the rank of the scores is not known", node)
    assert rank is not None
    return rank


def _distance(value: ir.Value | None, so_far: int = 0) -> int:
    """How many nodes up the next product is, by way of what may stand between it and a Softmax."""
    node = value.producer() if value is not None else None
    if node is None or so_far >= _FARTHEST or is_op(node, "MatMul", "Einsum"):
        return _FARTHEST if node is None else so_far
    _, inner = constant_factor(node.outputs[0])
    if inner is not None:
        return _distance(inner, so_far + 1)
    if is_op(node, "Tanh", "Reshape"):
        return _distance(input_of(node, 0), so_far + 1)
    if is_op(node, "Add", "Where", "Max", "Sub", "Mul"):
        return min(_distance(x, so_far + 1) for x in node.inputs)
    return _FARTHEST
