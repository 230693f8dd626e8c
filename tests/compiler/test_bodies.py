"""The bodies of If and Loop: regions inside them are compiled, what they capture is given to them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from small import graph

import opsmith
from opsmith.compiler import geometry
from opsmith.compiler.cut import cut
from opsmith.compiler.lower import Target
from opsmith.compiler.source import load, prepare


def loop_model() -> onnx.ModelProto:
    """h = Tanh(h @ w + x), n times; w and x come from outside the body, h leaves it at every turn, too."""
    value = helper.make_tensor_value_info
    w = onnx.numpy_helper.from_array(np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32), "w")
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["hw"], name="product"),
            helper.make_node("Add", ["hw", "doubled"], ["sum"], name="sum"),
            helper.make_node("Tanh", ["sum"], ["h_next"], name="tanh"),
            helper.make_node("Identity", ["again"], ["go_on"], name="go"),
            helper.make_node("Identity", ["h_next"], ["seen"], name="see"),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("again", TensorProto.BOOL, []),
            value("h", TensorProto.FLOAT, ["b", 8]),
        ],
        [
            value("go_on", TensorProto.BOOL, []),
            value("h_next", TensorProto.FLOAT, ["b", 8]),
            value("seen", TensorProto.FLOAT, ["b", 8]),
        ],
    )
    nodes = [
        helper.make_node("Add", ["x", "x"], ["doubled"], name="double"),
        helper.make_node("Loop", ["n", "", "x"], ["last", "all"], body=body, name="loop"),
        helper.make_node("Softmax", ["last"], ["y"], name="soft"),
    ]
    main = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["b", 8]), value("n", TensorProto.INT64, [])],
        [value("y", TensorProto.FLOAT, ["b", 8]), value("all", TensorProto.FLOAT, ["t", "b", 8])],
        [w],
    )
    return helper.make_model(main, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_the_body_of_a_loop_is_compiled(tmp_path):
    onnx.save(loop_model(), tmp_path / "loop.onnx")
    result = opsmith.compile(tmp_path / "loop.onnx", tmp_path / "c", regions="all")
    assert [name for _, name, _ in result.left] == ["loop"]
    assert len(result.regions) == 4 and result.verified.ok
    feed = {"x": np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32), "n": np.array(5, np.int64)}
    want = opsmith.load(tmp_path / "loop.onnx").run(None, feed)
    for a, b in zip(want, opsmith.load(result.variant).run(None, feed)):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_what_a_loop_carries_unchanged_is_a_weight_of_its_body(tmp_path):
    """w goes round as a state, once through an Identity; the body's product knows it when it is compiled."""
    value, matrix = helper.make_tensor_value_info, (TensorProto.FLOAT, [8, 8])
    row = (TensorProto.FLOAT, ["b", 8])
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w_in"], ["hw"], name="product"),
            helper.make_node("Tanh", ["hw"], ["h_next"], name="tanh"),
            helper.make_node("Identity", ["w_in"], ["w_out"], name="same"),
            helper.make_node("Identity", ["again"], ["go_on"], name="go"),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("again", TensorProto.BOOL, []),
            value("h", *row),
            value("w_in", *matrix),
        ],
        [value("go_on", TensorProto.BOOL, []), value("h_next", *row), value("w_out", *matrix)],
    )
    nodes = [
        helper.make_node("Loop", ["n", "", "x", "w"], ["last", "w_last"], body=body, name="loop"),
        helper.make_node("MatMul", ["last", "w_last"], ["y"], name="behind"),
    ]
    inputs = [value("x", *row), value("n", TensorProto.INT64, [])]
    w = onnx.numpy_helper.from_array(np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32), "w")
    main = helper.make_graph(nodes, "g", inputs, [value("y", *row)], [w])
    model = helper.make_model(main, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    result = opsmith.compile(model, tmp_path / "c", regions="all")
    programs = sorted((result.variant.path.parent / "src").glob("region*.txt"))
    products = [line for p in programs for line in p.read_text().splitlines() if "gemm(" in line or "matmul(" in line]
    assert len(products) == 2 and all("gemm(" in line for line in products)  # by packed weights
    feed = {"x": np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32), "n": np.array(5, np.int64)}
    onnx.save(model, tmp_path / "loop.onnx")
    want = opsmith.load(tmp_path / "loop.onnx").run(None, feed)[0]
    np.testing.assert_allclose(opsmith.load(result.variant).run(None, feed)[0], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("flag", [True, False])
def test_the_branches_of_an_if_are_compiled_and_read_what_is_around_them(tmp_path, flag):
    model = graph(
        """g (float[n, 4] x, bool c) => (float[n, 4] y) { a = Exp(x)
        y = If (c) <then_branch = t () => (float[n, 4] p) { s = Softmax(a)  p = LpNormalization<p = 1>(s) },
                    else_branch = e () => (float[n, 4] q) { r = Neg(a)  q = Mul(r, x) }> }"""
    )
    result = opsmith.compile(model, tmp_path / "c", regions="all")
    assert [op for op, _, _ in result.left] == ["If"] and len(result.regions) == 3  # LpNormalization by its definition
    feed = {"x": np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32), "c": np.array(flag)}
    want = np.exp(feed["x"])
    want = np.exp(want) / np.exp(want).sum(-1, keepdims=True) if flag else -want * feed["x"]
    np.testing.assert_allclose(opsmith.load(result.variant).run(None, feed)[0], want, rtol=1e-5)


def test_branches_whose_outputs_are_named_like_those_of_the_if_are_compiled_to_their_ends():
    """As merged decoders have it. What is constant needs no region."""
    model = graph(
        """g (float[n, 4] x, bool c) => (float[n, 4] y, float[m] z) {
        y, z = If (c) <then_branch = t () => (float[n, 4] y, float[2] z) { s = Softmax(x)  y = Exp(s)
                                                                         z = Constant<value = float[2] {1, 2}>() },
                       else_branch = e () => (float[n, 4] y, float[3] z) { s = Neg(x)  y = Abs(s)
                                                                         z = Constant<value = float[3] {1, 2, 3}>() }> }"""
    )
    pieces = cut(prepare(load(ir.from_proto(model))), "all", Target(geometry.SCALAR))
    assert [n.op_type for n in pieces.left] == ["If"] and len(pieces.regions) == 2
    assert {pieces.source.renamed[v.name] for r in pieces.regions for v in r.outputs} == {"y"}


def test_what_a_branch_without_choice_computes_early_belongs_to_who_reads_it():
    """The source has Exp inside the second If: no region can give its result to another one."""
    model = graph(
        """g (float[n, 4] x, bool d) => (float[n, 4] y) { one = Constant<value = int64[1] {1}>()  c = Cast<to = 9>(one)
        a = If (d) <then_branch = t () => (float[n, 4] p) { p = Neg(x) }, else_branch = e () => (float[n, 4] q) { q = Abs(x) }>
        y = If (c) <then_branch = u () => (float[n, 4] r) { h = Exp(x)  r = Mul(h, a) },
                    else_branch = f () => (float[n, 4] s) { s = Neg(a) }> }"""
    )
    pieces = cut(prepare(load(ir.from_proto(model))), "all", Target(geometry.SCALAR))
    assert [n.op_type for n in pieces.left] == ["If"]
    assert [n.op_type for n in pieces.regions[0].nodes] == ["Exp", "Mul"]


def test_sizes_are_followed_in_branches_too():
    """torch spells the pads of a Pad as a matrix that it turns round."""
    pads = """z = ConstantOfShape<value = int64[1] {0}>(two)  joined = Concat<axis = 0>(own, z)  pairs = Reshape(joined, by_two)
        back = Slice(pairs, last, lowest, first, last)  turned = Transpose<perm = [1, 0]>(back)  flat = Reshape(turned, last)
        pads = Cast<to = 7>(flat)"""
    model = graph(
        f"""g (float[n, 4] x, bool c) => (float[n, m] y)
        <int64[1] two = {{2}}, int64[2] own = {{0, 3}}, int64[2] by_two = {{-1, 2}}, int64[1] last = {{-1}},
         int64[1] lowest = {{-9223372036854775807}}, int64[1] first = {{0}}> {{
        y = If (c) <then_branch = t () => (float[n, m] p) {{ {pads}  p = Pad<mode = "reflect">(x, pads) }},
                    else_branch = e () => (float[n, m] q) {{ q = Neg(x) }}> }}"""
    )
    source = prepare(load(ir.from_proto(model)))
    assert [n.op_type for n in source.scopes[1].working] == ["Pad"]
    assert source.scopes[1].working[0].inputs[1].const_value.numpy().tolist() == [0, 0, 0, 3]


def test_equal_values_that_simplifying_turns_round_make_no_circle(tmp_path):
    """The condition is constant: the working copy computes `inner` from `y`, the source `y` from `inner`."""
    model = graph(
        """g (float[n, 4] x, int64[k] s) => (float y) { c = Constant<value = bool {0}>()
        e = Exp(x)  inner = Reshape(e, s)
        y = If (c) <then_branch = t () => (float p) { p = Neg(inner) },
                    else_branch = e () => (float q) { q = Identity(inner) }> }"""
    )
    result = opsmith.compile(model, tmp_path / "c", regions="all", verify=False)
    feed = {"x": np.ones((2, 4), np.float32), "s": np.array([4, 2])}
    np.testing.assert_allclose(opsmith.load(result.variant).run(None, feed)[0], np.full((4, 2), np.e), rtol=1e-6)


@pytest.mark.parametrize("branched", [False, True])
def test_a_carried_value_that_is_not_of_the_rank_its_body_declares_is_no_defect(tmp_path, branched):
    """h is declared a scalar, begins as one, and is h + [1] after the first step; BRANCHED: an If inside declares it, too"""
    value = helper.make_tensor_value_info

    def branch(node):
        return helper.make_graph([node], "branch", [], [value(node.output[0], TensorProto.FLOAT, [])])

    choice = helper.make_node(
        "If",
        ["flag"],
        ["h_now"],
        name="choice",
        then_branch=branch(helper.make_node("Add", ["h", "one"], ["more"], name="more")),
        else_branch=branch(helper.make_node("Constant", [], ["none"], value_float=0.0, name="none")),
    )
    one = onnx.numpy_helper.from_array(np.ones(1, np.float32), "one")
    body = helper.make_graph(
        [
            *([choice] if branched else []),
            helper.make_node("Add", ["h_now" if branched else "h", "one"], ["h_next"], name="step"),
            helper.make_node("Identity", ["again"], ["go_on"], name="go"),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("again", TensorProto.BOOL, []), value("h", TensorProto.FLOAT, [])],
        [value("go_on", TensorProto.BOOL, []), value("h_next", TensorProto.FLOAT, [])],
        [one],
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["start"], name="start"),
        helper.make_node("Loop", ["n", "", "start"], ["y"], body=body, name="loop"),
    ]
    inputs = [value("x", TensorProto.FLOAT, []), value("n", TensorProto.INT64, [])]
    inputs += [value("flag", TensorProto.BOOL, [])] if branched else []
    main = helper.make_graph(nodes, "g", inputs, [value("y", TensorProto.FLOAT, None)])
    onnx.save(
        helper.make_model(main, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "loop.onnx"
    )
    result = opsmith.compile(tmp_path / "loop.onnx", tmp_path / "c", regions="all")
    assert result.verified.ok and not result.remarks
    feed = {"x": np.array(0.5, np.float32), "n": np.array(3, np.int64)}
    feed |= {"flag": np.array(True)} if branched else {}
    (got,) = opsmith.load(result.variant).run(None, feed)
    np.testing.assert_allclose(got, [np.exp(np.float32(0.5)) + (6 if branched else 3)], rtol=1e-6)
