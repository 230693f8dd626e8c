"""Random graphs out of the pieces that the rules look for: rewriting never changes a result."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx import helper as h
from rewrite_graphs import random_inputs, run

from opsmith.rewriter import rewrite_model

ROWS, WIDTH = 4, 8  # every value is (batch, 4, 8): all pieces fit onto all values

UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Erf", "Identity", "Abs")
BINARY = ("Add", "Mul", "Sub")
NUMBERS = {"half": 0.5, "one": 1.0, "two": 2.0, "root": 2**0.5, "quick": 1.702, "eps": 1e-5, "scale": WIDTH**-0.5}


class Builder:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {k: np.float32(v) for k, v in NUMBERS.items()}
        self.constants["last"] = np.array([-1])

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(h.make_node(op_type, inputs, names, **attributes))
        return names[0]

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.constants)}"
        self.constants[name] = (self.rng.standard_normal(shape) * 0.5).astype(np.float32)
        return name

    # Each piece takes values (batch, 4, 8) and gives one. `twist` makes it something slightly different.

    def gelu(self, x: str, other: str, twist: bool) -> str:
        erf = self.op("Erf", self.op("Div", x, "two" if twist else "root"))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, "one")), "half")

    def gate(self, x: str, other: str, twist: bool) -> str:
        return self.op("Mul", other if twist else x, self.op("Sigmoid", x))

    def quick(self, x: str, other: str, twist: bool) -> str:
        return self.op("Mul", x, self.op("Sigmoid", self.op("Mul", x, "two" if twist else "quick")))

    def layer_norm(self, x: str, other: str, twist: bool) -> str:
        difference = self.op("Sub", x, self.op("ReduceMean", other if twist else x, "last"))
        variance = self.op("ReduceMean", self.op("Mul", difference, difference), "last")
        normal = self.op("Div", difference, self.op("Sqrt", self.op("Add", variance, "eps")))
        return self.op("Add", self.op("Mul", normal, self.weight(WIDTH)), self.weight(WIDTH))

    def rms_norm(self, x: str, other: str, twist: bool) -> str:
        mean = self.op("ReduceMean", self.op("Mul", x, other if twist else x), "last")
        root = self.op("Sqrt", self.op("Add", self.op("Abs", mean) if twist else mean, "eps"))
        return self.op("Mul", self.op("Div", x, root), self.weight(WIDTH))

    def attention(self, x: str, other: str, twist: bool) -> str:
        scores = self.op("MatMul", self.op("Mul", x, "scale"), self.op("Transpose", other, perm=[0, 2, 1]))
        return self.op("MatMul", self.op("Softmax", scores, axis=1 if twist else -1), other)

    def linear(self, x: str, other: str, twist: bool) -> str:
        product = self.op("MatMul", x, self.weight(WIDTH, WIDTH))
        biased = self.op("Add", product, self.weight(ROWS, WIDTH) if twist else self.weight(WIDTH))
        return self.op("Add", self.op("Relu", biased), other)

    def turned(self, x: str, other: str, twist: bool) -> str:
        there = self.op("Transpose", x, perm=[0, 2, 1])
        middle = self.op("Softmax", there, axis=-1) if twist else self.op("Neg", there)
        return self.op("Transpose", middle, perm=[0, 2, 1])


PIECES = ("gelu", "gate", "quick", "layer_norm", "rms_norm", "attention", "linear", "turned")


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    builder = Builder(np.random.default_rng(draw(st.integers(0, 1000))))
    values = ["x", "z"]
    for _ in range(draw(st.integers(2, 7))):
        x, other = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        kind = draw(st.sampled_from((*UNARY, *BINARY, *PIECES, *PIECES)))
        if kind in UNARY:
            values.append(builder.op(kind, x))
        elif kind in BINARY:
            values.append(builder.op(kind, x, other))
        else:
            values.append(getattr(builder, kind)(x, other, draw(st.booleans())))
    # some intermediate results leave the graph: a rule must not swallow them
    everything = [o for n in builder.nodes for o in n.output]
    outputs = {values[-1], *draw(st.lists(st.sampled_from(everything), max_size=2))}
    batch = draw(st.sampled_from(("batch", 2)))
    shape = [batch, ROWS, WIDTH]
    graph = h.make_graph(
        builder.nodes,
        "random",
        [h.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "z")],
        [h.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in sorted(outputs)],
        [onnx.numpy_helper.from_array(a, n) for n, a in builder.constants.items()],
    )
    return onnx.shape_inference.infer_shapes(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs(), st.sampled_from(((1, "portable"), (2, "portable"), (3, "ort-cpu"))))
def test_rewriting_never_changes_a_result(proto: onnx.ModelProto, how: tuple[int, str]) -> None:
    model = ir.from_proto(proto)
    rewrite_model(model, level=how[0], target=how[1])
    after = ir.to_proto(model)
    inputs = random_inputs(proto, {"batch": 3})
    before = run(proto, inputs)
    if not all(np.isfinite(b).all() for b in before):
        return
    for expected, got in zip(before, run(after, inputs), strict=True):
        assert expected.shape == got.shape
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(expected).max())))
