"""judged_feed: which inputs a model is judged with, and what is said about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from opsmith import store
from opsmith.check import feed
from opsmith.check.feed import judged_feed, parse_given
from opsmith.errors import OpsmithError

Shape = list[int | str | None]


def model(
    inputs: dict[str, tuple[int, Shape]],
    nodes: list[onnx.NodeProto],
    outputs: dict[str, tuple[int, Shape | None]],
    **weights: np.ndarray,
) -> onnx.ModelProto:
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [h.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in outputs.items()],
        [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)


def ids_model(positions: int = 512) -> onnx.ModelProto:
    """ids [b,s] -> table [50,4] + the first s rows of positions [n,4]"""
    nodes = [
        h.make_node("Gather", ["table", "ids"], ["x"]),
        h.make_node("Shape", ["ids"], ["s"], start=1, end=2),
        h.make_node("Slice", ["positions", "zero", "s", "zero"], ["p"]),
        h.make_node("Add", ["x", "p"], ["y"], name="add_positions"),
    ]
    weights = {"table": np.ones((50, 4), np.float32), "positions": np.ones((positions, 4), np.float32)}
    return model({"ids": (T.INT64, ["b", "s"])}, nodes, {"y": (T.FLOAT, None)}, zero=np.zeros(1, np.int64), **weights)


def conv_model(shape: Shape, outputs: Shape, channels: int = 3, ups: bool = False) -> onnx.ModelProto:
    nodes = [h.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1])]
    nodes.append(h.make_node("Resize", ["c", "", "scales"], ["r"]) if ups else h.make_node("Identity", ["c"], ["r"]))
    axes = {2: [2, 3], 3: [3]}.get(len(outputs))
    nodes.append(
        h.make_node("ReduceMean", ["r", "axes"], ["y"], keepdims=0) if axes else h.make_node("Identity", ["r"], ["y"])
    )
    weights = {
        "w": np.ones((2, channels, 3, 3), np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "axes": np.array(axes or [0], np.int64),
    }
    return model({"x": (T.FLOAT, shape)}, nodes, {"y": (T.FLOAT, outputs)}, **weights)


# --- sizes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "outputs", "ups", "expected", "origin"),
    [
        (["n", 3, "h", "w"], ["n", 2], False, (1, 3, 224, 224), "typical image 224x224"),  # classes
        (["n", 3, "h", "w"], ["n", 2, "h", "w"], False, (1, 3, 320, 320), "typical image 320x320"),  # pixels
        (["n", 3, "h", "w"], ["n", 2, "k"], True, (1, 3, 640, 640), "typical image 640x640"),  # boxes
        (["n", "c", "h", "w"], ["n", 2], False, (1, 3, 224, 224), "typical image 224x224"),  # the weight says 3
        ([None, None, None, None], ["n", 2], False, (1, 3, 224, 224), "typical image 224x224"),
        (["n", 3, 48, "w"], ["n", 2, 48, "w"], False, (1, 3, 48, 320), "typical text line of 320 pixels"),
        ([1, 3, 40, 56], [1, 2], False, (1, 3, 40, 56), "the model's own sizes"),
    ],
)
def test_pictures_get_the_usual_side(
    shape: Shape, outputs: Shape, ups: bool, expected: tuple[int, ...], origin: str
) -> None:
    judged = judged_feed(conv_model(shape, outputs, ups=ups))
    assert judged.feed is not None and judged.feed["x"].shape == expected and judged.origin == origin


def test_the_side_in_a_file_name_counts(tmp_path: Path) -> None:
    path = tmp_path / "detector_416.onnx"
    onnx.save(conv_model(["n", 3, "h", "w"], ["n", 2]), path)
    assert judged_feed(path).origin == "typical image 416x416"


def test_text_gets_128_tokens_or_as_many_as_the_positions_allow() -> None:
    assert judged_feed(ids_model()).dims == {"b": 1, "s": 128}
    judged = judged_feed(ids_model(positions=40))
    assert judged.dims == {"b": 1, "s": 32} and judged.origin == "typical 32 tokens"


def test_sound_gets_a_second() -> None:
    nodes = [h.make_node("Unsqueeze", ["x", "one"], ["u"]), h.make_node("Conv", ["u", "w"], ["y"], strides=[160])]
    weights = {"one": np.array([1], np.int64), "w": np.ones((2, 1, 400), np.float32)}
    judged = judged_feed(model({"x": (T.FLOAT, ["b", "n"])}, nodes, {"y": (T.FLOAT, None)}, **weights))
    assert judged.dims == {"b": 1, "n": 16000} and judged.origin == "typical 1 s of audio"


def test_sound_gets_a_second_also_where_its_length_is_called_a_batch() -> None:
    nodes = [h.make_node("Conv", ["x", "w"], ["y"], strides=[16])]
    weights = {"w": np.ones((2, 1, 32), np.float32)}
    judged = judged_feed(model({"x": (T.FLOAT, [1, 1, "batch_size"])}, nodes, {"y": (T.FLOAT, None)}, **weights))
    assert judged.dims == {"batch_size": 16000} and judged.origin == "typical 1 s of audio"


def test_a_graph_gets_several_nodes_and_edges_not_a_batch_of_one() -> None:
    nodes = [
        h.make_node("Gather", ["edges", "zero"], ["sources"]),
        h.make_node("Gather", ["atoms", "sources"], ["sent"]),
        h.make_node("Add", ["sent", "bonds"], ["y"]),
    ]
    judged = judged_feed(
        model(
            {
                "atoms": (T.FLOAT, ["num_nodes", 4]),
                "edges": (T.INT64, [2, "num_edges"]),
                "bonds": (T.FLOAT, ["num_edges", 4]),
            },
            nodes,
            {"y": (T.FLOAT, None)},
            zero=np.array(0, np.int64),
        )
    )
    assert judged.dims == {"num_nodes": 16, "num_edges": 16} and judged.origin == "typical 16 nodes and edges"


BRANCH = "branch () => (r) { u = Unsqueeze (p, one)  r = Conv (u, w) }"


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        (f"float[b, n] x, bool c) => (y) {{ p = Pad (x, pads)  y = If (c) <then_branch = {BRANCH}, else_branch = {BRANCH}>", "typical 1 s of audio"),
        ("int16[1, 1, audio_len] audio) => (y) { y = Cast<to = 1> (audio)", "typical 1 s of audio"),
        ("float[1, feats_length, 400] speech) => (y) { y = Relu (speech)", "typical 100 frames"),
        ("float[b, seq_len, 59] letters) => (y) { y = Relu (letters)", "typical 128 steps"),
        ("float[b, seq_len, 64] inputs_embeds) => (y) { y = Relu (inputs_embeds)", "typical 128 tokens"),
        ("float[b, seq_len] x, float[b, seq_len] mask) => (y) { y = Mul (x, mask)", "typical 128 steps"),
        ("float[2, s, 128] state) => (y) { y = Relu (state)", "the model's own sizes"),
    ],
)  # fmt: skip
def test_sound_and_vectors_are_not_called_tokens(text: str, origin: str) -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g ({text.replace("(y)", "(float y)")} }}"""
    )
    for name, array in {
        "pads": np.zeros(4, np.int64),
        "one": np.array([1], np.int64),
        "w": np.ones((2, 1, 8), np.float32),
    }.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    assert judged_feed(proto).origin == origin


def test_a_size_that_a_weight_leaves_no_choice_of_is_taken() -> None:
    nodes = [h.make_node("MatMul", ["x", "w"], ["y"])]
    m = model({"x": (T.FLOAT, ["n", "k"])}, nodes, {"y": (T.FLOAT, None)}, w=np.ones((37, 2), np.float32))
    assert judged_feed(m).dims == {"n": 1, "k": 37}


def test_shapes_of_symbols_and_of_inputs_win() -> None:
    for shapes in ({"s": 9}, {"ids": (1, 9)}):
        judged = judged_feed(ids_model(), shapes)
        assert judged.feed is not None and judged.feed["ids"].shape == (1, 9) and judged.origin == "--shape"
    vector = model({"x": (T.FLOAT, ["n"])}, [h.make_node("Abs", ["x"], ["y"])], {"y": (T.FLOAT, None)})
    for name in ("x", "n"):
        judged = judged_feed(vector, {name: 3})
        assert judged.feed is not None and judged.feed["x"].shape == (3,)


def test_stored_data_come_first_and_state_their_sizes(tmp_path: Path) -> None:
    onnx.save(ids_model(), tmp_path / "m.onnx")
    store.write_test_data(tmp_path, {"ids": np.full((2, 5), 7, np.int64)}, {})
    judged = judged_feed(tmp_path / "m.onnx")
    assert judged.feed is not None and (judged.feed["ids"] == 7).all()
    assert judged.origin == "test data" and judged.dims == {"b": 2, "s": 5}
    assert judged_feed(tmp_path / "m.onnx", {"s": 3}).dims == {"b": 1, "s": 3}


# --- values that are given ----------------------------------------------------------------------------------


def test_inputs_on_the_command_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", a=np.arange(3), b=np.float32(2))
    np.save(tmp_path / "one.npy", np.eye(2))
    given = parse_given(
        [str(tmp_path / "all.npz"), "sr=16000", f"c={tmp_path / 'one.npy'}", "d=1,2", "e=[[1.5], [2]]", "f=true"]
    )
    assert list(given) == ["a", "b", "sr", "c", "d", "e", "f"]
    assert given["sr"] == 16000 and given["c"].shape == (2, 2) and given["d"].tolist() == [1, 2]
    assert given["e"].shape == (2, 1) and given["f"] is True
    for bad in ("sr", "=1", "sr=", "sr=abc", "missing.npz", "x=__import__('os')"):
        with pytest.raises(OpsmithError):
            parse_given([bad])
    with pytest.raises(OpsmithError, match=r"^missing\.npz does not exist$"):
        parse_given(["missing.npz"])


def test_a_given_value_takes_the_type_and_shape_of_its_input() -> None:
    nodes = [h.make_node("Mul", ["x", "k"], ["y"])]
    m = model({"x": (T.FLOAT, ["n", 4]), "k": (T.FLOAT, [1])}, nodes, {"y": (T.FLOAT, None)})
    judged = judged_feed(m, None, {"k": 3, "x": np.ones((5, 4))})
    assert judged.feed is not None and judged.feed["k"].shape == (1,) and judged.feed["k"].dtype == np.float32
    assert judged.feed["x"].shape == (5, 4) and judged.dims == {"n": 5} and judged.origin == "--input"
    with pytest.raises(OpsmithError, match="no input 'z'.*x, k"):
        judged_feed(m, None, {"z": 1})


# --- what does not run ------------------------------------------------------------------------------------


def test_safer_values_are_tried_when_random_ones_do_not_run() -> None:
    # Squeeze works on a NonZero of exactly one row: random values have several, zeros none, ones in [1] one
    nodes = [h.make_node("NonZero", ["x"], ["i"]), h.make_node("Reshape", ["i", "shape"], ["y"])]
    weights = {"shape": np.array([1, 6], np.int64)}
    judged = judged_feed(model({"x": (T.INT32, [6])}, nodes, {"y": (T.INT64, None)}, **weights))
    assert judged.feed is not None and judged.origin == "the model's own sizes, ones"


def test_a_batch_that_holds_several_views_of_each_thing_is_found() -> None:
    nodes = [
        h.make_node("Concat", ["x", "z"], ["both"], axis=1),
        h.make_node("Reshape", ["both", "views"], ["v"]),
        h.make_node("GlobalAveragePool", ["v"], ["y"]),
    ]
    inputs = {"x": (T.FLOAT, ["x_batch", 3]), "z": (T.FLOAT, ["z_batch", 3])}  # two symbols that must agree
    m = model(inputs, nodes, {"y": (T.FLOAT, None)}, views=np.array([4, 6, -1], np.int64))
    judged = judged_feed(m)
    assert judged.feed is not None and judged.dims == {"x_batch": 4, "z_batch": 4}


def test_a_model_that_nothing_runs_on_says_which_input_and_node() -> None:
    nodes = [h.make_node("Identity", ["x"], ["i"]), h.make_node("Reshape", ["i", "shape"], ["y"], name="fold")]
    judged = judged_feed(model({"x": (T.FLOAT, [6])}, nodes, {"y": (T.FLOAT, None)}, shape=np.array([4], np.int64)))
    assert judged.feed is None and judged.problem is not None
    assert "'x'" in judged.problem and "fold" in judged.problem
    with pytest.raises(OpsmithError, match="none of the inputs tried"):
        judged.required()


def test_what_is_known_of_the_source_bounds_the_inputs_of_a_graph_that_hides_it(tmp_path: Path) -> None:
    source = judged_feed(ids_model(positions=40))
    assert source.record["ranges"] == {"ids": {"low": 0, "high": 49}} and source.record["dims"] == {"b": 1, "s": 32}
    hidden = model({"ids": (T.INT64, ["b", "s"])}, [h.make_node("Cast", ["ids"], ["y"], to=1)], {"y": (T.FLOAT, None)})
    onnx.save(hidden, tmp_path / "m.onnx")
    with store.new_variant(tmp_path / "made", verb="compile") as draft:
        onnx.save(hidden, draft.path)
        draft.record["inputs"] = source.record
    judged = judged_feed(tmp_path / "made")
    assert judged.feed is not None and judged.feed["ids"].shape == (1, 32) and 10 < judged.feed["ids"].max() < 50
    assert judged.origin == source.origin


def test_every_feed_of_a_large_search_stops_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "PATIENCE", 0.0)
    nodes = [h.make_node("Reshape", ["x", "shape"], ["y"])]
    m = model({"x": (T.FLOAT, ["n", "k"])}, nodes, {"y": (T.FLOAT, None)}, shape=np.array([7, 11, 13], np.int64))
    assert judged_feed(m).feed is None
