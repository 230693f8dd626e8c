"""Axes and other small lists that may be constants or arrive as data, and the C++ text of lists of sizes."""

from __future__ import annotations

from collections.abc import Sequence

from opsmith.compile.dims import Dim, DimLike, dim
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node
from opsmith.compile.values import Unsupported


def sizes_text(values: Sequence[DimLike]) -> str:
    """A list of sizes as C++, in terms of the region's inputs."""
    if len(values) > 10:
        raise Unsupported(f"rank {len(values)} is above 10")
    return f"Sizes{{{len(values)}, {{{', '.join(dim(v).cpp() for v in values)}}}}}"


def sizes(out: Lowering, values: Sequence[DimLike]) -> str:
    """The same, with the long ones as named locals."""
    if len(values) > 10:
        raise Unsupported(f"rank {len(values)} is above 10")
    return f"Sizes{{{len(values)}, {out.braces(values)}}}"


def axes_of(node: Node, index: int, attribute: str = "axes") -> list[Dim] | None:
    """The axes that an attribute or an input gives, as numbers or as run-time values; None if neither is there."""
    given = node.attribute(attribute)
    if given is not None:
        return [dim(int(a)) for a in given]
    if not node.has(index):
        return None
    return node.elements(index, "the axes")


def plain_axes(axes: Sequence[Dim], rank: int) -> list[int] | None:
    """The axes as numbers from 0, if they are known while compiling."""
    values = [a.value for a in axes]
    known = [v for v in values if v is not None]
    if len(known) != len(values):
        return None
    if any(not -rank <= v < rank for v in known):
        raise Unsupported(f"an axis is outside rank {rank}")
    found = [v % rank for v in known]
    if len(set(found)) != len(found):
        raise Unsupported("an axis is named twice")
    return found


def check_axes(node: Node, axes: Sequence[Dim], rank: int) -> None:
    """What must hold at run time of axes that arrive as data."""
    node.checks.append((f"axes_ok({rank}, {sizes_text(axes)})", f"an axis is outside rank {rank}, or named twice"))
