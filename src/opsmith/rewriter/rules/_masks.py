"""The call of the fused attention that a row of masks asks for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from opsmith import ops
from opsmith.rewriter import causal
from opsmith.rewriter.rule import Site, is_op, rank_of, scalar_of, size_of
from opsmith.rewriter.rules._heads import apart, of_windows
from opsmith.rewriter.rules._scores import LOWEST, Kind, Mask, Scores


def call(site: Site, q: ir.Value, k: ir.Value, v: ir.Value, scores: Scores, scale: float, guarded: bool) -> ir.Value:
    def attention(name: str, *mask: ir.Value) -> ir.Value:
        if scores.cap is None:
            return site.call(name, q, k, v, *mask, scale=scale)  # type: ignore[no-any-return]
        return site.call(ops.CAPPED + name, q, k, v, *mask, scale=scale, cap=scores.cap)  # type: ignore[no-any-return]

    masks = scores.masks
    hiding = [m for m in masks if m.kind is not Kind.LEAST]  # which changes nothing where a query has a key to see
    if not hiding:
        return attention("Attention")
    if len(hiding) == 1 and _is_causal(site, hiding[0]):
        return attention("CausalAttention")
    alone = _choice_of(masks[0]) if len(masks) == 1 else None
    if alone is not None and guarded and alone.floor == -np.inf:
        mask = _in_four(site, alone, scores, q)
        return attention("AttentionMask", mask if alone.kind is Kind.KEEP else site.op("Not", mask))
    result = attention("AttentionBias", _bias(site, masks if alone is None else [alone], scores, q))
    finite = all(m.kind is not Kind.ADD and m.floor != -np.inf for m in (masks if alone is None else [alone]))
    if guarded and not finite:
        result.producer().metadata_props["opsmith.guarded"] = "1"  # type: ignore[union-attr]
    return result


def _is_causal(site: Site, mask: Mask) -> bool:
    if mask.kind is Kind.ADD:
        return mask.factor > 0 and causal.is_causal(site.graph, bias=mask.value)
    keep, drop = (mask.value if mask.kind is kind else None for kind in (Kind.KEEP, Kind.DROP))
    return causal.is_causal(site.graph, bias=None, keep=keep, drop=drop)


def _choice_of(mask: Mask) -> Mask | None:
    """A choice as it is; scores + Where(keep, 0, floor) as Where(keep, scores, floor), or the other way round."""
    if mask.kind is not Kind.ADD or mask.value is None:
        return mask
    node = mask.value.producer()
    if node is None or not is_op(node, "Where") or mask.factor != 1.0:
        return None
    condition, yes, no = node.inputs
    a, b = scalar_of(yes), scalar_of(no)
    if a == 0.0 and b is not None and b <= LOWEST:
        return Mask(Kind.KEEP, condition, mask.rank, floor=b)
    if b == 0.0 and a is not None and a <= LOWEST:
        return Mask(Kind.DROP, condition, mask.rank, floor=a)
    return None


def _bias(site: Site, masks: list[Mask], scores: Scores, q: ir.Value) -> ir.Value:
    """All masks as one that is added. A floor swallows the score under it, so it may as well be added."""
    dtype = q.dtype
    assert dtype is not None

    def number(x: float) -> ir.Value:
        return site.constant(x, dtype.numpy())

    def op(op_type: str, *inputs: ir.Value) -> ir.Value:
        result: ir.Value = site.op(op_type, *inputs)
        result.type, result.shape = ir.TensorType(dtype), _broadcast(inputs)
        return result

    bias: ir.Value | None = None
    for mask in reversed(masks):
        if mask.kind is Kind.LEAST:
            bias = op("Max", bias, number(mask.floor)) if bias is not None else None
            continue
        value = _in_four(site, mask, scores, q)
        if mask.kind is Kind.ADD:
            value = value if mask.factor == 1.0 else op("Mul", value, number(mask.factor))
            bias = value if bias is None else op("Add", bias, value)
            continue
        rest, floor = bias if bias is not None else number(0.0), number(mask.floor)
        bias = op("Where", value, *((rest, floor) if mask.kind is Kind.KEEP else (floor, rest)))
    assert bias is not None
    return bias


def _broadcast(values: Sequence[ir.Value]) -> ir.Shape | None:
    """The shape of an elementwise result; a size that is not clear stays open."""
    shapes = [list(v.shape) for v in values if v.shape is not None]
    if len(shapes) < len(values):
        return None
    result: list[int | ir.SymbolicDim | None] = []
    for column in itertools.zip_longest(*map(reversed, shapes), fillvalue=1):
        sizes = list(dict.fromkeys(size for size in column if size != 1)) or [1]
        result.append(sizes[0] if len(sizes) == 1 else None)
    return ir.Shape(result[::-1])


def _in_four(site: Site, mask: Mask, scores: Scores, q: ir.Value) -> ir.Value:
    """A mask of scores [b h, s, t] or [b, w, h, s, t] as one of scores [b, h, s, t]."""
    assert mask.value is not None
    if mask.rank == 5:
        site.need(scores.windows is not None, "more than two batch dimensions")
        assert scores.windows is not None
        result = of_windows(site, mask.value, q, scores.windows)
        result.type = mask.value.type
        return result
    if scores.heads is None or mask.rank != 3:
        return mask.value
    rank, first = rank_of(mask.value), size_of(mask.value, 0)
    site.need(rank is not None and (rank < 3 or first is not None), "the sizes of a mask are not known")
    return mask.value if rank != 3 or first == 1 else apart(site, mask.value, scores.heads)
