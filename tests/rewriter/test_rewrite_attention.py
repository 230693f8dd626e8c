"""Attention: every scale, mask, transpose and rank that exporters write; and what only looks like it."""

from __future__ import annotations

import numpy as np
import pytest
from rewrite_graphs import fired, model, rewrite, why_not

from opsmith.rewriter import rewrite_model

QKV = "float[b,4,s,8] q, float[b,4,t,8] k, float[b,4,t,8] v"
OUT = "float[b,4,s,8] y"
CONST = {
    "root": np.float32(8**0.25),
    "scale": np.float32(8**-0.5),
    "sqrt": np.float32(8**0.5),
    "half": np.float32(0.5),
    "zero": np.float32(0),
    "low": np.float32(np.finfo(np.float32).min),
    "inf": np.float32(-np.inf),
    "mild": np.float32(-10000),
    "billion": np.float32(-1e9),
    "two": 2.0,
}
SIZES = {"b": 2, "s": 3, "t": 5}


def check(signature: str, body: str, expect: str, sizes: dict[str, int] | None = None, **constants: object) -> None:
    ops, results, changed = rewrite(model(signature, body, constants={**CONST, **constants}), sizes=sizes or SIZES)
    assert fired(results, "attention") == 1
    assert ops[expect] == 1 and "Softmax" not in ops
    node = next(n for n in changed.graph if n.op_type == expect)
    assert node.attributes["scale"].as_float() == pytest.approx(8**-0.5, rel=1e-5)


@pytest.mark.parametrize(
    "scores",
    [
        "kt = Transpose <perm = [0,1,3,2]> (k) m = MatMul(q, kt) a = Mul(m, scale)",
        "kt = Transpose <perm = [0,1,3,2]> (k) m = MatMul(q, kt) a = Div(m, sqrt)",
        "kt = Transpose <perm = [0,1,3,2]> (k) qs = Mul(q, scale) a = MatMul(qs, kt)",
        "ks = Mul(scale, k) kt = Transpose <perm = [0,1,3,2]> (ks) a = MatMul(q, kt)",
        "qs = Div(q, root) kt = Transpose <perm = [0,1,3,2]> (k) ks = Div(kt, root) a = MatMul(qs, ks)",
        'e = Einsum <equation = "bhsd,bhtd->bhst"> (q, k) a = Mul(e, scale)',
        'e = Einsum <equation = "bhtd,bhsd->bhst"> (k, q) a = Mul(e, scale)',
    ],
)
def test_scale_and_product_in_every_form(scores: str) -> None:
    check(f"{QKV} => {OUT}", scores + " p = Softmax <axis = -1> (a) y = MatMul(p, v)", "Attention")


AT = {"i2": np.array([2]), "i3": np.array([3])}
PLAIN = "kt = Transpose <perm = [0,1,3,2]> (k) m = MatMul(q, kt) a = Mul(m, scale) "
GUARD = "p0 = Softmax <axis = -1> (c) g = IsNaN(p0) p = Where(g, zero, p0) y = MatMul(p, v)"
OPEN = "p = Softmax <axis = -1> (c) y = MatMul(p, v)"


def test_masks() -> None:
    added = f"{QKV}, float[b,1,s,t] mask => {OUT}"
    check(added, PLAIN + "c = Add(a, mask) " + OPEN, "AttentionBias")
    check(added, PLAIN + "c = Add(mask, a) " + GUARD, "AttentionBias")
    chosen = f"{QKV}, bool[b,1,s,t] mask => {OUT}"
    check(chosen, PLAIN + "w = Where(mask, zero, inf) c = Add(a, w) " + GUARD, "AttentionMask")
    check(chosen, PLAIN + "w = Where(mask, inf, zero) c = Add(a, w) " + GUARD, "AttentionMask")
    check(chosen, PLAIN + "c = Where(mask, a, inf) " + GUARD, "AttentionMask")
    check(chosen, PLAIN + "c = Where(mask, inf, a) " + GUARD, "AttentionMask")
    check(chosen, PLAIN + "w = Where(mask, zero, low) c = Add(a, w) " + OPEN, "AttentionBias")
    check(chosen, PLAIN + "c = Where(mask, a, low) " + OPEN, "AttentionBias")


def test_a_query_that_sees_nothing_keeps_its_result() -> None:
    """-inf with guard gives 0, the lowest float gives the average: neither becomes the other."""
    shut = {"shut": np.zeros((1, 1, 1, 5), bool)}
    check(f"{QKV} => {OUT}", PLAIN + "w = Where(shut, zero, inf) c = Add(a, w) " + GUARD, "AttentionBias", **shut)
    check(f"{QKV} => {OUT}", PLAIN + "w = Where(shut, zero, low) c = Add(a, w) " + OPEN, "AttentionBias", **shut)


def test_constant_causal_mask() -> None:
    mask = {"causal": np.triu(np.full((5, 5), -np.inf, np.float32), 1)}
    same = {"b": 2, "s": 5, "t": 5}
    check(f"{QKV} => {OUT}", PLAIN + "c = Add(a, causal) " + OPEN, "CausalAttention", same, **mask)
    other = {"causal": np.triu(np.full((5, 5), -np.inf, np.float32), 2)}
    check(f"{QKV} => {OUT}", PLAIN + "c = Add(a, causal) " + OPEN, "AttentionBias", same, **other)


@pytest.mark.parametrize(
    "masks",
    [
        "l = Where(mask, a, low) c = Add(l, bias)",  # GPT-2
        "l = Add(a, bias) c = Where(mask, low, l)",
        "l = Add(a, bias) m1 = Add(l, bias) c = Max(m1, low)",  # OPT
        "l = Add(a, bias) c = Mul(l, half)",
        "l = Where(mask, a, low) m1 = Mul(l, half) c = Add(bias, m1)",  # GPT-J
        "l = Where(mask, a, inf) m1 = Add(l, bias) c = Max(m1, low)",
        "m1 = Mul(bias, two) l = Sub(a, m1) c = Mul(l, half)",  # XLNet, Funnel
        "l = Sub(a, bias) c = Where(mask, l, billion)",
    ],
)
def test_several_masks_become_one(masks: str) -> None:
    signature = f"{QKV}, bool[b,1,s,t] mask, float[b,1,s,t] bias => {OUT}"
    ops, results, _ = rewrite(model(signature, f"{PLAIN} {masks} {OPEN}", constants=CONST), sizes=SIZES)
    assert fired(results, "attention") == 1
    assert ops["AttentionBias"] == 1 and "Softmax" not in ops


def test_keys_that_are_hidden_by_a_billion() -> None:
    """As the annotated transformer does: a query that sees no key averages all of them."""
    check(f"{QKV}, bool[b,1,s,t] mask => {OUT}", PLAIN + "c = Where(mask, a, billion) " + OPEN, "AttentionBias")
    shut = {"shut": np.zeros((1, 1, 1, 5), bool)}
    check(f"{QKV} => {OUT}", PLAIN + "c = Where(shut, a, billion) " + OPEN, "AttentionBias", **shut)
    two = (
        PLAIN + "l = Where(mask, a, billion) c = Add(l, bias) " + OPEN
    )  # where both hide all, the second one would decide
    graph = model(f"{QKV}, bool[b,1,s,t] mask, float[b,1,s,t] bias => {OUT}", two, constants=CONST)
    ops, results, _ = rewrite(graph, sizes=SIZES)
    assert ops["Softmax"] == 1 and "-inf" in why_not(results, "attention")


def test_a_query_that_two_masks_hide_from_all_keys_averages_them() -> None:
    shut = {"shut": np.zeros((1, 1, 1, 5), bool), "least": np.full((1, 1, 1, 5), np.finfo(np.float32).min)}
    body = PLAIN + "l = Where(shut, a, low) m1 = Add(l, least) c = Max(m1, low) " + OPEN
    check(f"{QKV} => {OUT}", body, "AttentionBias", **shut)


def test_scores_without_their_largest_are_the_same_to_a_softmax() -> None:
    body = PLAIN + "l = ReduceMax <keepdims = 1> (a, i3) c = Sub(a, l) " + OPEN
    check(f"{QKV} => {OUT}", body, "Attention", **AT)


FLAT = """
    i0 = Constant <value_ints = [0]> () i1 = Constant <value_ints = [1]> () h = Constant <value_ints = [4]> ()
    i8 = Constant <value_ints = [8]> () minus = Constant <value_ints = [-1]> ()
    sq = Shape(qb) sk = Shape(kb) b = Slice(sq, i0, i1) s = Slice(sq, i1, i2) t = Slice(sk, i1, i2)
    queries = Concat <axis = 0> (minus, s, i8) keys = Concat <axis = 0> (minus, t, i8)
    four = Concat <axis = 0> (b, h, s, t) three = Concat <axis = 0> (minus, s, t) outs = Concat <axis = 0> (b, h, s, i8)
    q4 = Reshape(qb, apart) q5 = Transpose <perm = [0,2,1,3]> (q4) q = Reshape(q5, queries)
    k4 = Reshape(kb, apart) k5 = Transpose <perm = [0,2,1,3]> (k4) k = Reshape(k5, keys)
    v4 = Reshape(vb, apart) v5 = Transpose <perm = [0,2,1,3]> (v4) v = Reshape(v5, keys)
    qs = Mul(q, scale) kt = Transpose <perm = [0,2,1]> (k) m = MatMul(qs, kt) m4 = Reshape(m, four)
"""
FLAT_SIGNATURE = "float[b,s,32] qb, float[b,t,32] kb, float[b,t,32] vb, float[b,1,s,t] bias, bool[b,1,s,t] mask"
FLAT_CONST = {"apart": np.array([0, 0, 4, 8]), "out": np.array([0, 0, 32])}


@pytest.mark.parametrize(
    "masks", ["c = Add(m4, bias)", "c = Where(mask, m4, low)", "l = Add(m4, bias) c = Max(l, low)", "c = Identity(m4)"]
)
@pytest.mark.parametrize("merged", [True, False])
def test_products_in_three_dimensions_with_masks_in_four(masks: str, merged: bool) -> None:
    """As BART, OPT, CLIP and others of their time are written: bmm, view, mask, view, Softmax, bmm, view."""
    open_ = " p4 = Softmax <axis = -1> (c) y4 = MatMul(p4, v5)"
    if merged:
        open_ = " c3 = Reshape(c, three) p = Softmax <axis = -1> (c3) y3 = MatMul(p, v)"
        open_ += " y4 = Reshape(y3, outs)"
    body = FLAT + masks + open_ + " y5 = Transpose <perm = [0,2,1,3]> (y4) y = Reshape(y5, out)"
    constants = {**CONST, **AT, **FLAT_CONST}
    one = "float[b,s,32] y"
    ops, results, changed = rewrite(model(f"{FLAT_SIGNATURE} => {one}", body, constants=constants), sizes=SIZES)
    assert fired(results, "attention") == 1 and "Softmax" not in ops
    node = next(n for n in changed.graph if n.op_type.startswith("Attention"))
    # q, k and v are those before their heads were merged into the batch
    assert [v.producer().op_type for v in node.inputs[:3]] == ["Transpose"] * 3
    assert ops["Reshape"] == 4


TRIANGLE = "sq = Shape(q) st = Shape(k) n = Slice(sq, i2, i3) m2 = Slice(st, i2, i3) sz = Concat <axis = 0> (n, m2) "
TRIANGLE += (
    "ones = ConstantOfShape <value = float[1] {1.0}> (sz) tri = Trilu <upper = 0> (ones) keep = Cast <to = 9> (tri) "
)


def test_causal_mask_computed_from_sizes() -> None:
    square = "float[b,4,s,8] q, float[b,4,s,8] k, float[b,4,s,8] v => float[b,4,s,8] y"
    body = PLAIN + TRIANGLE + "c = Where(keep, a, inf) " + OPEN
    check(square, body, "CausalAttention", **AT)
    # with S and T of their own, a triangle at the upper left is not causal in the sense of i + T - S
    ops, results, _ = rewrite(model(f"{QKV} => {OUT}", body, constants={**CONST, **AT}), sizes={"b": 2, "s": 3, "t": 5})
    assert ops["AttentionBias"] == 1 and fired(results, "attention") == 1


@pytest.mark.parametrize("pictures", ["b", "1"])
def test_masks_of_windows_are_added_in_five_dimensions(pictures: str) -> None:
    """As Swin does: a mask for each of three windows, whatever the batch."""
    body = f"q = Reshape(x, rows) k = Neg(q) v = Relu(q) {PLAIN}"
    body += f"five = Reshape(a, parted) l = Add(five, shifted) c = Reshape(l, whole) {OPEN}"
    shifted = np.where(np.random.default_rng(0).random((1, 3, 1, 4, 4)) > 0.5, 0, -100).astype(np.float32)
    shapes = {"rows": [-1, 2, 4, 8], "parted": [-1, 3, 2, 4, 4], "whole": [-1, 2, 4, 4]}
    constants = {"shifted": shifted, **{name: np.array(shape) for name, shape in shapes.items()}}
    signature = f"float[{pictures},3,2,4,8] x => float[n,2,4,8] y"
    check(signature, body, "AttentionBias", {"b": 4, "n": 12}, **constants)


def test_scores_times_a_number_for_each_head() -> None:
    """As Swin v2 and XCiT do, where q and k are of length 1."""
    body = PLAIN + "l = Mul(a, heat) c = Add(l, bias) " + OPEN
    heat = {"heat": np.array([[[0.5]], [[1.0]], [[2.0]], [[3.0]]], np.float32)}
    check(f"{QKV}, float[b,1,s,t] bias => {OUT}", body, "AttentionBias", **heat)
    for shape in ((4, 1, 5), (2, 4, 1, 1)):
        other = {"heat": np.ones(shape, np.float32)}
        graph = model(f"{QKV}, float[b,1,s,t] bias => {OUT}", body, constants={**CONST, **other})
        ops, results, _ = rewrite(graph, sizes=SIZES)
        assert ops["Softmax"] == 1 and "for each head" in why_not(results, "attention")


def test_heads_merged_into_the_batch_elsewhere() -> None:
    """Inputs that never had four dimensions, a bias of batch and heads in one (BLOOM), and a result that is needed in three."""
    body = "kt = Transpose <perm = [0,2,1]> (k) m = MatMul(q, kt) a = Mul(m, scale) w = Add(a, alibi) four = Reshape(w, to) "
    body += "c = Where(mask, four, low) p0 = Softmax <axis = -1> (c) p = Reshape(p0, back) y = MatMul(p, v)"
    signature = (
        "float[8,s,8] q, float[8,5,8] k, float[8,5,8] v, float[8,1,5] alibi, bool[2,1,1,5] mask => float[8,s,8] y"
    )
    shapes = {"to": np.array([2, 4, -1, 5]), "back": np.array([8, -1, 5])}
    check(signature, body, "AttentionBias", **shapes)
    other = {**shapes, "to": np.array([2, 2, -1, 5]), "back": np.array([8, -1, 5])}
    graph = model(signature.replace("float[8,s,8] q", "float[8,4,8] q"), body, constants={**CONST, **other})
    ops, results, _ = rewrite(graph)
    assert ops["Softmax"] == 1 and "more than to part" in why_not(results, "attention")


def test_three_dimensions() -> None:
    flat = "float[n,s,8] q, float[n,t,8] k, float[n,t,8] v => float[n,s,8] y"
    check(flat, PLAIN.replace("[0,1,3,2]", "[0,2,1]") + "p = Softmax <axis = -1> (a) y = MatMul(p, v)", "Attention")
    columns = "float[n,8,s] q, float[n,8,t] k, float[n,8,t] v => float[n,8,s] y"
    body = 'qs = Div(q, root) ks = Div(k, root) a = Einsum <equation = "bct,bcs->bts"> (qs, ks) p = Softmax (a) '
    check(columns, body + 'y = Einsum <equation = "bts,bcs->bct"> (p, v)', "Attention")


def test_scale_before_a_reshape_is_found() -> None:
    body = "qs = Mul(x, scale) q = Reshape(qs, to) kt = Transpose <perm = [0,2,1]> (k) a = MatMul(q, kt) "
    body += "p = Softmax(a) y = MatMul(p, v)"
    signature = "float[2,6,8] x, float[4,5,8] k, float[4,5,8] v => float[4,3,8] y"
    check(signature, body, "Attention", to=np.array([4, 3, 8]))


def test_grouped_query_attention_loses_the_repetition() -> None:
    signature = "float[b,4,s,8] q, float[b,2,t,8] k0, float[b,2,t,8] v0, float[b,1,s,t] mask => float[b,4,s,8] y"
    repeat = (
        "sh = Shape(k0) bb = Slice(sh, i0, i1) tt = Slice(sh, i2, i3) five = Concat <axis = 0> (bb, i2, i2, tt, i8) "
    )
    repeat += "four = Concat <axis = 0> (bb, i4, tt, i8) "
    for name in "kv":
        repeat += f"{name}1 = Unsqueeze({name}0, i2) {name}2 = Expand({name}1, five) {name} = Reshape({name}2, four) "
    numbers = {f"i{n}": np.array([n]) for n in (0, 1, 2, 3, 4, 8)}
    check(signature, repeat + PLAIN + "c = Add(a, mask) " + OPEN, "AttentionBias", **numbers)
    body = repeat + PLAIN + "p = Softmax <axis = -1> (a) y = MatMul(p, v)"
    plain = signature.replace(", float[b,1,s,t] mask", "")
    ops, _, changed = rewrite(model(plain, body, constants={**CONST, **numbers}), sizes=SIZES)
    assert ops == {"Attention": 1}
    assert [v.name for v in next(iter(changed.graph)).inputs] == ["q", "k0", "v0"]


def test_the_key_transposed_by_way_of_three_dimensions() -> None:
    body = "r = Reshape(k, flat) x = Transpose <perm = [0,2,1]> (r) kt = Reshape(x, back) m = MatMul(q, kt) "
    body += "a = Mul(m, scale) p = Softmax <axis = -1> (a) y = MatMul(p, v)"
    shapes = {"flat": np.array([-1, 5, 8]), "back": np.array([2, 4, 8, 5])}
    signature = "float[2,4,3,8] q, float[2,4,5,8] k, float[2,4,5,8] v => float[2,4,3,8] y"
    check(signature, body, "Attention", **shapes)
    ops, results, _ = rewrite(model(signature, body, constants={**CONST, **shapes}))
    assert fired(results, "view_chain") == 1 and ops == {"Attention": 1}
    # a Reshape that mixes heads and depth is something else
    mixed = {"flat": np.array([-1, 8, 5]), "back": np.array([2, 4, 8, 5])}
    ops, results, _ = rewrite(model(signature, body, constants={**CONST, **mixed}))
    assert "flatten" in why_not(results, "view_chain") and ops["Transpose"] >= 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (PLAIN + "p = Softmax <axis = -2> (a) y = MatMul(p, v)", "over dimension"),
        (PLAIN + "p = Softmax <axis = -1> (a) y = MatMul(p, v) z = Neg(p)", "read by 2 nodes"),
        (PLAIN + "l = Where(mask, a, low) c = Mul(l, two) " + OPEN, "-inf"),  # twice the smallest float is -inf
        (PLAIN + "l = Max(a, mild) c = Add(l, bias) " + OPEN, "no lowest"),
        (PLAIN + "l = ReduceMax <keepdims = 1> (a, i2) c = Sub(a, l) " + OPEN, "largest score of each query"),
        (PLAIN + "b2 = Relu(a) p = Softmax <axis = -1> (b2) y = MatMul(p, v)", "found Relu"),
        (PLAIN + "w = Greater(a, zero) c = Where(w, a, mild) p = Softmax <axis = -1> (c) y = MatMul(p, v)", "-inf"),
    ],
)
def test_near_misses_stay(body: str, reason: str) -> None:
    outputs = OUT + (", float[b,4,s,t] z" if " z = " in body else "")
    inputs = f"{QKV}, bool[b,1,s,t] mask, float[b,1,s,t] bias"
    ops, results, _ = rewrite(model(f"{inputs} => {outputs}", body, constants={**CONST, **AT}), sizes=SIZES)
    assert ops["Softmax"] == 1 and reason in why_not(results, "attention")


def test_keys_broadcast_over_the_batch_stay() -> None:
    signature = "float[2,4,3,8] q, float[1,4,5,8] k, float[1,4,5,8] v => float[2,4,3,8] y"
    body = PLAIN + "p = Softmax <axis = -1> (a) y = MatMul(p, v)"
    ops, results, _ = rewrite(model(signature, body, constants=CONST))
    assert ops["Softmax"] == 1 and "broadcast" in why_not(results, "attention")


HALF = "x1 = Slice(x, i0, i4, last) x2 = Slice(x, i4, i8, last) n = Neg(x2) r = Concat <axis = -1> (n, x1) "
TURN = "a = Mul(x, cos) b = Mul(r, sin) y = Add(a, b)"
ROTARY = "float[2,4,s,8] x, float[1,1,s,8] cos, float[1,1,s,8] sin => float[2,4,s,8] y"
BOUNDS = {"i0": np.array([0]), "i4": np.array([4]), "i8": np.array([8]), "last": np.array([-1])}


def test_rotary() -> None:
    assert rewrite(model(ROTARY, HALF + TURN, constants=BOUNDS))[0] == {"Rotary": 1}
    split = "x1, x2 = Split <axis = -1, num_outputs = 2> (x) n = Neg(x2) r = Concat <axis = -1> (n, x1) "
    assert rewrite(model(ROTARY, split + TURN))[0] == {"Rotary": 1}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (HALF.replace("(n, x1)", "(x1, n)") + TURN, "not [-x2, x1]"),
        (HALF + "z = Neg(x) a = Mul(z, cos) b = Mul(r, sin) y = Add(a, b)", "not x * cos"),
        (HALF.replace("Slice(x, i4, i8, last) n", "Slice(x, i0, i4, last) n") + TURN, "that half"),
    ],
)
def test_rotary_near_misses_stay(body: str, reason: str) -> None:
    ops, results, _ = rewrite(model(ROTARY, body, constants=BOUNDS))
    assert "Rotary" not in ops and reason in why_not(results, "rotary")


def test_halves_whose_sizes_are_computed_are_no_rotary() -> None:
    split = "x1, x2 = Split <axis = -1> (x, parts) n = Neg(x2) r = Concat <axis = -1> (n, x1) "
    computed = model(ROTARY.replace(" =>", ", int64[2] parts =>"), split + TURN)
    assert "not that half" in why_not(rewrite_model(computed), "rotary")


def test_rotary_whose_cosine_is_larger_than_x_stays() -> None:
    signature = "float[1,4,3,8] x, float[2,1,3,8] cos, float[2,1,3,8] sin => float[2,4,3,8] y"
    ops, results, _ = rewrite(model(signature, HALF + TURN, constants=BOUNDS))
    assert "Rotary" not in ops and "larger than x" in why_not(results, "rotary")


def test_rotary_interleaved() -> None:
    pairs = "o = Slice(x, i1, end, last, i2) n = Neg(o) e = Slice(x, i0, end, last, i2) u = Unsqueeze(n, last) "
    pairs += "w = Unsqueeze(e, last) c = Concat <axis = -1> (u, w) s = Shape(x) r = Reshape(c, s) "
    numbers = {"i0": np.array([0]), "i1": np.array([1]), "i2": np.array([2]), "end": np.array([2**31 - 1])}
    numbers["last"] = np.array([-1])
    assert rewrite(model(ROTARY, pairs + TURN, constants=numbers))[0] == {"RotaryInterleaved": 1}
    swapped = pairs.replace("(u, w)", "(w, u)")
    ops, results, _ = rewrite(model(ROTARY, swapped + TURN, constants=numbers))
    assert "RotaryInterleaved" not in ops and "not [-odd, even]" in why_not(results, "rotary_interleaved")


CUT = "x1 = Slice(x, i0, i4, last) x2 = Slice(x, i4, i8, last) "
TURNED = "a = Mul(x1, cos) b = Mul(x2, sin) c = Mul(x1, sin) d = Mul(cos, x2) r = Sub(a, b) i = Add(c, d) "
PARTS = "float[2,4,s,8] x, float[2,1,s,4] cos, float[2,1,s,4] sin => float[2,4,s,8] y"
PAIRS = {"i0": np.array([0]), "i1": np.array([1]), "i2": np.array([2]), "end": np.array([2**31 - 1])}
PAIRS["last"] = np.array([-1])


@pytest.mark.parametrize(
    "body",
    [
        CUT + TURNED,
        CUT + TURNED.replace("Add(c, d)", "Add(d, c)").replace("Mul(x1, cos)", "Mul(cos, x1)"),
        "x1, x2 = Split <axis = -1, num_outputs = 2> (x) " + TURNED.replace("Mul(x2, sin)", "Mul(sin, x2)"),
    ],
)
def test_rotary_whose_halves_are_turned_apart(body: str) -> None:
    body += "y = Concat <axis = -1> (r, i)"
    assert rewrite(model(PARTS, body, constants=BOUNDS))[0] == {"Concat": 2, "Rotary": 1}


def test_rotary_whose_pairs_are_turned_apart() -> None:
    body = "x1 = Slice(x, i0, end, last, i2) x2 = Slice(x, i1, end, last, i2) " + TURNED
    body += "u = Unsqueeze(r, last) v = Unsqueeze(i, last) w = Concat <axis = -1> (u, v) z = Shape(x) y = Reshape(w, z)"
    ops, results, _ = rewrite(model(PARTS, body, constants=PAIRS))
    assert fired(results, "rotary_parts") == 1 and ops["RotaryInterleaved"] == 1 and "Sub" not in ops


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (CUT + TURNED.replace("Add(c, d)", "Add(c, c)"), "x1 * sin + x2 * cos"),
        (CUT + TURNED.replace("Sub(a, b)", "Sub(b, a)"), "that half"),
        (CUT.replace("i4, i8", "i0, i4") + TURNED, "that half"),
        (CUT + TURNED.replace("i = Add", "z = Neg(c) i = Add"), "also needed"),
    ],
)
def test_rotary_parts_near_misses_stay(body: str, reason: str) -> None:
    outputs = ", float[2,4,s,4] z" if " z = " in body else ""
    ops, results, _ = rewrite(model(PARTS + outputs, body + "y = Concat <axis = -1> (r, i)", constants=BOUNDS))
    assert "Rotary" not in ops and reason in why_not(results, "rotary_parts")


def test_rotary_parts_of_tables_that_are_larger_than_x_stay() -> None:
    signature = "float[1,4,3,8] x, float[2,1,3,4] cos, float[2,1,3,4] sin => float[2,4,3,8] y"
    ops, _, _ = rewrite(model(signature, CUT + TURNED + "y = Concat <axis = -1> (r, i)", constants=BOUNDS))
    assert "Rotary" not in ops
