"""Models that ONNX allows and exporters rarely write: rewriting keeps their inputs, outputs and meaning at every level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper as h
from onnx import numpy_helper as nh
from rewrite_graphs import random_inputs, run

import opsmith
from opsmith.compiler.simplify import simplify
from opsmith.rewriter import rewrite_model


def proto_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int]],
    outputs: dict[str, int],
    constants: dict[str, Any] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    values = [h.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()]
    results = [h.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    tensors = [nh.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = h.make_graph(nodes, "g", values, results, tensors)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8)


def check(proto: onnx.ModelProto) -> None:
    inputs = random_inputs(proto)
    expected = run(proto, inputs)
    for level in range(4):
        model = ir.from_proto(proto)
        rewrite_model(model, level=level)
        after = ir.to_proto(model)
        assert [v.name for v in after.graph.input] == [v.name for v in proto.graph.input], f"level {level}"
        assert [v.name for v in after.graph.output] == [v.name for v in proto.graph.output], f"level {level}"
        for want, got in zip(expected, run(after, inputs), strict=True):
            assert want.shape == got.shape and want.dtype == got.dtype, f"level {level}"
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=f"level {level}")


N = h.make_node
FLOAT, INT64 = 1, 7


def test_an_input_that_is_an_output_beside_one_that_turns_out_to_be_it() -> None:
    nodes = [N("Reshape", ["x", "flat"], ["f"]), N("Shape", ["x"], ["s"]), N("Reshape", ["f", "s"], ["y"])]
    proto = proto_of(nodes, {"x": [3, 4]}, {"y": FLOAT, "x": FLOAT}, {"flat": np.array([-1])}, 17)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    check(proto)


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
def test_an_output_that_is_constant(opset: int) -> None:
    nodes = [N("Relu", ["x"], ["r"]), N("Shape", ["x"], ["y"]), N("Gather", ["y", "i"], ["g"])]
    nodes.append(N("Cast", ["g"], ["c"], to=1))
    check(proto_of(nodes, {"x": [3, 4]}, {"r": FLOAT, "y": INT64, "c": FLOAT}, {"i": np.int64(0)}, opset))


def test_outputs_of_one_value() -> None:
    nodes = [N("Relu", ["x"], ["r"]), N("Identity", ["r"], ["y"]), N("Identity", ["r"], ["z"])]
    check(proto_of(nodes, {"x": [3, 4]}, {"y": FLOAT, "z": FLOAT, "r": FLOAT}))


def test_equal_computations_are_two_outputs() -> None:
    check(proto_of([N("Relu", ["x"], ["y"]), N("Relu", ["x"], ["z"])], {"x": [3, 4]}, {"y": FLOAT, "z": FLOAT}))


def test_an_initializer_as_output_once_and_twice() -> None:
    nodes = [N("Relu", ["x"], ["r"]), N("Identity", ["i"], ["a"]), N("Identity", ["i"], ["b"])]
    check(proto_of(nodes, {"x": [3, 4]}, {"r": FLOAT, "i": INT64, "a": INT64, "b": INT64}, {"i": np.int64(5)}))


def test_an_input_that_is_an_output() -> None:
    check(proto_of([N("Relu", ["x"], ["y"])], {"x": [2]}, {"y": FLOAT, "x": FLOAT}))
    check(proto_of([N("Add", ["x", "zero"], ["y"])], {"x": [2]}, {"y": FLOAT}, {"zero": np.float32(0)}))


@pytest.mark.parametrize("opset", [9, 13, 18])
def test_an_initializer_that_can_be_overridden(opset: int) -> None:
    nodes = [N("Sub", ["x", "lo"], ["d"]), N("Mul", ["d", "hi"], ["y"])]
    proto = proto_of(nodes, {"x": [1, 2], "hi": []}, {"y": FLOAT}, {"lo": np.float32(-1), "hi": np.float32(2)}, opset)
    check(proto)
    model = ir.from_proto(proto)
    rewrite_model(model, level=2)
    x = np.ones((1, 2), np.float32)
    for given, want in (({}, 4), ({"hi": np.array(3, np.float32)}, 6)):
        assert np.array_equal(run(ir.to_proto(model), {"x": x, **given})[0], np.full((1, 2), want))


# --- operators whose meaning changed ---


@pytest.mark.parametrize("opset", [9, 11, 12])
@pytest.mark.parametrize("op", ["Hardmax", "Softmax", "LogSoftmax"])
@pytest.mark.parametrize("attributes", [{}, {"axis": 0}, {"axis": 1}, {"axis": 2}])
def test_rows_before_opset_13(op: str, attributes: dict[str, int], opset: int) -> None:
    check(
        proto_of(
            [N(op, ["x"], ["z"], **attributes), N("Neg", ["z"], ["y"])], {"x": [2, 3, 4]}, {"y": FLOAT}, opset=opset
        )
    )


@pytest.mark.parametrize("op, opset", [("Upsample", 9), ("Resize", 10)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_positions_of_resize_before_opset_11(op: str, opset: int, mode: str) -> None:
    scales = {"s": np.array([1, 1, 1.7, 2.3], np.float32)}
    check(proto_of([N(op, ["x", "s"], ["y"], mode=mode)], {"x": [1, 2, 5, 6]}, {"y": FLOAT}, scales, opset))


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_axes_as_attributes(opset: int) -> None:
    nodes = [
        N("Squeeze", ["x"], ["s"], axes=[-1 if opset > 10 else 2]),
        N("Split", ["s"], ["a", "b"], axis=0, split=[1, 1]),
    ]
    nodes += [N("Unsqueeze", ["a"], ["u"], axes=[0]), N("Shape", ["u"], ["t"])]
    check(proto_of(nodes, {"x": [2, 1, 1]}, {"b": FLOAT, "u": FLOAT, "t": INT64}, opset=opset))


@pytest.mark.parametrize("shape", [[0, 4], [4, 0], [2, 4]])
@pytest.mark.parametrize("axis", [0, -1])
def test_equal_parts_of_an_axis_that_may_be_empty_before_opset_18(shape: list[int], axis: int) -> None:
    nodes = [N("Slice", ["x", "from", "to", "axes"], ["s"]), N("Split", ["s"], ["y", "z"], axis=axis)]
    constants = {"from": np.array([0, 0]), "to": np.array([9, 9]), "axes": np.array([0, 1])}
    check(proto_of(nodes, {"x": shape}, {"y": FLOAT, "z": FLOAT}, constants, opset=14))


def test_equal_parts_of_an_unknown_axis_before_opset_18() -> None:
    proto = proto_of([N("Split", ["x"], ["y", "z"], axis=0)], {"x": ["n", 3]}, {"y": FLOAT, "z": FLOAT}, opset=13)  # type: ignore[list-item]
    model = ir.from_proto(proto)
    rewrite_model(model, level=2)
    for rows in (0, 2, 6):
        x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        for want, got in zip(np.split(x, 2), run(ir.to_proto(model), {"x": x}), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("start", [-9, -4, -3, -1, 0, 5])
def test_a_slice_backwards_begins_inside_its_axis_wherever_it_starts(start: int) -> None:
    nodes = [N("Shape", ["x"], ["s"]), N("Slice", ["s", "from", "to", "axes", "steps"], ["y"])]
    nodes.append(N("Slice", ["x", "from", "to", "axes", "steps"], ["z"]))
    constants = {"from": np.array([start]), "to": np.array([-9]), "axes": np.array([0]), "steps": np.array([-1])}
    check(proto_of(nodes, {"x": [3, 1, 2]}, {"y": INT64, "z": FLOAT}, constants))


@pytest.mark.parametrize("outputs", [{"y": INT64, "z": FLOAT}, {"y": INT64, "e": FLOAT}])
def test_the_size_of_an_einsum_that_stretches_an_operand(outputs: dict[str, int]) -> None:
    nodes = [N("Einsum", ["x", "w"], ["e"], equation="bij,bij->b"), N("Size", ["e"], ["y"]), N("Neg", ["e"], ["z"])]
    check(proto_of(nodes, {"x": [1, 2, 3], "w": [4, 2, 3]}, outputs))


def test_a_pad_that_is_an_output_beside_the_convolution_that_reads_it() -> None:
    nodes = [N("Pad", ["x", "pads"], ["y"]), N("Conv", ["y", "w"], ["z"])]
    constants = {"pads": np.array([0, 0, 1, 0, 0, 1]), "w": np.ones((2, 3, 2), np.float32)}
    check(proto_of(nodes, {"x": [1, 3, 5]}, {"y": FLOAT, "z": FLOAT}, constants))


def test_old_operators_inside_branches() -> None:
    text = """<ir_version: 7, opset_import: ["": 11]> g (bool c, float[2,3,4] x) => (float[2,3,4] y) {
        y = If(c) <then_branch = t () => (float[2,3,4] a) { a = Hardmax<axis=1>(x) },
                   else_branch = e () => (float[2,3,4] b) { s = Unsqueeze<axes=[0]>(x) b = Squeeze<axes=[0]>(s) }> }"""
    proto = onnx.parser.parse_model(text)
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    for level in range(3):
        model = ir.from_proto(proto)
        rewrite_model(model, level=level)
        for c in (True, False):
            feed = {"c": np.array(c), "x": x}
            assert np.array_equal(run(ir.to_proto(model), feed)[0], run(proto, feed)[0])


@pytest.mark.parametrize("opset", [7, 10])
@pytest.mark.parametrize("kind", [FLOAT, 10, 11])
def test_numbers_of_pad_and_clip_have_the_type_of_their_operand(kind: int, opset: int) -> None:
    nodes = [
        N("Pad", ["x"], ["y"], pads=[1, 0, 1, -1], value=1.5),
        N("Pad", ["x"], ["z"], pads=[1, 0, 1, 1], mode="edge", value=1.5),
    ]
    results = {"y": kind, "z": kind}
    if kind != 11:  # of which ONNX Runtime has no Clip there
        nodes += [N("Neg", ["x"], ["n"]), N("Clip", ["n"], ["c"], max=0.5)]
        results["c"] = kind
    proto = proto_of(nodes, {"x": [2, 3]}, results, opset=opset)
    proto.graph.input[0].type.tensor_type.elem_type = kind
    check(proto)


def test_powers_of_integers_that_overflow_are_not_folded() -> None:
    base = np.array([-1, -(2**31), 2**31 - 1, 3], np.int32)
    nodes = [N("Pow", ["k", "e"], ["p"]), N("Pow", ["k", "l"], ["q"]), N("Cast", ["p"], ["pf"], to=FLOAT)]
    nodes += [N("Cast", ["q"], ["qf"], to=FLOAT), N("Add", ["x", "pf"], ["y"]), N("Add", ["x", "qf"], ["z"])]
    constants = {"k": base, "e": np.array([4, 5, 6, 2]), "l": np.array([2, 0, 1, -1], np.float32)}
    check(proto_of(nodes, {"x": [4]}, {"y": FLOAT, "z": FLOAT}, constants))
    small = [N("Pow", ["a", "b"], ["p"]), N("ReduceSum", ["p"], ["q"]), N("Cast", ["q"], ["k"], to=FLOAT)]
    assert _folded(small, {"a": np.array([3, 2]), "b": np.array([2, 40])}) == {"Add"}


def test_the_mask_of_a_dropout_before_opset_12() -> None:
    check(proto_of([N("Dropout", ["x"], ["y", "z"], ratio=0.5)], {"x": [2, 3]}, {"y": FLOAT, "z": 9}, opset=10))


# --- what the folder reads otherwise than ONNX Runtime ---

K = np.arange(1.0, 19.0, dtype=np.float32).reshape(1, 2, 9)


@pytest.mark.parametrize(
    "opset, node",
    [
        (11, N("Softmax", ["k"], ["c"])),
        (12, N("LogSoftmax", ["k"], ["c"], axis=0)),
        (12, N("Hardmax", ["k"], ["c"])),
        (22, N("MaxPool", ["k"], ["c"], kernel_shape=[3], auto_pad="SAME_LOWER", dilations=[2])),
        (22, N("GlobalMaxPool", ["k"], ["c"])),
        (22, N("LpNormalization", ["k"], ["c"], p=1)),
        (9, N("BatchNormalization", ["k", "s", "s", "s", "s"], ["c"], momentum=0.0)),
        (13, N("NegativeLogLikelihoodLoss", ["k", "i"], ["c"])),
        (13, N("Squeeze", ["k", "none"], ["c"])),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else str(value),
)
def test_constants_have_the_values_that_onnx_runtime_gives_them(opset: int, node: onnx.NodeProto) -> None:
    constants = {
        "k": K,
        "s": np.array([1, 2], np.float32),
        "i": np.ones((1, 9), np.int64),
        "none": np.zeros(0, np.int64),
    }
    read = {name: array for name, array in constants.items() if name in node.input}
    check(proto_of([node, N("Add", ["x", "c"], ["y"])], {"x": [1]}, {"y": FLOAT}, read, opset))


def test_a_group_norm_in_double_precision() -> None:
    text = "(double[n,4,5] x, double[4] s, double[4] b) => (double[n,4,5] y) "
    written = """<int64[3] rows = {0, 2, -1}, int64[1] last = {-1}, double e = {1e-5}, double[4,1] k = {1, 2, 3, 4}> {
      r = Reshape(x, rows)  m = ReduceMean(r, last)  d = Sub(r, m)  p = Mul(d, d)  v = ReduceMean(p, last)  a = Add(v, e)
      q = Sqrt(a)  u = Div(d, q)  g = Shape(x)  w = Reshape(u, g)  z = Mul(w, k)  y = Add(z, k) }"""
    for body in (written, "{ y = GroupNormalization <num_groups = 2> (x, s, b) }"):
        check(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 21]> g {text}{body}'))


# --- random numbers ---


DRAWS = [  # each reads `k`, which is an input or a constant
    ("Bernoulli", ["k"], {}),
    ("Dropout", ["k", "half", "yes"], {}),
    ("Multinomial", ["k"], {"sample_size": 4}),
    ("RandomNormal", [], {"shape": [1, 4]}),
    ("RandomNormalLike", ["k"], {}),
]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("op, inputs, attributes", DRAWS, ids=lambda v: v if isinstance(v, str) else None)
def test_equal_nodes_that_draw_random_numbers_stay_two(
    op: str, inputs: list[str], attributes: dict[str, Any], constant: bool
) -> None:
    constants = {"k": np.full((1, 4), 0.5, np.float32), "half": np.float32(0.5), "yes": np.array(True)}
    fed = {"x": [1, 4]} if constant else {"x": [1, 4], "k": [1, 4]}
    held = {name: array for name, array in constants.items() if name in inputs and name not in fed}
    nodes = [N(op, inputs, [name], **attributes) for name in "ab"]
    nodes += [N("Cast", [name], [f"{name}f"], to=FLOAT) for name in "ab"]
    nodes += [N("Sub", ["af", "bf"], ["d"]), N("Add", ["x", "d"], ["y"])]
    for make in (rewrite_model, simplify):
        model = ir.from_proto(proto_of(nodes, fed, {"y": FLOAT}, held))
        make(model)
        assert [n.op_type for n in model.graph].count(op) == 2, make.__module__


def test_an_attention_keeps_the_present_that_nobody_reads(tmp_path: Path) -> None:
    """ONNX Runtime refuses a past whose present is left out. `compile` without verification: the node stays for its keys."""
    rng = np.random.default_rng(0)
    held = {name: rng.normal(size=(1, 2, 3, 8)).astype(np.float32) for name in ("k", "v", "past_k", "past_v")}
    node = N("Attention", ["q", "k", "v", "", "past_k", "past_v"], ["y", "pk", "pv"])
    proto = proto_of([node], {"q": [1, 2, 4, 8]}, {"y": FLOAT, "pk": FLOAT}, held, 23)
    proto.ir_version = 10
    check(proto)
    onnx.save(proto, tmp_path / "m.onnx")
    result = opsmith.compile(tmp_path / "m.onnx", tmp_path / "c", regions="all", verify=False)
    inputs = random_inputs(proto)
    for want, got in zip(run(proto, inputs), opsmith.load(result.variant).run(None, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# --- the budget of folding ---


def _folded(nodes: list[onnx.NodeProto], constants: dict[str, Any]) -> set[str]:
    proto = proto_of([*nodes, N("Add", ["x", "k"], ["y"])], {"x": [1]}, {"y": FLOAT}, constants)
    model = ir.from_proto(proto)
    rewrite_model(model, level=1)
    return {n.op_type for n in model.graph}


def test_small_constants_fold_and_large_ones_stay() -> None:
    for count, left in ((100, {"Add"}), (10**6, {"Expand", "Add"})):
        assert _folded([N("Expand", ["c", "s"], ["k"])], {"c": np.float32(1), "s": np.array([count])}) == left


def test_an_einsum_whose_labels_multiply_is_not_computed_while_folding() -> None:
    constants = {name: np.ones(60, np.float32) for name in "abcdef"}
    nodes = [N("Einsum", list("abcdef"), ["k"], equation="i,j,k,l,m,n->")]
    assert "Einsum" in _folded(nodes, constants)
