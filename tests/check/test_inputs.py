"""Random inputs: dims that belong together vary together, and values that models accept."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from opsmith.check import inputs, kinds, values
from opsmith.errors import OpsmithError
from opsmith.session import load, run

Spec = dict[str, tuple[int, list[int | str | None]]]


def model(spec: Spec, nodes: list[onnx.NodeProto] | None = None, **weights: np.ndarray) -> ir.Model:
    graph = h.make_graph(
        nodes or [],
        "g",
        [h.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in spec.items()],
        [],
        [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return ir.from_proto(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10))


DECODER: Spec = {
    "input_ids": (T.INT64, ["batch", "sequence_length"]),
    "attention_mask": (T.INT64, ["batch", "past_sequence_length + sequence_length"]),
    "position_ids": (T.INT64, ["batch", "sequence_length"]),
    "past_key_values.0.key": (T.FLOAT, ["batch", 2, "past_sequence_length", 8]),
}


def shapes_of(m: ir.Model, count: int = 3) -> list[dict[str, tuple[int, ...]]]:
    found = inputs.specs(m)
    return [{s.name: inputs.shape_of(s, dims) for s in found} for dims in inputs.cases(found, count)]


def test_symbols_shared_between_inputs_get_one_value_and_sums_follow() -> None:
    assert inputs.symbols(inputs.specs(model(DECODER))) == ["batch", "sequence_length", "past_sequence_length"]
    first, second, third = shapes_of(model(DECODER))
    assert first["input_ids"] == (1, 1) and first["past_key_values.0.key"][2] == 128  # one decode step, as usual
    assert second["past_key_values.0.key"][2] == 0  # a prompt without a past
    for shapes in (first, second, third):
        batch, length = shapes["input_ids"]
        past = shapes["past_key_values.0.key"][2]
        assert shapes["attention_mask"] == (batch, past + length)
        assert shapes["past_key_values.0.key"] == (batch, 2, past, 8)


def test_the_usual_name_of_a_total_length_is_understood() -> None:
    spec = {**DECODER, "attention_mask": (T.INT64, ["batch", "total_sequence_length"])}
    for shapes in shapes_of(model(spec)):
        assert shapes["attention_mask"][1] == shapes["past_key_values.0.key"][2] + shapes["input_ids"][1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("a + b", 5), ("2*a", 4), ("(a + 1)*b", 9), ("b - a", 1), ("b // 2", 1), ("a + 1", 3), ("a", 2)),
        *(("b / 2", 1), ("7 % b", 1), ("b**2", 9), ("7 // (b - 3)", None), ("c", None)),
    ],
)
def test_expressions(text: str, expected: int | None) -> None:
    assert inputs.evaluate(text, {"a": 2, "b": 3}) == expected


@pytest.mark.parametrize("text", ["__import__('os')", "a.b", "a ** 99", "f(a)", "[a]", "a if a else a", "'a'", "a\n+"])
def test_only_arithmetic_is_evaluated(text: str) -> None:
    assert inputs.evaluate(text, {"a": 2, "b": 3}) is None


def test_a_name_with_a_dash_is_a_name() -> None:
    m = model({"x": (T.FLOAT, ["batch-size", 4])})
    assert inputs.symbols(inputs.specs(m)) == ["batch-size"]
    assert [s["x"] for s in shapes_of(m)] == [(1, 4), (2, 4), (3, 4)]


def test_nameless_dims_share_the_batch_and_vary_else() -> None:
    m = model({"a": (T.FLOAT, [None, None]), "b": (T.FLOAT, [None, 3])})
    for shapes in shapes_of(m):
        assert shapes["a"][0] == shapes["b"][0]


def test_a_static_model_has_one_case() -> None:
    assert shapes_of(model({"x": (T.FLOAT, [2, 3])})) == [{"x": (2, 3)}]


def test_images_get_even_sizes_with_height_and_width_apart() -> None:
    shapes = [s["sample"] for s in shapes_of(model({"sample": (T.FLOAT, ["b", 4, "h", "w"])}))]
    assert any(s[2] != s[3] for s in shapes) and all(s[2] % 8 == 0 and s[3] % 8 == 0 for s in shapes)


def test_fixed_dims_stay_and_the_others_vary() -> None:
    found = inputs.specs(model(DECODER))
    cases = inputs.cases(found, 3, {"input_ids": (2, 9)})
    assert {(c["batch"], c["sequence_length"]) for c in cases} == {(2, 9)}
    assert {c["past_sequence_length"] for c in cases} == {0, 5, 128}


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"seq": 3}, "no dim 'seq'.*it has batch, sequence_length"),
        ({"ids": (1, 2)}, "no input 'ids'"),
        ({"input_ids": (1, 2, 3)}, "rank 2, not 3"),
        ({"input_ids": (1, 2), "batch": 3}, "given as 1 and as 3"),
        ({"past_key_values.0.key": (1, 3, 4, 8)}, "cannot be 1x3x4x8"),
        ({"batch": -1}, "cannot be -1"),
    ],
)
def test_dims_that_do_not_fit_are_refused(fixed: inputs.Fixed, message: str) -> None:
    with pytest.raises(OpsmithError, match=message):
        inputs.cases(inputs.specs(model(DECODER)), 2, fixed)


def test_shapes_on_the_command_line() -> None:
    assert inputs.parse_fixed(["x=1x4x64x64", "batch=2", "a=b=3"]) == {"x": (1, 4, 64, 64), "batch": 2, "a=b": 3}
    for bad in ("x", "x=", "=1", "x=1x", "x=-1", "x=1.5"):
        with pytest.raises(OpsmithError, match="is not a shape"):
            inputs.parse_fixed([bad])


# --- values -----------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_numbers() -> None:
    m = model(DECODER)
    dims = inputs.default_dims(inputs.specs(m))
    one, two, three = (values.random_inputs(m, dims, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(one[n], two[n]) for n in one)
    assert not np.array_equal(one["input_ids"], three["input_ids"])


def test_ids_stay_below_the_table_they_index() -> None:
    nodes = [h.make_node("Cast", ["input_ids"], ["i32"], to=T.INT32), h.make_node("Gather", ["table", "i32"], ["y"])]
    m = model({"input_ids": (T.INT64, ["b", "s"])}, nodes, table=np.zeros((7, 2), np.float32))
    ids = values.random_inputs(m, {"b": 50, "s": 50})["input_ids"]
    assert ids.min() == 0 and ids.max() == 6 and ids.dtype == np.int64


def test_ids_into_a_quantized_table_stay_below_it_too() -> None:
    nodes = [
        h.make_node("DequantizeLinear", ["table", "scale"], ["wide"]),
        h.make_node("Gather", ["wide", "input_ids"], ["y"]),
    ]
    weights = {"table": np.zeros((5, 2), np.int8), "scale": np.float32(1)}
    m = model({"input_ids": (T.INT64, ["b", "s"])}, nodes, **weights)
    assert values.random_inputs(m, {"b": 50, "s": 50})["input_ids"].max() == 4


def test_masks_are_ones_with_some_zeros_and_never_all_zero() -> None:
    m = model(DECODER)
    for dims in inputs.cases(inputs.specs(m), 3):
        mask = values.random_inputs(m, dims)["attention_mask"]
        assert set(np.unique(mask)) <= {0, 1} and mask[0].all() and (mask.sum(axis=1) > 0).all()
        if dims["batch"] > 1:
            assert (mask[1:] == 0).any(axis=1).all()
            # no query without a key: query i sees keys up to past + i
            past = dims["past_sequence_length"]
            assert all(mask[:, : past + i + 1].any(axis=1).all() for i in range(dims["sequence_length"]))


def test_positions_continue_after_the_past() -> None:
    m = model(DECODER)
    got = values.random_inputs(m, {"batch": 2, "sequence_length": 3, "past_sequence_length": 5})["position_ids"]
    np.testing.assert_array_equal(got, [[5, 6, 7], [5, 6, 7]])


def test_every_numeric_type_can_be_fed() -> None:
    kinds = [T.FLOAT, T.FLOAT16, T.DOUBLE, T.INT8, T.UINT8, T.INT16, T.UINT16, T.INT32, T.UINT32, T.INT64, T.UINT64]
    kinds += [T.BOOL, T.BFLOAT16]
    for kind in kinds:
        graph = h.make_graph(
            [h.make_node("Identity", ["x"], ["y"])],
            "g",
            [h.make_tensor_value_info("x", kind, ["n", 3])],
            [h.make_tensor_value_info("y", kind, ["n", 3])],
        )
        proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)
        feed = values.random_inputs(ir.from_proto(proto), {"n": 4})
        (got,) = run(load(proto), feed)
        assert got.dtype == feed["x"].dtype
        np.testing.assert_array_equal(got, feed["x"])


def test_what_cannot_be_made_up_is_said() -> None:
    m = model({})
    m.graph.inputs.append(ir.Value(name="x", type=ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))))
    with pytest.raises(OpsmithError, match="not a tensor"):
        inputs.specs(m)


def test_weights_that_are_also_inputs_need_no_feeding() -> None:
    m = model({"x": (T.FLOAT, [2]), "w": (T.FLOAT, [2])}, w=np.zeros(2, np.float32))
    assert [s.name for s in inputs.specs(m)] == ["x"]


def test_a_picture_is_smaller_where_attention_over_it_would_take_all_memory():
    from opsmith import demo, store
    from opsmith.check.footprint import largest_value
    from opsmith.check.inputs import MOST_ELEMENTS, default_dims, specs

    model = store.open_model(demo.tiny_model())  # patches of 4 x 4 pixels: 640 a side would be 25,600 tokens
    dims = default_dims(specs(model))
    assert dims["height"] == dims["width"] == 160
    assert largest_value(model, {"image": (1, 3, 640, 640)}) > MOST_ELEMENTS


def test_a_size_is_found_at_the_end_of_a_way_that_is_longer_than_the_stack_is_deep() -> None:
    names = ["x", *(f"v{i}" for i in range(3000))]
    nodes = [h.make_node("Tanh", [a], [b]) for a, b in itertools.pairwise(names)]
    nodes.append(h.make_node("MatMul", [names[-1], "w"], ["y"]))
    deep = model({"x": (T.FLOAT, ["n", "k"])}, nodes, w=np.ones((7, 2), np.float32))
    assert kinds.forced_sizes(deep.graph.inputs[0]) == {1: 7}


@pytest.mark.parametrize(
    ("op", "reads", "shape", "attributes"),
    [
        ("DynamicQuantizeLSTM", ("x", "w"), (1, 9, 20), {"hidden_size": 5}),
        ("DynamicQuantizeMatMul", ("x", "w"), (9, 4), {}),
        ("MatMulIntegerToFloat", ("x", "w"), (9, 4), {}),
        ("MatMulNBits", ("x", "w"), (4, 1, 16), {"K": 9, "N": 4, "bits": 4, "block_size": 32}),
        ("QLinearMatMul", ("x", "", "", "w"), (9, 4), {}),
    ],
)
def test_the_weights_of_quantized_layers_say_how_long_the_last_axis_is(op, reads, shape, attributes) -> None:
    node = h.make_node(op, reads, ["y"], domain="" if op == "QLinearMatMul" else "com.microsoft", **attributes)
    quantized = model({"x": (T.UINT8, ["n", "m", "k"])}, [node], w=np.ones(shape, np.uint8))
    assert kinds.forced_sizes(quantized.graph.inputs[0]) == {2: 9}


@pytest.mark.parametrize(
    ("op", "reads", "attributes"),
    [
        ("GroupQueryAttention", ("q", "", "", "past", "past", "n", "t"), {"num_heads": 4, "kv_num_heads": 2}),  # packed
        ("GroupQueryAttention", ("q", "k", "k", "past", "past", "n", "t"), {"num_heads": 8, "kv_num_heads": 2}),
        ("MultiHeadAttention", ("q", "k", "k", "", "", "", "past", "past"), {"num_heads": 8}),
    ],
)
def test_the_queries_say_how_large_a_head_of_the_cache_is(op, reads, attributes) -> None:
    """As onnxruntime-genai's builder declares it: a name that says cache, and is no length."""
    past: Spec = {"past": (T.FLOAT, ["batch", 2, "past_sequence_length", "kv_cache_dim"])}
    made = model(past, [h.make_node(op, reads, ["y"], domain="com.microsoft", **attributes)])
    node = made.graph.node(0)
    node.inputs[0].shape = ir.Shape(["batch", "sequence", 64])
    assert kinds.forced_sizes(made.graph.inputs[0]) == {3: 8}
    (dims,) = inputs.cases(inputs.specs(made), 1)
    assert dims == {"batch": 1, "past_sequence_length": 128, "kv_cache_dim": 8}


def test_what_is_joined_has_the_same_sizes_but_along_the_axis() -> None:
    past: Spec = {"past": (T.FLOAT, ["batch", "heads", "past", "cache_dim"])}
    made = model(
        past, [h.make_node("Concat", ["past", "fresh"], ["y"], axis=-2)], fresh=np.ones((1, 2, 3, 8), np.float32)
    )
    assert kinds.forced_sizes(made.graph.inputs[0]) == {0: 1, 1: 2, 3: 8}
    (dims,) = inputs.cases(inputs.specs(made), 1)
    assert dims == {"batch": 1, "heads": 2, "past": 128, "cache_dim": 8}


def test_bytes_of_a_cache_and_their_scales_stand_for_numbers_around_one() -> None:
    past: Spec = {
        "past.0.key": (T.INT8, ["batch", 2, "past", 8]),
        "past.0.key_scale": (T.FLOAT, ["batch", 2, "past", 1]),
    }
    feed = values.random_inputs(model(past), {"batch": 2, "past": 50})
    stands_for = feed["past.0.key"] * feed["past.0.key_scale"]
    assert 0.8 < float(stands_for.std()) < 1.25 and feed["past.0.key_scale"].min() > 0
