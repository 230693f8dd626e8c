"""compile without test data: what was known of the source's inputs serves its compiled variant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from opsmith import session, store
from opsmith.check.feed import judged_feed
from opsmith.compiler import compile
from opsmith.errors import OpsmithError


def encoder(folder: Path) -> Path:
    """ids [b,s] -> table [13,4] -> MatMul [4,4] -> Relu: any id above 12 does not run"""
    rng = np.random.default_rng(0)
    weights = {"table": rng.standard_normal((13, 4)), "w": rng.standard_normal((4, 4))}
    nodes = [
        h.make_node("Gather", ["table", "ids"], ["x"]),
        h.make_node("MatMul", ["x", "w"], ["m"]),
        h.make_node("Relu", ["m"], ["y"]),
    ]
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info("ids", T.INT64, ["b", "s"])],
        [h.make_tensor_value_info("y", T.FLOAT, ["b", "s", 4])],
        [onnx.numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    path = folder / "encoder.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10), path)
    return path


def test_a_compiled_encoder_runs_on_random_inputs_without_test_data(tmp_path: Path) -> None:
    source = encoder(tmp_path)
    result = compile(source, tmp_path / "out", regions="all")
    assert result.verified is not None and result.verified.ok and result.judged is not None
    assert store.read_record(store.find_model(tmp_path / "out"))["inputs"]["ranges"] == {"ids": {"low": 0, "high": 12}}
    for seed in range(3):
        judged = judged_feed(tmp_path / "out", seed=seed)
        assert judged.origin == "typical 128 tokens" and judged.feed is not None
        assert judged.feed["ids"].shape == (1, 128) and judged.feed["ids"].max() == 12


def test_a_symbol_specialises_as_an_input_does(tmp_path: Path) -> None:
    source = encoder(tmp_path)
    result = compile(source, tmp_path / "out", regions="all", shapes={"s": 8})
    assert result.judged is not None and result.judged.dims == {"b": 1, "s": 8}
    running = session.load(tmp_path / "out")
    assert running.get_inputs()[0].shape == ["b", 8]
    with pytest.raises(OpsmithError, match="'k', which is neither an input nor a dim"):
        compile(source, tmp_path / "none", shapes={"k": 8})


def test_algorithms_are_chosen_for_the_sizes_of_the_test_data(tmp_path: Path) -> None:
    """x [1,16,h,w] -> AveragePool 16x16 -> Conv 3x3: Winograd pays at 192 / 16 pixels a side, not at the 64 / 16 of a mere guess"""
    rng = np.random.default_rng(0)
    pool = h.make_node("AveragePool", ["x"], ["p"], kernel_shape=[16, 16], strides=[16, 16])
    graph = h.make_graph(
        [pool, h.make_node("Conv", ["p", "w"], ["y"], pads=[1, 1, 1, 1])],
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, [1, 16, "h", "w"])],
        [h.make_tensor_value_info("y", T.FLOAT, [1, 16, "a", "b"])],
        [onnx.numpy_helper.from_array(rng.standard_normal((16, 16, 3, 3)).astype(np.float32), "w")],
    )
    for side, algorithms in ((64, {}), (192, {"winograd F(4x4,3x3)": 1})):
        source = tmp_path / f"pooled{side}" / "original"
        source.mkdir(parents=True)
        onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10), source / "pooled.onnx")
        store.write_test_data(source, {"x": rng.random((1, 16, side, side), np.float32)}, {})
        compile(source, source.with_name("compiled"), regions="all")
        assert store.read_record(store.find_model(source.with_name("compiled")))["compiled"]["algorithms"] == algorithms
