"""Level 3: ops of the target runtime, where it has a kernel and the kernel was measured to pay."""

from __future__ import annotations

import numpy as np
from rewrite_graphs import fired, model, rewrite, why_not

from opsmith.rewriter import choose, rewrite_model

SPLIT = (
    "q = Transpose <perm = [0,2,1,3]> (a) k = Transpose <perm = [0,2,1,3]> (b) v = Transpose <perm = [0,2,1,3]> (c) "
)
BODY = "kt = Transpose <perm = [0,1,3,2]> (k) m = MatMul(q, kt) n = Mul(m, scale) p = Softmax(n) o = MatMul(p, v) "
IN = "float[2,s,4,8] a, float[2,t,4,8] b, float[2,t,4,8] c"
SCALE = {"scale": np.float32(8**-0.5)}
CPU = {"level": 3, "target": "ort-cpu"}


def test_attention_between_transposes_becomes_the_runtime_s() -> None:
    graph = model(f"{IN} => float[2,s,4,8] y", SPLIT + BODY + "y = Transpose <perm = [0,2,1,3]> (o)", constants=SCALE)
    ops, results, changed = rewrite(graph, sizes={"s": 5, "t": 7}, **CPU)
    assert fired(results, "ort_attention") == 1 and ops["MultiHeadAttention"] == 1 and ops["Transpose"] == 0
    assert changed.opset_imports["com.microsoft"] == 1


def test_attention_whose_result_stays_turned_is_left() -> None:
    graph = model(f"{IN} => float[2,4,s,8] y", SPLIT + BODY + "y = Identity(o)", constants=SCALE)
    ops, results, _ = rewrite(graph, sizes={"s": 5, "t": 7}, **CPU)
    assert ops["Attention"] == 1 and "output of the graph" in why_not(results, "ort_attention")
    plain = model("float[2,4,s,8] q, float[2,4,t,8] k, float[2,4,t,8] v => float[2,4,s,8] o", BODY, constants=SCALE)
    ops, results, _ = rewrite(plain, sizes={"s": 5, "t": 7}, **CPU)
    assert ops["Attention"] == 1 and "not turned" in why_not(results, "ort_attention")


def test_a_masked_attention_is_left() -> None:
    masked = BODY.replace("p = Softmax(n)", "w = Add(n, mask) p = Softmax(w)")
    body = SPLIT + masked + "y = Transpose <perm = [0,2,1,3]> (o)"
    graph = model(f"{IN}, float[2,1,s,t] mask => float[2,s,4,8] y", body, constants=SCALE)
    ops, _, _ = rewrite(graph, sizes={"s": 5, "t": 7}, **CPU)
    assert ops["AttentionBias"] == 1 and "MultiHeadAttention" not in ops


GELU = "a = Div(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h)"


def test_gelu_of_the_runtime_only_in_float32() -> None:
    numbers = {"r": np.float32(2**0.5), "o": np.float32(1), "h": np.float32(0.5)}
    _, _, changed = rewrite(model("float[2,8] x => float[2,8] y", GELU, constants=numbers), **CPU)
    assert [(n.domain, n.op_type) for n in changed.graph] == [("com.microsoft", "Gelu")]
    quick = model(
        "float[2,8] x => float[2,8] y", "a = Mul(x, k) s = Sigmoid(a) y = Mul(x, s)", constants={"k": np.float32(1.702)}
    )
    _, _, changed = rewrite(quick, **CPU)
    assert [(n.domain, n.op_type) for n in changed.graph] == [("com.microsoft", "QuickGelu")]
    half = {k: v.astype(np.float16) for k, v in numbers.items()}
    graph = model("float16[2,8] x => float16[2,8] y", GELU, constants=half)
    _, results, changed = rewrite(graph, tolerance=5e-3, **CPU)
    assert [(n.domain, n.op_type) for n in changed.graph] == [("opsmith", "Gelu")]
    assert "not float32" in why_not(results, "ort_gelu")


def test_the_slow_skip_norm_of_the_cpu_is_not_used() -> None:
    body = "t = Add(x, k) u = LayerNormalization <axis = -1> (t, g, b) y = Add(u, t)"
    numbers = {"g": np.ones(8, np.float32), "b": np.zeros(8, np.float32)}
    signature = "float[2,3,8] x, float[2,3,8] k => float[2,3,8] y"
    ops, _, _ = rewrite(model(signature, body, constants=numbers), **CPU)
    assert ops["SkipLayerNorm"] == 1
    cuda = model(signature, body, constants=numbers)
    rewrite_model(cuda, level=3, target="ort-cuda")
    assert any(n.op_type == "SkipLayerNormalization" for n in cuda.graph)
    flat = model("float[3,8] x, float[3,8] k => float[3,8] y", body, constants=numbers)
    results = rewrite_model(flat, level=3, target="ort-cuda")
    assert "not float32 (B,S,D)" in why_not(results, "ort_skip_layer_norm")


def test_portable_has_no_rules_of_level_3() -> None:
    assert {r.name for r in choose(3, "portable")} == {r.name for r in choose(2, "portable")}
