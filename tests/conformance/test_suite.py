"""ONNX's node suite: a spread of it in every test run, all of it under `-m slow`."""

from __future__ import annotations

from pathlib import Path

import pytest
import suite
from node_tests import load_cases

BAD = ("wrong", "failed", "crashed")


def judge(cases: list[suite.Case], folder: Path, batch: int, isa: str = "native") -> list[suite.Outcome]:
    outcomes = suite.run_suite(cases, folder, batch, isa=isa)
    assert [o.name for o in outcomes] == [c.name for c in cases]
    bad = [f"{o.status} {o.name}: {o.detail}" for o in outcomes if o.status in BAD]
    assert not bad, "\n".join(bad[:20])
    return outcomes


@pytest.fixture(scope="module")
def cases() -> list[suite.Case]:
    return load_cases()


def test_one_test_per_operator_is_right(cases: list[suite.Case], tmp_path: Path) -> None:
    """The first test of every operator; most of them are compiled."""
    first: dict[str, suite.Case] = {}
    for case in cases:
        if "expanded" not in case.name:
            first.setdefault(case.op, case)
    outcomes = judge(list(first.values()), tmp_path, batch=len(first) // 2 + 1)
    passed = [o for o in outcomes if o.stock]
    assert sum(o.status == "native" for o in passed) >= 0.6 * len(passed)


# Operators of every kind: products, convolutions, pooling, norms, quantized, elementwise, reductions, data movement.
SPREAD = {
    "Gemm", "MatMul", "Einsum", "Conv", "ConvTranspose", "ConvInteger", "MaxPool", "AveragePool",
    "GlobalAveragePool", "LpPool", "Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization",
    "InstanceNormalization", "GroupNormalization", "BatchNormalization", "LRN", "Attention", "RotaryEmbedding",
    "QuantizeLinear", "DequantizeLinear", "QLinearMatMul", "QLinearConv", "Add", "Div", "Mod", "Pow", "Exp", "Log",
    "Erf", "Gelu", "Mish", "Tanh", "Sin", "Sqrt", "Round", "Clip", "Where", "Cast", "ReduceMean",
    "ReduceLogSumExp", "ReduceMax", "ArgMax", "CumSum", "TopK", "Gather", "ScatterND", "Resize", "GridSample",
    "Pad", "Transpose", "Concat",
}  # fmt: skip


def test_single_floats_instead_of_vectors_give_the_same(cases: list[suite.Case], tmp_path: Path) -> None:
    """An instruction set is a header and a row of geometry.py: simd_scalar.hpp knows nothing but plain C++."""
    first: dict[str, suite.Case] = {}
    last: dict[str, suite.Case] = {}
    for case in cases:
        if case.op in SPREAD and "expanded" not in case.name:
            first.setdefault(case.op, case)
            last[case.op] = case
    assert len(first) == len(SPREAD)
    chosen = list({c.name: c for c in (*first.values(), *last.values())}.values())
    outcomes = judge(chosen, tmp_path, len(chosen) // 2 + 1, "scalar")
    assert sum(o.status == "native" for o in outcomes) >= 0.8 * len(outcomes)


def test_a_difference_is_seen() -> None:
    """The judge itself: right, wrong by value, by shape and by type."""
    import numpy as np

    one = np.ones(3, np.float32)
    assert not suite.difference([one], [one], 1e-3, 1e-7)
    assert "instead of 1.0" in suite.difference([one * 1.01], [one], 1e-3, 1e-7)
    assert "instead of float32[3]" in suite.difference([one[:2]], [one], 1e-3, 1e-7)
    assert "instead of float32[3]" in suite.difference([one.astype(np.float64)], [one], 1e-3, 1e-7)
    assert suite.difference([np.array([1])], [np.array([2])], 1.0, 1.0)  # integers are compared exactly


@pytest.mark.slow
def test_the_whole_suite(cases: list[suite.Case], tmp_path: Path) -> None:
    outcomes = judge(cases, tmp_path, batch=128)
    passed = [o for o in outcomes if o.stock]
    assert sum(o.status == "native" for o in passed) >= 0.6 * len(passed)
