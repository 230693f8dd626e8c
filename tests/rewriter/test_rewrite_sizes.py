"""Level 1: sizes are followed through shape arithmetic; and graphs with corners that rewriting must not trip over."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
from rewrite_graphs import fired, model, random_inputs, rewrite, run

from opsmith.rewriter import rewrite_model
from opsmith.rewriter.passes import opsets

NUMBERS = {"i0": np.array(0), "i1": np.array(1), "i2": np.array(2), "four": np.array(4), "ax": np.array([0])}
NUMBERS["minus"] = np.array([-1])
HEADS = (
    "s = Shape(x) b = Gather(s, i0) t = Gather(s, i1) c = Gather(s, i2) d = Div(c, four) b1 = Unsqueeze(b, ax) "
    "t1 = Unsqueeze(t, ax) d1 = Unsqueeze(d, ax) to = Concat <axis = 0> (b1, t1, minus, d1) r = Reshape(x, to) "
)


def test_shape_arithmetic_of_a_reshape_disappears() -> None:
    ops, _, changed = rewrite(
        model("float[b,t,32] x => float[b,t,4,8] y", HEADS + "y = Relu(r)", constants=NUMBERS), level=1
    )
    assert ops == {"Reshape": 1, "Relu": 1}
    reshape = next(n for n in changed.graph if n.op_type == "Reshape")
    assert reshape.inputs[1].const_value.numpy().tolist() in ([0, 0, 4, 8], [0, 0, -1, 8])


def test_a_size_that_is_known_becomes_a_constant() -> None:
    body = "s = Shape(x) c = Gather(s, i2) f = Cast <to = 1> (c) q = Sqrt(f) y = Div(x, q)"
    ops, _, _ = rewrite(model("float[b,t,32] x => float[b,t,32] y", body, constants=NUMBERS), level=1)
    assert ops == {"Div": 1}


def test_a_target_with_two_unknown_sizes_stays_computed() -> None:
    body = "s = Shape(z) y = Reshape(x, s)"
    ops, _, _ = rewrite(
        model("float[n,m] x, float[a,c] z => float[a,c] y", body), {"n": 4, "m": 3, "a": 6, "c": 2}, level=1
    )
    assert ops == {"Shape": 1, "Reshape": 1}


def test_an_initializer_that_is_an_input_is_no_constant() -> None:
    """Its value may be overridden: x * sigmoid(k x) is a GELU only for the default k."""
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[2,4] x, float k = {1.702}) => (float[2,4] y)
    { a = Mul(x, k) s = Sigmoid(a) y = Mul(x, s) }"""
    proto = onnx.parser.parse_model(text)
    changed = ir.from_proto(proto)
    assert fired(rewrite_model(changed), "quick_gelu") == 0
    inputs = {**random_inputs(proto), "k": np.array(3.0, np.float32)}
    np.testing.assert_allclose(run(ir.to_proto(changed), inputs)[0], run(proto, inputs)[0], rtol=1e-5)


def test_a_factor_of_1_that_can_be_overridden_stays() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[2,4] x, float k = {1.0}) => (float[2,4] y)
    { a = Mul(x, k) y = Relu(a) }"""
    proto = onnx.parser.parse_model(text)
    changed = ir.from_proto(proto)
    rewrite_model(changed)
    inputs = {**random_inputs(proto), "k": np.array(3.0, np.float32)}
    np.testing.assert_allclose(run(ir.to_proto(changed), inputs)[0], run(proto, inputs)[0], rtol=1e-5)


def test_rules_work_inside_branches() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> g (bool c, float[2,4] x) => (float[2,4] y) {
      y = If (c) <
        then_branch = t () => (float[2,4] p) { s = Sigmoid(x) p = Mul(x, s) },
        else_branch = e () => (float[2,4] q) { q = Neg(x) } > }"""
    proto = onnx.parser.parse_model(text)
    changed = ir.from_proto(proto)
    assert fired(rewrite_model(changed), "silu") == 1
    after = ir.to_proto(changed)
    onnx.checker.check_model(after, full_check=True)
    for choice in (True, False):
        inputs = {"c": np.array(choice), "x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}
        np.testing.assert_allclose(run(after, inputs)[0], run(proto, inputs)[0], rtol=1e-5)


def test_functions_of_the_exporter_are_opened() -> None:
    text = """<ir_version: 9, opset_import: ["": 18, "exporter": 1]> g (float[2,4] x) => (float[2,4] y) { y = exporter.swish(x) }
    <domain: "exporter", opset_import: ["": 18]> swish (a) => (b) { s = Sigmoid(a) b = Mul(a, s) }"""
    proto = onnx.parser.parse_model(text)
    changed = ir.from_proto(proto)
    rewrite_model(changed)
    assert [n.op_type for n in changed.graph] == ["Silu"] and [k[0] for k in changed.functions] == ["opsmith"]


def test_two_outputs_of_one_value_and_an_input_as_output() -> None:
    body = "s = Sigmoid(x) y = Mul(x, s) t = Sigmoid(x) z = Mul(x, t) w = Identity(x)"
    ops, _, changed = rewrite(model("float[2,4] x => float[2,4] y, float[2,4] z, float[2,4] w", body))
    assert ops["Silu"] == 1 and [o.name for o in changed.graph.outputs] == ["y", "z", "w"]


def test_double_precision_keeps_its_type() -> None:
    body = "s = Sigmoid(x) y = Mul(x, s)"
    assert rewrite(model("double[2,4] x => double[2,4] y", body))[0] == {"Silu": 1}


def test_branches_that_call_different_values_alike_keep_their_own_sizes_when_the_opset_is_raised() -> None:
    text = """<ir_version: 8, opset_import: ["" : 13]> g (float[n] x, bool c) => (int64[2] y) {
        y = If (c) <then_branch = t () => (int64[2] a) <int64[2] to = {2, -1}, float[2, 6] v> {
            v = Reshape(x, to)   a = Shape(v) },
        else_branch = e () => (int64[2] b) <int64[2] to = {3, -1}, float[3, 4] v> {
            v = Reshape(x, to)   b = Shape(v) }> }"""
    model = onnx.parser.parse_model(text)
    raised = ir.from_proto(model)
    opsets.raise_opset(raised)
    assert raised.opset_imports[""] == opsets.NEW
    branches = [raised.graph[0].attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    assert [str(next(v.shape for n in b for v in n.outputs if v.name == "v")) for b in branches] == ["[2,6]", "[3,4]"]


def test_a_softmax_of_an_old_opset_is_over_one_dimension_where_its_rank_is_computed() -> None:
    """onnx's converter, which does not know that a is of four dimensions, flattens it; no rule finds an attention then."""
    body = """s = Shape(x) b = Gather(s, i0) t = Gather(s, i1) b1 = Unsqueeze <axes = [0]> (b) t1 = Unsqueeze <axes = [0]> (t)
        to = Concat <axis = 0> (b1, t1, h, d) r = Reshape(x, to) q = Transpose <perm = [0,2,1,3]> (r)
        k = Transpose <perm = [0,2,3,1]> (r) a = MatMul(q, k) p = Softmax <axis = 3> (a) o = MatMul(p, q)
        f = Transpose <perm = [0,2,1,3]> (o) flat = Concat <axis = 0> (b1, t1, minus) y = Reshape(f, flat)"""
    numbers = {**NUMBERS, "h": np.array([4]), "d": np.array([8])}
    graph = model("float[b,t,32] x => float[b,t,32] y", body, opset=11, constants=numbers, ir_version=6)
    _, results, _ = rewrite(graph)
    assert fired(results, "attention") == 1


def test_a_softmax_of_an_old_opset_over_two_dimensions_stays() -> None:
    body = "y = Softmax <axis = 1> (x)"
    graph = model("float[b,t,32] x => float[b,t,32] y", body, opset=11, ir_version=6)
    ops, _, _ = rewrite(graph)
    assert ops["Flatten"] == 1


def test_a_mask_that_is_stretched_before_it_is_broadcast_is_not_stretched() -> None:
    body = "s = Shape(a) m = Expand(mask, s) y = Where(m, a, zero)"
    signature = "float[b,4,s,t] a, bool[b,1,1,t] mask => float[b,4,s,t] y"
    zero = {"zero": np.float32(0)}
    assert rewrite(model(signature, body, constants=zero), level=1)[0] == {"Where": 1}
    # here it is the mask that makes the result as large as it is
    signature = "float[b,4,s,t] a, bool[b,1,1,t] mask, float[t] c => float[b,4,s,t] y"
    ops, _, _ = rewrite(model(signature, body.replace("Where(m, a", "Where(m, c"), constants=zero), level=1)
    assert ops == {"Shape": 1, "Expand": 1, "Where": 1}


def test_a_number_filled_by_its_shape_is_a_constant() -> None:
    """torch.full([], size ** 0.5), by which GPT-2 divides its scores."""
    body = "z = ConstantOfShape <value = float[1] {0.0}> (none) d = Add(z, root) y = Div(x, d)"
    constants = {"none": np.zeros(0, np.int64), "root": np.float32(8**0.5)}
    ops, _, _ = rewrite(model("float[b,4] x => float[b,4] y", body, constants=constants), level=1)
    assert ops == {"Div": 1}
