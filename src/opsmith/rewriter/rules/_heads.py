"""(batch * heads, ...) and (batch, heads, ...): torch.bmm takes three dimensions, masks are added in four.

Masks of windows (Swin) are added in five: (batch * windows, heads, ...) and (batch, windows, heads, ...).
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from opsmith.rewriter.rule import Site, attribute, distinct_users, is_op, rank_of, size_of, sizes_of


@dataclasses.dataclass(frozen=True)
class Heads:
    """What the first dimension is made of."""

    batch: int | ir.SymbolicDim
    count: int


def heads_of(node: ir.Node | None) -> Heads | None:
    """The heads of a Reshape between (b h, s, t) and (b, h, s, t), in either direction; None if it is something else."""
    return _parted(node, 4)


def windows_of(node: ir.Node | None) -> Heads | None:
    """The windows of a Reshape between (b w, h, s, t) and (b, w, h, s, t), in either direction."""
    return _parted(node, 5)


def _parted(node: ir.Node | None, rank: int) -> Heads | None:
    source = node.inputs[0] if node is not None and is_op(node, "Reshape") else None
    if node is None or source is None:
        return None
    apart = source if rank_of(source) == rank else node.outputs[0]
    merged = node.outputs[0] if apart is source else source
    more, fewer = sizes_of(apart), sizes_of(merged)
    if more is None or fewer is None or (len(more), len(fewer)) != (rank, rank - 1) or apart.shape is None:
        return None
    count = more[1]
    if not isinstance(count, int) or more[0] * count != fewer[0] or more[2:] != fewer[1:]:
        return None
    return Heads(apart.shape[0], count)


def untransposed(value: ir.Value, letters: str) -> tuple[ir.Value, str]:
    """What a Transpose before VALUE reads, with its letters: the letters of VALUE, back in their places."""
    node = value.producer()
    if node is None or not is_op(node, "Transpose") or node.inputs[0] is None:
        return value, letters
    perm = attribute(node, "perm", list(reversed(range(len(letters)))))
    return node.inputs[0], "".join(letters[perm.index(i)] for i in range(len(letters)))


def apart(site: Site, value: ir.Value, heads: Heads) -> ir.Value:
    """[b h, m, n] as [b, h, m, n]; the value of four dimensions that it was made of, if there is one."""
    node = value.producer()
    if node is not None and rank_of(node.inputs[0] if node.inputs else None) == 4 and heads_of(node) == heads:
        assert node.inputs[0] is not None
        return node.inputs[0]
    result = _reshaped(site, value, [-1, heads.count], 1)
    result.type = value.type
    if value.shape is not None:
        result.shape = ir.Shape([heads.batch, heads.count, *value.shape[1:]])
    return result


def merged(site: Site, value: ir.Value, result: ir.Value, heads: Heads) -> tuple[ir.Value, ir.Value]:
    """(old, new): VALUE, which was [b h, s, d], is now RESULT [b, h, s, d]; a Reshape that did just this goes."""
    users = distinct_users(value)
    if len(users) == 1 and not value.is_graph_output() and heads_of(users[0]) == heads:
        site.take(users[0])
        return users[0].outputs[0], result
    if value.shape is not None:
        result.shape = ir.Shape([heads.batch, heads.count, *value.shape[1:]])
    return value, _reshaped(site, result, [-1], 2)


def of_windows(site: Site, mask: ir.Value, like: ir.Value, windows: Heads) -> ir.Value:
    """A mask [1, w, h, s, t] as [b w, h, s, t], LIKE being [b w, ...]."""
    sizes = [size_of(mask, axis) for axis in range(5)]
    known = all(isinstance(size, int) for size in sizes) and sizes[:2] == [1, windows.count]
    site.need(rank_of(mask) == 5 and known, "this mask of windows is not one of all batches")
    if windows.batch != 1:
        rows, each = site.op("Shape", like, start=0, end=1), site.constant([windows.count])
        times = site.op("Concat", site.op("Div", rows, each), site.constant([1, 1, 1, 1]), axis=0)
        mask = site.op("Expand", mask, times)
    result: ir.Value = site.op("Reshape", mask, site.constant([-1, *sizes[2:]]))
    if like.shape is not None:
        result.shape = ir.Shape([like.shape[0], *(s for s in sizes[2:] if isinstance(s, int))])
    return result


def _reshaped(site: Site, value: ir.Value, first: list[int], start: int) -> ir.Value:
    """VALUE with what is before dimension START as FIRST."""
    rest = [size_of(value, i) for i in range(start, start + 2)]
    if all(isinstance(size, int) for size in rest):
        target = site.constant([*first, *rest])
    else:
        target = site.op("Concat", site.constant(first), site.op("Shape", value, start=start), axis=0)
    result: ir.Value = site.op("Reshape", value, target)
    return result
