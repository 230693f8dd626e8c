"""Axes and other small lists that may be constants or arrive as data."""

from __future__ import annotations

from collections.abc import Sequence

from opsmith.analysis.registry import Node
from opsmith.analysis.values import Unsupported
from opsmith.sizes import Size, as_size, holds


def axes_of(node: Node, index: int, attribute: str = "axes") -> list[Size] | None:
    """The axes that an attribute or an input gives, as numbers or as run-time values; None if neither is there."""
    given = node.attribute(attribute)
    if given is not None:
        return [as_size(int(a)) for a in given]
    return node.elements(index, "the axes") if node.has(index) else None


def plain_axes(axes: Sequence[Size], rank: int) -> list[int] | None:
    """The axes as numbers from 0, if they are known while compiling."""
    values = [a.value for a in axes]
    numbers = [v for v in values if v is not None]
    if len(numbers) != len(values):
        return None
    if any(not -rank <= v < rank for v in numbers):
        raise Unsupported(f"an axis is outside rank {rank}")
    places = [v % rank for v in numbers]
    if len(set(places)) != len(places):
        raise Unsupported("an axis is named twice")
    return places


def check_axes(node: Node, axes: Sequence[Size], rank: int) -> None:
    """Add the checks that axes which arrive as data need at run time."""
    check_rank(axes)
    node.require(holds("axes_ok", rank, axes), f"an axis is outside rank {rank}, or named twice")


def check_rank(values: Sequence[object]) -> None:
    """Lists of sizes have room for 10 (kSizesRank in sizes.hpp)."""
    if len(values) > 10:
        raise Unsupported(f"rank {len(values)} is above 10")
