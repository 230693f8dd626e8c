"""The model in double precision: what it computes there, and whom verify believes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from opsmith import session, store
from opsmith.check import exact, spread
from opsmith.check.verify import verify

HEAD = '<ir_version: 9, opset_import: ["" : 18]>'


def _log_spectrum(scale: float = 1.0) -> onnx.ModelProto:
    """Frames of 320 samples, a length for which ONNX Runtime's transform is off by 1e-6 of its largest number."""
    text = f"""{HEAD} g (float[1, n] x) => (float[1, f, 161] y) <int64 step = {{160}}, float least = {{1e-9}}, int64[1] last = {{-1}}> {{
        s = STFT (x, step, window)  p = ReduceSumSquare<keepdims = 0> (s, last)  q = Mul (p, scale)  c = Max (q, least)  y = Log (c) }}"""
    model = onnx.parser.parse_model(text)
    for name, array in {"window": np.hanning(320), "scale": scale}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array, np.float32), name))
    return model


def test_a_variant_that_is_nearer_to_the_exact_result_than_its_source_passes_and_a_wrong_one_does_not() -> None:
    better = _log_spectrum()
    exact.in_double(better)
    result = verify(_log_spectrum(), better, shapes=[{"n": 4000}])
    constant = next(c for c in result.cases if c.name.startswith("constant rows")).outputs[0]
    assert result.ok and (constant.spread or 0.0) > constant.atol, result.problems
    wrong = _log_spectrum(1.02)
    exact.in_double(wrong)
    assert not verify(_log_spectrum(), wrong, shapes=[{"n": 4000}]).ok


def _shifted(by: float, gain: float = 1.0) -> onnx.ModelProto:
    """gain * ((x + by) - by): what is lost grows with the shift."""
    text = f"""{HEAD} g (float[n] x) => (float[n] y) <float by = {{{by}}}, float gain = {{{gain}}}> {{
        a = Add (x, by)  b = Sub (a, by)  y = Mul (b, gain) }}"""
    return onnx.parser.parse_model(text)


def test_a_variant_beyond_the_tolerance_passes_where_its_source_is_farther_from_the_exact_result() -> None:
    shapes = [{"n": 4000}]
    assert verify(_shifted(8192), _shifted(4096), shapes=shapes).ok
    assert not verify(_shifted(4096), _shifted(8192), shapes=shapes).ok  # the other way round it is worse
    assert not verify(_shifted(8192), _shifted(4096, gain=1.02), shapes=shapes).ok


def test_large_values_are_not_computed_in_double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(_log_spectrum(), tmp_path / "m.onnx")
    feeds = [{"x": np.ones((1, n), np.float32)} for n in (640, 6400)]
    monkeypatch.setattr(exact, "LARGEST_VALUE", 2000)
    assert [index for index, _ in exact.answers(tmp_path / "m.onnx", feeds, threads=1)] == [0]


@pytest.mark.parametrize(
    "body",
    [
        "a = Add (x, x)  y = Erf (a)",  # a float operator reads a double
        "a = Mul (x, x)  y = If (b) <then_branch = t () => (r) { r = Sqrt (a) }, else_branch = e () => (r) { r = Neg (a) }>",
        "i = Cast<to = 7> (x)  f = Cast<to = 1> (i)  y = Sub (x, f)",
        "y = Identity (x)",
        "s = Shape (x)  z = ConstantOfShape (s)  y = Sum (x, z)",
        "w = MatMul (x, x)  y, m = LayerNormalization (w, scale)",
    ],
)
def test_a_model_in_double_loads_and_gives_what_it_gave(body: str) -> None:
    """Nodes without a kernel for doubles, bodies that read a value from outside, outputs that are inputs."""
    text = f"{HEAD} g (float[4, 4] x, bool b) => (float[4, 4] y) <float[4] scale = {{1, 2, 3, 4}}> {{ {body} }}"
    model = onnx.parser.parse_model(text)
    feed = {"x": np.random.default_rng(0).random((4, 4), np.float32) + 1, "b": np.array(True)}
    (want,) = session.run(session.load(model), feed)
    (got,) = session.run(session.load(model, edit=exact.in_double), feed)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_stored_outputs_that_the_source_does_not_give_are_not_excused(tmp_path: Path) -> None:
    """The source in double says who is right between the source and the variant, not what stored data should have been."""
    onnx.save(_log_spectrum(), tmp_path / "m.onnx")
    feed = {"x": np.random.default_rng(0).random((1, 640), np.float32)}
    (given,) = session.run(session.load(tmp_path / "m.onnx"), feed)
    store.write_test_data(tmp_path, feed, {"y": given + np.float32(0.1)})
    result = verify(tmp_path / "m.onnx", tmp_path / "m.onnx", shapes=0)
    assert [c.ok for c in result.cases] == [True, False]


def _in_blocks(level: int | None) -> onnx.ModelProto:
    """x [n,64] times 64 weights of 4 bits in blocks of 32, for which ONNX Runtime may round x to bytes at LEVEL 4."""
    rng = np.random.default_rng(0)
    head = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>'
    attributes = "K = 64, N = 64, bits = 4, block_size = 32" + (f", accuracy_level = {level}" if level else "")
    text = f"{head} g (float[n, 64] x) => (float[n, 64] y) {{ y = com.microsoft.MatMulNBits <{attributes}> (x, w, s) }}"
    model = onnx.parser.parse_model(text)
    weights = {
        "w": rng.integers(0, 256, (64, 2, 16)).astype(np.uint8),
        "s": rng.uniform(0.01, 0.02, (64, 2)).astype(np.float32),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


@pytest.mark.parametrize("largest", [exact.LARGEST, 0])
def test_a_product_in_blocks_that_rounds_less_than_its_source_may_is_right(
    largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accuracy_level says what may be lost at most; no spread of the source excuses the difference."""
    monkeypatch.setattr(exact, "LARGEST", largest)
    monkeypatch.setattr(spread, "ROOM", 0.0)
    result = verify(_in_blocks(4), _in_blocks(None))
    assert result.ok, result.problems
    assert max(o.of_scale for o in result.worst) > 2e-3  # so much the source rounds
    wrong = _in_blocks(None)
    scales = onnx.numpy_helper.to_array(wrong.graph.initializer[1]) * np.float32(1.01)
    wrong.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(scales, "s"))
    assert not verify(_in_blocks(4), wrong).ok
