"""LSTM, GRU and RNN compute what stock ORT computes: directions, lengths, states, peepholes, activations, layouts, sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from batch import compile_batch
from onnx import TensorProto, helper, numpy_helper
from test_random_graphs import options

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
CURVES = ["Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid"]
CURVES += ["Elu", "Softsign", "Softplus"]
ALPHA = {"Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"}
BETA = {"Affine", "ScaledTanh", "HardSigmoid"}
SIZES = [{"t": 5, "b": 3}, {"t": 1, "b": 1}, {"t": 9, "b": 1}, {"t": 3, "b": 17}]


class Case:
    """A random layer; its weights are constants or inputs."""

    def __init__(self, seed: int) -> None:
        random = self.random = np.random.default_rng(seed)
        self.op = list(GATES)[seed % 3]
        self.units, self.inputs = int(random.integers(1, 70)), int(random.integers(1, 20))
        self.direction = str(random.choice(["forward", "reverse", "bidirectional"]))
        self.directions = 2 if self.direction == "bidirectional" else 1
        self.constant = bool(random.random() < 0.6)
        self.lengths, self.initial, self.biased, self.clipped = (bool(v) for v in random.random(4) < 0.5)
        self.attributes: dict[str, Any] = {"hidden_size": self.units, "direction": self.direction}
        if self.op == "GRU":
            self.attributes["linear_before_reset"] = int(random.integers(2))
        if self.op == "LSTM":
            self.attributes["input_forget"] = int(random.random() < 0.3)
        if self.clipped and self.op != "RNN":
            self.attributes["clip"] = 0.5
        if random.random() < 0.4:
            self._other_activations()
        self.peepholes = self.op == "LSTM" and bool(random.random() < 0.5)
        outputs = ["Y", "Y_h", "Y_c"] if self.op == "LSTM" else ["Y", "Y_h"]
        wanted = random.random(len(outputs)) < 0.7
        self.outputs = [o if w else "" for o, w in zip(outputs, wanted)] if wanted.any() else outputs

    def _other_activations(self) -> None:
        count = {"LSTM": 3, "GRU": 2, "RNN": 1}[self.op] * self.directions
        names = [str(a) for a in self.random.choice(CURVES, count)]
        self.attributes["activations"] = names
        for key, value, takers in (("activation_alpha", 0.3, ALPHA), ("activation_beta", 0.4, BETA)):
            if count := sum(n in takers for n in names):
                self.attributes[key] = [value] * count

    def weights(self) -> dict[str, np.ndarray]:
        d, g, h = self.directions, GATES[self.op], self.units
        random = np.random.default_rng(1)
        shapes = {"W": (d, g * h, self.inputs), "R": (d, g * h, h), "B": (d, 2 * g * h), "P": (d, 3 * h)}
        names = ["W", "R", *(["B"] if self.biased else []), *(["P"] if self.peepholes else [])]
        return {n: random.normal(0, 0.5 / np.sqrt(h), shapes[n]).astype(np.float32) for n in names}

    def model(self, layout: int = 0) -> bytes:
        """`layout` 1: what ORT does not run; the same numbers, batch first."""
        d, h = self.directions, self.units
        x = ["b", "t", self.inputs] if layout else ["t", "b", self.inputs]
        state = ["b", d, h] if layout else [d, "b", h]
        shapes = {"X": x, "lengths": ["b"], "h0": state, "c0": state}
        names = ["X", *(["lengths"] if self.lengths else [])]
        names += (["h0", "c0"] if self.op == "LSTM" else ["h0"]) if self.initial else []
        types = {"lengths": TensorProto.INT32}
        inputs = [helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), shapes[n]) for n in names]
        weights = self.weights()
        initializers = [numpy_helper.from_array(v, n) for n, v in weights.items()] if self.constant else []
        if not self.constant:
            inputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in weights.items()]
        order = ["X", "W", "R", "B", "lengths", "h0", "c0", "P"][: 8 if self.op == "LSTM" else 6]
        given = {*names, *weights}
        attributes = {**self.attributes, **({"layout": 1} if layout else {})}
        node = helper.make_node(self.op, [n if n in given else "" for n in order], self.outputs, **attributes)
        y = ["b", "t", d, h] if layout else ["t", d, "b", h]
        outputs = [
            helper.make_tensor_value_info(o, TensorProto.FLOAT, y if o == "Y" else state) for o in self.outputs if o
        ]
        graph = helper.make_graph([node], "layer", inputs, outputs, initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=10).SerializeToString()

    def feed(self, sizes: dict[str, int], layout: int = 0) -> dict[str, np.ndarray]:
        random = np.random.default_rng(sizes["t"])
        t, b = sizes["t"], sizes["b"]
        feed: dict[str, np.ndarray] = {"X": random.normal(0, 1, (t, b, self.inputs)).astype(np.float32)}
        if self.lengths:
            feed["lengths"] = random.integers(0, t + 1, b).astype(np.int32)
            feed["lengths"][0] = t
        if self.op == "RNN" and self.lengths:  # ORT reads before the first frame of an empty sequence
            feed["lengths"] = np.maximum(feed["lengths"], 1)
        if self.initial:
            for name in ["h0", "c0"] if self.op == "LSTM" else ["h0"]:
                feed[name] = random.normal(0, 1, (self.directions, b, self.units)).astype(np.float32)
        if layout:
            feed = {k: np.swapaxes(v, 0, 1).copy() if k != "lengths" else v for k, v in feed.items()}
        return feed if self.constant else {**feed, **self.weights()}


def test_random_layers_compute_what_ort_computes_in_both_layouts(tmp_path: Path) -> None:
    cases = [Case(seed) for seed in range(60)]
    models = [(f"layer{i}_{layout}", c.model(layout)) for i, c in enumerate(cases) for layout in (0, 1)]
    library, built = compile_batch(models, tmp_path)
    for i, case in enumerate(cases):
        text = onnx.printer.to_text(onnx.load_from_string(case.model()))
        stock = ort.InferenceSession(case.model(), options(), providers=["CPUExecutionProvider"])
        for layout in (0, 1):
            result = built[2 * i + layout]
            assert result.native, f"{result.error} {result.left}\n{text}"
            own = ort.InferenceSession(result.path, options(library), providers=["CPUExecutionProvider"])
            for sizes in SIZES:
                expected = stock.run(None, case.feed(sizes))
                for name, want, got in zip(
                    filter(None, case.outputs), expected, own.run(None, case.feed(sizes, layout))
                ):
                    if layout:
                        want = want.transpose(2, 0, 1, 3) if name == "Y" else want.swapaxes(0, 1)
                    np.testing.assert_allclose(
                        got, want, rtol=1e-4, atol=2e-5, err_msg=f"{name}, layout {layout}, {sizes}\n{text}"
                    )


def test_a_length_beyond_the_input_is_refused(tmp_path: Path) -> None:
    case = next(c for c in map(Case, range(100)) if c.lengths)
    library, built = compile_batch([("layer", case.model())], tmp_path)
    own = ort.InferenceSession(built[0].path, options(library), providers=["CPUExecutionProvider"])
    feed = case.feed({"t": 3, "b": 2})
    for wrong in (4, -1):
        feed["lengths"] = np.array([3, wrong], np.int32)
        try:
            own.run(None, feed)
        except Exception as error:
            assert "longer than the input" in str(error)
        else:
            raise AssertionError("it ran")


def test_layers_behind_each_other_as_exporters_write_them(tmp_path: Path) -> None:
    """Batch-first input, two bidirectional layers, Transpose and Reshape between them."""
    random = np.random.default_rng(0)
    weights = {
        f"{n}{i}": random.normal(0, 0.3, s).astype(np.float32)
        for i, k in ((0, 5), (1, 14))
        for n, s in (("W", (2, 21, k)), ("R", (2, 21, 7)), ("B", (2, 42)))
    }
    weights["shape"] = np.array([0, 0, -1])
    nodes = [helper.make_node("Transpose", ["x"], ["x0"], perm=[1, 0, 2])]
    for i in (0, 1):
        nodes += [
            helper.make_node(
                "GRU", [f"x{i}", f"W{i}", f"R{i}", f"B{i}"], [f"y{i}", f"h{i}"],
                hidden_size=7, direction="bidirectional", linear_before_reset=1,
            ),
            helper.make_node("Transpose", [f"y{i}"], [f"t{i}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"t{i}", "shape"], [f"x{i + 1}"]),
        ]  # fmt: skip
    nodes += [helper.make_node("Relu", ["x2"], ["y"]), helper.make_node("Relu", ["y0"], ["first"])]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "stack",
        [info("x", TensorProto.FLOAT, ["b", "t", 5])],
        [info("y", TensorProto.FLOAT, ["t", "b", 14]), info("first", TensorProto.FLOAT, ["t", 2, "b", 7])],
        [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
    library, built = compile_batch([("stack", model)], tmp_path)
    assert built[0].native, (built[0].error, built[0].left)
    stock = ort.InferenceSession(model, options(), providers=["CPUExecutionProvider"])
    own = ort.InferenceSession(built[0].path, options(library), providers=["CPUExecutionProvider"])
    for b, t in ((1, 4), (3, 6), (2, 1)):
        feed = {"x": random.normal(0, 1, (b, t, 5)).astype(np.float32)}
        for want, got in zip(stock.run(None, feed), own.run(None, feed)):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_nan_stays_nan_where_gates_are_clipped(tmp_path: Path) -> None:
    random, info = np.random.default_rng(0), helper.make_tensor_value_info
    models = {}
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        weights = [
            numpy_helper.from_array(random.normal(0, 1, (1, gates * 3, k)).astype(np.float32), n)
            for n, k in (("W", 4), ("R", 3))
        ]
        node = helper.make_node(op, ["x", "W", "R"], ["y"], hidden_size=3, clip=0.5)
        graph = helper.make_graph([node], op, [info("x", 1, ["t", "b", 4])], [info("y", 1, ["t", 1, "b", 3])], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
        models[op] = model.SerializeToString()
    library, built = compile_batch(list(models.items()), tmp_path)
    x = random.normal(0, 1, (2, 3, 4)).astype(np.float32)
    x[0, 1, 2] = np.nan
    for model, result in zip(models.values(), built, strict=True):
        assert result.native
        (want,) = ort.InferenceSession(model, options()).run(None, {"x": x})
        (got,) = ort.InferenceSession(result.path, options(library)).run(None, {"x": x})
        assert np.isnan(want).any()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
