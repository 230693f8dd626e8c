"""Weights that the graph computes from other weights: weight_norm as exported, filled tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import opsmith
from opsmith import store
from opsmith.compiler.simplify import simplify
from opsmith.rewriter.passes import FOLD_LIMIT, computed_weights

CHANNELS = 160  # kernels of [160, 160, 3]: more elements than small constants have
NORMED = """n = ReduceL2<axes = [1, 2], keepdims = 1> (v)  d = Div (v, n)  w = Mul (d, g)  y = Conv<pads = [1, 1]> (x, w, b)"""


def model(body: str, seed: int = 0) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> m (float[1, {CHANNELS}, t] x) => (float[1, {CHANNELS}, u] y) {{ {body} }}"""
    proto, rng = onnx.parser.parse_model(text), np.random.default_rng(seed)
    shapes = {"v": (CHANNELS, CHANNELS, 3), "g": (CHANNELS, 1, 1), "b": (CHANNELS,)}
    assert np.prod(shapes["v"]) > FOLD_LIMIT
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    arrays |= {"flipped": arrays["v"].T.copy(), "half": arrays["v"].astype(np.float16)}
    arrays |= {"filled": np.array(shapes["v"]), "as_v": np.array([CHANNELS, CHANNELS, 3])}
    arrays["shape_g"] = np.array([CHANNELS])
    for name, array in arrays.items():
        if name in body:
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def ops_of(proto: onnx.ModelProto) -> list[str]:
    simplified = store.open_model(proto)
    simplify(simplified)
    return [node.op_type for node in simplified.graph]


def run(path: Path, x: np.ndarray) -> np.ndarray:
    return opsmith.load(path).run(None, {"x": x})[0]


def test_a_weight_with_its_norm_divided_out_is_packed_and_replaced_like_any_other(tmp_path: Path) -> None:
    x = np.random.default_rng(7).standard_normal((1, CHANNELS, 33), np.float32)
    for name, seed in (("one", 0), ("two", 1)):
        onnx.save(model(NORMED, seed), tmp_path / f"{name}.onnx")
    wants = [ort.InferenceSession(tmp_path / f"{n}.onnx").run(None, {"x": x})[0] for n in ("one", "two")]
    result = opsmith.compile(tmp_path / "one.onnx", tmp_path / "fast", regions="whole")
    assert len(result.variant.record["compiled"]["regions"]) == 1
    np.testing.assert_allclose(run(tmp_path / "fast", x), wants[0], atol=1e-4)
    opsmith.weights(tmp_path / "fast", tmp_path / "two.onnx", tmp_path / "other")
    np.testing.assert_allclose(run(tmp_path / "other", x), wants[1], atol=1e-4)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (NORMED, ["Conv"]),
        ("w = ConstantOfShape (filled)  y = Conv<pads = [1, 1]> (x, w)", ["Conv"]),
        ("w = ConstantOfShape (shape_g)  y = BatchNormalization (x, w, w, w, w)", ["BatchNormalization"]),
        ("s = Mul (flipped, flipped)  w = Transpose (s)  y = Conv<pads = [1, 1]> (x, w)", ["Conv"]),
        ("s = Mul (v, v)  r = Reshape (s, as_v)  w = Sqrt (r)  y = Conv<pads = [1, 1]> (x, w)", ["Conv"]),
        ("m = ReduceMax (x)  w = Mul (v, m)  y = Conv<pads = [1, 1]> (x, w)", ["ReduceMax", "Mul", "Conv"]),
        ("w = Cast<to = 1> (half)  y = Conv<pads = [1, 1]> (x, w)", ["Cast", "Conv"]),
        ("k = ConstantOfShape (filled)  s = ReduceSum (k)  y = Add (x, s)", ["ConstantOfShape", "ReduceSum", "Add"]),
    ],
)
def test_what_becomes_a_weight(body: str, left: list[str]) -> None:
    assert ops_of(model(body)) == left


def test_what_is_computed_holds_no_memory_and_grows_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = model("w = ConstantOfShape (filled)  y = Conv<pads = [1, 1]> (x, w)")
    simplified = store.open_model(filled)
    simplify(simplified)
    (weight,) = [v for v in simplified.graph.initializers.values() if v.name == "w"]
    assert isinstance(weight.const_value, ir.LazyTensor) and not np.any(weight.const_value.numpy())
    monkeypatch.setattr(computed_weights, "GROWTH", 1000)
    assert ops_of(filled) == ["ConstantOfShape", "Conv"]
