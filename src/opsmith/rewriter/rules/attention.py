"""softmax(scale * q k^T + bias) v -> Attention, AttentionBias, AttentionMask, CausalAttention

The walk starts at the Softmax and goes outward. Cases:
  (1) q k^T and (...) v as MatMul or Einsum, with the operands in any order; K in every transposed form
  (2) the scale on q, on k, on both, or on the scores, as Mul or Div, also before a Reshape or Transpose
  (3) a mask added to the scores, or chosen by Where with -inf
  (4) torch's guard after the Softmax, Where(IsNaN(p), 0, p): a query without keys gets 0
  (5) 3 dimensions (batch and heads in one, or one head): they become (1, batch * heads, ...)
  (6) grouped-query attention: K and V repeated by Unsqueeze, Expand, Reshape are taken before the repetition
  (7) a soft cap, cap * tanh(scale q k^T / cap), below the mask (Gemma 2): CappedAttention and so on
  (8) a mask that depends on sizes only and is causal for every size: no mask at all is needed

-inf means "not seen"; a finite number such as the smallest float does not: a query whose keys all carry it still
averages them. Such masks therefore stay numbers (AttentionBias).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from opsmith import ops
from opsmith.rewriter import causal
from opsmith.rewriter.rule import (
    Site,
    attribute,
    constant_factor,
    distinct_users,
    input_of,
    ints_of,
    is_op,
    name_of,
    rank_of,
    rule,
    scalar_of,
    size_of,
    sizes_of,
)

_LOWEST = -1e30  # adding a number below this to a score gives that number: the score is lost in rounding


@dataclasses.dataclass
class _Scores:
    """What stands between the Softmax and q k^T."""

    contraction: ir.Node
    scale: float = 1.0
    bias: ir.Value | None = None  # added to the scaled scores
    keep: ir.Value | None = None  # Where(keep, scores, floor)
    drop: ir.Value | None = None  # Where(drop, floor, scores)
    floor: float = 0.0
    cap: float | None = None  # of the scaled scores, before the mask


@rule(
    "attention",
    "softmax(scale * q k^T + mask) v -> Attention(q, k, v, mask)",
    roots=("Softmax",),
    makes=tuple(f"opsmith.{name}" for name in ops.ATTENTIONS),
)
def attention(site: Site) -> None:
    probabilities, guarded = _after_softmax(site)
    weighted = site.only_user(probabilities, "MatMul", "Einsum")
    scores = _before_softmax(site)

    q_letters, k_letters, s_letters = _letters(site, scores.contraction)
    q, k = scores.contraction.inputs[0], scores.contraction.inputs[1]
    query, key = s_letters[-2], s_letters[-1]
    if key in q_letters:  # (1) written k q^T
        q, k, q_letters, k_letters = k, q, k_letters, q_letters
    batch = s_letters[:-2]
    depth = "".join(c for c in q_letters if c in k_letters and c not in s_letters)
    well_formed = (
        len(depth) == 1
        and sorted(q_letters) == sorted(batch + query + depth)
        and sorted(k_letters) == sorted(batch + key + depth)
    )
    site.need(well_formed, "this contraction is not q k^T", scores.contraction)
    site.need(len(batch) <= 2, "more than two batch dimensions", scores.contraction)
    assert q is not None and k is not None
    site.need(q.dtype != ir.DataType.DOUBLE, "fused attention computes in single precision", scores.contraction)
    q, q_scale = _without_scale(site, q)  # (2)
    k, k_scale = _without_scale(site, k)
    q = _arranged(site, q, q_letters, batch + query + depth)
    k = _arranged(site, k, k_letters, batch + key + depth)
    v, result_perm = _value_operand(site, weighted, probabilities, len(batch))
    k, v = _without_repetition(k, v)  # (6)
    _check_sizes(site, q, k, v)
    q, k, v = (_as_four(site, x, len(batch)) for x in (q, k, v))  # (5)
    scale = scores.scale * q_scale * k_scale
    result = _call(site, q, k, v, scores, scale, guarded)
    if len(batch) < 2:
        result = site.op("Squeeze", result, site.constant(list(range(2 - len(batch)))))
    if result_perm is not None:
        result = site.op("Transpose", result, perm=result_perm)
    site.replace(weighted.outputs[0], result)


# --- below and above the Softmax -------------------------------------------------------------------------


def _after_softmax(site: Site) -> tuple[ir.Value, bool]:
    """(4) The probabilities that are multiplied with v, and whether they were guarded against NaN."""
    value = site.root.outputs[0]
    rank = rank_of(value)
    axis = attribute(site.root, "axis", -1)
    site.need(rank is not None, "the rank of the scores is not known")
    assert rank is not None
    site.need(axis in (-1, rank - 1), f"the Softmax is over dimension {axis}, expected the last")
    users = distinct_users(value)
    guard = [u for u in users if is_op(u, "IsNaN")]
    if not guard:
        return value, False
    where = site.only_user(guard[0].outputs[0], "Where")
    right = scalar_of(input_of(where, 1)) == 0.0 and input_of(where, 2) is value and len(users) == 2
    site.need(right, "not Where(IsNaN(p), 0, p)", where)
    site.take(guard[0])
    return where.outputs[0], True


def _before_softmax(site: Site) -> _Scores:
    """Walk up through scale and mask to the contraction q k^T."""
    value = input_of(site.root, 0)
    scores = _Scores(site.root)
    while True:
        node = value.producer() if value is not None else None
        if node is None:
            site.miss(f"the scores come from outside ({name_of(value)})")
        site.take(node)
        if is_op(node, "MatMul", "Einsum"):
            scores.contraction = node
            return scores
        factor, inner = constant_factor(node.outputs[0])
        if inner is not None:
            scores.scale *= factor
            value = inner
            continue
        if is_op(node, "Tanh"):  # (7) what stands above it is divided by the cap
            site.need(scores.cap is None and scores.scale > 0, "Tanh of the scores is no soft cap", node)
            scores.cap, value = scores.scale, input_of(node, 0)
            continue
        site.need(scores.cap is None, "a mask below the soft cap", node)
        site.need(scores.bias is None and scores.keep is None and scores.drop is None, "two masks", node)
        site.need(scores.scale == 1.0, "the mask is scaled together with the scores", node)
        if is_op(node, "Add"):  # (3)
            a, b = node.inputs
            value, scores.bias = (a, b) if _leads_to_contraction(a) else (b, a)
            site.need(_leads_to_contraction(value), "neither operand is a product of matrices", node)
        elif is_op(node, "Where"):  # (3)
            condition, yes, no = node.inputs
            floor_yes, floor_no = scalar_of(yes), scalar_of(no)
            if floor_no is not None:
                value, scores.keep, scores.floor = yes, condition, floor_no
            elif floor_yes is not None:
                value, scores.drop, scores.floor = no, condition, floor_yes
            site.need(scores.floor <= _LOWEST, "Where does not choose between the scores and -inf", node)
        else:
            site.miss(f"expected scale, mask or MatMul, found {node.op_type}", node)


def _leads_to_contraction(value: ir.Value | None) -> bool:
    while value is not None:
        node = value.producer()
        if is_op(node, "MatMul", "Einsum"):
            return True
        _, inner = constant_factor(value)
        value = node.inputs[0] if node is not None and is_op(node, "Tanh") else inner
    return False


# --- operands --------------------------------------------------------------------------------------------


def _letters(site: Site, node: ir.Node) -> tuple[str, str, str]:
    """A contraction as an Einsum equation: the letters of its two operands and of its result."""
    if is_op(node, "MatMul"):
        a, b = rank_of(node.inputs[0]), rank_of(node.inputs[1])
        site.need(a is not None and a == b and a >= 2, "the operands of MatMul differ in rank", node)
        assert a is not None
        batch = "abcdefgh"[: a - 2]
        return f"{batch}xy", f"{batch}yz", f"{batch}xz"
    equation = str(attribute(node, "equation", "")).replace(" ", "")
    site.need(len(node.inputs) == 2 and "->" in equation and "." not in equation, "not a plain Einsum", node)
    operands, result = equation.split("->")
    left, right = operands.split(",")
    site.need(all(len(set(t)) == len(t) for t in (left, right, result)), "a letter is repeated", node)
    site.need(len(result) >= 2, "the result of Einsum has less than two dimensions", node)
    return left, right, result


def _without_scale(site: Site, value: ir.Value) -> tuple[ir.Value, float]:
    """(2) Peel constant factors off, also below a Reshape or Transpose, which is then built anew."""
    factor, inner = constant_factor(value)
    if inner is not None and rank_of(inner) == rank_of(value):
        rest, more = _without_scale(site, inner)
        return rest, factor * more
    node = value.producer()
    if node is None or not is_op(node, "Reshape", "Transpose") or node.inputs[0] is None:
        return value, 1.0
    source, factor = _without_scale(site, node.inputs[0])
    if factor == 1.0:
        return value, 1.0
    view: ir.Value = site.op(node.op_type, source, *node.inputs[1:])
    for one in node.attributes.values():
        view.producer().attributes[one.name] = one  # type: ignore[union-attr]
    view.shape, view.type = value.shape, value.type
    return view, factor


def _arranged(site: Site, value: ir.Value, letters: str, wanted: str) -> ir.Value:
    """VALUE with its dimensions in the wanted order; a Transpose before it is merged."""
    perm = [letters.index(c) for c in wanted]
    node = value.producer()
    if node is not None and is_op(node, "Transpose") and node.inputs[0] is not None:
        before = list(attribute(node, "perm", list(reversed(range(len(perm))))))
        merged = [before[i] for i in perm]
        if perm != sorted(perm):
            value, perm = node.inputs[0], merged
    if perm == sorted(perm):
        return value
    result: ir.Value = site.op("Transpose", value, perm=perm)
    result.type = value.type
    if value.shape is not None:
        result.shape = ir.Shape([value.shape[i] for i in perm])
    return result


def _value_operand(
    site: Site, node: ir.Node, probabilities: ir.Value, batches: int
) -> tuple[ir.Value, list[int] | None]:
    """v as (batch..., T, Dv), and how the result (batch..., S, Dv) must be transposed, if at all."""
    left, right, result = _letters(site, node)
    p_letters, v_letters, v = left, right, node.inputs[1]
    if node.inputs[0] is not probabilities:
        site.need(is_op(node, "Einsum"), "the probabilities are the second operand of MatMul", node)
        p_letters, v_letters, v = right, left, node.inputs[0]
    assert v is not None
    batch, query, key = p_letters[:-2], p_letters[-2], p_letters[-1]
    depth = "".join(c for c in v_letters if c not in p_letters)
    well_formed = (
        len(batch) == batches
        and len(depth) == 1
        and sorted(v_letters) == sorted(batch + key + depth)
        and sorted(result) == sorted(batch + query + depth)
    )
    site.need(well_formed, "this contraction is not probabilities times v", node)
    v = _arranged(site, v, v_letters, batch + key + depth)
    made = batch + query + depth
    return v, None if made == result else [made.index(c) for c in result]


def _without_repetition(k: ir.Value, v: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(6) K and V before Reshape(Expand(Unsqueeze(x, 2), [b, h, n, t, d]), [b, h n, t, d])."""
    before_k, before_v = _before_repetition(k), _before_repetition(v)
    if before_k is None or before_v is None or size_of(before_k, 1) != size_of(before_v, 1):
        return k, v
    return before_k, before_v


def _before_repetition(value: ir.Value) -> ir.Value | None:
    reshape = value.producer()
    expand = reshape.inputs[0].producer() if is_op(reshape, "Reshape") and reshape.inputs[0] is not None else None  # type: ignore[union-attr]
    unsqueeze = expand.inputs[0].producer() if is_op(expand, "Expand") and expand.inputs[0] is not None else None  # type: ignore[union-attr]
    if unsqueeze is None or expand is None or not is_op(unsqueeze, "Unsqueeze") or ints_of(unsqueeze.inputs[1]) != [2]:
        return None
    source = unsqueeze.inputs[0]
    if source is None or rank_of(source) != 4:
        return None
    before, spread, after = sizes_of(source), sizes_of(expand.outputs[0]), sizes_of(value)
    if before is None or spread is None or after is None or len(spread) != 5 or len(after) != 4:
        return None
    if [*spread[:2], *spread[3:]] != before:
        return None
    merged = [spread[0], spread[1] * spread[2], *spread[3:]]
    return source if merged == after else None


def _check_sizes(site: Site, q: ir.Value, k: ir.Value, v: ir.Value) -> None:
    """Refuse the broadcasts that MatMul allows and attention does not define: of K or V over the batch."""
    for name, other in (("k", k), ("v", v)):
        for axis in range((rank_of(q) or 2) - 2):
            mine, theirs = size_of(q, axis), size_of(other, axis)
            batch = axis == 0 and (mine == 1) != (theirs == 1)
            site.need(not batch, f"q or {name} is broadcast over dimension {axis}")
            if not isinstance(mine, int) or not isinstance(theirs, int) or mine == theirs:
                continue
            heads = axis == 1
            site.need(heads and theirs and mine % theirs == 0, f"{name} is broadcast over dimension {axis}")
    site.need(
        not (isinstance(size_of(k, -2), int) and isinstance(size_of(v, -2), int)) or size_of(k, -2) == size_of(v, -2),
        "k and v have different lengths",
    )
    if rank_of(k) == 4:
        same = size_of(k, 1) == size_of(v, 1) or size_of(k, 1) is None or size_of(v, 1) is None
        site.need(same, "k and v have different numbers of heads")


def _as_four(site: Site, value: ir.Value, batches: int) -> ir.Value:
    if batches == 2:
        return value
    missing = 2 - batches
    result: ir.Value = site.op("Unsqueeze", value, site.constant(list(range(missing))))
    result.type = value.type
    if value.shape is not None:
        result.shape = ir.Shape([*[1] * missing, *value.shape])
    return result


# --- masks -----------------------------------------------------------------------------------------------


def _call(site: Site, q: ir.Value, k: ir.Value, v: ir.Value, scores: _Scores, scale: float, guarded: bool) -> ir.Value:
    def call(name: str, *mask: ir.Value) -> ir.Value:
        if scores.cap is None:
            return site.call(name, q, k, v, *mask, scale=scale)  # type: ignore[no-any-return]
        return site.call(ops.CAPPED + name, q, k, v, *mask, scale=scale, cap=scores.cap)  # type: ignore[no-any-return]

    if scores.bias is None and scores.keep is None and scores.drop is None:
        return call("Attention")
    bias, keep, drop, floor = scores.bias, scores.keep, scores.drop, scores.floor
    if causal.is_causal(site.graph, bias=bias, keep=keep, drop=drop):  # (8)
        return call("CausalAttention")
    if bias is not None:
        choice = _choice_of(bias)
        if choice is not None:
            keep, drop, floor = choice
    if floor == -np.inf and guarded and (keep is not None or drop is not None):
        mask = keep if keep is not None else site.op("Not", drop)
        return call("AttentionMask", mask)
    if bias is None:
        assert q.dtype is not None
        zero, lowest = (site.constant(n, q.dtype.numpy()) for n in (0.0, floor))
        bias = site.op("Where", keep, zero, lowest) if keep is not None else site.op("Where", drop, lowest, zero)
    result: ir.Value = call("AttentionBias", bias)
    finite = floor < 0 and floor != -np.inf
    if guarded and not finite:
        result.producer().metadata_props["opsmith.guarded"] = "1"  # type: ignore[union-attr]
    return result


def _choice_of(bias: ir.Value) -> tuple[ir.Value | None, ir.Value | None, float] | None:
    """(keep, drop, floor) of Where(keep, 0, floor) or Where(drop, floor, 0)."""
    node = bias.producer()
    if node is None or not is_op(node, "Where"):
        return None
    condition, yes, no = node.inputs
    a, b = scalar_of(yes), scalar_of(no)
    if a == 0.0 and b is not None and b <= _LOWEST:
        return condition, None, b
    if b == 0.0 and a is not None and a <= _LOWEST:
        return None, condition, a
    return None
