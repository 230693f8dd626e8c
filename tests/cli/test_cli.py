"""The command line as a whole: help, version, exit codes, quiet."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import typer.main

from opsmith import demo, progress
from opsmith._version import __version__
from opsmith.cli import build_app, console, main


def run(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    out, err = capfd.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture()
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(demo.tiny_model(), str(path))
    return path


def test_version_and_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "--version") == (0, f"opsmith {__version__}\n", "")
    code, out, _ = run(capfd, "--help")
    assert code == 0
    for word in ("Road", "inspect", "verify", "Machine", "doctor", "opsmith compile model.onnx fast.onnx"):
        assert word in out


def test_the_help_of_a_group_shows_an_example_of_each_of_its_commands(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "score", "--help")
    assert code == 0 and "opsmith score text models" in out and "opsmith score pictures dynamo" in out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("inspct m.onnx", "there is no command 'inspct' (did you mean inspect? `opsmith --help` lists them)"),
        ("score txt", "there is no command 'txt' (did you mean text? `opsmith score --help` lists them)"),
        ("verify", "A is missing (opsmith verify A [B]; `opsmith verify --help`)"),
        ("score text m.onnx", "--text is missing (opsmith score text MODELS...; `opsmith score text --help`)"),
        ("verify a b --rtol loose", "--rtol is a number (`opsmith verify --help`)"),
        ("compile a --search 5", "--search is a whole number from 0 to 2 (`opsmith compile --help`)"),
        ("profile a --nodes -1", "--nodes is a whole number, 0 or more (`opsmith profile --help`)"),
        (
            "inspect a --sahpe x",
            "there is no option --sahpe (did you mean --shape? `opsmith inspect --help` lists them)",
        ),
        (
            "export a b --exporter fx",
            "--exporter: 'fx' is not one of 'dynamo', 'torchscript' (`opsmith export --help`)",
        ),
        ("inspect -m.onnx", "-m.onnx begins with a dash, as options do (write ./-m.onnx)"),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_to_do(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-m.onnx").touch()
    assert run(capfd, *line.split()) == (2, "", f"opsmith: error: {said}\n")


def test_help_names_what_is_needed_without_braces_and_defaults_without_parentheses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["compile", "--help"])
    out = capsys.readouterr().out
    assert "opsmith compile [OPTIONS] SRC [DEST]" in out
    assert "[default: fp32]" in out and "default: (" not in out


def test_quiet_leaves_the_result(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "--quiet", "inspect", str(model), "--no-flops")
    assert code == 0 and "logits" in out and err == ""


def test_errors_of_the_system_are_one_line(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model.unlink()
    model.mkdir()
    code, _, err = run(capfd, "inspect", str(model))
    assert code == 2 and err.count("\n") == 1


def test_an_error_stays_one_line_however_it_was_written(capfd: pytest.CaptureFixture[str]) -> None:
    console.error("first\n  second")
    assert capfd.readouterr().err == "opsmith: error: first second\n"


def test_progress_is_silent_unless_it_is_a_terminal_or_verbose(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    try:
        for verbose, expected in ((False, ""), (True, "work: one\n")):
            progress.configure(enabled=False, verbose=verbose)
            with progress.task("work", 2) as step:
                step("one")
                step()
            assert said.getvalue() == expected
        progress.configure(enabled=True, verbose=False)
        with progress.task("work", 2) as step:
            step("one")
    finally:
        progress.configure(enabled=False, verbose=False)


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (999, "999"), (1234567, "1.2 M"), (2.5e15, "2500.0 T")])
def test_counts(number: float, text: str) -> None:
    assert console.count_text(number) == text


def test_names_from_a_model_are_not_read_as_markup(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = demo.tiny_model()
    model.graph.input[0].name = model.graph.node[0].input[0] = "[red]x[/red]"
    onnx.save(model, str(tmp_path / "m.onnx"))
    code, out, _ = run(capfd, "inspect", str(tmp_path / "m.onnx"))
    assert code == 0 and "[red]x[/red]" in out


def commands() -> dict[str, Any]:
    """Every command, those of groups as `score text`."""
    top = typer.main.get_command(build_app())
    found = {}
    for name, command in top.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {n}": c for n, c in inner.items()}
    return found


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_describes_its_options_and_shows_two_examples_that_parse(name: str) -> None:
    command = commands()[name]
    context = command.make_context("opsmith", [], resilient_parsing=True)
    for param in command.get_params(context):
        assert param.help, f"{name}: {param.name} is not described"
        assert not (getattr(param, "is_flag", False) and param.metavar), f"{name}: {param.name} is a flag"
        if param.param_type_name == "argument":
            assert param.metavar.isupper(), f"{name}: {param.name} is written as {param.metavar}"
    _, *examples = command.epilog.split("\n\n")
    assert len(examples) == 2
    for example in examples:
        words = shlex.split(example)
        assert words[: 1 + len(name.split())] == ["opsmith", *name.split()]
        command.make_context("opsmith", words[1 + len(name.split()) :])


def test_no_help_shows_a_type_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    for name in commands():
        with pytest.raises(SystemExit):
            main([*name.split(), "--help"])
    shown = capsys.readouterr().out
    assert shown.count("--quiet") >= len(commands())
    assert re.findall(r"<(?:bool|str|int|float|path|list)\b.*", shown) == []


def test_an_option_that_may_be_given_several_times_says_so_in_one_word() -> None:
    for name, command in commands().items():
        for param in command.params:
            if param.param_type_name == "option":
                assert param.multiple == ("repeatable" in param.help), f"{name}: {param.opts[0]}"


def test_what_a_command_writes_to_is_called_out_everywhere() -> None:
    for name, command in commands().items():
        options = {option for param in command.params for option in param.opts}
        assert not options & {"-o", "--out", "--output"} or {"-o", "--out"} <= options, name


def test_help_imports_nothing_that_is_slow() -> None:
    code = "import sys; from opsmith.cli import build_app; build_app(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "onnx", "onnx_ir", "onnxruntime", "torch", "PIL", "fastapi"} & set(loaded)


def test_the_help_of_compile_names_every_cpu() -> None:
    from opsmith.compiler.geometry import CPUS

    described = next(p.help for p in commands()["compile"].params if p.name == "cpu")
    assert [name for name in CPUS if name not in described] == []
