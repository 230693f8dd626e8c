"""Small rules: what changes nothing goes, what changes little stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from rewrite_graphs import fired, model, rewrite, run

from opsmith import rewriter

NEUTRAL = [("Add(x, c)", 0), ("Add(c, x)", 0), ("Sub(x, c)", 0), ("Mul(x, c)", 1), ("Mul(c, x)", 1), ("Div(x, c)", 1)]


def _ops(expression: str, constant: Any, out: str = "[n,4]") -> dict[str, int]:
    graph = model(f"float[n,4] x => float{out} y", f"z = {expression} y = Relu(z)", constants={"c": constant})
    return dict(rewrite(graph, level=1)[0])


@pytest.mark.parametrize("expression, number", NEUTRAL)
def test_what_changes_nothing_goes(expression: str, number: int) -> None:
    assert _ops(expression, np.float32(number)) == {"Relu": 1}
    assert _ops(expression, np.full((1, 1), number, np.float32)) == {"Relu": 1}


@pytest.mark.parametrize("expression, number", NEUTRAL)
def test_a_number_beside_the_neutral_one_stays(expression: str, number: int) -> None:
    assert len(_ops(expression, np.nextafter(np.float32(number), np.float32(2)))) == 2
    assert len(_ops(expression, np.float32(1e-12))) == 2


@pytest.mark.parametrize("expression, number", NEUTRAL)
def test_a_neutral_constant_that_enlarges_x_stays(expression: str, number: int) -> None:
    assert len(_ops(expression, np.full((1, 1, 1), number, np.float32), "[1,n,4]")) == 2
    assert len(_ops(expression, np.full((2, 1, 1), number, np.float32), "[2,n,4]")) == 2


def test_the_epsilon_of_a_norm_of_equal_numbers() -> None:
    body = """m = ReduceMean<axes=[-1],keepdims=1>(x) c = Sub(x, m) s = Mul(c, c)
        v = ReduceMean<axes=[-1],keepdims=1>(s) e = Add(v, eps) r = Sqrt(e) y = Div(c, r)"""
    graph = model("float[n,8] x => float[n,8] y", body, opset=17, constants={"eps": np.float32(1e-12)})
    changed = rewrite(graph, level=2)[2]
    assert np.array_equal(run(ir.to_proto(changed), {"x": np.ones((2, 8), np.float32)})[0], np.zeros((2, 8)))


def test_a_gelu_with_another_constant_stays() -> None:
    body = "a = Div(x, c) e = Erf(a) f = Add(e, one) g = Mul(x, f) y = Mul(g, half)"
    for root, matches in ((2**0.5, 1), (1.4143, 0)):
        constants = {"c": np.float32(root), "one": np.float32(1), "half": np.float32(0.5)}
        graph = model("float[n,4] x => float[n,4] y", body, constants=constants)
        assert fired(rewrite(graph, level=2)[1], "gelu") == matches


def test_a_model_whose_declared_ranks_contradict_it_makes_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    """q -> DequantizeLinear -> Relu, whose declared result has another rank: inference fails, which only the passes need to know"""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (uint8[3] q, float scale) => (float[3] y) <float[1, 3] x> { x = DequantizeLinear(q, scale)  y = Relu(x) }"""
    )
    rewriter.keep_integers(ir.from_proto(model))
    assert not caplog.records


@pytest.mark.parametrize("declared, spelled", [("3,3", True), ("5,3", True), ("a,b", True)])
def test_padding_is_spelled_out_as_the_input_asks_not_as_the_output_was_declared(declared: str, spelled: bool) -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]> g (float[1,1,5,5] x, float[1,1,3,3] w) => (float[1,1,{declared}] y)
        {{ y = Conv <auto_pad = "SAME_LOWER", kernel_shape = [3, 3], strides = [1, 2]> (x, w) }}"""
    )
    changed = ir.from_proto(proto)
    rewriter.rewrite_model(changed, level=1)
    assert ("pads" in changed.graph[0].attributes) == spelled
    rng = np.random.default_rng(0)
    feed = {name: rng.random((1, 1, size, size), np.float32) for name, size in (("x", 5), ("w", 3))}
    result = run(ir.to_proto(changed), feed)[0]
    assert result.shape == (1, 1, 5, 3) and np.allclose(result, run(proto, feed)[0], rtol=1e-5)
