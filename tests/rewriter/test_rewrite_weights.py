"""Products and convolutions: epilogues, joined weights, folded batch norm, cache, upsampling, sinking."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from rewrite_graphs import fired, model, rewrite, why_not

from opsmith.rewriter import rewrite_model

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


LINEAR = {"w": normal(8, 6), "b": normal(6), "w2": normal(8, 4), "b2": normal(4), "wt": normal(6, 8), "k": normal(3, 6)}
XY = "float[2,n,8] x, float[2,n,6] r => float[2,n,6] y"


def test_linear_with_everything_after_it() -> None:
    body = "m = MatMul(x, w) h = Add(m, b) s = Sigmoid(h) a = Mul(h, s) y = Add(a, r)"
    assert rewrite(model(XY, body, constants=LINEAR))[0] == {"LinearSiluResidual": 1}
    body = "m = MatMul(x, w) h = Add(b, m) y = Add(r, h)"
    assert rewrite(model(XY, body, constants=LINEAR))[0] == {"LinearResidual": 1}
    body = "m = MatMul(x, w) h = Add(b, m) y = Relu(h)"
    assert rewrite(model("float[2,n,8] x => float[2,n,6] y", body, constants=LINEAR))[0] == {"LinearRelu": 1}


def test_gemm_is_linear_too_and_its_weight_is_turned() -> None:
    ops, _, changed = rewrite(
        model("float[n,8] x => float[n,6] y", "h = Gemm <transB = 1> (x, wt, b) y = Tanh(h)", constants=LINEAR)
    )
    assert ops == {"LinearTanh": 1}
    assert sorted(len(v.shape) for v in changed.graph.initializers.values()) == [1, 2]
    scaled = model("float[n,8] x => float[n,6] y", "h = Gemm <alpha = 0.5> (x, w, b) y = Tanh(h)", constants=LINEAR)
    ops, results, _ = rewrite(scaled)
    assert ops == {"Gemm": 1, "Tanh": 1} and "scales" in why_not(results, "linear")


@pytest.mark.parametrize(
    ("signature", "body", "reason"),
    [
        ("float[2,3,8] x => float[2,3,6] y", "m = MatMul(x, w) y = Add(m, k)", "constant vector"),
        ("float[2,3,8] x, float[8,6] v => float[2,3,6] y", "m = MatMul(x, v) y = Add(m, b)", "constant matrix"),
        ("float[2,3,8] x => float[2,3,6] y, float[2,3,6] z", "m = MatMul(x, w) y = Add(m, b) z = Neg(m)", "2 nodes"),
    ],
)
def test_linear_near_misses_stay(signature: str, body: str, reason: str) -> None:
    ops, results, _ = rewrite(model(signature, body, constants=LINEAR))
    assert ops["MatMul"] == 1 and reason in why_not(results, "linear")


def test_a_residual_that_broadcasts_is_not_taken() -> None:
    body = "m = MatMul(x, w) h = Add(m, b) y = Add(h, r)"
    ops, _, _ = rewrite(model("float[1,8] x, float[3,6] r => float[3,6] y", body, constants=LINEAR))
    assert ops == {"Linear": 1, "Add": 1}


CONV = {"w": normal(4, 3, 3, 3), "b": normal(4), "pixel": normal(1, 4, 5, 5)}
PIC = "float[n,3,h,w0] x, float[n,4,1,1] t, float[n,4,h,w0] r => float[n,4,h,w0] y"
SAME = "c = Conv <pads = [1,1,1,1]> (x, w, b) "


def test_conv_with_time_activation_and_residual() -> None:
    sizes = {"n": 2, "h": 5, "w0": 6}
    body = SAME + "a = Add(c, t) s = Sigmoid(a) z = Mul(a, s) y = Add(z, r)"
    assert rewrite(model(PIC, body, constants=CONV), sizes)[0] == {"ConvTimeSiluResidual": 1}
    assert rewrite(model(PIC, SAME + "y = Add(r, c)", constants=CONV), sizes)[0] == {"ConvResidual": 1}
    assert rewrite(model(PIC, SAME + "y = Relu(c)", constants=CONV), sizes)[0] == {"ConvRelu": 1}
    strided = "float[n,3,8,8] x => float[n,4,4,4] y"
    body = "c = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w, b) y = Relu(c)"
    assert rewrite(model(strided, body, constants=CONV), sizes)[0] == {"ConvRelu": 1}


def test_bare_convolution_stays_and_so_does_a_used_one() -> None:
    sizes = {"n": 2, "h": 5, "w0": 5}
    ops, results, _ = rewrite(
        model("float[n,3,5,5] x => float[n,4,5,5] y", SAME + "y = Add(c, pixel)", constants=CONV), sizes
    )
    assert ops == {"Conv": 1, "Add": 1} and "nothing follows" in why_not(results, "conv")
    used = model("float[n,3,5,5] x => float[n,4,5,5] y", SAME + "a = Relu(c) d = Neg(c) y = Add(a, d)", constants=CONV)
    assert rewrite(used, sizes)[0]["Conv"] == 1


RESIZE = 'u = Resize <mode = "nearest", coordinate_transformation_mode = "{}", nearest_mode = "{}"> (x, , scales) '


def test_upsampling_before_a_convolution() -> None:
    constants = {**CONV, "scales": np.array([1, 1, 2, 2], np.float32)}
    body = RESIZE.format("asymmetric", "floor") + "y = Conv <pads = [1,1,1,1]> (u, w, b)"
    signature = "float[n,3,h,w0] x => float[n,4,hh,ww] y"
    ops, results, _ = rewrite(model(signature, body, constants=constants))
    assert fired(results, "upsample_conv") == 1 and ops == {"UpsampleConv": 1}
    body = RESIZE.format("half_pixel", "round_prefer_ceil") + "y = Conv <pads = [1,1,1,1]> (u, w, b)"
    ops, results, _ = rewrite(model(signature, body, constants=constants))
    assert ops["Resize"] == 1 and "repeat each pixel" in why_not(results, "upsample_conv")
    uneven = {**CONV, "scales": np.array([1, 1, 2, 3], np.float32)}
    body = RESIZE.format("asymmetric", "floor") + "y = Conv <pads = [1,1,1,1]> (u, w, b)"
    ops, results, _ = rewrite(model(signature, body, constants=uneven))
    assert ops["Resize"] == 1 and "whole number" in why_not(results, "upsample_conv")


def test_products_of_one_input_are_joined_lazily() -> None:
    body = "p = MatMul(x, w) q = MatMul(x, w2) a = Relu(p) c = Neg(q) y = Concat <axis = -1> (a, c)"
    original = model("float[2,n,8] x => float[2,n,10] y", body, constants=LINEAR)
    ops, results, changed = rewrite(original)
    assert fired(results, "parallel_matmul") == 1 and ops["MatMul"] == 1 and ops["Split"] == 1
    joined = next(v for v in changed.graph.initializers.values() if list(v.shape) == [8, 10])
    assert isinstance(joined.const_value, ir.LazyTensor)


def test_biases_are_joined_with_their_products() -> None:
    body = "p = MatMul(x, w) q = MatMul(x, w2) a = Add(p, b) c = Add(b2, q) y = Concat <axis = -1> (a, c)"
    ops, _, _ = rewrite(model("float[2,n,8] x => float[2,n,10] y", body, constants=LINEAR))
    assert ops == {"Linear": 1, "Split": 1, "Concat": 1}
    body = "p = Gemm(x, w, b) q = Gemm(x, w2, b2) y = Concat <axis = -1> (p, q)"
    ops, _, _ = rewrite(model("float[n,8] x => float[n,10] y", body, constants=LINEAR))
    assert ops == {"Linear": 1, "Split": 1, "Concat": 1}


def test_products_of_different_inputs_or_kinds_are_not_joined() -> None:
    body = "z = Relu(x) p = MatMul(x, w) q = MatMul(z, w2) y = Concat <axis = -1> (p, q)"
    ops, results, _ = rewrite(model("float[2,n,8] x => float[2,n,10] y", body, constants=LINEAR))
    assert ops["MatMul"] == 2 and "no other product" in why_not(results, "parallel_matmul")
    body = "p = Gemm(x, w, b) q = Gemm <transB = 1> (x, wt, b) y = Concat <axis = -1> (p, q)"
    ops, results, _ = rewrite(model("float[n,8] x => float[n,12] y", body, constants=LINEAR))
    assert "Split" not in ops


BATCH = {"scale": normal(4), "shift": normal(4), "mean": normal(4), "var": np.abs(normal(4)) + 0.5}


def test_batch_norm_is_folded_into_the_convolution() -> None:
    body = SAME + "y = BatchNormalization <epsilon = 0.001> (c, scale, shift, mean, var)"
    ops, _, _ = rewrite(model("float[n,3,5,5] x => float[n,4,5,5] y", body, constants={**CONV, **BATCH}))
    assert ops == {"Conv": 1}
    bare = "c = Conv(x, w) y = BatchNormalization(c, scale, shift, mean, var)"
    assert rewrite(model("float[n,3,5,5] x => float[n,4,3,3] y", bare, constants={**CONV, **BATCH}))[0] == {"Conv": 1}


def test_batch_norm_after_a_shared_convolution_or_alone_stays() -> None:
    body = SAME + "z = BatchNormalization(c, scale, shift, mean, var) y = Add(z, c)"
    ops, results, _ = rewrite(model("float[n,3,5,5] x => float[n,4,5,5] y", body, constants={**CONV, **BATCH}))
    assert ops["BatchNormalization"] == 1 and "also needed" in why_not(results, "batch_norm")
    alone = "z = Relu(x) y = BatchNormalization(z, scale, shift, mean, var)"
    ops, results, _ = rewrite(model("float[n,4,5,5] x => float[n,4,5,5] y", alone, constants=BATCH))
    assert ops["BatchNormalization"] == 1 and "expected Conv" in why_not(results, "batch_norm")


def test_cache_append() -> None:
    signature = "float[b,4,p,8] past, float[b,4,s,8] k => float[b,4,t,8] present, float[b,4,t,8] y"
    body = "n = Neg(k) present = Concat <axis = -2> (past, n) y = Relu(present)"
    sizes = {"b": 2, "p": 5, "s": 1}
    ops, results, _ = rewrite(model(signature, body), sizes)
    assert fired(results, "kv_append") == 1 and ops["KvAppend"] == 1
    wrong = body.replace("-2", "1")
    ops, results, _ = rewrite(model(signature.replace("b,4,t,8", "b,8,p,8"), wrong), {"b": 2, "p": 5, "s": 5})
    assert ops["Concat"] == 1 and "sequence" in why_not(results, "kv_append")
    inner = "n = Neg(k) c = Concat <axis = -2> (past, n) y = Relu(c)"
    ops, results, _ = rewrite(model("float[b,4,p,8] past, float[b,4,s,8] k => float[b,4,t,8] y", inner), sizes)
    assert "does not leave" in why_not(results, "kv_append")


def test_transposes_around_elementwise_ops_cancel_or_merge() -> None:
    body = "t = Transpose <perm = [0,2,1]> (x) a = Relu(t) b = Neg(a) y = Transpose <perm = [0,2,1]> (b)"
    assert rewrite(model("float[2,n,8] x => float[2,n,8] y", body))[0] == {"Relu": 1, "Neg": 1}
    body = "t = Transpose <perm = [1,2,0]> (x) a = Relu(t) y = Transpose <perm = [0,2,1]> (a)"
    assert rewrite(model("float[2,n,8] x => float[n,2,8] y", body))[0] == {"Relu": 1, "Transpose": 1}
    used = "t = Transpose <perm = [0,2,1]> (x) a = Relu(t) y = Transpose <perm = [0,2,1]> (a) z = Neg(a)"
    ops, results, _ = rewrite(model("float[2,n,8] x => float[2,n,8] y, float[2,8,n] z", used))
    assert ops["Transpose"] == 2 and "also needed" in why_not(results, "transpose_sink")
    softmax = "t = Transpose <perm = [0,2,1]> (x) a = Softmax(t) y = Transpose <perm = [0,2,1]> (a)"
    assert rewrite(model("float[2,n,8] x => float[2,n,8] y", softmax))[0] == {"Transpose": 2, "Softmax": 1}


def test_a_product_of_rows_with_a_residual_behind_its_reshape_becomes_one_epilogue() -> None:
    constants = {
        "flat": np.array([-1, 8]),
        "back": np.array([2, 3, 5]),
        "w": np.ones((8, 5), np.float32),
        "b": np.ones(5, np.float32),
    }
    body = "f = Reshape(x, flat) g = Gemm(f, w, b) r = Reshape(g, back) y = Add(r, z)"
    kind = "float[2,3,8] x, float[2,3,5] z => float[2,3,5] y"
    assert rewrite(model(kind, body, constants=constants))[0] == {"LinearResidual": 1}
    dynamic = "f = Reshape(x, flat) g = Gemm(f, w, b) s = Shape(z) r = Reshape(g, s) y = Add(r, z)"
    found = rewrite(model("float[n,3,8] x, float[n,3,5] z => float[n,3,5] y", dynamic, constants=constants))[0]
    assert found["LinearResidual"] == 1 and "Gemm" not in found
    turned = body.replace("Gemm", "Gemm <transB = 1>")
    constants["w"] = np.ones((5, 8), np.float32)
    _, results, _ = rewrite(model(kind, turned, constants=constants))
    assert "transposed" in why_not(results, "flat_linear")


def test_reshapes_around_elementwise_ops_merge() -> None:
    shapes = {"flat": np.array([-1, 8]), "back": np.array([2, 3, 8]), "four": np.array([2, 3, 2, 4])}
    body = "r = Reshape(x, flat) a = Relu(r) y = Reshape(a, back)"
    assert rewrite(model("float[2,3,8] x => float[2,3,8] y", body, constants=shapes))[0] == {"Relu": 1}
    body = "r = Reshape(x, flat) a = Relu(r) y = Reshape(a, four)"
    assert rewrite(model("float[2,3,8] x => float[2,3,2,4] y", body, constants=shapes))[0] == {"Relu": 1, "Reshape": 1}
    used = "r = Reshape(x, flat) a = Relu(r) y = Reshape(a, back) z = Neg(a)"
    ops, results, _ = rewrite(model("float[2,3,8] x => float[2,3,8] y, float[6,8] z", used, constants=shapes))
    assert ops["Reshape"] == 2 and "also needed" in why_not(results, "reshape_sink")


def test_weights_that_only_a_dropped_branch_reads_are_dropped_with_it() -> None:
    """If (true) leaves one branch; what the other one read, and what was folded away in it, stays nowhere."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[4] x) => (float[n] y) <bool c = {1}, float[4] kept = {1, 2, 3, 4}, float[4] other = {5, 6, 7, 8}> {
        d = Neg (other)
        y = If (c) <then_branch = t () => (r) { r = Add (x, kept) }, else_branch = e () => (r) { s = Add (d, other)  r = Mul (x, s) }> }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    rewrite_model(model, level=1)
    assert list(model.graph.initializers) == ["kept"] and [n.op_type for n in model.graph] == ["Add"]
