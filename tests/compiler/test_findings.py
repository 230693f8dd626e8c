"""What benchmarks/fuzz.py found, reduced: each differed from ONNX Runtime, or was refused, when it was found."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from batch import compile_batch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fuzz

HEAD = '<ir_version: 9, opset_import: ["" : {opset}]> fuzz '
COMPILED = {
    "a mask behind a product": (
        20,
        """(float[n,6,m] a, float[n,m,6] b) => (bool[n,6,6] y, bool[n,6,6] z) <float k = {0.5}> {
          t = MatMul(a, b)  y = IsInf(t)  u = MatMul(a, b)  v = Exp(u)  z = Greater(v, k) }""",
    ),
    "masks of booleans behind a product: of columns, of rows, of both": (
        20,
        """(float[n,4,6,8] a, float[n,4,8,m] b, bool[1,1,1,m] c, bool[n,4,6,1] r, bool[n,4,6,m] e, float[n,7] x, bool[9] f)
          => (float[n,4,6,m] y, float[n,4,6,m] z, float[n,4,6,m] w, float[n,9] v) <float k = {-10000}, float[7,9] p = {ONES}> {
          t = MatMul(a, b)  y = Where(c, t, k)  u = MatMul(a, b)  s = Neg(u)  z = Where(r, s, k)
          o = MatMul(a, b)  w = Where(e, k, o)
          q = MatMul(x, p)  v = Where(f, q, k) }""".replace("ONES", ",".join(["0.5"] * 63)),
    ),
    "a logarithm of a sum of integers, whose exponentials ONNX Runtime rounds": (
        14,
        """(float[n] x, int64[3,m] k) => (float[n] a, int64 y, int64[3,1] z) {
          a = Neg(x)  y = ReduceLogSumExp <keepdims = 0> (k)  z = ReduceLogSumExp <axes = [-1]> (k) }""",
    ),
    "a half from a small vector of integers, which is shape arithmetic": (
        13,
        "(int64[3] x) => (float16[3] y) { y = Cast <to = 10> (x) }",
    ),
    "a loop without turns, of which ONNX Runtime measures nothing": (
        15,
        """(float[n,4,6,1] x) => (uint8[?,?,?,?,?] y, int64[?,?,?,?] z)
          <int64 none = {0}, bool go = {1}, float scale = {0.05}, uint8 zero = {128}> {
          last, each = Loop(none, go, x) <body = turn (int64 i, bool c, float[?,?,?,?] in)
            => (bool d, float[?,?,?,?] next, float[?,?,?,?] row) { d = Identity(c)  next = Neg(in)  row = Identity(next) }>
          y = QuantizeLinear(each, scale, zero)  z = ArgMax <axis = 0, keepdims = 0> (each) }""",
    ),
    "one index that is computed and negative": (
        18,
        """(float[n,3] x, int64 k, int64[1] l) => (float[n] y, float[n,1] z) <int64 three = {3}> {
          i = Sub(k, three)  y = Gather <axis = 1> (x, i)  j = Sub(l, three)  z = Gather <axis = -1> (x, j) }""",
    ),
    "a slice backwards from before the first element": (
        18,
        """(float[n,3,m] x, int64[1] k) => (float[n,3,?] y, float[n,?,m] z) <
          int64[1] to = {-100}, int64[1] last = {-1}, int64[1] one = {1}, int64[1] five = {5}> {
          y = Slice(x, to, to, last, last)  i = Sub(k, five)  z = Slice(x, i, to, one, last) }""",
    ),
    "a kept aspect ratio along negative axes, which ONNX Runtime leaves as they are": (
        21,
        """(float[n,3,m] x) => (float[n,?,?] y) <int64[2] size = {4, 3}> {
          y = Resize <axes = [-2, -1], keep_aspect_ratio_policy = "not_smaller", mode = "nearest"> (x, , , size) }""",
    ),
    "pools over dilated windows, which ONNX Runtime pads as if they were not": (
        22,
        """(float[n,3,6,5] x, float[n,3,m] s) => (float[n,3,?,?] a, float[n,3,?,?] b, float[n,3,?,?] c, float[n,3,?] d) {
          a = AveragePool <auto_pad = "SAME_LOWER", dilations = [2, 1], kernel_shape = [2, 2]> (x)
          b = MaxPool <auto_pad = "SAME_UPPER", dilations = [2, 2], kernel_shape = [3, 2], strides = [2, 1]> (x)
          c = LpPool <auto_pad = "SAME_UPPER", dilations = [1, 2], kernel_shape = [2, 2], strides = [1, 2]> (x)
          d = MaxPool <auto_pad = "SAME_LOWER", ceil_mode = 1, dilations = [2], kernel_shape = [2], strides = [2]> (s) }""",
    ),
    "a window of ceil_mode that is larger than the padded image": (
        22,
        """(float[n,3,m] x) => (float[n,3,r] y) {
          y = MaxPool <ceil_mode = 1, kernel_shape = [3], pads = [1, 0], strides = [2]> (x) }""",
    ),
    "an integer from NaN, an infinity or a number beyond it": (
        16,
        """(float[3,m] x) => (int64[3,m] a, int32[3,m] b, int64[3,m] c, int32[3,m] d) <float k = {1e30}> {
          y = Mul(x, k)  a = Cast <to = 7> (x)  b = Cast <to = 6> (y)  z = Cast <to = 11> (y)
          c = Cast <to = 7> (z)  d = Cast <to = 6> (z) }""",
    ),
    "a transposed convolution beside NaN, whose phases have unequal taps": (
        22,
        """(float[n,3,m] x) => (float[n,2,r] y) <float[3,2,3] w = {
          0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8}> {
          y = ConvTranspose <auto_pad = "SAME_UPPER", kernel_shape = [3], strides = [2]> (x, w) }""",
    ),
    "a number that a narrow or unsigned integer does not hold": (
        21,
        """(float[3,m] x, double[3,m] d) => (uint8[3,m] a, int8[3,m] b, uint16[3,m] c, uint64[3,m] e, uint8[3,m] g)
          <float k = {-300.0}, double l = {1e19}> {
          y = Mul(x, k)  a = Cast <to = 2> (y)  b = Cast <to = 3> (y)  c = Cast <to = 4> (y)
          z = Mul(d, l)  e = Cast <to = 13> (z)  g = CastLike(d, a) }""",
    ),
    "a single number that an integer does not hold": (
        21,
        """(float x, double d) => (int64 a, int32 b, uint64 c, uint8 e) <float k = {1e30}, double l = {300.0}> {
          y = Mul(x, k)  a = Cast <to = 7> (y)  b = Cast <to = 6> (y)  c = Cast <to = 13> (x)
          z = Mul(d, l)  e = Cast <to = 2> (z) }""",
    ),
    "a Squeeze by an empty list of axes": (
        14,
        "(int16[1,n,n] x) => (int16[p,q] y) <int64[0] a = {}> { y = Squeeze(x, a) }",
    ),
    "the sign of a NaN double": (17, "(double[3,m] x) => (double[3,m] y) { y = Sign(x) }"),
    "a Shrink of integers by a fraction": (
        21,
        "(int32[3,n] x) => (int32[3,n] y) { y = Shrink <bias: float = 0.1, lambd: float = 1.0> (x) }",
    ),
    "a LayerNormalization of doubles": (
        22,
        "(double[n,4] x, double[4] s) => (double[n,4] y) { y = LayerNormalization <epsilon: float = 0.0> (x, s) }",
    ),
    "a LayerNormalization whose scale broadcasts": (
        20,
        "(float[n,3,4] x, float[4] s) => (float[n,3,4] y) { y = LayerNormalization <axis: int = -2> (x, s) }",
    ),
    "a transposed convolution with SAME and a kernel shorter than its stride": (
        16,
        """(float[n,2,4] x, float[2,3,1] w) => (float[n,3,r] y) {
          y = ConvTranspose <auto_pad = "SAME_LOWER", strides = [3]> (x, w) }""",
    ),
    "the logarithm of an integer 0": (
        12,
        "(int32[n,3,m] x) => (int32[n,1,m] y) { z = Sub(x, x)  y = ReduceLogSum <axes = [1], keepdims = 1> (z) }",
    ),
    "a half that does not hold a size, or an integer": (
        18,
        """(float[n,4] x, int32[3,m] i) => (float[r] y, int32[3,m] z) <int64[1] k = {1025}, int32 l = {2049}> {
          s = Shape <end = 1> (x)  t = Mul(s, k)  h = Cast <to = 10> (t)  c = Cast <to = 7> (h)  y = ConstantOfShape(c)
          j = Mul(i, l)  g = Cast <to = 10> (j)  z = Cast <to = 6> (g) }""",
    ),
    "a remainder with the sign of a dividend that is computed from sizes": (
        18,
        """(float[n,4] x) => (float[r] y) <int64[1] k = {8}, int64[1] l = {3}> {
          s = Shape <end = 1> (x)  d = Sub(s, k)  e = Mod <fmod = 1> (d, l)  z = Abs(e)  y = ConstantOfShape(z) }""",
    ),
    "small vectors whose type wraps or rounds": (
        18,
        """(uint8[2] x, double d) => (uint8[2] y, int64 z) <uint8 one = {1}, uint8 two = {2}, double k = {1e9}> {
          a = Sub(x, one)  y = Div(a, two)  b = Mul(d, k)  c = Cast <to = 1> (b)  z = Cast <to = 7> (c) }""",
    ),
    "the mask of a Dropout before opset 12": (
        11,
        "(float[n,4] x) => (float[n,4] y, bool[n,4] z) { a, z = Dropout <ratio = 0.5> (x)  y = Neg(a) }",
    ),
    "an attention whose queries or scores are broadcast": (
        18,
        """(float[1,2,3,4] q, float[n,2,5,4] k, float[1,2,5,4] l, float[n,1,3,5] mask) => (float[n,2,3,4] y, float[n,2,3,4] z)
          <float c = {0.5}> {
          kt = Transpose <perm = [0, 1, 3, 2]> (k)  a = MatMul(q, kt)  b = Mul(a, c)  p = Softmax(b)  y = MatMul(p, k)
          lt = Transpose <perm = [0, 1, 3, 2]> (l)  e = MatMul(q, lt)  f = Mul(e, c)  g = Add(f, mask)  h = Softmax(g)
          z = MatMul(h, l) }""",
    ),
    "a cubic Resize with antialias and align_corners": (
        18,
        """(float[n,2,9,7] x) => (float[n,2,4,5] y) <float[4] scales = {1, 1, 0.45, 0.75}> {
          y = Resize <antialias = 1, coordinate_transformation_mode = "align_corners", mode = "cubic"> (x, , scales) }""",
    ),
}


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """All of them in one compiler run."""
    protos = [onnx.parser.parse_model(HEAD.format(opset=opset) + body) for opset, body in COMPILED.values()]
    cases = [case for p in protos if (case := fuzz.asked(p)) is not None]
    return dict(zip(COMPILED, fuzz.compiled(cases), strict=True))


@pytest.mark.parametrize("what", COMPILED)
def test_compiled(what: str, found: dict[str, str]) -> None:
    assert found[what] == ""


def test_the_largest_and_smallest_beside_nan_are_where_onnx_runtime_says(tmp_path: Path) -> None:
    protos = [
        onnx.parser.parse_model(
            HEAD.format(opset=18)
            + f"(float[a,b] x) => (int64[c,d] y) {{ y = {op} <axis = {axis}, select_last_index = {last}> (x) }}"
        )
        for op in ("ArgMax", "ArgMin")
        for axis in (0, 1)
        for last in (0, 1)
    ]
    library, built = compile_batch([(f"m{i}", p.SerializeToString()) for i, p in enumerate(protos)], tmp_path)
    rng = np.random.default_rng(0)
    for proto, result in zip(protos, built):
        assert result.native
        ours, stock = fuzz.session(result.path, library), fuzz.session(proto.SerializeToString())
        for nans in (1, 8, 40, 200):
            x = rng.integers(-5, 5, (9, 20)).astype(np.float32)  # with equals
            x.flat[rng.integers(x.size, size=nans)] = np.nan
            np.testing.assert_array_equal(ours.run(None, {"x": x})[0], stock.run(None, {"x": x})[0])


def test_a_limit_that_a_clip_leaves_out_is_the_last_finite_number(tmp_path: Path) -> None:
    text = "(float[n] x, float16[n] k) => (float[n] a, float[n] b, float[n] c, float16[n] d) <float one = {1}> "
    text += "{ a = Clip(x, , one)  b = Clip(x, one)  c = Clip(x)  d = Clip(k) }"
    proto = onnx.parser.parse_model(HEAD.format(opset=20) + text)
    library, (result,) = compile_batch([("m", proto.SerializeToString())], tmp_path)
    assert result.native
    x = np.array([-np.inf, np.inf, np.nan, 2, -3], np.float32)
    feed = {"x": x, "k": x.astype(np.float16)}
    ours, stock = fuzz.session(result.path, library), fuzz.session(proto.SerializeToString())
    for got, want in zip(ours.run(None, feed), stock.run(None, feed), strict=True):
        np.testing.assert_array_equal(got, want)


REWRITTEN = {
    "sizes that nothing is known of, one broadcast with another": (
        13,
        """(float[n,3,m] x, float[n,3,k] z) => (float[n,3,r] y, float[n,3,q] e) <float[3,1,3] w = {1,2,3,4,5,6,7,8,9}> {
          a = Conv <auto_pad = "SAME_LOWER", group = 3, kernel_shape = [3], strides = [2]> (x, w)
          b = Tanh(a)  c = Max(z, b)  d = Neg(c)  y = Exp(d)  s = Shape(b)  e = Expand(c, s) }""",
    ),
    "a chain of three reshapes": (
        18,
        """(float16[n,3,m] x, int64[3] s) => (float16[3,r] y) <int64[1] flat = {-1}, int64[2] two = {3,-1}> {
          a = Reshape(x, flat)  b = Reshape(a, s)  y = Reshape(b, two) }""",
    ),
    "a Reshape to a size of 0, which is no dimension to copy": (
        14,
        """(float16[0,m] x) => (float16[0,m] y) <int64[1] flat = {-1}> {
          a = Reshape(x, flat)  s = Shape(x)  y = Reshape(a, s) }""",
    ),
    "a quotient of sizes that is negative": (
        18,
        """(float[n,4] x) => (float[r,4] y, float[s,4] z) <
          int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] five = {5}, int64[1] minus = {-1}> {
          n = Shape <end = 1> (x)  d = Sub(n, five)  e = Div(d, two)  t = Add(n, e)  y = Slice(x, zero, t, zero)
          q = Equal(e, minus)  w = Where(q, n, one)  z = Slice(x, zero, w, zero) }""",
    ),
    "the magnitude of a size and a negative number": (
        18,
        """(float[n,4] x) => (float[r] y) <int64[1] i = {0}, int64[1] k = {-5}> {
          s = Shape(x)  n = Gather <axis = 0> (s, i)  d = Add(n, k)  z = Abs(d)  y = ConstantOfShape(z) }""",
    ),
    "patterns that begin outside of a branch and end in it": (
        18,
        """(float[n,4] x, bool c) => (float[n,4] y, float[n,3] z, float[n,4] v)
          <float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[3] k = {1,2,3}, float[4] l = {1,2,3,4}> {
          s = Sigmoid(x)  y = If(c) <then_branch = a () => (float[n,4] p) { p = Mul(s, x) }, else_branch = b () => (float[n,4] q) { q = Neg(x) }>
          m = MatMul(x, w)  z = If(c) <then_branch = d () => (float[n,3] e) { e = Add(m, k) }, else_branch = f () => (float[n,3] g) { g = Neg(m) }>
          r = Relu(x)  t = Add(x, r)  v = If(c) <then_branch = h () => (float[n,4] i) { i = LayerNormalization(t, l, l) },
            else_branch = j () => (float[n,4] o) { o = Neg(x) }> }""",
    ),
    "a scale that follows from the sum that a norm begins with": (
        18,
        """(float[2,4] x, float[2,4] z) => (float[2,4] y) <int64[1] a = {0}> {
          s = Add(x, z)  w = ReduceMean <keepdims = 0> (s, a)  y = LayerNormalization(s, w, w) }""",
    ),
    "convolutions of images that are resized to more channels, or keep their aspect ratio": (
        18,
        """(float[1,2,4,4] x) => (float[1,1,8,8] y, float[1,1,h,w] z) <int64[4] s = {1,4,8,8}, int64[4] t = {1,2,8,8},
          float[1,4,1,1] v = {1,2,3,4}, float[1,2,1,1] w = {1,2}, float[1] k = {1}> {
          a = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , , s)  y = Conv(a, v, k)
          b = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor", keep_aspect_ratio_policy = "not_larger"> (x, , , t)
          z = Conv(b, w, k) }""",
    ),
    "outputs that declare a size which they have for some inputs only": (
        18,
        """(float[n,4] x, float[n,2,5] z) => (float[1,4] y, int64[2] s, float[1,10] v) <int64[2] a = {-1, 5}, int64[2] b = {-1, 10}> {
          r = Relu(x)  y = Identity(r)  s = Shape(r)  u = Reshape(z, a)  v = Reshape(u, b) }""",
    ),
    "parts of a sequence before opset 18": (
        13,
        """(float[4,3] x) => (float[2,3] y, float[1,3] z, float[2,2,3] v) <int64 k = {2}, int64[4] l = {1,1,1,1}, int64 i = {-1}> {
          a = SplitToSequence <axis = 0> (x, k)  y = SequenceAt(a, i)  v = ConcatFromSequence <axis = 0, new_axis = 1> (a)
          b = SplitToSequence <axis = 0, keepdims = 0> (x, l)  z = SequenceAt(b, i) }""",
    ),
    "an Einsum that stretches an operand, is an output, and is raised from an older opset": (
        13,
        """(float[1,2,3] x, float[4,2,3] w) => (float[r] e, int64 y) {
          e = Einsum <equation = "bij,bij->b"> (x, w)  n = Neg(e)  y = Size(n) }""",
    ),
}


@pytest.mark.parametrize("what", REWRITTEN)
def test_rewritten(what: str) -> None:
    opset, body = REWRITTEN[what]
    case = fuzz.asked(onnx.parser.parse_model(HEAD.format(opset=opset) + body))
    assert case is not None and fuzz.rewritten(case) == ""
