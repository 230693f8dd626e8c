"""Models that draw random numbers: what they answer otherwise each time is not compared, the rest is."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

import opsmith
from opsmith.check.verify import verify
from opsmith.cli import main

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[n,64] x) => (float[n,64] y, float[n,64] z) <float half = {{0.5}}, bool yes = {{1}}, float k = {{{0}}}>
{{ d = Dropout(x, half, yes) s = Sigmoid(d) y = Mul(d, s) z = Mul(x, k) }}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT.format(2)), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_an_output_that_the_source_draws_is_named_and_not_compared(model: Path, tmp_path: Path) -> None:
    result = verify(model, model)
    assert result.ok and result.drawn == ("y",)
    assert [check.name for check in result.worst] == ["z"]


def test_what_does_not_depend_on_the_draw_is_compared(model: Path) -> None:
    result = verify(model, onnx.parser.parse_model(TEXT.format(3)))
    assert not result.ok and result.drawn == ("y",)
    assert all(": z: " in problem for problem in result.problems)


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
    assert "not compared: y: the source draws random numbers for it" in capsys.readouterr().out
    assert opsmith.compile(model, tmp_path / "c", regions="all").regions
