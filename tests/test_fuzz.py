"""About a minute of the fuzzer with a fixed seed; benchmarks/fuzz.py runs it for as long as one likes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper as h

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import fuzz
from fuzz_graphs import Graphs


@pytest.mark.parametrize(
    "what, source, count",
    [
        ("rewrite", "random", 100),
        ("rewrite", "suite", 60),
        ("compile", "random", 50),
        ("rewrite", "schema", 60),
        ("compile", "schema", 30),
    ],
)
def test_random_graphs_mean_the_same(what: str, source: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    total = fuzz.fuzz_graphs(what, count, 1000, 10, source)
    assert not total.findings, capsys.readouterr().out
    assert total.ran > count // 3


def test_mutated_files_are_read_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    total = fuzz.fuzz_bytes(600, 1000, 10)
    assert not total.findings, capsys.readouterr().out
    assert total.ran == 600
    assert total.slowest < 10  # of processor time


def test_a_seed_gives_the_same_graph_and_seeds_give_many_operators() -> None:
    assert Graphs(7).draw(10) == Graphs(7).draw(10)
    drawn = [Graphs(seed).draw(12) for seed in range(300)]
    operators = {n.op_type for p in drawn for n in p.graph.node}
    assert len(operators) > 120 and {"If", "Loop", "Scan", "GroupNormalization", "Mish"} <= operators
    assert {p.opset_import[0].version for p in drawn} == set(range(11, 25))


def test_a_finding_is_reduced_to_the_node_that_shows_it() -> None:
    proto = Graphs(3).draw(12)
    blamed = proto.graph.node[len(proto.graph.node) // 2].output[0]
    smaller = fuzz.reduce(proto, lambda p: any(blamed in n.output for n in p.graph.node))
    assert any(blamed in n.output for n in smaller.graph.node)
    assert len(smaller.graph.node) <= 2  # with the Shape that a Reshape needs


def single(op: str) -> onnx.ModelProto:
    values = [h.make_tensor_value_info(n, 1, ["n", 3, "m"]) for n in "xy"]
    graph = h.make_graph([h.make_node(op, ["x"], ["y"])], "g", values[:1], values[1:])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=8)


def test_a_wrong_result_is_a_finding_and_a_tie_is_not() -> None:
    protos = [single(op) for op in ("Exp", "Sin")]
    case = fuzz.asked(protos[0])
    assert case is not None
    assert fuzz.difference(case, fuzz.session(protos[0].SerializeToString())) == ""
    assert "differs" in fuzz.difference(case, fuzz.session(protos[1].SerializeToString()))
    rounded = single("Round")
    x = np.full((1, 3, 1), 0.49999997, np.float32)  # an ulp below a tie
    assert fuzz.wrong(rounded, {"x": x}, "y", np.round(x), np.round(x) + 1) == ""
    assert fuzz.wrong(rounded, {"x": x}, "y", np.round(x), np.round(x) + 3) != ""


@pytest.mark.parametrize("death", [lambda: os.kill(os.getpid(), 9), lambda: os._exit(3)])
def test_a_crash_is_a_finding_of_its_graph_and_the_others_are_checked(
    death: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "rewritten", lambda c, _: death() if c.proto.graph.node[0].op_type == "Sin" else "")
    ops = {1: "Exp", 2: "Sin", 3: "Cos"}
    outcome = fuzz.check_seeds([1, 2, 3], fuzz.Task("rewrite", lambda seed: single(ops[seed])))
    assert outcome.ran == 2 and [seed for seed, _ in outcome.findings] == [2]
