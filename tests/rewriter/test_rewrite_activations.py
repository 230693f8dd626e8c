"""GELU in its three forms, SiLU and GEGLU: they are found in every spelling, and only there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rewrite_graphs import fired, model, rewrite, why_not

from opsmith.rewriter import rewrite_model

X = "float[2,n,8] x => float[2,n,8] y"
GELU = {"root": np.float32(math.sqrt(2)), "one": 1.0, "half": 0.5, "inverse": np.float32(math.sqrt(0.5)), "two": 2.0}
TANH = {"c": np.float32(math.sqrt(2 / math.pi)), "k": 0.044715, "one": 1.0, "half": 0.5, "three": 3.0}


@pytest.mark.parametrize(
    "body",
    [
        "a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)",
        "a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(half, c) y = Mul(x, d)",
        "a = Mul(inverse, x) b = Erf(a) c = Add(one, b) h = Mul(x, half) y = Mul(h, c)",
        "a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Div(d, two)",
    ],
)
def test_erf_gelu_is_found_in_every_order(body: str) -> None:
    ops, results, _ = rewrite(model(X, body, constants=GELU))
    assert fired(results, "gelu") == 1
    assert ops == {"Gelu": 1}


def test_gelu_of_a_product_is_found() -> None:
    body = "p = Mul(x, x) a = Div(p, root) b = Erf(a) c = Add(b, one) d = Mul(p, c) y = Mul(d, half)"
    ops, _, _ = rewrite(model(X, body, constants=GELU))
    assert ops == {"Mul": 1, "Gelu": 1}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Div(x, two) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)", "the argument of erf"),
        ("a = Div(x, root) b = Erf(a) c = Add(b, two) d = Mul(x, c) y = Mul(d, half)", "expected + 1"),
        ("a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, two)", "found an output"),
        ("z = Neg(x) a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(z, c) y = Mul(d, half)", "another value"),
    ],
)
def test_gelu_near_misses_stay(body: str, reason: str) -> None:
    ops, results, _ = rewrite(model(X, body, constants=GELU))
    assert ops["Erf"] == 1
    message = why_not(results, "gelu")
    assert reason in message or "output of the graph" in message


def test_gelu_whose_erf_is_needed_elsewhere_stays() -> None:
    body = "a = Div(x, root) z = Erf(a) c = Add(z, one) d = Mul(x, c) y = Mul(d, half)"
    ops, results, _ = rewrite(model("float[2,n,8] x => float[2,n,8] y, float[2,n,8] z", body, constants=GELU))
    assert ops["Erf"] == 1 and "output" in why_not(results, "gelu")


@pytest.mark.parametrize(
    "body",
    [
        "p = Pow(x, three) a = Mul(p, k) s = Add(x, a) t = Mul(s, c) u = Tanh(t) v = Add(u, one) h = Mul(x, half) "
        "y = Mul(h, v)",
        "p = Mul(x, x) q = Mul(p, x) a = Mul(k, q) s = Add(a, x) t = Mul(c, s) u = Tanh(t) v = Add(one, u) "
        "w = Mul(x, v) y = Mul(w, half)",
    ],
)
def test_tanh_gelu_is_found(body: str) -> None:
    ops, results, _ = rewrite(model(X, body, constants=TANH))
    assert fired(results, "gelu_tanh") == 1 and ops == {"GeluTanh": 1}


def test_tanh_gelu_with_another_power_stays() -> None:
    body = "x = Abs(x0) p = Pow(x, c) a = Mul(p, k) s = Add(x, a) t = Mul(s, c) u = Tanh(t) v = Add(u, one) "
    body += "h = Mul(x, half) y = Mul(h, v)"
    ops, _, _ = rewrite(model("float[2,n,8] x0 => float[2,n,8] y", body, constants=TANH))
    assert ops["Tanh"] == 1


def test_quick_gelu_and_silu_are_told_apart() -> None:
    quick = model(X, "a = Mul(x, k) s = Sigmoid(a) y = Mul(x, s)", constants={"k": np.float32(1.702)})
    assert rewrite(quick)[0] == {"QuickGelu": 1}
    assert rewrite(model(X, "s = Sigmoid(x) y = Mul(s, x)"))[0] == {"Silu": 1}
    other = model(X, "a = Mul(x, k) s = Sigmoid(a) y = Mul(x, s)", constants={"k": np.float32(1.5)})
    assert rewrite(other)[0] == {"Mul": 2, "Sigmoid": 1}


def test_sigmoid_gating_another_value_is_no_silu() -> None:
    ops, results, _ = rewrite(model("float[2,8] x, float[2,8] g => float[2,8] y", "s = Sigmoid(g) y = Mul(x, s)"))
    assert ops["Sigmoid"] == 1 and "x itself" in why_not(results, "silu")


GATED = "a = Div(g, root) b = Erf(a) c = Add(b, one) d = Mul(g, c) e = Mul(d, half) y = Mul(h, e)"


def test_a_split_whose_parts_are_computed_is_no_geglu() -> None:
    signature = "float[2,n,16] x, int64[2] parts => float[2,n,k] y"
    computed = model(signature, "h, g = Split <axis = -1> (x, parts) " + GATED, constants=GELU)
    assert "parts of the Split are computed" in why_not(rewrite_model(computed), "geglu")


def test_geglu_from_split_and_from_slices() -> None:
    signature = "float[2,n,16] x => float[2,n,8] y"
    split = model(signature, "h, g = Split <axis = -1, num_outputs = 2> (x) " + GATED, constants=GELU)
    assert rewrite(split)[0] == {"Geglu": 1}
    bounds = {"s0": np.array([0]), "s1": np.array([8]), "s2": np.array([16]), "ax": np.array([-1])}
    slices = model(
        signature, "h = Slice(x, s0, s1, ax) g = Slice(x, s1, s2, ax) " + GATED, constants={**GELU, **bounds}
    )
    assert rewrite(slices)[0] == {"Geglu": 1}


def test_geglu_with_the_halves_swapped_or_along_another_axis_stays() -> None:
    swapped = model(
        "float[2,n,16] x => float[2,n,8] y", "g, h = Split <axis = -1, num_outputs = 2> (x) " + GATED, constants=GELU
    )
    ops, results, _ = rewrite(swapped)
    assert ops["Gelu"] == 1 and "second half" in why_not(results, "geglu")
    other = model(
        "float[4,16] x => float[2,16] y", "h, g = Split <axis = 0, num_outputs = 2> (x) " + GATED, constants=GELU
    )
    ops, results, _ = rewrite(other)
    assert ops["Gelu"] == 1 and "last dimension" in why_not(results, "geglu")


def test_half_precision_bodies_follow_the_type() -> None:
    body = "s = Sigmoid(x) y = Mul(s, x)"
    ops, _, _ = rewrite(model("float16[2,8] x => float16[2,8] y", body), tolerance=1e-3)
    assert ops == {"Silu": 1}
    half = model(
        "float16[2,8] x => float16[2,8] y",
        "a = Div(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h)",
        constants={"r": np.float16(math.sqrt(2)), "o": np.float16(1), "h": np.float16(0.5)},
    )
    assert rewrite(half, tolerance=5e-3)[0] == {"Gelu": 1}


GATE = {"zero": np.float32(0), "three": 3.0, "six": 6.0, "sixth": np.float32(1 / 6), "two": 2.0}


@pytest.mark.parametrize(
    "body",
    [
        "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)",
        "a = Add(three, x) c = Clip(a, zero, six) d = Div(c, six) y = Mul(d, x)",
        "a = Add(x, three) c = Clip(a, zero, six) h = Mul(x, sixth) y = Mul(c, h)",
    ],
)
def test_hard_swish_is_found_in_every_order(body: str) -> None:
    ops, results, _ = rewrite(model(X, body, constants=GATE))
    assert fired(results, "hard_swish") == 1 and ops == {"HardSwish": 1}


def test_hard_swish_of_limits_as_attributes_is_found() -> None:
    body = "a = Add(x, three) c = Clip <min = 0.0, max = 6.0> (a) m = Mul(x, c) y = Div(m, six)"
    ops, _, _ = rewrite(model(X, body, opset=9, constants={"three": 3.0, "six": 6.0}))
    assert ops == {"HardSwish": 1}


@pytest.mark.parametrize("end", ["y = Div(c, six)", "y = Mul(sixth, c)"])
def test_hard_sigmoid_is_found(end: str) -> None:
    ops, results, _ = rewrite(model(X, "a = Add(x, three) c = Clip(a, zero, six) " + end, constants=GATE))
    assert fired(results, "hard_sigmoid") == 1 and ops == {"HardSigmoid": 1}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Add(x, two) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)", "expected x + 3"),
        ("a = Add(x, three) c = Clip(a, zero, three) m = Mul(x, c) y = Div(m, six)", "expected 0 and 6"),
        ("z = Neg(x) a = Add(x, three) c = Clip(a, zero, six) m = Mul(z, c) y = Div(m, six)", "another value"),
        ("a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, two)", "output of the graph"),
    ],
)
def test_hard_swish_near_misses_stay(body: str, reason: str) -> None:
    ops, results, _ = rewrite(model(X, body, constants=GATE))
    assert ops["Clip"] == 1 and reason in why_not(results, "hard_swish")
