from __future__ import annotations

import onnx

from opsmith.check.origins import graph_of, origins


def graph(text: str):
    """A graph from lines such as  y = Add(x, b) ; the node takes the name of its first output in capitals."""
    nodes = []
    for line in text.strip().splitlines():
        outputs, call = line.strip().split(" = ")
        op, inputs = call.rstrip(")").split("(")
        outs = outputs.split(", ")
        name = outs[0].upper()
        if ":" in op:
            name, op = op.split(":")
        nodes.append(onnx.helper.make_node(op, [i for i in inputs.split(", ") if i], outs, name=name))
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    return graph_of(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [])))


ORIGINAL = """
    m = MatMul(x, w)
    a = Add(m, b)
    e = Erf(a)
    y = Mul(e, a)
    z = Add(y, x)
"""


def test_a_fused_node_stands_for_all_it_replaced():
    found = origins(graph(ORIGINAL), graph("a = Gemm(x, w, b)\ny = Gelu(a)\nz = Add(y, x)"))
    assert found == [("M", "A"), ("E", "Y"), ("Z",)]


def test_the_same_graph_maps_onto_itself():
    same = graph(ORIGINAL)
    assert origins(same, same) == [(n.name,) for n in same.nodes]


def test_inner_nodes_of_an_inlined_function_belong_to_the_call():
    found = origins(graph("y = Silu(x)\nz = Relu(y)"), graph("t = Sigmoid(x)\ny = Mul(x, t)\nz = Relu(y)"))
    assert found == [("Y",), ("Y",), ("Z",)]


def test_parallel_branches_do_not_take_each_others_nodes():
    original = graph("p = A(x)\nq = B(x)\np2 = C(p)\nq2 = D(q)\nr = E(p2, q2)")
    found = origins(original, graph("q2 = BD(x)\np2 = AC(x)\nr = E(p2, q2)"))
    assert found == [("Q", "Q2"), ("P", "P2"), ("R",)]


def test_layout_copies_are_found_by_the_value_in_their_name():
    found = origins(
        graph("c = Conv(x, w)\nr = Relu(c)\nd = Conv(r, v)"),
        graph("t0 = r_nchwc:Conv(x, w0)\nt1 = d_nchwc:Conv(t0, v0)\nd = ReorderOutput(t1)"),
    )
    assert found == [("C", "R"), ("D",), ("D",)]


def test_folded_nodes_belong_to_nobody():
    found = origins(graph("k = Constant()\ns = Sqrt(k)\ny = Mul(x, s)"), graph("y = Mul(x, folded)"))
    assert found == [("Y",)]
