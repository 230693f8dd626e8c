"""NonZero, Compress and NonMaxSuppression: native, although only their data says how long the result is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from batch import compile_batch
from onnx import NodeProto, helper, numpy_helper
from test_random_graphs import options

Feed = dict[str, np.ndarray]


def model(nodes: Sequence[NodeProto], feed: Feed, outputs: Sequence[tuple[str, type, int]], **weights: Any) -> bytes:
    """Every dim of every input is dynamic."""
    info, dtype = helper.make_tensor_value_info, lambda t: helper.np_dtype_to_tensor_dtype(np.dtype(t))
    graph = helper.make_graph(
        list(nodes),
        "counted",
        [info(n, dtype(x.dtype), [f"{n}{i}" for i in range(x.ndim)]) for n, x in feed.items()],
        [info(n, dtype(t), [None] * rank) for n, t, rank in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()


def check(models: Sequence[tuple[bytes, Sequence[Feed]]], folder: Path, regions: int = 1) -> None:
    library, built = compile_batch([(f"graph{i}", m) for i, (m, _) in enumerate(models)], folder)
    for (source, feeds), result in zip(models, built):
        assert result.native and result.regions == regions, (result.error, result.left, result.regions)
        stock = ort.InferenceSession(source, options(), providers=["CPUExecutionProvider"])
        own = ort.InferenceSession(result.path, options(library), providers=["CPUExecutionProvider"])
        for feed in feeds:
            for want, got in zip(stock.run(None, feed), own.run(None, feed)):
                assert got.dtype == want.dtype
                np.testing.assert_array_equal(got, want)


def sparse(random: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    return (random.integers(1, 5, shape) * (random.random(shape) < 0.4)).astype(dtype)


def test_non_zero_finds_what_ort_finds(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    models = []
    for dtype in (np.float32, bool, np.int64, np.int32, np.uint8):
        for rank in (1, 2, 3, 4):
            shapes = [tuple(random.integers(1, 6, rank)), tuple(random.integers(0, 9, rank)), (2,) * rank]
            feeds = [{"x": sparse(random, s, dtype)} for s in shapes] + [{"x": np.zeros((3,) * rank, dtype)}]
            node = helper.make_node("NonZero", ["x"], ["y"])
            models.append((model([node], feeds[0], [("y", np.int64, 2)]), feeds))
    check(models, tmp_path)


def test_compress_takes_what_ort_takes(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    models = []
    for dtype in (np.float32, np.int64, bool, np.float16):
        for axis in (None, 0, 1, -1):
            feeds = []
            for shape in ((3, 4, 5), (1, 7, 2), (6, 1, 3)):
                length = int(np.prod(shape)) if axis is None else shape[axis]
                condition = random.random(int(random.integers(0, length + 1))) < 0.5  # may be shorter than the axis
                feeds.append({"x": sparse(random, shape, dtype), "c": condition})
            node = helper.make_node("Compress", ["x", "c"], ["y"], **({} if axis is None else {"axis": axis}))
            models.append((model([node], feeds[0], [("y", dtype, 1 if axis is None else 3)]), feeds))
    check(models, tmp_path)


def test_non_max_suppression_selects_what_ort_selects(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    models = []
    for centers in (0, 1):
        for most, overlap, lowest in ((5, 0.5, 0.3), (1000, 0.2, None), (3, None, 0.9), (0, 0.5, 0.1)):
            feeds = []
            for batch, classes, n in ((1, 1, 40), (2, 3, 25), (1, 2, 1), (1, 4, 300)):
                scores = np.round(random.random((batch, classes, n)), 1).astype(np.float32)  # with equal ones
                feeds.append({"boxes": random.random((batch, n, 4)).astype(np.float32), "scores": scores})
            weights = {"most": np.array([most]), "overlap": overlap, "lowest": lowest}
            given = {
                k: np.asarray(v, np.int64 if k == "most" else np.float32) for k, v in weights.items() if v is not None
            }
            names = ["boxes", "scores", *(k if k in given else "" for k in weights)]
            node = helper.make_node("NonMaxSuppression", names, ["y"], center_point_box=centers)
            models.append((model([node], feeds[0], [("y", np.int64, 2)], **given), feeds))
    check(models, tmp_path)


def test_whoever_reads_a_counted_result_is_compiled_as_the_next_region(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("NonZero", ["a"], ["where"]),
        helper.make_node("Transpose", ["where"], ["indices"]),
        helper.make_node("GatherND", ["x", "indices"], ["found"]),
        helper.make_node("Add", ["found", "one"], ["y"]),
        helper.make_node("Shape", ["found"], ["shape"]),
    ]
    feeds = [{"x": sparse(random, s, np.float32)} for s in ((4, 5), (1, 9), (3, 0))]
    outputs = [("y", np.float32, 1), ("shape", np.int64, 1), ("a", np.float32, 2)]
    check([(model(nodes, feeds[0], outputs, one=np.float32(1)), feeds)], tmp_path, regions=2)
