from __future__ import annotations

import contextlib
import json

import numpy as np
import onnx
import pytest
from small_models import mlp, save, tensor

import opsmith
from opsmith import NotTheSame, OpsmithError, store
from opsmith.cli import main
from opsmith.measure import distill as module
from opsmith.measure.distill import distill
from opsmith.testing import parity_test

TEXT = """<ir_version: 10, opset_import: ["" : 18, "opsmith" : 1]>
g (float[batch, seq, 16] x) => (float[batch, seq, 16] y)
<float[16, 64] w0, float[64, 16] w1, float[16, 16] w2> {
    [up] h = MatMul (x, w0)
    [act] a = opsmith.Silu (h)
    [down] d = MatMul (a, w1)
    [skip] s = Add (x, d)
    [out] o = MatMul (s, w2)
    [act2] y = opsmith.Silu (o)
}
<domain: "opsmith", opset_import: ["" : 18]>
Silu (x) => (y) {
    s = Sigmoid (x)
    y = Mul (x, s)
}"""


@pytest.fixture
def block(tmp_path):
    """Two products around a SiLU, a residual, and a second SiLU of another width; batch and seq are dynamic."""
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.extend([tensor("w0", 16, 64), tensor("w1", 64, 16), tensor("w2", 16, 16)])
    return save(model, tmp_path / "net" / "block")


def shape_of(value) -> list:
    return [d if isinstance(d, int) else d.value for d in value.shape]


def test_each_call_of_a_function_becomes_a_model_of_its_own(block, tmp_path):
    result = distill(block, tmp_path / "cut", function="Silu")
    assert (result.occurrences, result.different) == (2, 2)
    first, second = result.variants
    assert first.folder == tmp_path / "cut" / "Silu_0" / "original"
    model = store.open_model(first)
    assert [n.op_type for n in model.graph] == ["Silu"] and len(model.functions) == 1
    assert [shape_of(v) for v in model.graph.inputs] == [["batch", "seq", 64]]
    assert [shape_of(v) for v in store.open_model(second).graph.inputs] == [["batch", "seq", 16]]


def test_what_was_cut_out_of_another_model_is_replaced_on_request(block, tmp_path):
    distill(save(mlp(), tmp_path / "other" / "mlp"), tmp_path / "cut", function="MatMul", max=1)
    with pytest.raises(OpsmithError, match="--overwrite"):
        distill(block, tmp_path / "cut", function="MatMul", max=1)
    with contextlib.suppress(SystemExit):
        main(["distill", str(block), str(tmp_path / "cut"), "--function", "MatMul", "--max", "1", "--overwrite"])
    made = store.find_model(tmp_path / "cut" / "MatMul_0" / "original")
    assert "block" in store.read_record(made)["parent"]


def test_the_tensors_are_those_that_flowed_in_the_whole_model(block, tmp_path):
    x = np.random.default_rng(3).standard_normal((2, 3, 16)).astype(np.float32)
    store.write_test_data(block, {"x": x}, {})
    data = store.read_test_data(distill(block, tmp_path / "cut", function="Silu").variants[0].path)[0]
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(str(store.find_model(block))).graph.initializer}
    h = x @ weights["w0"]
    np.testing.assert_allclose(data.inputs["h"], h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(data.outputs["a"], h / (1 + np.exp(-h)), rtol=1e-5, atol=1e-6)


def test_nodes_between_two_names_are_cut_with_their_weights(block, tmp_path):
    (variant,) = distill(block, tmp_path / "cut", nodes="up..down").variants
    model = store.open_model(variant)
    assert [n.name for n in model.graph] == ["up", "act", "down"]
    assert set(model.graph.initializers) == {"w0", "w1"}
    assert [v.name for v in model.graph.inputs] == ["x"] and [v.name for v in model.graph.outputs] == ["d"]
    assert opsmith.verify(variant).ok
    assert json.loads((variant.folder / "opsmith.json").read_text())["cut"]["nodes"] == ["up", "act", "down"]


def test_what_leaves_the_cut_and_comes_back_is_taken_in(block, tmp_path):
    """skip reads d, which down computes from act: cutting up and skip must take act and down too."""
    proto = store.read_proto(store.find_model(block))
    found = module.close(proto, module.graph_of(proto), [0, 3])
    assert found.nodes == (0, 1, 2, 3)
    assert (found.inputs, found.outputs) == (("x",), ("s",))


def test_sizes_of_tensors_in_the_cut_are_computed_in_it(tmp_path):
    """Reshape to the shape of x: as an input that shape would be mere data. A size from elsewhere stays an input."""
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[n, 4, 8] x, float[m, 2] other) => (float[n, 4, 8] y, int64[3] s, float[k] z) {
        [flat] flat = Constant <value_ints = [0, -1]> ()
        [shape] s = Shape (x)
        [fold] f = Reshape (x, flat)
        [act] a = Tanh (f)
        [unfold] y = Reshape (a, s)
        [count] c = Shape <start = 0, end = 1> (other)
        [far] z = Expand (half, c)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32([0.5]), "half"))
    folder = save(model, tmp_path / "net" / "a")
    cut = store.open_model(distill(folder, tmp_path / "cut", nodes="fold..unfold").variants[0])
    assert [v.name for v in cut.graph.inputs] == ["x"] and [v.name for v in cut.graph.outputs] == ["y"]
    assert "shape" in [n.name for n in cut.graph]
    far = store.open_model(distill(folder, tmp_path / "far", nodes="far").variants[0])
    assert [v.name for v in far.graph.inputs] == ["c"]


def test_a_pattern_is_cut_where_its_rule_fires(tmp_path):
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[n, 16] x) => (float[n, 16] y) <float[16, 16] w> {
        [product] h = MatMul (x, w)
        root = Constant <value = float {1.4142135}> ()
        one = Constant <value = float {1.0}> ()
        half = Constant <value = float {0.5}> ()
        [divide] u = Div (h, root)
        [erf] v = Erf (u)
        [plus] t = Add (v, one)
        [times] p = Mul (h, t)
        [scale] y = Mul (p, half)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(tensor("w", 16, 16))
    folder = save(model, tmp_path / "net" / "gelu")
    (variant,) = distill(folder, tmp_path / "cut", pattern="gelu").variants
    cut = store.open_model(variant)
    assert [n.name for n in cut.graph if n.op_type != "Constant"] == ["divide", "erf", "plus", "times", "scale"]
    assert [v.name for v in cut.graph.inputs] == ["h"] and [shape_of(v) for v in cut.graph.inputs] == [["n", 16]]
    with pytest.raises(OpsmithError, match="rule layer_norm does not fire"):
        distill(folder, tmp_path / "cut", pattern="layer_norm")


def test_light_weights_have_the_statistics_but_not_the_values(block, tmp_path):
    real = distill(block, tmp_path / "real", nodes="up").variants[0]
    light = distill(block, tmp_path / "light", nodes="up", light=True).variants[0]
    again = distill(block, tmp_path / "again", nodes="up", light=True).variants[0]
    a, b, c = (store.open_model(v).graph.initializers["w0"].const_value.numpy() for v in (real, light, again))
    assert a.shape == b.shape and not np.allclose(a, b)
    assert b.std() == pytest.approx(a.std(), rel=0.1) and abs(b.mean() - a.mean()) < 0.2 * a.std()
    np.testing.assert_array_equal(b, c)
    assert opsmith.verify(light).ok


def test_max_prefers_different_occurrences(tmp_path):
    folder = save(mlp(16, 4), tmp_path / "net" / "a")  # four equal MatMuls
    result = distill(folder, tmp_path / "cut", function="MatMul", max=2)
    assert (len(result.variants), result.occurrences, result.different) == (2, 4, 1)


def test_a_cut_that_does_not_reproduce_the_whole_is_refused(block, tmp_path, monkeypatch):
    true_fetch = module.fetch

    def wrong(path, feed, names, threads):
        return {name: value + (name == "a") for name, value in true_fetch(path, feed, names, threads).items()}

    monkeypatch.setattr(module, "fetch", wrong)
    with pytest.raises(NotTheSame, match="does not give the large one's 'a'"):
        distill(block, tmp_path / "cut", function="Silu", max=1)
    assert not list((tmp_path / "cut").rglob("*.onnx")) if (tmp_path / "cut").exists() else True


def test_every_verb_works_on_the_result(block, tmp_path):
    (variant,) = distill(block, tmp_path / "cut", nodes="up..out").variants
    opsmith.optimize(variant.folder, variant.folder.parent / "rewritten")
    result = opsmith.bench(variant.folder.parent, rounds=1, processes=1, threads=1, seconds=0.5)
    assert [e.label for e in result.entries] == ["original", "rewritten"] and result.verified


def test_wrong_use_is_one_clear_line(block, tmp_path, capsys):
    for arguments, complaint in (
        ([], "exactly one of"),
        (["--function", "Silu", "--nodes", "up"], "exactly one of"),
        (["--function", "Gelu"], "no function or operator 'Gelu' (its functions are opsmith.Silu, its operators "),
        (["--function", "MatMull"], "(did you mean MatMul? its functions are"),
        (["--nodes", "down..up"], "no way leads from 'down' to 'up'"),
        (["--nodes", "upp..down"], "no node 'upp' (did you mean 'up'?)"),
        (["--pattern", "nonsense"], "there is no rule 'nonsense'"),
        (["--function", "Silu", "--max", "0"], "--max must be at least 1"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["distill", str(block), str(tmp_path / "cut"), *arguments])
        assert ended.value.code == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and complaint in lines[0]
    assert not (tmp_path / "cut").exists()


def test_command_lists_what_it_wrote(block, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["distill", str(block), str(tmp_path / "cut"), "--function", "Silu", "--max", "1"])
    assert not ended.value.code
    assert "1 of 2 occurrences, of 2 kinds" in capsys.readouterr().out


def test_a_parity_test_is_one_line(block, tmp_path):
    """The helper's test passes for a verb that keeps the function and fails for one that does not."""
    distill(block, tmp_path / "cut", function="Silu")

    def break_it(source, target):
        model = onnx.load(str(source))
        model.functions[0].node[1].op_type = "Add"
        save(model, target)

    for change, passes in ((None, True), (opsmith.optimize, True), (break_it, False)):
        test = parity_test(tmp_path / "cut", change)
        (mark,) = test.pytestmark
        assert mark.kwargs["ids"] == ["Silu_0/original", "Silu_1/original"]
        for i, path in enumerate(mark.args[1]):
            with contextlib.nullcontext() if passes else pytest.raises(AssertionError, match="differ by more"):
                test(path, tmp_path / f"{passes}{i}")
