"""FLOPs: each formula against a count by hand, and the ways to find shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from opsmith import ops
from opsmith.check.flops import flops
from opsmith.errors import OpsmithError


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: list[str],
    weights: dict[str, np.ndarray] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info(n, T.FLOAT, s) for n, s in inputs.items()],
        [onnx.ValueInfoProto(name=n, type=h.make_tensor_type_proto(T.FLOAT, None)) for n in outputs],
        [onnx.numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    opsets = [h.make_opsetid("", 20), h.make_opsetid("com.microsoft", 1), h.make_opsetid("opsmith", 1)]
    return h.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions or [])


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


ONE_NODE = {
    # y [2,8,5,5], 3x3 kernel over 4 channels, and a bias
    "conv": (
        h.make_node("Conv", ["x", "w", "b"], ["y"]),
        {"x": [2, 4, 7, 7]},
        {"w": zeros(8, 4, 3, 3), "b": zeros(8)},
        2 * 8 * 5 * 5 * (2 * 4 * 9 + 1),
    ),
    "grouped conv": (
        h.make_node("Conv", ["x", "w"], ["y"], group=4),
        {"x": [1, 4, 7, 7]},
        {"w": zeros(8, 1, 3, 3)},
        8 * 5 * 5 * 2 * 9,
    ),
    # every input element is multiplied into [8 channels, 2, 2]
    "conv transpose": (
        h.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2]),
        {"x": [1, 4, 5, 5]},
        {"w": zeros(4, 8, 2, 2)},
        2 * 4 * 25 * 8 * 4,
    ),
    "gemm": (
        h.make_node("Gemm", ["x", "w", "b"], ["y"], transA=1),
        {"x": [6, 3]},
        {"w": zeros(6, 5), "b": zeros(5)},
        3 * 5 * (2 * 6 + 1),
    ),
    "matmul": (h.make_node("MatMul", ["x", "w"], ["y"]), {"x": [2, 3, 6]}, {"w": zeros(6, 5)}, 2 * 2 * 3 * 5 * 6),
    "einsum product": (
        h.make_node("Einsum", ["x", "z"], ["y"], equation="bhqd,bhkd->bhqk"),
        {"x": [2, 3, 4, 8], "z": [2, 3, 5, 8]},
        {},
        2 * 2 * 3 * 4 * 5 * 8,
    ),
    "einsum with dots": (
        h.make_node("Einsum", ["x", "z"], ["y"], equation="...ij,jk->...ik"),
        {"x": [7, 2, 3], "z": [3, 4]},
        {},
        2 * 7 * 2 * 3 * 4,
    ),
    "einsum transpose": (h.make_node("Einsum", ["x"], ["y"], equation="ij->ji"), {"x": [4, 5]}, {}, 0),
    "elementwise": (h.make_node("Tanh", ["x"], ["y"]), {"x": [4, 5]}, {}, 20),
    "broadcast": (h.make_node("Add", ["x", "w"], ["y"]), {"x": [4, 1]}, {"w": zeros(5)}, 20),
    "reduction": (h.make_node("ReduceMean", ["x"], ["y"]), {"x": [4, 5]}, {}, 20),
    "pool": (h.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2]), {"x": [1, 1, 5, 5]}, {}, 16 * 4),
    "transpose": (h.make_node("Transpose", ["x"], ["y"]), {"x": [4, 5]}, {}, 0),
    "lstm": (
        h.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=6),
        {"x": [7, 2, 5]},
        {"w": zeros(1, 24, 5), "r": zeros(1, 24, 6)},
        7 * 2 * 2 * 24 * (5 + 6),
    ),
    # 12 heads of 8: scores and values 2 * 2 * B*S*T*96, softmax 5 * B*H*S*T; shapes by a run, ONNX cannot infer them
    "fused attention": (
        h.make_node("MultiHeadAttention", ["x", "z", "z"], ["y"], domain="com.microsoft", num_heads=12),
        {"x": [1, 4, 96], "z": [1, 7, 96]},
        {},
        4 * 7 * (4 * 96 + 5 * 12),
    ),
}


@pytest.mark.parametrize("name", ONE_NODE)
def test_formula(name: str) -> None:
    node, inputs, weights, expected = ONE_NODE[name]
    cost = flops(model([node], inputs, ["y"], weights))
    assert cost.total == expected and not cost.unknown


def test_symbols_get_defaults_that_are_stated_or_the_values_given() -> None:
    m = model([h.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["batch", "sequence", 6]}, ["y"], {"w": zeros(6, 5)})
    cost = flops(m)
    assert cost.dims == {"batch": 1, "sequence": 128} and cost.total == 2 * 128 * 5 * 6
    assert flops(m, {"batch": 3, "sequence": 2}).total == 2 * 3 * 2 * 5 * 6
    assert flops(m, {"x": (4, 1, 6)}).total == 2 * 4 * 5 * 6
    with pytest.raises(OpsmithError, match="no dim 'rows'"):
        flops(m, {"rows": 3})


def test_bytes_count_inputs_outputs_and_weights() -> None:
    m = model([h.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, 6]}, ["y"], {"w": zeros(6, 5)})
    assert flops(m).nodes[0].bytes == 4 * (12 + 30 + 10)


def test_a_function_call_costs_what_its_body_does() -> None:
    square = h.make_function(
        "opsmith",
        "ScaledProduct",
        ["a", "b"],
        ["y"],
        [
            h.make_node("MatMul", ["a", "b"], ["ab"]),
            h.make_node("Constant", [], ["one"], value=onnx.numpy_helper.from_array(np.float32(1))),
            h.make_node("Mul", ["ab", "one"], ["y"]),
        ],
        [h.make_opsetid("", 20)],
    )
    nodes = [
        h.make_node("ScaledProduct", ["x", "w"], ["h"], domain="opsmith", name="first"),
        h.make_node("ScaledProduct", ["h", "w"], ["y"], domain="opsmith", name="second"),
    ]
    cost = flops(model(nodes, {"x": [3, 6]}, ["y"], {"w": zeros(6, 6)}, [square]))
    assert [(n.name, n.op, n.flops) for n in cost.nodes] == [
        ("first", "opsmith.ScaledProduct", 2 * 3 * 36 + 18),
        ("second", "opsmith.ScaledProduct", 2 * 3 * 36 + 18),
    ]
    assert cost.by_op() == {"opsmith.ScaledProduct": (2, 2 * (2 * 3 * 36 + 18))}


def test_function_attributes_reach_the_body() -> None:
    reduce = h.make_function(
        "opsmith",
        "Turned",
        ["a", "b"],
        ["y"],
        [h.make_node("Gemm", ["a", "b"], ["y"])],
        [h.make_opsetid("", 20)],
        ["t"],
    )
    reference = reduce.node[0].attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "transA", "t", onnx.AttributeProto.INT
    node = h.make_node("Turned", ["x", "w"], ["y"], domain="opsmith", t=1)
    assert flops(model([node], {"x": [6, 3]}, ["y"], {"w": zeros(6, 5)}, [reduce])).total == 3 * 5 * 2 * 6


def test_shapes_that_depend_on_data_are_measured() -> None:
    nodes = [h.make_node("NonZero", ["x"], ["at"]), h.make_node("Cast", ["at"], ["f"], to=T.FLOAT)]
    nodes += [h.make_node("Transpose", ["f"], ["t"]), h.make_node("MatMul", ["f", "t"], ["y"])]
    m = model(nodes, {"x": [4, 5]}, ["y"])
    cost = flops(m)
    assert cost.measured and cost.total == 2 * 2 * 2 * 20  # random numbers: all 20 are nonzero, [2,20] @ [20,2]
    assert [n.op for n in flops(m, run=False).unknown] == ["MatMul"]


def test_unknown_ops_are_named_not_guessed() -> None:
    cost = flops(model([h.make_node("Forge", ["x"], ["y"], domain="somewhere")], {"x": [4]}, ["y"]))
    assert cost.total == 0 and [n.op for n in cost.unknown] == ["somewhere.Forge"]


def test_external_weights_are_not_read(tmp_path: Path) -> None:
    m = model([h.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 64]}, ["y"], {"w": zeros(64, 32)})
    onnx.save(m, str(tmp_path / "m.onnx"), save_as_external_data=True, location="m.data", size_threshold=0)
    assert flops(tmp_path / "m.onnx", {"n": 10}).total == 2 * 10 * 64 * 32


def test_an_operator_that_was_added_to_the_table_counts_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    node = h.make_node("Bend", ["x"], ["y"], domain="com.example")
    bent = model([node], {"x": [2, 8]}, ["y"])
    bent.opset_import.append(h.make_opsetid("com.example", 1))
    bent.graph.output[0].type.CopyFrom(h.make_tensor_type_proto(T.FLOAT, [2, 8]))
    assert flops(bent, run=False).unknown
    monkeypatch.setattr(ops, "TABLE", dict(ops.TABLE))
    ops.row("com.example::Bend", lambda x: 1 - 2 / x, arity=1)
    assert flops(bent, run=False).total == 16


def test_a_run_for_shapes_gives_up_on_a_loop_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsmith.check.flops.LONGEST_LOOP", 0.1)
    endless = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        g (float[n] x) => (float[m] y) <int64 most = {4611686018427387904}, bool yes = {1}> {
            y = Loop <body = b (int64 i, bool go, float[k] s) => (bool more, float[k] t) {
                t = Neg(s)  sum = ReduceSum<keepdims=0>(t)  more = LessOrEqual(sum, sum)
            }> (most, yes, x)
        }""")
    cost = flops(endless)
    assert (
        cost.nodes[0].flops is None and cost.note == "shapes could not be measured: the model ran for more than 0.1 s"
    )


def test_a_branch_counts_what_it_did_in_the_run_that_measured_its_shapes() -> None:
    branching = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        g (float[n, 8] x, bool go) => (float[m, k] y) <float[8, 4] w = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}> {
            y = If(go) <then_branch = a () => (float[i, j] p) { rows = NonZero(x) r = CastLike(rows, x) q = MatMul(x, w) p = Neg(q) },
                        else_branch = b () => (float[i, j] s) { s = Abs(x) }>
        }""")
    cost = flops(branching, {"n": 3})
    assert cost.nodes[0].op == "If" and cost.total == 2 * 3 * 8 * 4 + 3 * 4


def test_sizes_that_do_not_run_give_way_to_sizes_that_do() -> None:
    """[1, samples] -> [samples / 500, 500]: the small default does not fit, a second of sound does."""
    picky = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        g (float[1, samples] x) => (float[a, b] y) <int64[2] to = {-1, 500}> { r = Reshape(x, to) y = Neg(r) }""")
    assert flops(picky).total == 16000
    with pytest.raises(OpsmithError):
        flops(picky, {"nothing": 7})
