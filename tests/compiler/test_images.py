"""Graphs of images against ONNX Runtime: every path of pools, resizes and convolutions, all built as one library; and which of
them need no copy between layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from batch import compile_batch
from small import graph

from opsmith.compiler import geometry
from opsmith.compiler.cut import cut
from opsmith.compiler.lower import Target
from opsmith.compiler.source import load, prepare


def weights(model: onnx.ModelProto, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        scale = float(np.prod(shape[1:])) ** -0.5
        array = rng.normal(size=shape, scale=scale).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


# A chain as detectors have it: split channels, a residual, windows of several sizes, all concatenated and enlarged.
CHAIN = weights(
    graph(
        """g (float[n, 3, h, w] x) => (float[n, 20, a, b] y) <float[4] scales = {1, 1, 2, 2}> {
          c = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w0)  s = Sigmoid(c)  m = Mul(c, s)
          l, r = Split<axis=1, num_outputs=2>(m)
          k = Conv<pads=[1,1,1,1]>(r, w1)  t = Add(k, r)
          p = MaxPool<kernel_shape=[5,5], pads=[2,2,2,2]>(t)
          q = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(p)
          o = Concat<axis=1>(l, r, t, p, q)
          g0 = GlobalAveragePool(o)  g1 = Conv(g0, w2)  g2 = HardSigmoid(g1)  e = Mul(o, g2)
          z = Conv(e, w3)  u = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(z, , scales)
          d = Conv(u, w4)  f = Concat<axis=1>(d, u)  y = Conv<pads=[1,1,1,1]>(f, w5) }""",
        18,
    ),
    w0=(32, 3, 3, 3),
    w1=(16, 16, 3, 3),
    w2=(80, 80, 1, 1),
    w3=(24, 80, 1, 1),
    w4=(9, 24, 1, 1),
    w5=(20, 33, 3, 3),
)


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    half = onnx.ModelProto()
    half.CopyFrom(model)
    for tensor in half.graph.initializer:
        if tensor.name.startswith("w"):
            array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for value in (*half.graph.input, *half.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return half


def calls(model: onnx.ModelProto) -> list[str]:
    """The labels of the kernel calls of the compiled graph."""
    (program,) = cut(prepare(load(ir.from_proto(model))), "all", Target(geometry.native())).programs
    program.verify()
    return [c.label for c in program.calls]


def test_a_chain_of_convolutions_pools_and_concatenations_is_copied_only_at_its_end():
    assert sum(label == "copy" for label in calls(CHAIN)) == 1 + 1  # the result out, and the enlarged image


def test_half_precision_images_are_widened_once():
    labels = calls(in_half(CHAIN))
    assert sum(label == "cast" for label in labels) == 2  # the picture in, the result out


def pool(attributes: str, spatial: str = "h, w", op: str = "MaxPool") -> onnx.ModelProto:
    return graph(f"g (float[n, 5, {spatial}] x) => (float[n, 5, a, b] y) {{ y = {op}<{attributes}>(x) }}", 19)


MODELS: dict[str, tuple[onnx.ModelProto, tuple[int, ...]]] = {
    "chain": (CHAIN, (2, 3, 18, 22)),
    "max ceil": (pool("kernel_shape=[3,3], strides=[2,2], ceil_mode=1"), (1, 5, 12, 41)),
    "max dilated": (pool("kernel_shape=[3,2], dilations=[2,3]"), (2, 5, 12, 40)),
    "max same": (pool('kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER"'), (1, 5, 11, 12)),
    "average ceil": (
        pool("kernel_shape=[3,3], strides=[2,2], pads=[0,1,1,1], ceil_mode=1", op="AveragePool"),
        (1, 5, 12, 13),
    ),
    "average include": (
        pool("kernel_shape=[5,4], pads=[2,1,2,2], count_include_pad=1", op="AveragePool"),
        (1, 5, 9, 40),
    ),
    "lp": (pool("kernel_shape=[2,3], strides=[1,2], p=3", op="LpPool"), (1, 5, 9, 40)),
    "global max": (graph("g (float[n, c, h, w] x) => (float[n, c, 1, 1] y) { y = GlobalMaxPool(x) }"), (2, 7, 9, 33)),
    "global lp": (
        graph("g (float[n, c, h, w] x) => (float[n, c, 1, 1] y) { y = GlobalLpPool<p=1>(x) }"),
        (2, 7, 9, 33),
    ),
}


def conv(shape: tuple[int, ...], attributes: str = "", op: str = "Conv", channels: int = 3) -> onnx.ModelProto:
    spatial = ", ".join("hwd"[: len(shape) - 2])
    out = ", ".join("abc"[: len(shape) - 2])
    text = f"g (float[n, {channels}, {spatial}] x) => (float[n, o, {out}] y) {{ c = {op}<{attributes}>(x, w0)  y = Relu(c) }}"
    return weights(graph(text), w0=shape)


BIASED = graph("g (float[n, 24, h, w] x) => (float[n, 1, a, b] y) { c = Conv(x, w0, w1)  y = Sigmoid(c) }")
MODELS |= {
    "to one with bias": (weights(BIASED, w0=(1, 24, 1, 1), w1=(1,)), (2, 24, 17, 30)),
    "deep": (conv((7, 3, 2, 3, 3), "pads=[0,1,1,1,1,1], strides=[1,2,1]"), (2, 3, 4, 9, 10)),
    "deep flat": (conv((20, 32, 1, 5, 5), "pads=[0,2,2,0,2,2]", channels=32), (1, 32, 3, 9, 10)),
    "deep flat to three": (conv((3, 32, 1, 5, 5), "pads=[0,2,2,0,2,2]", channels=32), (2, 32, 3, 9, 10)),
    "deep flat to one": (conv((1, 32, 1, 5, 5), "pads=[0,2,2,0,2,2]", channels=32), (2, 32, 3, 9, 10)),
    "deep flat behind": (conv((3, 32, 1, 5, 5), "pads=[0,2,2,1,2,2]", channels=32), (2, 32, 3, 9, 10)),
    "deep flat depthwise": (conv((32, 1, 1, 3, 3), "strides=[1,2,1], group=32", channels=32), (2, 32, 3, 9, 10)),
    "deep flat with a sum per item": (
        weights(
            graph(
                """g (float[n, 6, d, h, w] x) => (float[n, 20, d, a, b] y) {
                c = Conv(x, w0)  m = ReduceMax<axes=[2,3,4]>(c)  y = Sub(c, m) }""",
                13,
            ),
            w0=(20, 6, 1, 3, 3),
        ),
        (2, 6, 3, 9, 10),
    ),
    "stem": (conv((16, 3, 3, 3), "pads=[1,1,1,1], strides=[2,2]"), (2, 3, 17, 30)),
    "to one": (conv((1, 24, 3, 3), "pads=[1,1,1,1]", channels=24), (2, 24, 17, 30)),
    "to three": (conv((3, 24, 9, 9), "pads=[4,4,4,4]", channels=24), (2, 24, 17, 30)),
    "blur": (conv((1, 1, 5, 5), "pads=[2,2,2,2]", channels=1), (2, 1, 17, 30)),
    "signal to one": (conv((1, 24, 7), "pads=[3,3]", channels=24), (2, 24, 100)),
    "signal": (conv((16, 3, 7), "pads=[3,3], strides=[2]"), (2, 3, 100)),
    "stem of pixels": (
        weights(
            graph(
                """g (float[n, h, w, 3] x) => (float[n, 20, a, b] y) {
                p = Transpose<perm=[0,3,1,2]>(x)  y = Conv<pads=[1,0,1,2], strides=[1,2]>(p, w0) }"""
            ),
            w0=(20, 3, 3, 3),
        ),
        (2, 17, 101, 3),
    ),
    "transposed to one": (conv((24, 1, 2, 2), "strides=[2,2]", "ConvTranspose", 24), (2, 24, 9, 30)),
    "transposed to three": (
        conv((20, 3, 5, 4), "strides=[2,3], pads=[1,0,2,1], output_padding=[1,0]", "ConvTranspose", 20),
        (2, 20, 9, 30),
    ),
    "transposed signal": (conv((20, 1, 5), "strides=[4], pads=[1,0]", "ConvTranspose", 20), (2, 20, 90)),
    "grouped": (conv((24, 4, 3, 3), "pads=[1,1,1,1], group=6", channels=24), (1, 24, 9, 10)),
    "depthwise": (conv((20, 1, 5, 5), "pads=[2,2,2,2], strides=[2,2], group=20", channels=20), (1, 20, 19, 30)),
    "depthwise transposed": (
        conv((20, 1, 4, 4), "pads=[1,1,1,1], strides=[2,2], group=20", "ConvTranspose", 20),
        (1, 20, 5, 6),
    ),
}


def resize(
    attributes: str, sizes: tuple[int, ...] = (), scales: tuple[float, ...] = (), opset: int = 19
) -> onnx.ModelProto:
    """By sizes or scales of the last two axes, or (before opset 18) of all."""
    values = ", ".join(map(str, sizes or scales))
    kind, inputs = ("int64", "x, , , s") if sizes else ("float", "x, , s")
    count = len(sizes or scales)
    axes = "" if opset < 18 else ", axes=[2, 3]"
    if opset < 13:
        inputs = "x, none, s" if opset > 10 else "x, s"
    text = f"""g (float[n, 5, h, w] x) => (float[n, 5, a, b] y) <{kind}[{count}] s = {{{values}}}, float[0] none = {{}}> {{
      y = Resize<{attributes}{axes}>({inputs}) }}"""
    return graph(text, opset)


COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
for _mode in ("nearest", "linear", "cubic"):
    for _where in COORDINATES:
        _text = f'mode="{_mode}", coordinate_transformation_mode="{_where}"'
        MODELS[f"{_mode} {_where}"] = resize(_text, sizes=(13, 31)), (2, 5, 9, 17)
        MODELS[f"{_mode} {_where} smaller"] = resize(_text, sizes=(4, 7)), (2, 5, 9, 17)
for _nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    _text = f'mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="{_nearest}"'
    MODELS[f"nearest {_nearest}"] = resize(_text, scales=(512 / 300, 0.7)), (1, 5, 300, 20)
MODELS |= {
    "linear antialias": (resize('mode="linear", antialias=1', sizes=(4, 5)), (1, 5, 19, 23)),
    "cubic excluded": (resize('mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5', sizes=(14, 15)), (1, 5, 9, 9)),
    "tf half pixel": (
        resize(
            'mode="nearest", coordinate_transformation_mode="tf_half_pixel_for_nn", nearest_mode="floor"',
            scales=(1.0, 1.0, 1.7, 0.6),
            opset=11,
        ),
        (1, 5, 9, 20),
    ),
    "resize 10": (resize('mode="linear"', scales=(1.0, 1.0, 1.7, 0.6), opset=10), (1, 5, 9, 20)),
    "resize 10 nearest": (resize('mode="nearest"', scales=(1.0, 1.0, 1.7, 0.6), opset=10), (1, 5, 9, 20)),
    "resize 10 smaller": (resize('mode="nearest"', scales=(1.0, 1.0, 0.7, 0.6), opset=10), (1, 5, 9, 20)),
    "upsample": (
        graph(
            """g (float[n, 5, h, w] x) => (float[n, 5, a, b] y) <float[4] s = {1, 1, 1.7, 2}> {
            y = Upsample<mode="nearest">(x, s) }""",
            9,
        ),
        (1, 5, 9, 20),
    ),
    "between convolutions": (
        weights(
            graph(
                """g (float[n, 3, h, w] x) => (float[n, 8, a, b] y) <int64[2] s = {11, 33}> { c = Conv(x, w0)
                r = Resize<mode="linear", axes=[2, 3]>(c, , , s)  q = Conv(r, w2)  k = Concat<axis=1>(r, q)  y = Conv(k, w1) }""",
                19,
            ),
            w0=(24, 3, 1, 1),
            w2=(9, 24, 1, 1),
            w1=(8, 33, 1, 1),
        ),
        (2, 3, 7, 9),
    ),
}


MODELS["chain in half precision"] = in_half(CHAIN), MODELS["chain"][1]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("images")
    named = [(name.replace(" ", "_"), model.SerializeToString()) for name, (model, _) in MODELS.items()]
    built, results = compile_batch(named, folder)
    assert built is not None
    for result in results:
        assert result.native, (result.name, result.error, result.left)
    return built, {name: result.path for name, result in zip(MODELS, results)}


@pytest.mark.parametrize("name", MODELS)
def test_images_are_computed_as_onnx_runtime_does(library, name):
    model, shape = MODELS[name]
    half = model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    x = np.random.default_rng(1).normal(size=shape).astype(np.float16 if half else np.float32)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library[0]))
    (got,) = ort.InferenceSession(library[1][name], options).run(None, {"x": x})
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert got.shape == want.shape
    exact = 2e-3 if half else 2e-5  # ORT rounds between nodes, a region at its ends
    np.testing.assert_allclose(got, want, atol=exact, rtol=exact)
