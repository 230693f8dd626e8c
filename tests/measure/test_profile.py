from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from quick import own_cache
from small_models import mlp, save, tensor

import opsmith
from opsmith import OpsmithError, store
from opsmith.cli import main
from opsmith.measure import nsys, peak
from opsmith.measure.profile import Profile, compare_nodes, compare_types, profile
from opsmith.timing import trace
from opsmith.timing.rows import Row, kernel_type


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPSMITH_CACHE", str(own_cache(tmp_path / "cache")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(mlp(512, 3, shift=1.0), tmp_path_factory.mktemp("models") / "net" / "plain")


@pytest.fixture(scope="module")
def plain(folder, tmp_path_factory):
    """One profile of the plain model, shared by the tests that only look at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPSMITH_CACHE", str(own_cache(tmp_path_factory.mktemp("cache") / "own")))
        return profile(folder, threads=1, iterations=20, shapes={"batch": 128})[0]


@pytest.fixture(scope="module")
def compiled(folder, tmp_path_factory):
    target = folder.parent / "compiled"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPSMITH_CACHE", str(own_cache(tmp_path_factory.mktemp("cache") / "own")))
        opsmith.compile(folder, target, regions="all")
    return target


def test_sums_per_op_are_those_of_the_trace_exactly(plain):
    """An independent reading: every node event inside the runs that count, added up by type, in whole microseconds."""
    events = json.loads(plain.trace.read_text())
    sums: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    for event in events:
        if event["cat"] == "Node" and any(start <= event["ts"] <= start + long for start, long in plain.kept):
            sums[event["args"]["op_name"]] += event["dur"]
            counts[event["args"]["op_name"]] += 1
    runs = len(plain.kept)
    assert {row.op: round(row.us * runs) for row in plain.by_op()} == dict(sums)
    assert {row.op: row.count * runs for row in plain.by_op()} == dict(counts)


def test_kernels_and_the_rest_make_up_the_latency(plain):
    assert plain.kernels_us + plain.between_us == pytest.approx(plain.latency_us)
    assert sum(row.share for row in plain.by_op()) == pytest.approx(plain.kernels_us / plain.whole_us)
    cheap = dataclasses.replace(plain, latency_us=plain.kernels_us / 4)  # the rest is what the profiler costs
    assert sum(row.share for row in cheap.by_op()) == pytest.approx(1)


@pytest.mark.slow
def test_profile_totals_agree_with_the_latency_within_ten_percent(tmp_path):
    """On an idle machine; nodes of a millisecond, so that the profiler's own cost does not count."""
    big = save(mlp(1024, 6), tmp_path / "net" / "big")
    found = profile(big, iterations=50, shapes={"batch": 256})[0]
    assert found.kernels_us == pytest.approx(found.latency_us, rel=0.1)


def test_warm_up_runs_are_left_out(plain):
    events = json.loads(plain.trace.read_text())
    whole = sorted((e["ts"], e["dur"]) for e in events if e["name"] == "model_run")
    assert len(whole) == 1 + 3 + plain.runs  # the first run, the warm-up, the rest
    assert set(plain.kept) <= set(whole[-plain.runs :])
    assert len(plain.kept) == plain.runs - plain.left_out


def test_fused_nodes_name_the_nodes_of_the_model(plain):
    groups = {row.origin for row in plain.rows}
    assert ("matmul0", "add0", "relu0") in groups and ("last",) in groups
    assert {n for g in groups for n in g} == {f"{op}{i}" for op in ("matmul", "add", "relu") for i in range(3)} | {
        "last"
    }


def test_flops_and_bytes_are_those_of_the_shapes_that_ran(plain):
    product = next(row for row in plain.rows if "matmul1" in row.origin)
    # x [128,512] @ w [512,512] + b, relu
    assert 2 * 128 * 512 * 512 <= product.flops <= 2 * 128 * 512 * 512 + 2 * 128 * 512
    assert product.bytes == 4 * (128 * 512 + 512 * 512 + 512 + 128 * 512)
    assert product.gflops == pytest.approx(product.flops / product.us / 1e3)


def test_a_compiled_model_shows_its_kernels(compiled):
    found = profile(compiled, threads=1, iterations=10, shapes={"batch": 128})[0]
    kernels = [row for row in found.rows if row.kind == "kernel"]
    assert len(kernels) >= 3 and all(row.region == "region0" for row in kernels)
    assert not any(row.op.startswith("region") for row in found.rows)
    assert {n for row in kernels for n in row.origin} >= {"matmul0", "add1", "relu2"}
    assert sum(row.flops for row in kernels) >= 3 * 2 * 128 * 512 * 512
    assert found.graph == store.find_model(compiled.parent / "plain")


def test_a_compiled_convolution_counts_its_work_where_a_size_is_a_rounded_division(tmp_path):
    value = helper.make_tensor_value_info
    weights = tensor("w", 8, 4, 3, 3)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", strides=[2, 2], pads=[1, 1, 1, 1])
    graph = helper.make_graph(
        [node],
        "halving",
        [value("x", TensorProto.FLOAT, [1, 4, "height", 32])],
        [value("y", TensorProto.FLOAT, [1, 8, "half", 16])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    source = save(model, tmp_path / "net" / "plain")
    opsmith.compile(source, tmp_path / "net" / "compiled", regions="all")
    found = profile(tmp_path / "net" / "compiled", threads=1, iterations=3, shapes={"height": 31})[0]
    # y [1, 8, 16, 16], each of 4 * 3 * 3 products
    assert sum(row.flops or 0 for row in found.rows if row.kind == "kernel") == 2 * 8 * 16 * 16 * 36


def test_two_variants_are_matched_by_original_node(folder, compiled):
    a, b = profile([folder, compiled], threads=1, iterations=5, shapes={"batch": 64})
    groups = {g.nodes: g for g in compare_nodes(a, b)}
    whole = next(g for nodes, g in groups.items() if "matmul1" in nodes)
    assert whole.a and whole.b
    assert sum(g.a_us for g in groups.values()) == pytest.approx(a.kernels_us)
    assert sum(g.b_us for g in groups.values()) == pytest.approx(b.kernels_us)
    types = compare_types(a, b)
    assert sum(d.a_us for d in types) == pytest.approx(a.kernels_us)
    assert sum(d.b_count for d in types) == sum(row.count for row in b.rows)


def row(name: str, op: str, us: float, origin: tuple[str, ...]) -> Row:
    return Row(name, op, "node", 1, us, None, None, origin)


def test_comparison_groups_what_one_of_the_two_has_fused(folder):
    path = store.find_model(folder)

    def make(label: str, rows: list[Row]) -> Profile:
        return Profile(label, path, rows, 100.0, 1, 0, [], 1, path, {}, None, None, [])

    a = make("a", [row("m", "MatMul", 10, ("matmul0",)), row("a", "Add", 4, ("add0",)), row("l", "Add", 1, ("last",))])
    b = make("b", [row("g", "Gemm", 9, ("matmul0", "add0")), row("t", "Reorder", 2, ()), row("l", "Add", 1, ("last",))])
    fused, only_b, same = compare_nodes(a, b)
    assert (fused.nodes, fused.a, fused.b) == (("matmul0", "add0"), ("MatMul", "Add"), ("Gemm",))
    assert (fused.a_us, fused.b_us, fused.difference) == (14, 9, -5)
    assert (only_b.nodes, only_b.b, only_b.difference) == ((), ("Reorder",), 2)
    assert (same.nodes, same.difference) == (("last",), 0)
    adds = next(d for d in compare_types(a, b) if d.op == "Add")
    assert (adds.a_count, adds.a_us, adds.b_count, adds.b_us, adds.percent) == (2, 5, 1, 1, -80)


def test_roofline_is_the_larger_of_compute_and_memory_bounds(folder):
    path = store.find_model(folder)
    limits = peak.Limits(1, flops=100e9, read=10e9, triad=5e9)
    found = Profile("a", path, [], 100.0, 1, 0, [], 1, path, {}, None, limits, [])
    assert found.roofline(20.0, 10**6, 1000) == pytest.approx(0.5)  # 1 MFLOP need 10 us
    assert found.roofline(20.0, 0, 10**5) == pytest.approx(0.5)  # 100 kB need 10 us
    assert found.roofline(20.0, None, None) is None


def test_nodes_of_a_branch_are_not_counted_twice(tmp_path):
    """If's own event covers its branch; the branch's nodes have events of their own."""
    branch = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["inner"], name="inside")],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0, name="sum"),
        helper.make_node("Greater", ["sum", "zero"], ["yes"], name="test"),
        helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch, name="choice"),
    ]
    zero = onnx.numpy_helper.from_array(np.float32(0), "zero")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [256, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [tensor("w", 256, 256), zero],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    found = profile(save(model, tmp_path / "net" / "branch"), threads=1, iterations=8)[0]
    ops = {r.op: r for r in found.by_op()}
    assert ops["MatMul"].us > ops["If"].us
    for run in trace.read_runs(found.trace)[-8:]:
        assert run.kernels <= run.duration


def test_kernel_types_lose_their_digest():
    assert kernel_type("gemm_add_relu_48234b") == "gemm_add_relu"
    assert kernel_type("softmax") == "softmax"


def test_an_unreadable_counter_line_is_named():
    with pytest.raises(OpsmithError, match="line 1"):
        trace.read_kernels("{not json}")


def test_command_prints_tables_and_keeps_the_trace(folder, compiled, tmp_path, capsys):
    arguments = ["profile", str(folder), str(compiled), "--iterations", "5", "--threads", "1", "--traces"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, str(tmp_path / "kept"), "--shape", "batch=4"])
    assert not ended.value.code
    text = capsys.readouterr().out
    assert (
        "latency" in text and "plain -> compiled" in text and ("between nodes" in text or "profiler's own cost" in text)
    )
    assert {f.name for f in Path(tmp_path / "kept").iterdir()} == {"plain.trace.json", "compiled.trace.json"}
    with pytest.raises(SystemExit):
        main([*arguments, str(tmp_path / "kept"), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert [p["label"] for p in data["profiles"]] == ["plain", "compiled"]
    assert data["comparisons"][0]["a"] == "plain"


def test_wrong_use_is_one_clear_line(folder, capsys):
    for arguments, complaint in (
        (["--device", "cuda"], "no CUDA provider"),
        (["--device", "tpu"], "no device 'tpu'"),
        (["--iterations", "0"], "--iterations must be at least 1"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["profile", str(folder), *arguments])
        assert ended.value.code == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and complaint in lines[0]


NSYS = """Generating SQLite file gpu.sqlite from gpu.nsys-rep
Processing [gpu.sqlite] with [nvtx_kern_sum.py]...
NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Kernel Name
:opsmith run,PushPop,7,7,5,5,40000,8000.0,8000.0,7000,9000,1.0,"void softmax<float, 4>(float*, int)"
:opsmith run,PushPop,7,7,5,10,90000,9000.0,9000.0,7000,9900,1.0,sgemm_128x64
"""


def test_gpu_kernels_are_read_from_nsys(tmp_path, monkeypatch):
    """With a stand-in for nsys that writes what the real one documents; there is no GPU here."""
    tool = tmp_path / "nsys"
    table = tmp_path / "table.csv"
    table.write_text(NSYS)
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" = stats ] && cat {table} || true\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert nsys.available()
    slow, fast = nsys.kernel_times({"model": "m.onnx", "inputs": "in", "threads": 1}, 5, tmp_path)
    assert (slow.kernel, slow.range, slow.count, slow.us) == ("sgemm_128x64", "opsmith run", 10, 90.0)
    assert fast.kernel == "void softmax<float, 4>(float*, int)"
    calls = (tmp_path / "calls").read_text()
    assert "--trace=cuda,nvtx" in calls and "nvtx_kern_sum" in calls
    with pytest.raises(OpsmithError, match="no table of kernels"):
        nsys.parse("nothing here")
