"""DeformConv, AffineGrid, MaxUnpool, Det, TensorScatter, MelWeightMatrix, DFT, Cast of float8: equal to stock ORT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from batch import compile_batch
from onnx import NodeProto, TensorProto, helper, parser
from test_random_graphs import options

from opsmith import ops

RANDOM = np.random.default_rng(0)
Feed = dict[str, np.ndarray]


def floats(*shape: int) -> np.ndarray:
    return RANDOM.normal(0, 1, shape).astype(np.float32)


def model(node: NodeProto, feed: Feed, dtype: int, rank: int, opset: int, dynamic: bool = True) -> bytes:
    def shape(name: str, x: np.ndarray) -> list[Any]:
        return [f"{name}{i}" if dynamic and i != 1 else d for i, d in enumerate(x.shape)]

    kinds = {n: helper.np_dtype_to_tensor_dtype(x.dtype) for n, x in feed.items()}
    inputs = [helper.make_tensor_value_info(n, kinds[n], shape(n, x)) for n, x in feed.items()]
    output = helper.make_tensor_value_info("y", dtype, [None] * rank)
    graph = helper.make_graph([node], "rare", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10).SerializeToString()


def deform(
    channels: int, outputs: int, kernel: int, groups: int, parts: int, masked: bool, **attributes: Any
) -> tuple[bytes, Feed]:
    stride, pad = attributes.get("strides", [1])[0], attributes.get("pads", [0])[0]
    dilation = attributes.get("dilations", [1])[0]
    side = (9 + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1
    feed = {
        "x": floats(2, channels, 9, 9),
        "w": floats(outputs, channels // groups, kernel, kernel),
        "offset": floats(2, 2 * parts * kernel * kernel, side, side) * 2,
        "b": floats(outputs),
    }
    if masked:
        feed["mask"] = floats(2, parts * kernel * kernel, side, side)
    node = helper.make_node("DeformConv", list(feed), ["y"], group=groups, offset_group=parts, **attributes)
    return model(node, feed, TensorProto.FLOAT, 4, 19, dynamic=False), feed


def cases() -> list[tuple[bytes, Feed]]:
    found = [
        deform(4, 6, 3, 1, 1, False),
        deform(4, 6, 3, 2, 2, True, pads=[1, 1, 1, 1]),
        deform(6, 3, 2, 3, 1, True, strides=[2, 2]),
        deform(2, 5, 3, 1, 2, False, dilations=[2, 2], pads=[2, 2, 2, 2]),
    ]
    for rank, size in ((2, [2, 3, 5, 7]), (3, [2, 3, 4, 5, 6])):
        for corners in (0, 1):
            feed = {"theta": floats(2, rank, rank + 1), "size": np.array(size)}
            node = helper.make_node("AffineGrid", ["theta", "size"], ["y"], align_corners=corners)
            found.append((model(node, feed, TensorProto.FLOAT, rank + 2, 20, dynamic=False), feed))
    places = np.stack([RANDOM.permutation(64)[:16] + 64 * i for i in range(6)]).reshape(2, 3, 4, 4)
    node = helper.make_node("MaxUnpool", ["x", "i"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    found.append((model(node, f := {"x": floats(2, 3, 4, 4), "i": places}, TensorProto.FLOAT, 4, 11), f))
    for n in (1, 2, 5):
        node = helper.make_node("Det", ["x"], ["y"])
        found.append((model(node, f := {"x": floats(3, n, n)}, TensorProto.FLOAT, 1, 11, dynamic=False), f))
    for mode, axis, at in (("linear", -2, [1, 3]), ("circular", -2, [6, 2]), ("linear", 1, [0, 5])):
        steps = {"linear": 2, "circular": 4}[mode]
        shape = [2, 3, 7, 5] if axis == -2 else [2, 7, 5]
        short = [steps if i == axis % len(shape) else d for i, d in enumerate(shape)]
        f = {"past": floats(*shape), "update": floats(*short), "at": np.array(at)}
        node = helper.make_node("TensorScatter", list(f), ["y"], axis=axis, mode=mode)
        found.append((model(node, f, TensorProto.FLOAT, len(shape), 24), f))
    f = {"bands": np.array(8), "length": np.array(64), "rate": np.array(8192)}
    f |= {"low": np.array(0, np.float32), "high": np.array(4096, np.float32)}
    found.append((model(helper.make_node("MelWeightMatrix", list(f), ["y"]), f, TensorProto.FLOAT, 2, 17), f))
    return found


def test_rare_operators_compute_what_ort_computes(tmp_path: Path) -> None:
    models = cases()
    library, built = compile_batch([(f"rare{i}", m) for i, (m, _) in enumerate(models)], tmp_path)
    for (source, feed), result in zip(models, built):
        assert result.native, (result.error, result.left)
        stock = ort.InferenceSession(source, options(), providers=["CPUExecutionProvider"])
        own = ort.InferenceSession(result.path, options(library), providers=["CPUExecutionProvider"])
        want, got = stock.run(None, feed)[0], own.run(None, feed)[0]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_gelus_of_onnxruntime_compute_what_ort_computes(tmp_path: Path) -> None:
    inputs = "float[n, 37] x, float[37] b, float[37, 5] w, float[5] c"
    head = f'<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]> g ({inputs})'
    bodies = [
        "y = com.microsoft.BiasGelu(x, b)",
        "h = MatMul(x, w)  y = com.microsoft.BiasGelu(h, c)",
        "y = com.microsoft.FastGelu(x)",
        "y = com.microsoft.FastGelu(x, b)",
        "h = MatMul(x, w)  y = com.microsoft.FastGelu(h)",
        "y = com.microsoft.QuickGelu(x)",
        "y = com.microsoft.QuickGelu<alpha = 0.5>(x)",
    ]
    texts = [f"{head} => (float[n, m] y) {{ {body} }}" for body in bodies]
    sources = [parser.parse_model(text).SerializeToString() for text in texts]
    library, built = compile_batch([(f"gelu{i}", m) for i, m in enumerate(sources)], tmp_path)
    feed = {"x": floats(3, 37) * 4, "b": floats(37), "w": floats(37, 5), "c": floats(5)}
    for source, result in zip(sources, built):
        assert result.native, (result.error, result.left)
        stock = ort.InferenceSession(source, options(), providers=["CPUExecutionProvider"])
        own = ort.InferenceSession(result.path, options(library), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(own.run(None, feed)[0], stock.run(None, feed)[0], rtol=1e-4, atol=1e-5)


def test_every_float8_is_cast_as_ort_casts_it(tmp_path: Path) -> None:
    kinds = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"]
    models = []
    for kind in kinds:
        dtype = getattr(TensorProto, kind)
        graph = helper.make_graph(
            [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)],
            "float8",
            [helper.make_tensor_value_info("x", dtype, [256])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [256])],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
        models.append((kind, made.SerializeToString(), dtype))
    library, built = compile_batch([(n, m) for n, m, _ in models], tmp_path)
    for (_, source, dtype), result in zip(models, built):
        assert result.native, (result.error, result.left)
        x = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.arange(256, dtype=np.uint8), dtype)
        stock = ort.InferenceSession(source, options(), providers=["CPUExecutionProvider"])
        own = ort.InferenceSession(result.path, options(library), providers=["CPUExecutionProvider"])
        want, got = (s.run_with_ort_values(None, {"x": x})[0].numpy() for s in (stock, own))
        np.testing.assert_array_equal(got, want)


def test_transforms_are_as_exact_as_floats_allow(tmp_path: Path) -> None:
    """Against double precision: ORT's own are off by 1e-3 where the length is no power of 2."""
    models: list[bytes] = []
    feeds: list[Feed] = []
    wanted: list[np.ndarray] = []
    cases = [
        (6, n, parts, onesided) for n, parts, onesided in ((16, 1, 1), (400, 1, 1), (25, 2, 0), (96, 2, 0), (1, 1, 0))
    ]
    # few, or long: one after the other; many: in lanes, of which the last are not all used
    cases += [(2, 96, 2, 0), (2, 400, 1, 1), (6, 4096, 1, 1), (6, 3 * 2**10, 2, 0), (70, 96, 2, 0), (38, 2048, 1, 1)]
    for count, n, parts, onesided in cases:
        x = floats(count // 2, n, 2, parts)
        node = helper.make_node("DFT", ["x"], ["y"], axis=1, onesided=onesided)
        models.append(model(node, {"x": x}, TensorProto.FLOAT, 4, 17, dynamic=False))
        numbers = x[..., 0].astype(np.float64) + (1j * x[..., 1] if parts == 2 else 0)
        feeds.append({"x": x})
        wanted.append(np.fft.rfft(numbers.real, axis=1) if onesided else np.fft.fft(numbers, axis=1))
    for n, step, windowed in ((64, 16, True), (60, 25, False)):
        feed: Feed = {"x": floats(2, 300, 1), "step": np.array(step)}
        window = np.hanning(n).astype(np.float32) if windowed else np.ones(n, np.float32)
        if windowed:
            feed["window"] = window
        names = ["x", "step", "window" if windowed else "", "length"]
        feed["length"] = np.array(n)
        node = helper.make_node("STFT", names, ["y"])
        models.append(model(node, feed, TensorProto.FLOAT, 4, 17, dynamic=False))
        feeds.append(feed)
        if windowed:  # as ONNX Runtime also takes it: without the axis for complex parts
            feeds.append({**feed, "x": feed["x"][..., 0]})
            models.append(model(node, feeds[-1], TensorProto.FLOAT, 4, 17, dynamic=False))
        frames = [feed["x"][:, i : i + n, 0] * window.astype(np.float64) for i in range(0, 301 - n, step)]
        wanted += [np.fft.rfft(np.stack(frames, 1), axis=-1)] * (1 + windowed)
    library, built = compile_batch([(f"dft{i}", m) for i, m in enumerate(models)], tmp_path)
    for feed, want, result in zip(feeds, wanted, built):
        assert result.native, (result.error, result.left)
        own = ort.InferenceSession(result.path, options(library), providers=["CPUExecutionProvider"])
        (got,) = own.run(None, feed)
        np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], want, atol=1e-6 * np.abs(want).max() * 10)


def test_ngrams_are_counted_as_ort_counts_them(tmp_path: Path) -> None:
    pool = [2, 3, 5, 4, 2, 3, 3, 2, 5, 5, 2, 3, 5]  # 4 tokens, 3 pairs, a triple
    models = []
    for mode, shortest, longest, skip in (("TF", 1, 3, 0), ("IDF", 2, 3, 2), ("TFIDF", 1, 2, 1), ("TF", 3, 3, 5)):
        node = helper.make_node(
            "TfIdfVectorizer", ["x"], ["y"], mode=mode, min_gram_length=shortest, max_gram_length=longest,
            max_skip_count=skip, ngram_counts=[0, 4, 10], ngram_indexes=list(range(8)), pool_int64s=pool,
            weights=[0.5 * i + 1 for i in range(8)],
        )  # fmt: skip
        models.append(model(node, {"x": np.zeros((3, 20), np.int64)}, TensorProto.FLOAT, 2, 9))
    library, built = compile_batch([(f"ngrams{i}", m) for i, m in enumerate(models)], tmp_path)
    for source, result in zip(models, built):
        assert result.native, (result.error, result.left)
        stock = ort.InferenceSession(source, options(), providers=["CPUExecutionProvider"])
        own = ort.InferenceSession(result.path, options(library), providers=["CPUExecutionProvider"])
        feed = {"x": RANDOM.integers(2, 6, (3, 20))}
        np.testing.assert_array_equal(own.run(None, feed)[0], stock.run(None, feed)[0])


def test_a_row_that_cannot_be_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "TABLE", dict(ops.TABLE))
    for name, kinds in (("com.example.Twice", "f"), ("com.example::Twice", "x"), ("com.example::Twice", "")):
        with pytest.raises(ValueError, match=f"row {name}: "):
            ops.row(name, lambda x: x + x, arity=1, kinds=kinds)
    ops.row("com.example::Twice", lambda x: x + x, arity=1, kinds="f")
    with pytest.raises(TypeError, match="com.example::Twice with 2 operands"):
        ops.TABLE["com.example", "Twice"].expression(None, [None, None])
