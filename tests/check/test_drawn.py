"""Models that draw random numbers: they are compared with the same draws; what differs even then is not judged, the rest is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import opsmith
from opsmith.check.verify import verify
from opsmith.cli import main
from opsmith.compress.quantize import quantize

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[n,64] x) => (float[n,64] y, float[n,64] z) <float half = {{0.5}}, bool yes = {{1}}, float k = {{{0}}}>
{{ d = Dropout(x, half, yes) s = Sigmoid(d) y = Mul(d, s) z = Mul(x, k) }}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT.format(2)), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


OTHER_DRAWS = TEXT.replace("d = Dropout", "e = Dropout").replace("Sigmoid(d)", "Sigmoid(e)").replace("Mul(d,", "Mul(e,")


def test_an_output_that_is_drawn_is_compared_with_the_same_draws(model: Path) -> None:
    result = verify(model, model)
    assert result.ok and result.drawn == ()
    assert [check.name for check in result.worst] == ["y", "z"]


def test_an_output_that_the_source_draws_is_named_and_not_compared_where_the_draws_differ(model: Path) -> None:
    result = verify(model, onnx.parser.parse_model(OTHER_DRAWS.format(2)))
    assert result.ok and result.drawn == ("y",)
    assert [check.name for check in result.worst] == ["z"]


def test_what_does_not_depend_on_the_draw_is_compared(model: Path) -> None:
    result = verify(model, onnx.parser.parse_model(OTHER_DRAWS.format(3)))
    assert not result.ok and result.drawn == ("y",)
    assert all(": z: " in problem for problem in result.problems)


@pytest.mark.parametrize("method", ["fp16", "dynamic"])
def test_a_voice_is_quantized_and_its_error_is_not_that_of_its_noise(tmp_path: Path, method: str) -> None:
    """As in a text-to-speech model: noise in the middle, and a length that follows from it."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[n,64] x) => (float[n,64] y) {
        h = MatMul(x, w) r = RandomNormalLike(h) y = Add(h, r) }"""
    noisy = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    noisy.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(noisy, tmp_path / "m.onnx")
    assert quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", method=method).quality.error < 0.05


def test_a_model_that_draws_nothing_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TEXT.replace("Dropout(x, half, yes)", "Identity(x)")
    wrong = onnx.parser.parse_model(plain.format(3))
    monkeypatch.setattr("opsmith.check.drawn.RUNS", -1)
    assert not verify(onnx.parser.parse_model(plain.format(2)), wrong).ok


def test_optimize_and_compile_take_a_model_with_dropout_in_training(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["optimize", str(model), str(tmp_path / "o"), "--quick"])
    assert not end.value.code
    assert "not compared" not in capsys.readouterr().out
    assert opsmith.compile(model, tmp_path / "c", regions="all").regions


def test_a_model_of_nothing_but_noise_is_not_said_to_be_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is drawn in a function has no name of its own before the function is inlined, so it gets no seed."""
    text = """<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
    g (float[n,64] x) => (float[n,64] y) { t = Tanh(x) d = own.Noise(t) y = Sigmoid(d) }
    <domain: "own", opset_import: ["" : 18]> Noise (a) => (b) { r = RandomNormalLike(a) b = Add(a, r) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    for words in (
        ["compile", "m.onnx", "c", "--regions", "all"],
        ["verify", "m.onnx", "c"],
        ["optimize", "m.onnx", "o"],
    ):
        with pytest.raises(SystemExit):
            main([words[0], *(w if w[0] == "-" or w == "all" else str(tmp_path / w) for w in words[1:])])
        said = capsys.readouterr().out
        assert "not compared: y" in said
        assert "verified" not in said and "the same in" not in said and "max abs error" not in said
