"""prune: what is removed is really gone, what is left computes the same as the source with those parts silenced."""

from __future__ import annotations

import shutil

import models
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import opsmith
from opsmith import session, starter, store
from opsmith.cli import main
from opsmith.compress import importance, quality
from opsmith.compress.layers import find_layers
from opsmith.compress.prune import _cut_feed, prune
from opsmith.compress.prune_heads import find_heads
from opsmith.compress.prune_neurons import find_neurons
from opsmith.compress.structure import remove_units
from opsmith.errors import OpsmithError
from opsmith.pipelines.text import TextGenerator
from opsmith.rewriter import PRUNER_RULES, rewrite_model

FAMILIES = [(n, e) for n in ("gpt2", "llama", "bert") for e in ("dynamo", "torchscript")]


def rewritten(name, exporter):
    model = store.open_model(models.tiny_variant(name, exporter))
    rewrite_model(model, level=2, only=PRUNER_RULES)
    return model


def groups_of(model, kind):
    layers = {layer.node: layer for layer in find_layers(model)}
    find = find_heads if kind == "heads" else find_neurons
    return find(model, layers)[0]


def silence(group, kept):
    """Zero the rows that read removed units: the source as if they said nothing."""
    layer = group.sink
    weight = layer.matrix().copy()
    weight[~np.isin(group.sink_labels, kept)] = 0
    stored = np.ascontiguousarray(weight.T if layer.transposed else weight)
    name = f"silent_{layer.node.name}"
    value = ir.Value(name=name, const_value=ir.Tensor(stored, name=name))
    layer.node.graph.register_initializer(value)
    layer.node.replace_input_with(1, value)


def test_samples_run_on_the_model_even_where_random_values_do_not():
    """The edges of a graph index its nodes, through an operator that hides it."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[nodes, 4] x, int64[2, edges] e) => (float[k, 4] y) {
        one = Constant<value_int: int = 1>()  from = Gather(e, one)  n = Neg(x)  y = Gather(n, from) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    with store.on_disk(model) as path:
        running = session.load(path)
        for feed in quality._generated(path, model, 3, False):
            session.run(running, feed)


@pytest.mark.parametrize("kind", ["heads", "neurons"])
@pytest.mark.parametrize(("name", "exporter"), FAMILIES)
def test_the_smaller_model_is_the_source_with_those_units_silenced(name, exporter, kind):
    quiet, small = rewritten(name, exporter), rewritten(name, exporter)
    feed = quality._generated(quiet, quiet, 1, True)[0]
    keeps = []
    for i, (a, b) in enumerate(zip(groups_of(quiet, kind), groups_of(small, kind), strict=True)):
        kept = np.arange(a.units)[i % 2 :: 2] if kind == "neurons" else np.arange(a.units)[: max(1, a.units - 1)]
        silence(a, kept)
        remove_units(small, b, kept)
        keeps.append((b, kept))
    assert len(keeps) == 2  # layers of the tiny models
    outputs = [v.name for v in quiet.graph.outputs if not v.name.startswith("present")]
    wanted = session.run(session.load(quiet, threads=1), feed, outputs)
    found = session.run(
        session.load(small, threads=1), _cut_feed(feed, [g for g, _ in keeps], [k for _, k in keeps]), outputs
    )
    for a, b in zip(wanted, found):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "exporter"), FAMILIES)
def test_structured_pruning_shrinks_weights_and_cache(tmp_path, name, exporter):
    source = models.tiny_variant(name, exporter)
    result = prune(
        source, tmp_path / "m" / "small", method="heads", ratio=0.3, calibration="generated", samples=6, uniform=True
    )
    assert result.refused == () and all(r.kept < r.units for r in result.groups)
    found = opsmith.load(result.variant.path)
    before = opsmith.load(source)
    for a, b in zip(before.get_inputs(), found.get_inputs(), strict=True):
        if a.name.startswith("past_key_values"):
            assert b.shape[1] < a.shape[1] and b.shape[3] == a.shape[3]
    assert (tmp_path / "m" / "small" / "test_data_set_0").is_dir()
    assert result.quality.error < 1


def test_a_pruned_decoder_still_writes_and_compiles_to_the_same_text(tmp_path):
    source = models.tiny_model("llama")
    for file in source.iterdir():
        if file.is_file():
            (tmp_path / "m").mkdir(exist_ok=True)
            shutil.copy(file, tmp_path / "m" / file.name)
    prune(source / "dynamo", tmp_path / "m" / "small", ratio=0.3, calibration="generated", samples=6)
    opsmith.compile(tmp_path / "m" / "small", tmp_path / "m" / "fast", regions="whole")
    a, b = (TextGenerator(tmp_path / "m", v).generate("a red apple", max_new_tokens=12)[0] for v in ("small", "fast"))
    assert a.tokens == b.tokens


def mlp(path, *, residual_inside=False, k=16, hidden=64, seed=0):
    rng = np.random.default_rng(seed)
    low = rng.standard_normal((k, 6)).astype(np.float32)
    w1 = (low @ rng.standard_normal((6, hidden))).astype(
        np.float32
    )  # 64 neurons that say 6 things: most can stand in for others
    w2 = rng.standard_normal((hidden, k)).astype(np.float32)
    weights = [numpy_helper.from_array(w1, "w1"), numpy_helper.from_array(w2, "w2")]
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h"]), helper.make_node("Relu", ["h"], ["r"])]
    if residual_inside:
        nodes.append(helper.make_node("LayerNormalization", ["r", "s"], ["n"]))
        weights.append(numpy_helper.from_array(np.ones(hidden, np.float32), "s"))
    nodes.append(helper.make_node("MatMul", ["n" if residual_inside else "r", "w2"], ["y"], name="out"))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", k])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def test_repair_and_activations_lose_less_than_weight_size(tmp_path):
    model = mlp(tmp_path / "mlp.onnx")
    errors = {}
    for name, options in {
        "repaired": {},
        "activations": {"repair": False},
        "weights": {"repair": False, "importance_by": "weights"},
    }.items():
        result = prune(
            model, tmp_path / name / "m.onnx", method="neurons", ratio=0.5, calibration=feeds(tmp_path), **options
        )
        assert result.groups[0].kept == 32
        errors[name] = result.quality.error
    assert errors["repaired"] < 0.7 * errors["activations"] < errors["weights"]


def feeds(folder, count=12):
    target = folder / "calibration"
    target.mkdir(exist_ok=True)
    for i in range(count):
        np.savez(target / f"{i:02}.npz", x=np.random.default_rng(i).standard_normal((40, 16)).astype(np.float32))
    return str(target)


def test_least_squares_repair_is_the_best_there_is():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((400, 5)) @ rng.standard_normal((5, 12)) + 0.1 * rng.standard_normal((400, 12))
    w = rng.standard_normal((12, 3))
    kept = np.array([0, 2, 3, 7, 8, 11])
    fitted = importance.repaired(x.T @ x / len(x), w, kept)
    best = np.linalg.lstsq(x[:, kept], x @ w, rcond=None)[0]
    ours, least = (np.square(x[:, kept] @ m - x @ w).sum() for m in (fitted, best))
    assert least <= ours < 1.01 * least
    order = importance.removal(x.T @ x / len(x), w, np.arange(12), 12, 1, repair=True)
    assert np.all(np.diff(order.costs) > -1e-9) and len(order.costs) == 11


def test_heads_of_an_attention_whose_mask_is_chosen_are_found():
    """DistilBERT's masked_fill: Where(mask, lowest, scores)."""
    rng = np.random.default_rng(0)
    parts = [f"{n}0 = MatMul(x, w{n}) {n}1 = Reshape({n}0, apart) {n} = Transpose<perm = [{p}]>({n}1)"
             for n, p in (("q", "0,2,1,3"), ("k", "0,2,3,1"), ("v", "0,2,1,3"))]  # fmt: skip
    text = f"""<ir_version: 8, opset_import: ["" : 18]> g (float[b, s, 32] x, bool[b, 1, 1, s] m) => (float[b, s, 32] y) {{
        {" ".join(parts)} a = MatMul(q, k) c = Where(m, low, a) p = Softmax<axis = -1>(c) o = MatMul(p, v)
        t = Transpose<perm = [0,2,1,3]>(o) f = Reshape(t, flat) y = MatMul(f, wo) }}"""
    proto = onnx.parser.parse_model(text)
    weights = {f"w{n}": rng.standard_normal((32, 32)).astype(np.float32) for n in "qkvo"}
    numbers = {"apart": np.array([0, 0, 4, 8]), "flat": np.array([0, 0, 32]), "low": np.float32(-3e38)}
    for name, array in {**weights, **numbers}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    model = ir.from_proto(proto)
    rewrite_model(model, only=PRUNER_RULES)
    assert [g.units for g in groups_of(model, "heads")] == [4]


def test_magnitude_zeroes_and_says_that_nothing_gets_faster(tmp_path, capsys):
    model = mlp(tmp_path / "mlp.onnx")
    options = ["--method", "magnitude", "--ratio", "0.25", "--calibration", "generated"]
    with pytest.raises(SystemExit) as done:
        main(["prune", str(model), str(tmp_path / "z" / "m.onnx"), *options])
    assert not done.value.code
    said = " ".join(capsys.readouterr().out.split())
    assert "dense kernels get no faster" in said
    weights = [numpy_helper.to_array(t) for t in onnx.load(tmp_path / "z" / "m.onnx").graph.initializer]
    assert [round(float((w == 0).mean()), 2) for w in weights] == [0.25, 0.25]


def test_what_cannot_be_pruned_is_refused_with_the_reason(tmp_path, capsys):
    mixed = mlp(tmp_path / "mixed.onnx", residual_inside=True)
    with pytest.raises(OpsmithError, match="LayerNormalization"):
        prune(mixed, tmp_path / "a.onnx", method="neurons", ratio=0.2, calibration="generated")
    with pytest.raises(OpsmithError, match="no attention heads"):
        prune(mixed, tmp_path / "a.onnx", method="heads", ratio=0.2, calibration="generated")
    with pytest.raises(OpsmithError, match="makes no sense"):
        prune(mixed, tmp_path / "a.onnx", ratio=1.5)
    with pytest.raises(OpsmithError, match="not clear"):
        prune(mixed, tmp_path / "a.onnx")
    np.savez(tmp_path / "wrong.npz", x=np.zeros((3, 7), np.float32))
    with pytest.raises(SystemExit) as done:
        main(
            [
                "prune",
                str(mixed),
                str(tmp_path / "a.onnx"),
                "--ratio",
                "0.2",
                "--calibration",
                str(tmp_path / "wrong.npz"),
            ]
        )
    assert done.value.code == 2
    assert "shape 3x7" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "a.onnx").exists()


def test_weights_that_are_stored_in_half_precision_stay_so(tmp_path):
    writer = starter.folder("writer") / "fp16"
    result = prune(writer, tmp_path / "writer" / "smaller", ratio=0.2)
    assert result.after < result.before
    kinds = {
        v.dtype for v in store.open_model(result.variant.path).graph.initializers.values() if v.const_value.size > 1024
    }
    assert kinds == {ir.DataType.FLOAT16}


def test_magnitude_zeroes_kernels_of_convolutions_and_refuses_where_there_is_nothing_to_zero(tmp_path):
    rng = np.random.default_rng(0)
    kernel = numpy_helper.from_array(rng.standard_normal((8, 3, 3, 3)).astype(np.float32))
    value = helper.make_tensor_value_info
    for name, nodes in (
        ("conv", [helper.make_node("Constant", [], ["w"], value=kernel), helper.make_node("Conv", ["x", "w"], ["y"])]),
        ("none", [helper.make_node("Relu", ["x"], ["y"])]),
    ):
        graph = helper.make_graph(
            nodes, "g", [value("x", TensorProto.FLOAT, [1, 3, 8, 8])], [value("y", TensorProto.FLOAT, None)]
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.save(model, tmp_path / f"{name}.onnx")
    result = prune(tmp_path / "conv.onnx", tmp_path / "a.onnx", method="magnitude", ratio=0.25)
    assert result.weights == (216, 162)
    (weight,) = onnx.load(tmp_path / "a.onnx").graph.initializer
    assert int((numpy_helper.to_array(weight) == 0).sum()) == 54
    with pytest.raises(OpsmithError, match="no weights of products, convolutions"):
        prune(tmp_path / "none.onnx", tmp_path / "b.onnx", method="magnitude", ratio=0.25)
    assert not (tmp_path / "b.onnx").exists()


def test_answers_far_from_the_source_s_are_told(tmp_path):
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[n, 24] x) => (float[n, 9] y) { y = MatMul (x, w) }"""
    model, weight = onnx.parser.parse_model(text), np.random.default_rng(0).standard_normal((24, 9), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "a.onnx")
    little = prune(tmp_path / "a.onnx", tmp_path / "b.onnx", method="magnitude", ratio=0.05)
    assert little.quality.error < 0.5 and little.remarks == []
    (remark,) = prune(tmp_path / "a.onnx", tmp_path / "c.onnx", method="magnitude", ratio=0.9).remarks
    assert "far from the source's (relative error" in remark and "--ratio" in remark


def test_what_a_model_answers_in_maps_is_judged(tmp_path):
    maps, arrays = [{0: 0.25, 1: 0.75}, {0: 1.0, 1: 0.0}], [np.ones((2, 2), np.float32)]
    assert quality._numbers(maps).tolist() == [0.25, 0.75, 1.0, 0.0]
    assert quality._numbers(arrays).tolist() == [1.0] * 4 and quality._numbers([]).size == 0
