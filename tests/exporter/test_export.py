"""The verb and its command: what a user sees, and that nothing half-written stays."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import weakref
from pathlib import Path

import models
import numpy as np
import pytest

import opsmith
from opsmith import NotTheSame, OpsmithError, cli
from opsmith.exporter import trace


def everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_command_prints_a_table_and_nothing_else(tmp_path: Path) -> None:
    """In a process of its own: the exporters' noise goes around Python's streams too."""
    command = [sys.executable, "-m", "opsmith", "export", str(models.tiny_source("bert")), str(tmp_path / "bert")]
    result = subprocess.run([*command, "--exporter", "torchscript"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == str(tmp_path / "bert")
    assert lines[1].split() == ["variant", "size", "shapes", "checked", "max", "abs", "error", "seconds"]
    assert lines[2].split()[0] == "torchscript"
    assert len(lines) == 3


def test_dynamo_is_silent_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    opsmith.export(models.tiny_source("bert"), tmp_path / "bert")
    assert capfd.readouterr() == ("", "")


def test_result_names_the_variant(tmp_path: Path) -> None:
    result = opsmith.export(models.tiny_source("bert"), tmp_path / "bert", exporter="torchscript")
    (variant,) = result.variants
    assert variant.path == tmp_path / "bert" / "torchscript" / "bert_torchscript.onnx"
    assert result.max_abs_error == variant.record["verified"]["max_abs_error"] < 1e-4
    assert result.remarks == []
    assert set(variant.record["timings"]) == {"load", "pytorch", "export", "write", "verify"}


def test_missing_tokenizer_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text((models.tiny_source("bert") / "config.json").read_text())
    result = opsmith.export(folder, tmp_path / "bert", exporter="torchscript", random_weights=True)
    assert "no tokenizer files" in result.remarks[0]


def test_user_errors_are_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["export", str(tmp_path / "no" / "such" / "model"), str(tmp_path / "out")])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("opsmith: error: ")
    assert error.count("\n") == 1


def test_without_torch_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    with pytest.raises(OpsmithError, match=r'export needs torch \(pip install "\.\[export\]"\)'):
        opsmith.export(models.tiny_source("bert"), tmp_path / "out")


def test_importing_the_verb_does_not_import_torch() -> None:
    code = "import opsmith, sys; opsmith.export; import opsmith.cli as c; c.build_app(); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


def test_unknown_exporter_is_named(tmp_path: Path) -> None:
    with pytest.raises(OpsmithError, match=r"there is no exporter 'fx' \(known: dynamo, torchscript\)"):
        opsmith.export(models.tiny_source("bert"), tmp_path / "out", exporter="fx")


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device"), OpsmithError("no")])
def test_pipeline_that_fails_midway_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    """The text encoder is done, the UNet fails: the destination does not even exist."""
    write, calls = trace.write, []

    def failing(*args: object, **kwargs: object) -> None:
        if calls:
            raise failure
        calls.append(1)
        write(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(trace, "write", failing)
    with pytest.raises(type(failure)):
        opsmith.export(models.tiny_source("stable-diffusion"), tmp_path / "deep" / "sd", exporter="torchscript")
    assert calls
    assert everything(tmp_path) == []


def test_failed_export_keeps_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opsmith.export(models.tiny_source("bert"), tmp_path / "bert", exporter="torchscript")
    before = {f: (tmp_path / f).read_bytes() for f in everything(tmp_path) if (tmp_path / f).is_file()}
    monkeypatch.setattr(trace, "_verify", lambda *_: (_ for _ in ()).throw(NotTheSame("differs")))
    with pytest.raises(NotTheSame):
        opsmith.export(models.tiny_source("bert"), tmp_path / "bert", exporter="torchscript", seed=5)
    assert {f: (tmp_path / f).read_bytes() for f in everything(tmp_path) if (tmp_path / f).is_file()} == before


def test_second_exporter_adds_its_variant(tmp_path: Path) -> None:
    for exporter in models.EXPORTERS:
        opsmith.export(models.tiny_source("bert"), tmp_path / "bert", exporter=exporter)
    assert {"dynamo", "torchscript", "config.json", "vocab.txt"} <= {p.name for p in (tmp_path / "bert").iterdir()}


def test_destination_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "bert" / "torchscript").mkdir(parents=True)
    (tmp_path / "bert" / "torchscript" / "diary.txt").write_text("mine")
    with pytest.raises(OpsmithError, match="not a variant folder"):
        opsmith.export(models.tiny_source("bert"), tmp_path / "bert", exporter="torchscript")
    assert everything(tmp_path) == ["bert", "bert/torchscript", "bert/torchscript/diary.txt"]


def test_wrong_graph_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter that loses the mask is caught by the padded row of the second case."""
    from opsmith.exporter import encoder

    load = encoder._bert

    def maskless(source, task):  # type: ignore[no-untyped-def]
        graph = load(source, task)
        forward = graph.forward
        graph.forward = lambda model, ids, mask, types: forward(model, ids, mask * 0 + 1, types)
        return graph

    monkeypatch.setattr(encoder, "_bert", maskless)
    with pytest.raises(NotTheSame, match=r"last_hidden_state at batch=2, sequence=9: ONNX differs from PyTorch"):
        opsmith.export(models.tiny_source("bert"), tmp_path / "out", exporter="torchscript")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("got", "expected", "message"),
    [
        ([1.0, 2.0022], [1.0, 2.0], "differs"),  # allowed: 1e-4 + 1e-3 * 2
        ([1.0, np.nan], [1.0, 2.0], "differs"),
        ([1.0, 2.0], [1.0, np.inf], "NaN or infinity"),
        ([1.0], [1.0, 2.0], r"gives float32\(1,\)"),
    ],
)
def test_comparison_refuses(got: list[float], expected: list[float], message: str) -> None:
    with pytest.raises(NotTheSame, match=message):
        trace._compare("y", np.array(got, np.float32), np.array(expected, np.float32), {"batch": 1})


def test_comparison_takes_the_tolerance_relative_to_pytorch() -> None:
    expected = np.array([0.0, 1.0, 100.0], np.float32)
    assert trace._compare("y", expected + np.array([0.9e-4, 1e-3, 0.09], np.float32), expected, {}) == pytest.approx(
        0.09, rel=1e-3
    )


def test_record_holds_no_machine_path(tmp_path: Path) -> None:
    result = opsmith.export(models.tiny_source("bert"), tmp_path / "bert", exporter="torchscript")
    record = (result.variants[0].folder / "opsmith.json").read_text()
    assert str(tmp_path) not in record
    assert json.loads(record)["parent"] == "tiny-bert"


@pytest.mark.parametrize("exporter", models.EXPORTERS)
def test_weights_are_freed_before_onnx_runtime_opens_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exporter: str
) -> None:
    """Two copies of a 3.4 GB UNet at once are what the memory limit does not allow."""
    from opsmith.exporter import encoder

    load, verify = encoder._bert, trace._verify
    weights: list[weakref.ref] = []

    def watched(source, task):  # type: ignore[no-untyped-def]
        graph = load(source, task)
        weights.extend(weakref.ref(p) for p in graph.model.parameters())
        return graph

    def after(*args):  # type: ignore[no-untyped-def]
        assert weights
        assert sum(w().numel() for w in weights if w() is not None) == 0
        return verify(*args)

    monkeypatch.setattr(encoder, "_bert", watched)
    monkeypatch.setattr(trace, "_verify", after)
    opsmith.export(models.tiny_source("bert"), tmp_path / "bert", exporter=exporter)
