"""LayerNorm, RMSNorm, GroupNorm, with skip and with SiLU: found where they are, left alone where something differs."""

from __future__ import annotations

import numpy as np
import pytest
from rewrite_graphs import fired, model, rewrite, why_not

RNG = np.random.default_rng(0)
X = "float[2,n,8] x => float[2,n,8] y"
NORM = {
    "last": np.array([-1]),
    "middle": np.array([1]),
    "two": 2.0,
    "one": 1.0,
    "eps": np.float32(1e-5),
    "scale": RNG.standard_normal(8).astype(np.float32),
    "bias": RNG.standard_normal(8).astype(np.float32),
    "wide": RNG.standard_normal((1, 1, 8)).astype(np.float32),
}
MEAN = "m = ReduceMean(x, last) d = Sub(x, m) "


@pytest.mark.parametrize(
    "body",
    [
        "p = Pow(d, two) v = ReduceMean(p, last) e = Add(v, eps) r = Sqrt(e) q = Div(d, r) s = Mul(q, scale) y = Add(s, bias)",
        "p = Mul(d, d) v = ReduceMean(p, last) e = Add(eps, v) r = Sqrt(e) i = Reciprocal(r) q = Mul(i, d) "
        "s = Mul(scale, q) y = Add(bias, s)",
    ],
)
def test_layer_norm_is_found(body: str) -> None:
    ops, results, changed = rewrite(model(X, MEAN + body, constants=NORM))
    assert fired(results, "layer_norm") == 1 and ops == {"LayerNormalization": 1}
    assert next(iter(changed.graph)).attributes["epsilon"].as_float() == pytest.approx(1e-5)


AFFINE = MEAN + "p = Mul(d, d) v = ReduceMean(p, last) e = Add(v, eps) r = Sqrt(e) i = Reciprocal(r) "


@pytest.mark.parametrize(
    "body",
    [
        "k = Mul(i, scale) a = Mul(x, k) c = Mul(m, k) f = Sub(bias, c) y = Add(a, f)",  # tf.nn.batch_normalization
        "k = Mul(wide, i) n = Neg(m) a = Mul(k, x) c = Mul(n, k) f = Add(c, bias) y = Add(f, a)",  # Keras 3
        "k = Mul(i, wide) n = Neg(m) a = Mul(x, k) c = Mul(n, k) y = Add(a, c)",
    ],
)
def test_layer_norm_as_tensorflow_writes_it(body: str) -> None:
    ops, results, changed = rewrite(model(X, AFFINE + body, constants=NORM))
    assert fired(results, "layer_norm_affine") == 1 and ops == {"LayerNormalization": 1}
    node = next(iter(changed.graph))
    assert [v.shape for v in node.inputs[1:] if v is not None] == [(8,)] * (2 if "bias" in body else 1)


def test_layer_norm_whose_means_are_pooled() -> None:
    """tf2onnx pools the last of three dimensions; of four, a pool takes two."""
    body = AFFINE.replace("ReduceMean(x, last)", "GlobalAveragePool(x)").replace(
        "ReduceMean(p, last)", "GlobalAveragePool(p)"
    )
    body += "k = Mul(i, scale) a = Mul(x, k) c = Mul(m, k) f = Sub(bias, c) y = Add(a, f)"
    assert rewrite(model(X, body, constants=NORM))[0] == {"LayerNormalization": 1}
    ops, results, _ = rewrite(model(X.replace("2,n,8", "2,3,n,8"), body, constants=NORM))
    assert "last dimension alone" in why_not(results, "layer_norm_affine") and ops["GlobalAveragePool"] == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("k = Mul(i, scale) a = Mul(x, k) c = Mul(m, k) f = Sub(c, bias) y = Add(a, f)", "not bias - mean"),
        ("k = Mul(i, scale) a = Mul(x, k) c = Mul(m, k) y = Add(a, c)", "the mean is added"),
        ("k = Mul(i, scale) a = Mul(x, k) c = Mul(v, k) f = Sub(bias, c) y = Add(a, f)", "expected Neg"),
        ("k = Mul(i, m) a = Mul(x, k) c = Mul(m, k) f = Sub(bias, c) y = Add(a, f)", "no row"),
        ("k = Mul(i, scale) a = Mul(x, k) c = Mul(x, k) f = Sub(bias, c) y = Add(a, f)", "read by 1 nodes"),
    ],
)
def test_layer_norm_affine_near_misses_stay(body: str, reason: str) -> None:
    ops, results, _ = rewrite(model(X, AFFINE + body, constants=NORM))
    assert "LayerNormalization" not in ops and reason in why_not(results, "layer_norm_affine")


def test_layer_norm_of_opset_17_takes_its_axes_from_an_attribute() -> None:
    body = (
        "m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) p = Pow(d, two) v = ReduceMean <axes = [-1]> (p) e = Add(v, eps) "
        "r = Sqrt(e) q = Div(d, r) s = Mul(q, scale) y = Add(s, bias)"
    )
    assert rewrite(model(X, body, opset=17, constants=NORM))[0] == {"LayerNormalization": 1}


def test_an_old_opset_is_raised_first() -> None:
    body = (
        "m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) p = Pow(d, two) v = ReduceMean <axes = [-1]> (p) e = Add(v, eps) "
        "r = Sqrt(e) q = Div(d, r) s = Mul(q, scale) y = Add(s, bias)"
    )
    ops, _, changed = rewrite(model(X, body, opset=13, constants=NORM, ir_version=8))
    assert ops == {"LayerNormalization": 1} and changed.opset_imports[""] == 18


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        # the mean over another dimension
        (
            "m = ReduceMean(x, middle) d = Sub(x, m) p = Pow(d, two) v = ReduceMean(p, last) e = Add(v, eps) r = Sqrt(e) "
            "q = Div(d, r) s = Mul(q, scale) y = Add(s, bias)",
            "expected the last one",
        ),
        # epsilon outside of the root
        (
            MEAN + "p = Pow(d, two) v = ReduceMean(p, last) r0 = Sqrt(v) r = Add(r0, eps) q = Div(d, r) "
            "s = Mul(q, scale) y = Add(s, bias)",
            "expected Add",
        ),
        # a scale that is not a vector
        (
            MEAN + "p = Pow(d, two) v = ReduceMean(p, last) e = Add(v, eps) r = Sqrt(e) q = Div(d, r) s = Mul(q, wide) "
            "y = Add(s, bias)",
            "expected a vector",
        ),
        # the variance of something else
        (
            MEAN
            + "p = Pow(x, two) v = ReduceMean(p, last) e = Add(v, eps) r = Sqrt(e) q = Div(d, r) s = Mul(q, scale) "
            "y = Add(s, bias)",
            "expected Sub",
        ),
    ],
)
def test_layer_norm_near_misses_stay(body: str, reason: str) -> None:
    ops, results, _ = rewrite(model(X, body, constants=NORM))
    assert "LayerNormalization" not in ops and reason in why_not(results, "layer_norm")


def test_layer_norm_whose_deviation_is_needed_stays() -> None:
    body = MEAN + (
        "p = Pow(d, two) v = ReduceMean(p, last) e = Add(v, eps) r = Sqrt(e) q = Div(d, r) s = Mul(q, scale) "
        "y = Add(s, bias) z = Neg(r)"
    )
    ops, results, _ = rewrite(model("float[2,n,8] x => float[2,n,8] y, float[2,n,1] z", body, constants=NORM))
    assert ops["Sqrt"] == 1 and "read by 2 nodes" in why_not(results, "layer_norm")


RMS = "p = Pow(x, two) v = ReduceMean(p, last) e = Add(v, eps) r = Sqrt(e) "


@pytest.mark.parametrize(
    "tail", ["q = Div(x, r) y = Mul(q, scale)", "i = Reciprocal(r) q = Mul(x, i) y = Mul(scale, q)"]
)
def test_rms_norm_is_found(tail: str) -> None:
    ops, results, _ = rewrite(model(X, RMS + tail, constants=NORM))
    assert fired(results, "rms_norm") == 1 and ops == {"RmsNorm": 1}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "p = Pow(x, two) v = ReduceMean(p, middle) e = Add(v, eps) r = Sqrt(e) q = Div(x, r) y = Mul(q, scale)",
            "last one",
        ),
        (
            "p = Pow(x, one) v = ReduceMean(p, last) e = Add(v, eps) r = Sqrt(e) q = Div(x, r) y = Mul(q, scale)",
            "the power is not 2",
        ),
        (RMS + "z = Neg(x) q = Div(z, r) y = Mul(q, scale)", "not x / sqrt"),
        (RMS + "q = Div(x, r) y = Add(q, scale)", "expected Mul"),
    ],
)
def test_rms_norm_near_misses_stay(body: str, reason: str) -> None:
    positive = model("float[2,n,8] w => float[2,n,8] y", "x = Abs(w) " + body, constants=NORM)
    ops, results, _ = rewrite(positive)
    assert "RmsNorm" not in ops and reason in why_not(results, "rms_norm")


def test_skip_layer_norm_keeps_the_sum() -> None:
    body = "t = Add(x, k) u = LayerNormalization <axis = -1> (t, scale, bias) y = Add(u, t)"
    ops, results, _ = rewrite(model("float[2,n,8] x, float[2,n,8] k => float[2,n,8] y", body, constants=NORM))
    assert fired(results, "skip_layer_norm") == 1 and ops == {"SkipLayerNorm": 1, "Add": 1}


def test_adding_a_vector_is_no_skip() -> None:
    body = "t = Add(x, bias) y = LayerNormalization <axis = -1> (t, scale, bias)"
    ops, results, _ = rewrite(model(X, body, constants=NORM))
    assert ops == {"Add": 1, "LayerNormalization": 1} and "differ in shape" in why_not(results, "skip_layer_norm")
    body = "t = Add(x, k) y = LayerNormalization <axis = 1> (t, s2, b2)"
    two = {"s2": np.ones((3, 8), np.float32), "b2": np.zeros((3, 8), np.float32)}
    ops, results, _ = rewrite(model("float[2,3,8] x, float[2,3,8] k => float[2,3,8] y", body, constants=two))
    assert "last dimension" in why_not(results, "skip_layer_norm")


def test_skip_rms_norm() -> None:
    body = "x = Add(a, b) " + RMS + "q = Div(x, r) z = Mul(q, scale) y = Add(z, x)"
    ops, _, _ = rewrite(model("float[2,n,8] a, float[2,n,8] b => float[2,n,8] y", body, constants=NORM))
    assert ops == {"SkipRmsNorm": 1, "Add": 1}
    broadcast = model("float[2,n,8] a, float[1,1,8] b => float[2,n,8] y", body, constants=NORM)
    ops, results, _ = rewrite(broadcast)
    assert "RmsNorm" in ops and "differ in shape" in why_not(results, "skip_rms_norm")


GROUP = {
    "rows": np.array([0, 4, -1]),
    "ones": np.ones(4, np.float32),
    "zeros": np.zeros(4, np.float32),
    "halves": np.full(4, 0.5, np.float32),
    "scale": RNG.standard_normal((8, 1, 1)).astype(np.float32),
    "bias": RNG.standard_normal((8, 1, 1)).astype(np.float32),
    "row_scale": RNG.standard_normal((8, 1)).astype(np.float32),
    "per_pixel": RNG.standard_normal((6, 5)).astype(np.float32),
    "last": np.array([-1]),
    "two": 2.0,
    "eps": np.float32(1e-6),
}
IMAGE = "float[b,8,h,w] x => float[b,8,h,w] y"
INWARD = "r = Reshape(x, rows) "
OUTWARD = "s = Shape(x) o = Reshape(i, s) m = Mul(o, scale) y = Add(m, bias)"


def test_group_norm_from_instance_norm() -> None:
    body = INWARD + "i = InstanceNormalization <epsilon = 0.000001> (r, ones, zeros) " + OUTWARD
    ops, results, changed = rewrite(model(IMAGE, body, constants=GROUP), sizes={"h": 6, "w": 5})
    assert fired(results, "group_norm") == 1 and ops == {"GroupNorm": 1}
    node = next(iter(changed.graph))
    assert node.attributes["groups"].as_int() == 4 and node.attributes["epsilon"].as_float() == pytest.approx(1e-6)
    assert [list(v.shape) for v in node.inputs[1:]] == [[8], [8]]


def test_group_norm_written_out() -> None:
    body = INWARD + (
        "mu = ReduceMean(r, last) d = Sub(r, mu) q = Mul(d, d) v = ReduceMean(q, last) e = Add(v, eps) t = Sqrt(e) "
        "i = Div(d, t) " + OUTWARD
    )
    ops, _, _ = rewrite(model(IMAGE, body, constants=GROUP))
    assert ops == {"GroupNorm": 1}


def test_group_norm_of_sequences() -> None:
    body = INWARD + "i = InstanceNormalization(r, ones, zeros) s = Shape(x) o = Reshape(i, s) m = Mul(o, row_scale) "
    body += "y = Add(m, row_scale)"
    assert rewrite(model("float[b,8,t] x => float[b,8,t] y", body, constants=GROUP))[0] == {"GroupNorm": 1}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (INWARD + "i = InstanceNormalization(r, halves, zeros) " + OUTWARD, "scales each group"),
        (
            INWARD + "i = InstanceNormalization(r, ones, zeros) s = Shape(x) o = Reshape(i, s) m = Mul(o, per_pixel) "
            "y = Add(m, bias)",
            "expected [8, 1, 1]",
        ),
        (
            "z = Transpose <perm = [0, 1, 3, 2]> (x) r = Reshape(z, rows) i = InstanceNormalization(r, ones, zeros) "
            + OUTWARD,
            "not reshaped to the shape of x",
        ),
    ],
)
def test_group_norm_near_misses_stay(body: str, reason: str) -> None:
    ops, results, _ = rewrite(model("float[b,8,6,5] x => float[b,8,6,5] y", body, constants=GROUP))
    assert ops["InstanceNormalization"] == 1 and reason in why_not(results, "group_norm")


def test_group_norm_and_silu_are_one() -> None:
    body = INWARD + "i = InstanceNormalization(r, ones, zeros) " + OUTWARD.replace("y = ", "g = ")
    body += " a = Sigmoid(g) y = Mul(g, a)"
    ops, _, _ = rewrite(model(IMAGE, body, constants=GROUP))
    assert ops == {"GroupNormSilu": 1}


def test_group_norm_that_is_needed_beside_its_silu_stays_apart() -> None:
    body = INWARD + "i = InstanceNormalization(r, ones, zeros) " + OUTWARD.replace("y = ", "g = ")
    body += " a = Sigmoid(g) c = Mul(g, a) y = Add(c, g)"
    ops, results, _ = rewrite(model(IMAGE, body, constants=GROUP))
    assert ops == {"GroupNorm": 1, "Silu": 1, "Add": 1} and "also needed" in why_not(results, "group_norm_silu")
