"""The tuner: candidates that are right and fast, a database that is shared, and a compile that follows it."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

import opsmith
from opsmith.cli import build_app
from opsmith.compiler import geometry, tune
from opsmith.compiler.build import find_compiler
from opsmith.compiler.lower.attention import TUNED as ATTENTION_FIELDS
from opsmith.compiler.lower.convolution import TUNED as CONV_FIELDS
from opsmith.compiler.task import Candidate, Measured, Outcome, Task
from opsmith.compiler.tune import database as database_module
from opsmith.compiler.tune import runner
from opsmith.compiler.tune.database import Database, kernel_version
from opsmith.compiler.tune.families import FAMILIES
from opsmith.errors import OpsmithError


def gemm(m: int, n: int, k: int, storage: str = "f32") -> Task:
    return Task.of("gemm", {"m": m, "n": n, "k": k, "storage": storage})


def conv(*values: int, strict: int = 0) -> Task:
    return Task.of("conv", {**dict(zip(CONV_FIELDS, values, strict=True)), "strict": strict})


TASKS = [
    gemm(7, 133, 20),
    gemm(33, 100, 64, "f16"),
    conv(1, 9, 7, 16, 9, 7, 100, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1),
    conv(2, 5, 5, 20, 10, 10, 35, 3, 3, 1, 1, 1, 1, 1, 1, 1, 2),  # upsampled
    conv(1, 33, 33, 32, 17, 17, 240, 3, 3, 2, 2, 1, 1, 1, 1, 2, 1),  # strided, two groups
    Task.of("attention", dict(zip(ATTENTION_FIELDS, (1, 4, 2, 40, 50, 16, 24, 0), strict=True))),
    Task.of("attention", dict(zip(ATTENTION_FIELDS, (2, 4, 4, 33, 70, 40, 40, 1), strict=True))),
    Task.of("quantized", {"m": 1, "n": 140, "k": 72, "block": 32, "storage": "int4_f16"}),
    Task.of("quantized", {"m": 20, "n": 140, "k": 64, "block": 16, "storage": "int8_f32_zero"}),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda t: f"{t.family}-{tune.describe(t)}")
def test_every_candidate_computes_the_right_result(task: Task) -> None:
    family = FAMILIES[task.family]
    loaded = runner.library(task.family, find_compiler(), geometry.native())
    problem, shape = family.problem(task, geometry.native()), runner.shape_of(task)
    found = family.candidates(task, 2, geometry.native())
    assert found[0] == Candidate(found[0].kernel)  # the kernel's own choice comes first
    assert len(set(found)) == len(found)
    if task.family != "quantized" or task["m"] != 1:
        assert len(found) > 2
    for candidate in found:
        y = np.full(problem.y_floats, np.nan, np.float32)
        space = np.zeros(loaded.workspace(candidate, shape) + 64, np.uint8)
        loaded.run(candidate, shape, (problem.x, problem.weights[candidate.kernel], y, space), threads=2)
        assert np.isfinite(y).all(), candidate
        assert problem.error(y) <= runner.TOLERANCES.get(candidate.kernel, runner.TOLERANCE), candidate


def test_a_wrong_result_is_noticed() -> None:
    problem = FAMILIES["gemm"].problem(gemm(7, 133, 20), geometry.native())
    loaded = runner.library("gemm", find_compiler(), geometry.native())
    y = np.zeros(problem.y_floats, np.float32)
    weights = problem.weights["gemm_f32"].copy()
    weights[: weights.size // 2] *= 1.001
    loaded.run(Candidate("gemm_f32"), runner.shape_of(gemm(7, 133, 20)), (problem.x, weights, y, y), threads=1)
    assert problem.error(y) > runner.TOLERANCE


def test_measure_knows_every_kernel_of_a_convolution() -> None:
    outcome = runner.measure(TASKS[2], 1, 1, geometry.native(), find_compiler())
    assert set(outcome.best) == {"conv2d", "conv2d_winograd4", "conv2d_winograd2"}
    assert all(m.seconds > 0 for m in outcome.best.values())
    strict = conv(*(int(v) for _, v in TASKS[2].fields[:-1]), strict=1)
    assert set(runner.measure(strict, 1, 1, geometry.native(), find_compiler()).best) == {"conv2d"}


def test_the_race_drops_who_falls_behind_and_keeps_the_own_choice() -> None:
    speed = {Candidate("a"): 2.0, Candidate("a", 6, 1): 1.0, Candidate("a", 12, 1): 5.0, Candidate("b"): 9.0}
    turns: list[Candidate] = []

    def take(candidate: Candidate) -> float:
        turns.append(candidate)
        return speed[candidate]

    times = runner.race(list(speed), take, rounds=6, seconds=60)
    assert times == speed
    assert turns.count(Candidate("a", 12, 1)) == 1 and turns.count(Candidate("b")) == 1
    assert turns.count(Candidate("a")) == turns.count(Candidate("a", 6, 1)) == 6


def test_only_a_clear_win_replaces_the_own_choice() -> None:
    times = {Candidate("a"): 1.0, Candidate("a", 6, 1): 0.99, Candidate("b"): 1.0, Candidate("b", 6, 1): 0.9}
    outcome = runner.decide(times, 2, 4)
    assert outcome.best["a"] == Measured(Candidate("a"), 1.0)
    assert outcome.best["b"] == Measured(Candidate("b", 6, 1), 0.9)
    assert outcome.analytical == {"a": 1.0, "b": 1.0}


# --- the database ---


def outcome(level: int = 2, rows: int = 6) -> Outcome:
    return Outcome(level, {"gemm_f32": Measured(Candidate("gemm_f32", rows, 3), 1e-4)}, {"gemm_f32": 2e-4}, 7)


def test_the_database_gives_back_what_it_got(tmp_path: Path) -> None:
    database = Database(tmp_path / "t.sqlite")
    task = gemm(1, 2, 3)
    assert database.get(task, 2, 1) is None
    database.put(task, 2, outcome(level=1))
    assert database.get(task, 2, 1) == outcome(level=1)
    assert database.get(task, 2, 2) is None  # a wider search was not done yet
    assert database.get(task, 4, 1) is None
    assert database.get(gemm(1, 2, 4), 2, 1) is None
    database.put(task, 2, outcome(level=2, rows=12))
    database.put(task, 2, outcome(level=1))  # never overwrites the wider one
    assert database.get(task, 2, 1) == outcome(level=2, rows=12)
    assert [row.task for row in database.rows()] == [task]


def test_results_belong_to_the_cpu_and_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(tmp_path / "t.sqlite")
    database.put(gemm(1, 2, 3), 2, outcome())
    monkeypatch.setattr("opsmith.machine.cpu_model", lambda: "another CPU")
    assert database.get(gemm(1, 2, 3), 2, 1) is None
    assert not database.rows()[0].current
    monkeypatch.undo()
    monkeypatch.setattr(database_module, "kernel_version", lambda family: "changed")
    assert database.get(gemm(1, 2, 3), 2, 1) is None


def test_the_kernel_version_follows_the_headers_of_the_family() -> None:
    versions = {name: kernel_version(name) for name in FAMILIES}
    assert len(set(versions.values())) == len(versions)


def _write(path: Path, first: int) -> None:
    for i in range(20):
        Database(path).put(gemm(first + i, 1, 1), 1, outcome())


def test_processes_write_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write, args=(path, 100 * i + 1)) for i in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert len(Database(path).rows()) == 60


def test_export_and_import(tmp_path: Path) -> None:
    one, other = Database(tmp_path / "a.sqlite"), Database(tmp_path / "b.sqlite")
    one.put(gemm(1, 2, 3), 2, outcome())
    one.put(TASKS[2], 2, outcome(level=1))
    assert one.export(tmp_path / "out.jsonl") == 2
    assert other.load(tmp_path / "out.jsonl") == 2
    assert [(r.task, r.outcome, r.cpu) for r in other.rows()] == [(r.task, r.outcome, r.cpu) for r in one.rows()]


def test_merging_gives_the_same_in_any_order(tmp_path: Path) -> None:
    one, other = Database(tmp_path / "a.sqlite"), Database(tmp_path / "b.sqlite")
    one.put(gemm(1, 2, 3), 2, outcome(level=2, rows=6))
    one.put(gemm(4, 5, 6), 2, outcome(level=1, rows=6))
    other.put(gemm(1, 2, 3), 2, outcome(level=2, rows=12))  # newer, at the same level
    other.put(gemm(4, 5, 6), 2, outcome(level=0, rows=12))  # newer, of a narrower search
    other.export(tmp_path / "b.jsonl")
    files = [tmp_path / "a.sqlite", tmp_path / "b.jsonl"]  # a database and an export
    for name, order in (("there", files), ("back", files[::-1])):
        merged = Database(tmp_path / f"{name}.sqlite")
        assert [merged.load(file) for file in order] == [2, 2]
        assert merged.get(gemm(1, 2, 3), 2, 1) == outcome(level=2, rows=12)
        assert merged.get(gemm(4, 5, 6), 2, 1) == outcome(level=1, rows=6)


@pytest.mark.parametrize("text", ["", "nonsense", '{"format": "else"}', '{"format": "opsmith tuning 1"}\n{"cpu": "x"}'])
def test_a_file_that_is_no_export_is_refused_as_a_whole(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    database = Database(tmp_path / "t.sqlite")
    with pytest.raises(OpsmithError, match="not an export"):
        database.load(file)
    assert database.rows() == []


# --- compile ---


def model(channels: int = 32) -> onnx.ModelProto:
    """x (batch, C, h, w) -> 3x3 convolution -> relu -> (batch, h * w, C) @ (C, 64)"""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array((random.standard_normal(shape) * 0.1).astype(np.float32), name)

    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Relu", ["c"], ["r"], "relu"),
        onnx.helper.make_node("Transpose", ["r"], ["t"], "turn", perm=[0, 2, 3, 1]),
        onnx.helper.make_node("MatMul", ["t", "m"], ["y"], "linear"),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "g", [value("x", 1, ["batch", channels, "h", "w"])], [value("y", 1, ["batch", "h", "w", 64])],
        [weight("w", channels, channels, 3, 3), weight("m", channels, 64)],
    )  # fmt: skip
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty database, on a machine that is quiet; compiled kernels still come from the shared cache."""
    monkeypatch.setattr(runner, "_disturbed", lambda before, threads: False)
    path = tmp_path / "tuning.sqlite"
    original = Database.__init__
    monkeypatch.setattr(Database, "__init__", lambda self, given=None: original(self, given or path))
    return path


def compiled_source(folder: Path) -> str:
    return (folder / "src" / "region0.cpp").read_text()


def test_compile_tunes_records_and_finds_it_again(tmp_path: Path, cache: Path) -> None:
    first = opsmith.compile(model(), tmp_path / "a", regions="all", search=1)
    assert first.tuning is not None and first.tuning.measured == 2 and first.tuning.known == 0
    assert first.verified.ok
    second = opsmith.compile(model(), tmp_path / "b", regions="all", search=1)
    assert second.tuning is not None and second.tuning.measured == 0 and second.tuning.known == 2
    assert compiled_source(tmp_path / "a") == compiled_source(tmp_path / "b")
    tuned = json.loads((tmp_path / "a" / "opsmith.json").read_text())["compiled"]["tuned"]
    assert tuned["search"] == 1 and tuned["distinct_calls"] == 2
    assert {c["kernel"] for c in tuned["choices"]} == {"conv", "gemm"}
    assert all(c["us_before"] > 0 and c["us_after"] <= c["us_before"] * 1.001 for c in tuned["choices"])


def test_what_other_programs_disturbed_is_measured_twice_marked_and_not_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(runner, "_disturbed", lambda before, threads: bool(asked.append(threads)) or len(asked) <= 2)
    first = opsmith.compile(model(), tmp_path / "a", regions="all", search=1).tuning
    assert first is not None and (first.measured, first.disturbed, len(asked)) == (2, 1, 3)
    assert len(first.outcomes) == 2, "what is measured is used all the same"
    assert json.loads((tmp_path / "a" / "opsmith.json").read_text())["compiled"]["tuned"]["disturbed"] == 1
    second = opsmith.compile(model(), tmp_path / "b", regions="all", search=1).tuning
    assert second is not None and (second.measured, second.known, second.disturbed) == (1, 1, 0)


def test_search_0_measures_nothing(tmp_path: Path, cache: Path) -> None:
    result = opsmith.compile(model(), tmp_path / "a", regions="all", search=0)
    assert result.tuning is None
    assert not cache.exists()
    assert "tuned" not in json.loads((tmp_path / "a" / "opsmith.json").read_text())["compiled"]


def fill(path: Path, choose: Callable[[Task], Outcome], **options: Any) -> None:
    """Put an outcome of our own for every task of the model into the database."""

    def measured(task: Task, *rest: Any) -> Outcome:
        return choose(task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "measure", measured)
        opsmith.compile(model(), path, regions="all", search=2, **options)


def preset(task: Task) -> Outcome:
    if task.family == "conv":
        times = {"conv2d": 3e-3, "conv2d_winograd4": 2e-3, "conv2d_winograd2": 1e-3}
        best = {k: Measured(Candidate(k, 24, 1), s) for k, s in times.items()}
        return Outcome(2, best, {k: s * 1.1 for k, s in times.items()}, 9)
    return Outcome(2, {"gemm_f32": Measured(Candidate("gemm_f32", 12, 1), 1e-3)}, {"gemm_f32": 2e-3}, 9)


def test_compile_does_what_the_database_says(tmp_path: Path, cache: Path) -> None:
    fill(tmp_path / "a", preset)
    source = compiled_source(tmp_path / "a")
    assert "conv2d_winograd2" in source and "Blocking{24, 1}" in source  # the fastest of the three
    assert "Blocking{12, 1}" in source
    feed = {"x": np.random.default_rng(1).standard_normal((2, 32, 11, 9)).astype(np.float32)}
    (tmp_path / "plain.onnx").write_bytes(model().SerializeToString())
    (expected,) = opsmith.load(tmp_path / "plain.onnx").run(None, feed)
    (got,) = opsmith.load(tmp_path / "a").run(None, feed)  # other sizes than those tuned for
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    tuned = json.loads((tmp_path / "a" / "opsmith.json").read_text())["compiled"]["tuned"]
    assert tuned["calls_changed"] == 2
    assert tuned["ms_before"] == pytest.approx(2e-3 * 1.1e3 + 2, rel=1e-3) and tuned["ms_after"] == pytest.approx(
        2, rel=1e-3
    )


def test_winograd_that_does_not_pay_is_not_used(tmp_path: Path, cache: Path) -> None:
    def direct(task: Task) -> Outcome:
        if task.family != "conv":
            return preset(task)
        times = {"conv2d": 1e-3, "conv2d_winograd4": 2e-3, "conv2d_winograd2": 3e-3}
        return Outcome(2, {k: Measured(Candidate(k), s) for k, s in times.items()}, times, 3)

    fill(tmp_path / "a", direct)
    assert "winograd" not in compiled_source(tmp_path / "a")


def test_strict_is_another_task(tmp_path: Path, cache: Path) -> None:
    fill(
        tmp_path / "a",
        lambda task: (
            Outcome(2, {"conv2d": Measured(Candidate("conv2d"), 1.0)}, {"conv2d": 1.0}, 1)
            if task.family == "conv"
            else preset(task)
        ),
        strict=True,
    )
    assert [r.task["strict"] for r in Database().rows() if r.task.family == "conv"] == [1]


def test_ctrl_c_keeps_what_is_known(tmp_path: Path, cache: Path) -> None:
    def interrupted(task: Task) -> Outcome:
        if task.family == "gemm":
            raise KeyboardInterrupt
        return preset(task)

    fill(tmp_path / "a", interrupted)
    assert [r.task.family for r in Database().rows()] == ["conv"]
    tuned = json.loads((tmp_path / "a" / "opsmith.json").read_text())["compiled"]["tuned"]
    assert tuned["stopped"] and tuned["measured_now"] == 1
    assert "Blocking{24, 1}" in compiled_source(tmp_path / "a")


def test_sizes_come_from_the_test_data(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "m" / "plain"
    folder.mkdir(parents=True)
    (folder / "m_plain.onnx").write_bytes(model().SerializeToString())
    x = np.zeros((3, 32, 10, 12), np.float32)
    data = folder / "test_data_set_0"
    data.mkdir()
    for name, array in (("input_0", x), ("output_0", np.zeros((3, 10, 12, 64), np.float32))):
        tensor = onnx.numpy_helper.from_array(array, "x" if name == "input_0" else "y")
        (data / f"{name}.pb").write_bytes(tensor.SerializeToString())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "measure", lambda task, *rest: preset(task))
        opsmith.compile(folder, tmp_path / "a", regions="all", search=2, verify=False)
    tasks = {r.task.family: r.task for r in Database().rows()}
    assert (tasks["conv"]["batch"], tasks["conv"]["height"], tasks["conv"]["width"]) == (3, 10, 12)
    assert tasks["gemm"]["m"] == 3 * 10 * 12


# --- the command ---


def run(*arguments: str) -> tuple[int, str]:
    from typer.testing import CliRunner

    result = CliRunner().invoke(build_app(), ["tune", *arguments])
    return result.exit_code, result.output


def test_the_command_shows_exports_and_imports(tmp_path: Path, cache: Path) -> None:
    assert run("--show") == (0, "nothing was measured for this CPU yet; `opsmith compile MODEL --search 2` measures\n")
    Database().put(gemm(128, 768, 768), 2, outcome())
    code, text = run("--show")
    assert code == 0 and "gemm" in text and "100.0" in text and "200.0" in text
    code, text = run("--show", "--json")
    assert code == 0 and json.loads(text)["results"][0]["best"] == {"gemm_f32 6x3": 1e-4}
    assert run("--export", str(tmp_path / "t.jsonl"))[0] == 0
    cache.unlink()
    assert run("--import", str(tmp_path / "t.jsonl"))[0] == 0
    assert len(Database().rows()) == 1
    Database(tmp_path / "b.sqlite").put(gemm(1, 2, 3), 2, outcome())
    code, text = run("--merge", str(tmp_path / "t.jsonl"), str(tmp_path / "b.sqlite"), "--json")
    assert code == 0 and json.loads(text)["count"] == 2 == len(Database().rows())
    assert run("--merge")[0] and run("--show", str(tmp_path / "t.jsonl"))[0]
