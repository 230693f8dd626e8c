"""softmax(scale * q k^T + bias) v -> Attention, AttentionBias, AttentionMask, CausalAttention

The walk starts at the Softmax and goes outward. Cases:
  (1) q k^T and (...) v as MatMul or Einsum, with the operands in any order; K in every transposed form
  (2) the scale on q, on k, on both, or on the scores, as Mul or Div, also before a Reshape or Transpose
  (3) masks added to the scores, or chosen by Where with -inf, also several, and below a factor (_scores.py, _masks.py)
  (4) torch's guard after the Softmax, Where(IsNaN(p), 0, p): a query without keys gets 0
  (5) 3 dimensions (batch and heads in one, or one head): they become (1, batch * heads, ...)
  (6) grouped-query attention: K and V repeated by Unsqueeze, Expand, Reshape are taken before the repetition
  (7) a soft cap, cap * tanh(scale q k^T / cap), below the mask (Gemma 2): CappedAttention and so on
  (8) a mask that depends on sizes only and is causal for every size: no mask at all is needed
  (9) products in 3 dimensions and masks in 4, with views between (torch.bmm): all become 4, as do masks of windows in 5 (_heads.py)
 (10) scores times a number for each head (Swin v2): q is multiplied instead

-inf means "not seen"; a finite number such as the smallest float does not: a query whose keys all carry it still
averages them. Such masks therefore stay numbers (AttentionBias).
"""

from __future__ import annotations

import string

import onnx_ir as ir

from opsmith import ops
from opsmith.rewriter.rule import (
    Site,
    attribute,
    constant_factor,
    distinct_users,
    input_of,
    ints_of,
    is_op,
    rank_of,
    rule,
    scalar_of,
    size_of,
    sizes_of,
)
from opsmith.rewriter.rules import _masks
from opsmith.rewriter.rules._heads import Heads, apart, merged, untransposed
from opsmith.rewriter.rules._scores import Scores, before_softmax


@rule(
    "attention",
    "softmax(scale * q k^T + mask) v -> Attention(q, k, v, mask)",
    roots=("Softmax",),
    makes=tuple(f"opsmith.{name}" for name in ops.ATTENTIONS),
)
def attention(site: Site) -> None:
    scores = before_softmax(site)
    probabilities, guarded = _after_softmax(site, scores)
    weighted = site.only_user(probabilities, "MatMul", "Einsum")

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
    heads = scores.heads if len(batch) == 1 else None
    q = _arranged(site, q, q_letters, batch + query + depth, heads)
    k = _arranged(site, k, k_letters, batch + key + depth, heads)
    for factor in scores.factors:
        q = _times(site, q, factor)
    v, result_perm = _value_operand(site, weighted, probabilities, scores)
    k, v = _without_repetition(k, v)  # (6)
    _check_sizes(site, q, k, v)
    q, k, v = (_as_four(site, x) for x in (q, k, v))  # (5)
    result = _masks.call(site, q, k, v, scores, scores.scale * q_scale * k_scale, guarded)
    old = weighted.outputs[0]
    if scores.heads is None and len(batch) < 2:
        result = site.op("Squeeze", result, site.constant(list(range(2 - len(batch)))))
    elif scores.heads is not None and rank_of(probabilities) == 3:  # (9)
        site.need(result_perm is None, "the result of batch and heads in one is transposed", weighted)
        old, result = merged(site, old, result, scores.heads)
    if result_perm is not None:
        result = site.op("Transpose", result, perm=result_perm)
    site.replace(old, result)


# --- below and above the Softmax -------------------------------------------------------------------------


def _after_softmax(site: Site, scores: Scores) -> tuple[ir.Value, bool]:
    """The probabilities that are multiplied with v, and (4) whether they were guarded against NaN."""
    value, guarded = _guarded(site)
    users = distinct_users(value)
    if len(users) == 1 and is_op(users[0], "Reshape") and rank_of(users[0].outputs[0]) in (3, 4):  # (9)
        site.need(not value.is_graph_output(), "the probabilities are an output of the graph")
        scores.seen(site, users[0])
        site.take(users[0])
        value = users[0].outputs[0]
    return value, guarded


def _guarded(site: Site) -> tuple[ir.Value, bool]:
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


def _arranged(site: Site, value: ir.Value, letters: str, wanted: str, heads: Heads | None) -> ir.Value:
    """VALUE with its dimensions in the wanted order, the first one, WANTED[0], parted into batch and HEADS (9);
    a Transpose before it is merged."""
    if heads is not None:
        source, source_letters = untransposed(value, letters)
        if source_letters[0] == wanted[0]:
            value, letters = source, source_letters
        site.need(letters[0] == wanted[0], "batch and heads do not come first")
        new = next(c for c in string.ascii_letters if c not in letters)
        value = apart(site, value, heads)
        letters, wanted = letters[0] + new + letters[1:], wanted[0] + new + wanted[1:]
    perm = [letters.index(c) for c in wanted]
    node = value.producer()
    if node is not None and is_op(node, "Transpose") and node.inputs[0] is not None:
        before = list(attribute(node, "perm", list(reversed(range(len(perm))))))
        composed = [before[i] for i in perm]
        if perm != sorted(perm):
            value, perm = node.inputs[0], composed
    if perm == sorted(perm):
        return value
    result: ir.Value = site.op("Transpose", value, perm=perm)
    result.type = value.type
    if value.shape is not None:
        result.shape = ir.Shape([value.shape[i] for i in perm])
    return result


def _times(site: Site, q: ir.Value, factor: ir.Value) -> ir.Value:
    result: ir.Value = site.op("Mul", q, factor)
    result.type, result.shape = q.type, q.shape
    return result


def _value_operand(
    site: Site, node: ir.Node, probabilities: ir.Value, scores: Scores
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
        len(batch) <= 2
        and len(depth) == 1
        and sorted(v_letters) == sorted(batch + key + depth)
        and sorted(result) == sorted(batch + query + depth)
    )
    site.need(well_formed, "this contraction is not probabilities times v", node)
    v = _arranged(site, v, v_letters, batch + key + depth, scores.heads if len(batch) == 1 else None)
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
    repeated = [spread[0], spread[1] * spread[2], *spread[3:]]
    return source if repeated == after else None


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


def _as_four(site: Site, value: ir.Value) -> ir.Value:
    missing = 4 - (rank_of(value) or 4)
    if not missing:
        return value
    result: ir.Value = site.op("Unsqueeze", value, site.constant(list(range(missing))))
    result.type = value.type
    if value.shape is not None:
        result.shape = ir.Shape([*[1] * missing, *value.shape])
    return result
