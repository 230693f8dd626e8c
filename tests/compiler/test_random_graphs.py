"""Random graphs of supported operators: compiled equals stock ORT, for three sizes of the dynamic dims (0 among them).

Many graphs share one compiler run. A failure prints the graph's text and where it differs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from batch import compile_batch
from hypothesis import HealthCheck, Phase, given, settings
from random_graphs import Graph, graphs

SIZES = [{"n": 3, "m": 5}, {"n": 1, "m": 8}, {"n": 0, "m": 2}]


def options(library: Path | None = None) -> ort.SessionOptions:
    found = ort.SessionOptions()
    found.intra_op_num_threads = 2
    found.log_severity_level = 4
    if library is not None:
        found.register_custom_ops_library(str(library))
    return found


def check(batch: list[Graph], folder: Path) -> None:
    """Compile all, then compare each with stock ORT."""
    library, built = compile_batch([(f"graph{i}", g.model) for i, g in enumerate(batch)], folder)
    for graph, result in zip(batch, built):
        text = onnx.printer.to_text(onnx.load_from_string(graph.model))
        assert not result.error, f"{result.error}\n{text}"
        assert not result.left, f"left to ORT: {result.left}\n{text}"
        stock = ort.InferenceSession(graph.model, options(), providers=["CPUExecutionProvider"])
        own = ort.InferenceSession(result.path, options(library), providers=["CPUExecutionProvider"])
        for seed, sizes in enumerate(SIZES):
            feed = graph.feed(seed, sizes)
            try:
                expected = stock.run(None, feed)
            except Exception as error:  # ORT refuses some empty tensors
                assert 0 in sizes.values(), f"{error}\n{text}"
                continue
            for declared, want, got in zip(stock.get_outputs(), expected, own.run(None, feed)):
                if want.size == 0 and want.ndim != len(declared.shape):
                    continue  # ORT keeps the reduced dims of an empty tensor, against its own declaration
                assert got.dtype == want.dtype and got.shape == want.shape, f"{declared.name} {sizes}\n{text}"
                np.testing.assert_allclose(
                    got.astype(np.float64), want.astype(np.float64), rtol=1e-3, atol=1e-4,
                    err_msg=f"{declared.name} with {sizes}\n{text}",
                )  # fmt: skip


def draw_graphs(count: int, most_nodes: int, seed: int | None) -> list[Graph]:
    """Graphs that hypothesis generates; without a seed other ones every time."""
    found: list[Graph] = []

    @settings(
        max_examples=count, deadline=None, database=None, phases=[Phase.generate], derandomize=seed is not None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(graph=graphs(most_nodes))
    def collect(graph: Graph) -> None:
        found.append(graph)

    collect()
    return found


def test_random_graphs_compute_what_ort_computes(tmp_path: Path) -> None:
    check(draw_graphs(40, 9, seed=0), tmp_path)


@pytest.mark.slow
def test_many_random_graphs_compute_what_ort_computes(tmp_path: Path) -> None:
    for i in range(40):
        check(draw_graphs(60, 16, seed=None), tmp_path / str(i))
