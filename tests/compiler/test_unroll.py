"""A Scan over few steps is compiled as its body, once per step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from batch import Built, compile_batch
from onnx import TensorProto, helper, numpy_helper
from test_random_graphs import options

FLOAT = TensorProto.FLOAT


def scan(steps: int | str, opset: int, directions: list[int]) -> bytes:
    """A running sum of x (n, steps), scaled by a value of the graph outside; what is scanned out lies along axis 1."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["next", "outer"], ["scaled"]),
            helper.make_node("Add", ["scaled", "one"], ["moved"]),
            helper.make_node("Add", ["sum", "moved"], ["new"]),
            helper.make_node("Identity", ["new"], ["seen"]),
        ],
        "body",
        [info("sum", FLOAT, ["n"]), info("next", FLOAT, ["n"])],
        [info("new", FLOAT, ["n"]), info("seen", FLOAT, ["n"])],
        [numpy_helper.from_array(np.float32(1), "one")],
    )
    node = helper.make_node(
        "Scan", ["start", "x"], ["last", "all"], body=body, num_scan_inputs=1, scan_input_axes=[1],
        scan_input_directions=directions, scan_output_axes=[1], scan_output_directions=directions,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "scan",
        [info("start", FLOAT, ["n"]), info("x", FLOAT, ["n", steps]), info("outer", FLOAT, [1])],
        [info("last", FLOAT, ["n"]), info("all", FLOAT, ["n", steps])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7).SerializeToString()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[bytes], Path | None, list[Built]]:
    models = [scan(5, 11, [0]), scan(5, 13, [1]), scan("m", 13, [0]), scan(100, 13, [0])]
    folder = tmp_path_factory.mktemp("scan")
    return models, *compile_batch([(f"scan{i}", m) for i, m in enumerate(models)], folder)


def test_few_steps_are_written_out(compiled: tuple[list[bytes], Path | None, list[Built]]) -> None:
    models, library, built = compiled
    random = np.random.default_rng(0)
    feed = {n: random.normal(0, 1, s).astype(np.float32) for n, s in (("start", 3), ("x", (3, 5)), ("outer", 1))}
    for source, result in list(zip(models, built))[:2]:
        assert result.native, (result.error, result.left)
        stock = ort.InferenceSession(source, options(), providers=["CPUExecutionProvider"])
        own = ort.InferenceSession(result.path, options(library), providers=["CPUExecutionProvider"])
        for want, got in zip(stock.run(None, feed), own.run(None, feed)):
            np.testing.assert_allclose(got, want, rtol=1e-6)


def test_many_or_unknown_steps_stay_a_loop(compiled: tuple[list[bytes], Path | None, list[Built]]) -> None:
    for result in compiled[2][2:]:
        assert not result.error and "Scan" in [op for op, _ in result.left]
