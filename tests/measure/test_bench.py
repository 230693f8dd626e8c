from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from small_models import mlp, save

from opsmith import OpsmithError, store
from opsmith.cli import main
from opsmith.measure import bench as module
from opsmith.measure import peak
from opsmith.measure.bench import bench
from opsmith.measure.units import faster
from opsmith.timing import contention, peers
from opsmith.timing.worker import Worker

QUICK = {"rounds": 3, "processes": 1, "threads": 1, "seconds": 1.0}
QUICK_FLAGS = ["--rounds", "3", "--processes", "1", "--threads", "1", "--seconds", "1"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPSMITH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path):
    """A model folder with two variants that compute the same."""
    save(mlp(), tmp_path / "net" / "a")
    save(mlp(), tmp_path / "net" / "b")
    return tmp_path / "net"


def fails(capsys, *arguments: str) -> str:
    """Run the command line; it must end with code 2 and one line on stderr, which is returned."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def test_all_variants_of_a_folder_are_measured_against_the_first(model):
    result = bench(model, **QUICK)
    assert [e.label for e in result.entries] == ["a", "b"]
    first, second = result.entries
    assert (first.speedup.value, first.speedup.low, first.speedup.high) == (1.0, 1.0, 1.0)
    assert 0 < second.speedup.low <= second.speedup.value <= second.speedup.high
    for entry in result.entries:
        assert 0 < entry.run.minimum <= entry.run.p5 <= entry.run.median <= entry.run.p95
        assert entry.load > 0 and entry.first > 0
        assert entry.peak_rss > entry.base_rss > 0
        assert entry.size == sum(f.stat().st_size for f in (model / entry.label).glob("*.onnx"))
        assert entry.verified
    # 2 layers of  x[1,64] @ w[64,64]  and bias, relu; then one addition
    assert first.flops == 2 * (2 * 64 * 64 + 64 + 64) + 64
    assert first.gflops == pytest.approx(first.flops / first.run.median / 1e9)


def test_a_variant_that_computes_something_else_is_reported_with_exit_code_1(model, capsys):
    save(mlp(shift=0.5), model / "wrong")
    with pytest.raises(SystemExit) as ended:
        main(["bench", str(model / "a"), str(model / "wrong"), "--json", *QUICK_FLAGS])
    assert ended.value.code == 1
    data = json.loads(capsys.readouterr().out)
    assert [e["verified"] for e in data["entries"]] == [True, False]
    assert data["entries"][1]["errors"][0]["max_abs"] == pytest.approx(0.5, rel=1e-4)
    assert not bench([model / "a", model / "wrong"], **QUICK).verified
    assert bench([model / "a", model / "wrong"], atol=0.6, **QUICK).verified


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(1.284, "1.28x faster"), (1.0, "1.00x: as fast"), (0.9, "0.90x: slower"), (0.0041, "0.004x: slower")],
)
def test_a_ratio_is_told_in_words(ratio, words):
    assert faster(ratio) == words


def test_csv_json_and_table_agree(model, tmp_path, capsys, monkeypatch):
    result = bench(model, **QUICK)
    monkeypatch.setattr("opsmith.measure.bench.bench", lambda *a, **k: result)
    main_ok("bench", str(model), "--csv", "-")
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    main_ok("bench", str(model), "--csv", str(tmp_path / "figures.csv"))
    assert (tmp_path / "figures.csv").read_text() == result.to_csv() and "variant" in capsys.readouterr().out
    main_ok("bench", str(model), "--json")
    data = json.loads(capsys.readouterr().out)
    main_ok("bench", str(model))
    table = capsys.readouterr().out
    for row, entry, found in zip(rows, data["entries"], result.entries):
        assert float(row["median_s"]) == entry["run"]["median"] == found.run.median
        assert float(row["speedup_high"]) == entry["speedup"]["high"] == found.speedup.high
        assert int(row["peak_rss"]) == entry["peak_rss"]
        assert found.label in table
    assert faster(result.entries[1].speedup.value) in table


def main_ok(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    assert not ended.value.code


def test_plot_draws_longer_bars_for_slower_variants(model, tmp_path, monkeypatch):
    import dataclasses

    result = bench(model, **QUICK)
    slow = dataclasses.replace(result.entries[1], run=dataclasses.replace(result.entries[0].run, median=2e-3, p95=2e-3))
    fast = dataclasses.replace(result.entries[0], run=dataclasses.replace(result.entries[0].run, median=1e-3, p95=1e-3))
    result = dataclasses.replace(result, entries=[fast, slow])
    from opsmith.measure import chart

    chart.plot(result, tmp_path / "bars.png")
    pixels = np.asarray(Image.open(tmp_path / "bars.png").convert("RGB")).astype(int)
    lengths = [
        (np.abs(pixels - np.array([int(c[i : i + 2], 16) for i in (1, 3, 5)])).sum(2) < 12).sum(1).max()
        for c in chart._BARS[:2]
    ]
    assert lengths[1] == pytest.approx(2 * lengths[0], rel=0.05)


def test_peak_memory_is_the_kernels_high_water_mark(tmp_path):
    """The mark is read in the worker; here the kernel is asked about the same process from outside."""
    folder = save(mlp(1024, 4), tmp_path / "net" / "a")
    store.write_test_data(tmp_path / "in", {"x": np.ones((8, 1024), np.float32)}, {})
    with Worker("a", 1) as worker:
        model = str(store.find_model(folder))
        base = worker.ask("load", model=model, runtime="ort", threads=1, inputs=str(tmp_path / "in"))["base_rss"]
        worker.ask("first")
        answer = worker.ask("quit")
        status = dict(line.split(":", 1) for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines())
    kernel = int(status["VmHWM"].split()[0]) * 1024
    assert answer["peak_rss"] == pytest.approx(kernel, rel=0.01)
    assert kernel - base > 16 * 2**20  # four weights of 4 MiB each


def test_stored_test_data_is_what_is_run(model, monkeypatch):
    x = np.full((3, 64), 0.5, np.float32)
    store.write_test_data(model / "a", {"x": x}, {})
    feed, origin = module.choose_inputs(store.find_model(model / "a"), None, 0)
    assert origin == "test data"
    np.testing.assert_array_equal(feed["x"], x)
    feed, origin = module.choose_inputs(store.find_model(model / "a"), {"batch": 7}, 5)
    assert origin == "--shape, seed 5" and feed["x"].shape == (7, 64)
    again, _ = module.choose_inputs(store.find_model(model / "a"), {"batch": 7}, 5)
    np.testing.assert_array_equal(feed["x"], again["x"])


def test_indices_into_what_a_compiled_graph_hides_stay_in_the_range_of_its_test_data(tmp_path):
    """The graph shows no table; 10 rows would be the guess, the table has 3."""
    node = onnx.helper.make_node("Cast", ["ids"], ["y"], to=onnx.TensorProto.FLOAT)
    ids = onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n"])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n"])
    graph = onnx.helper.make_graph([node], "g", [ids], [y])
    opsets = [onnx.helper.make_opsetid("", 18)]
    folder = save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "net" / "a")
    store.write_test_data(folder, {"ids": np.array([0, 2, 1])}, {})
    feed, origin = module.choose_inputs(store.find_model(folder), {"n": 200}, 0)
    assert origin == "--shape, seed 0" and set(feed["ids"]) == {0, 1, 2}


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ({"z": np.ones((1, 64), np.float32)}, "'x' is not in it"),
        ({"x": np.ones((1, 65), np.float32)}, "'x' is [1, 65]"),
        ({"x": np.ones((1, 64), np.float64)}, "'x' is float64"),
        ({"x": np.ones((1, 64), np.float32), "old": np.ones(2)}, "no input 'old'"),
    ],
)
def test_stale_test_data_is_refused(model, capsys, inputs, complaint):
    store.write_test_data(model / "a", inputs, {})
    line = fails(capsys, "bench", str(model / "a"))
    assert "stale" in line and complaint in line


def test_wrong_use_is_one_clear_line(model, tmp_path, capsys):
    assert "does not exist" in fails(capsys, "bench", str(model / "missing"))
    assert "nothing to bench" in fails(capsys, "bench")
    assert "exclude each other" in fails(capsys, "bench", str(model), "--json", "--csv", "-")
    assert "does not end in .csv" in fails(capsys, "bench", "--csv", "model.onnx", str(model))
    assert "the folder of" in fails(capsys, "bench", str(model), "--csv", str(tmp_path / "no" / "a.csv"))
    assert "no peer 'tensorrt'" in fails(capsys, "bench", str(model), "--peer", "tensorrt")
    assert "PNG" in fails(capsys, "bench", str(model), "--plot", "chart.pdf")
    assert "--rounds must be at least 1" in fails(capsys, "bench", str(model), "--rounds", "0")
    assert "is not a shape" in fails(capsys, "bench", str(model), "--shape", "batch")
    save(mlp(32), model / "other")
    (tmp_path / "empty").mkdir()
    assert "holds no ONNX model" in fails(capsys, "bench", str(tmp_path / "empty"))


def test_models_with_different_inputs_are_refused(model, capsys):
    import onnx

    other = mlp()
    other.graph.input[0].name = other.graph.node[0].input[0] = "image"
    onnx.save(other, str(model / "b" / "net_b.onnx"))
    assert "differ in input" in fails(capsys, "bench", str(model))


def test_a_peer_that_is_not_installed_is_one_clear_line(model, capsys, monkeypatch):
    monkeypatch.setitem(
        peers._ADAPTERS, "openvino", ("openvino", "OpenVino", ("no_such_package",), "pip install openvino")
    )
    line = fails(capsys, "bench", str(model), "--peer", "openvino")
    assert "peer openvino is not installed (pip install openvino)" in line


def test_a_worker_that_dies_is_reported_with_its_signal(model):
    with Worker("a", 1) as worker:
        os.kill(worker.pid, 11)
        time.sleep(0.1)
        with pytest.raises(OpsmithError, match="a: the process that ran it died of SIGSEGV"):
            worker.ask("quit")


def test_labels_tell_variants_of_different_models_apart(tmp_path):
    paths = [store.find_model(save(mlp(), tmp_path / m / "dynamo")) for m in ("one", "two")]
    assert module.labels(paths) == ["one/dynamo", "two/dynamo"]
    assert module.labels([paths[0], paths[0]]) == ["one/dynamo #1", "one/dynamo #2"]


# --- disturbed samples -------------------------------------------------------------------------------------


def test_a_busy_neighbour_is_noticed():
    """Pinned to one core with a process that never sleeps, at least a third of the time is taken away."""
    core = min(os.sched_getaffinity(0))
    spin = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"])
    before_affinity = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
        time.sleep(0.3)
        before = contention.read()
        end = time.perf_counter() + 0.5
        while time.perf_counter() < end:
            pass
        use = contention.between(before, contention.read())
    finally:
        os.sched_setaffinity(0, before_affinity)
        spin.kill()
        spin.wait()
    assert use.contaminated(threads=1, cores=1)
    assert use.delay > 0.1 and use.others > 0.1


def test_an_undisturbed_sample_is_kept():
    use = contention.Use(wall=0.1, own=0.2, delay=0.001, others=0.01, steal=0.0)
    assert not use.contaminated(threads=2, cores=2)
    for change in ({"delay": 0.02}, {"others": 0.1}, {"steal": 0.05}):
        import dataclasses

        assert dataclasses.replace(use, **change).contaminated(threads=2, cores=2)


def rounds(dirty: list[set[int]], groups: int = 1) -> list[module._Round]:
    turns = {0: [1.0], 1: [2.0]}
    return [module._Round(i % groups, turns, frozenset(d)) for i, d in enumerate(dirty)]


def test_disturbed_turns_are_left_out_but_counted():
    taken = rounds([set(), {1}, set(), {0}, set()])
    slow = {0: [1.0], 1: [9.0]}
    taken[1] = module._Round(0, slow, frozenset({1}))
    assert module._enough_clean(taken, 2)
    track = module._Track(module.Candidate("b", Path(__file__)), [1.0], [1.0], [10], [5])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.session, "size_on_disk", lambda path: 1)
        entry = module._entry(1, track, taken, True, None, None, [], 0)
    assert (entry.samples, entry.disturbed, entry.left_out) == (5, 1, 1)
    assert entry.run.p95 == 2.0
    assert entry.speedup.rounds == 3  # rounds in which neither of the two was disturbed


def test_too_few_clean_rounds_are_admitted():
    assert not module._enough_clean(rounds([{0}] * 9), 2)
    assert not module._enough_clean(rounds([set(), {0}] * 6, groups=2), 2)  # the second set of processes has none


# --- the machine's peak ------------------------------------------------------------------------------------


def test_peak_is_measured_once_and_kept(monkeypatch, capsys):
    assert peak.cached() is None
    main_ok("bench", "--machine")
    assert "fp32 GFLOP/s" in capsys.readouterr().out
    found = peak.cached()
    assert found is not None
    limits = found.at(1)
    assert 1e9 < limits.flops < 1e12 and 1e8 < limits.read < 1e12 and 1e8 < limits.triad < 1e12
    monkeypatch.setattr(peak.machine, "cpu_name", lambda: "another CPU")
    assert peak.cached() is None


def test_share_of_peak_uses_the_cached_machine(model):
    limits = peak.Limits(1, 1e9, 1e9, 1e9)
    peak.cache_file().parent.mkdir(parents=True)
    text = {"format": peak._FORMAT, "cpu": peak.machine.cpu_name(), "cores": peak.machine.cores(), "others": 0.0}
    peak.cache_file().write_text(json.dumps({**text, "limits": [limits.__dict__]}))
    entry = bench(model / "a", **QUICK).entries[0]
    assert entry.share_of_peak == pytest.approx(entry.gflops)
