"""Attention, rotary embedding and the KV cache, from the rewriter's functions.

q (B, H, S, D), k (B, G, T, D), v (B, G, T, E) -> (B, H, S, E); G divides H
"""

from __future__ import annotations

from collections.abc import Sequence

from opsmith import ops
from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import FLOATS, Abstract, DataType, Unsupported, abstract
from opsmith.sizes import AnyOf, Size, as_size, compare, equal, exact_div, maximum


@infers(*(f"opsmith::{name}" for name in ops.ATTENTIONS))
def _attention(node: Node) -> list[Abstract]:
    q, k, v = (node.input(i) for i in range(3))
    if any(x.dtype not in FLOATS or x.rank != 4 for x in (q, k, v)):
        raise Unsupported("q, k and v must be rank-4 floats")
    for a, b, what in (
        (q.dims[0], k.dims[0], "batch of q and k"),
        (q.dims[0], v.dims[0], "batch of q and v"),
        (q.dims[3], k.dims[3], "head size of q and k"),
        (k.dims[1], v.dims[1], "heads of k and v"),
        (k.dims[2], v.dims[2], "length of k and v"),
    ):
        node.expect(a, "==", b, f"the {what} differ")
    if q.dims[1] != k.dims[1] and exact_div(q.dims[1], k.dims[1]) is None:
        raise Unsupported("the heads of k do not divide those of q")
    if node.has(3):
        _check_mask(node, node.input(3), (q.dims[0], q.dims[1], q.dims[2], k.dims[2]))
    return [abstract(q.dtype, [q.dims[0], q.dims[1], q.dims[2], v.dims[3]])]


def _check_mask(node: Node, mask: Abstract, scores: tuple[Size, ...]) -> None:
    if mask.rank > 4:
        raise Unsupported("the mask has more than 4 dims")
    fits = mask.dtype == DataType.BOOL if node.op.endswith("AttentionMask") else mask.dtype in FLOATS
    if not fits:
        raise Unsupported(f"a mask of {mask.dtype.name}")
    _stretches(node, mask.dims, scores[4 - mask.rank :], "the mask does not fit the scores")


def _stretches(node: Node, dims: Sequence[Size], wanted: Sequence[Size], message: str) -> None:
    """Every dim is the wanted one, or 1."""
    for d, w in zip(dims, wanted):
        if d != 1 and (w == 1 or equal(d, w) is False):  # it broadcasts the other way round
            raise Unsupported(message)
        if d != w and d != 1:
            node.require(AnyOf((compare(d, "==", w), compare(d, "==", 1))), message)


@infers("opsmith::Rotary", "opsmith::RotaryInterleaved")
def _rotary(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype not in FLOATS or x.rank != 4:
        raise Unsupported("rotary embedding of something other than rank-4 floats")
    if exact_div(x.dims[3], 2) is None:
        raise Unsupported("an odd head size")
    for i in (1, 2):
        angles = node.input(i)
        _stretches(node, angles.dims, x.dims[4 - angles.rank :], "cos or sin does not fit")
        if angles.dims[-1] != x.dims[3]:
            raise Unsupported("cos or sin has another head size")
    return [Abstract(x.dtype, x.dims)]


# --- the KV cache: new rows behind the cached ones (compiler/cache.py) ---


def total_rows(node: Node, index: int) -> Size:
    (total,) = node.elements(index, "the length of the sequence")
    return total


@infers("opsmith::CacheAppend")
def _append(node: Node) -> list[Abstract]:
    past, new = node.input(0), node.input(1)
    if past.dtype not in (*FLOATS, DataType.INT8) or past.dtype != new.dtype or past.rank != 4 or new.rank != 4:
        raise Unsupported("a cache of something other than rank-4 floats or bytes")
    total = total_rows(node, 2)
    mask = node.input(3)
    if mask.dtype != DataType.INT64 or mask.rank != 2:
        raise Unsupported("a mask other than (batch, total) integers")
    node.expect(mask.dims[0], "==", past.dims[0], "past and mask differ in batch")
    node.expect(mask.dims[1], "==", total, "the mask is not as long as the sequence")
    for axis in (0, 1, 3):
        node.expect(past.dims[axis], "==", new.dims[axis], "past and new rows differ")
    room, rows = past.dims[2], new.dims[2]
    node.require(compare(total, ">=", rows), "the mask is shorter than the new rows")
    fits = AnyOf((compare(room, ">=", total), compare(room + rows, "==", total)))
    node.require(fits, "past and mask do not fit each other")
    return [abstract(past.dtype, [past.dims[0], past.dims[1], maximum(past.dims[2], total), past.dims[3]])]


@infers("opsmith::CacheRows", "opsmith::CacheRowsAsFloat")
def _rows(node: Node) -> list[Abstract]:
    cache = node.input(0)
    dtype = DataType.FLOAT if node.op == "CacheRowsAsFloat" else cache.dtype
    return [abstract(dtype, [*cache.dims[:2], total_rows(node, 1), *cache.dims[3:]])]


@infers("opsmith::CacheRowsScaled")
def _scaled_rows(node: Node) -> list[Abstract]:
    cache, scales = node.input(0), node.input(1)
    if cache.dtype != DataType.INT8 or scales.dtype != DataType.FLOAT or scales.dims[3] != 1:
        raise Unsupported("a cache other than bytes with a scale per row")
    for axis in (0, 1):
        node.expect(cache.dims[axis], "==", scales.dims[axis], "cache and scales differ")
    return [abstract(DataType.FLOAT, [*cache.dims[:2], total_rows(node, 2), cache.dims[3]])]


@infers("opsmith::CacheQuantize")
def _quantize(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype != DataType.FLOAT or x.rank != 4:
        raise Unsupported("rows of something other than rank-4 fp32")
    return [abstract(DataType.INT8, x.dims), abstract(DataType.FLOAT, [*x.dims[:3], as_size(1)])]
