"""Pad, Tile: tensors put together from elements of another one, axis by axis."""

from __future__ import annotations

from opsmith.analysis.axes import axes_of, check_axes, plain_axes
from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import Abstract, Unsupported, abstract
from opsmith.sizes import ZERO, AnyOf, Scalar, Size, apply, as_size, compare

MODES = ("constant", "reflect", "edge", "wrap")


def pads_of(node: Node, rank: int) -> tuple[list[Size], list[Size]]:
    """Elements added before and after each axis."""
    given = node.attribute("pads") or node.attribute("paddings")
    pads = [as_size(int(p)) for p in given] if given is not None else node.elements(1, "the padding")
    axes = axes_of(node, 3)
    if axes is None:
        if len(pads) != 2 * rank:
            raise Unsupported("the padding does not fit the rank")
        return pads[:rank], pads[rank:]
    half = len(pads) // 2
    if len(pads) != 2 * len(axes):
        raise Unsupported("the padding does not fit the axes")
    plain = plain_axes(axes, rank)
    before, after = [ZERO] * rank, [ZERO] * rank
    if plain is not None:
        for a, b, e in zip(plain, pads[:half], pads[half:]):
            before[a], after[a] = b, e
        return before, after
    check_axes(node, axes, rank)
    for a in range(rank):
        for side, values in ((before, pads[:half]), (after, pads[half:])):
            side[a] = apply("for_axis", a, rank, values, axes, 0)
    return before, after


def fill_of(node: Node) -> float | Scalar | None:
    """The value that fills a constant border: a number, or an element of shape arithmetic; None if it is computed."""
    if node.opset < 11 and "value" in node.ir.attributes:
        return float(node.attribute("value", 0.0))
    if not node.has(2):
        return 0.0
    given = node.input(2)
    if given.constant is not None and given.constant.size == 1:
        return given.constant.scalar()
    return given.elements[0] if given.elements is not None and len(given.elements) == 1 else None


@infers("Pad")
def _pad(node: Node) -> list[Abstract]:
    x = node.input(0)
    mode = node.attribute("mode", "constant")
    if mode not in MODES:
        raise Unsupported(f"Pad with mode {mode}")
    if mode == "constant" and fill_of(node) is None:
        raise Unsupported("the fill value is computed")
    before, after = pads_of(node, x.rank)
    dims = [d + b + e for d, b, e in zip(x.dims, before, after)]
    for d, old, b, e in zip(dims, x.dims, before, after):
        node.expect(d, ">=", 0, "negative padding takes more than there is")
        if mode != "constant" and not (b == 0 and e == 0):
            if old == 0:
                raise Unsupported("an empty axis has nothing to repeat")
            if old.value is None or b.value is None or e.value is None:
                either = AnyOf((compare(old, ">", 0), compare(d, "==", 0)))
                node.require(either, "an empty axis has nothing to repeat")
    return [abstract(x.dtype, dims)]


@infers("Tile")
def _tile(node: Node) -> list[Abstract]:
    x = node.input(0)
    repeats = node.elements(1, "the repeats")
    if len(repeats) != x.rank:
        raise Unsupported("the repeats do not fit the rank")
    for r in repeats:
        node.expect(r, ">=", 0, "a repeat is negative")
    return [abstract(x.dtype, [d * r for d, r in zip(x.dims, repeats)])]
