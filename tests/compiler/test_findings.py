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
}


@pytest.mark.parametrize("what", REWRITTEN)
def test_rewritten(what: str) -> None:
    opset, body = REWRITTEN[what]
    case = fuzz.asked(onnx.parser.parse_model(HEAD.format(opset=opset) + body))
    assert case is not None and fuzz.rewritten(case) == ""
