"""The verb and its command: what is written, what is said, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import models
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto
from onnx import helper as h

import opsmith
from opsmith import store
from opsmith.cli import main
from opsmith.errors import NotTheSame, OpsmithError
from opsmith.rewriter import functions, targets, verb

# the worked example of the documentation
_PAGE = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
OWN = _PAGE.partition("```python\n")[2].partition("```")[0]


@pytest.fixture
def bert() -> Path:
    return models.tiny_variant("bert", "dynamo")


@pytest.fixture
def mish_model(tmp_path: Path) -> Path:
    nodes = [
        h.make_node("Softplus", ["x"], ["a"]),
        h.make_node("Tanh", ["a"], ["b"]),
        h.make_node("Mul", ["x", "b"], ["y"]),
    ]
    values = [h.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy"]
    proto = h.make_model(
        h.make_graph(nodes, "g", values[:1], values[1:]), opset_imports=[h.make_opsetid("", 18)], ir_version=9
    )
    onnx.save(proto, tmp_path / "mish.onnx")
    return tmp_path / "mish.onnx"


def cli(*args: object) -> int:
    try:
        main([str(a) for a in args])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_a_variant_is_written_with_its_record_and_test_data(bert: Path, tmp_path: Path) -> None:
    result = opsmith.optimize(bert, tmp_path / "bert" / "rewritten", timing=False, shapes=1)
    folder = tmp_path / "bert" / "rewritten"
    assert result.variant.path == folder / "bert_rewritten.onnx"
    record = json.loads((folder / "opsmith.json").read_text())
    assert record["verb"] == "optimize" and record["rewrite"]["rules"]["attention"] == 2
    assert (folder / "test_data_set_0" / "input_0.pb").is_file()
    assert result.after.total < result.before.total and result.error is not None and result.error < 1e-4
    assert result.before.flops and result.after.flops
    assert opsmith.verify(folder).ok


def test_levels(tmp_path: Path) -> None:
    source = models.tiny_variant("stable-diffusion", "dynamo", "vae_decoder")
    nodes = {}
    for level in range(4):
        result = opsmith.optimize(
            source, tmp_path / f"level{level}.onnx", level=level, target="ort-cpu", timing=False, shapes=1
        )
        nodes[level] = result.after.nodes
    assert nodes[0] == result.before.nodes
    assert not any("." in n for n in nodes[1]) and sum(nodes[1].values()) <= sum(nodes[0].values())
    assert any(n.startswith("opsmith.") for n in nodes[2]) and not any("microsoft" in n for n in nodes[2])
    assert nodes[3]["com.microsoft.MultiHeadAttention"] == 1


def test_only_the_named_rules(bert: Path, tmp_path: Path) -> None:
    result = opsmith.optimize(bert, tmp_path / "x.onnx", only=["gelu"], timing=False, shapes=1)
    assert [r.rule for r in result.rules] == ["gelu"] and result.after.nodes["opsmith.Gelu"] == 2


def test_a_model_that_would_differ_is_not_written(
    mish_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    rules = tmp_path / "wrong.py"
    rules.write_text(OWN.replace("b.Tanh(", "b.Sigmoid("))
    with pytest.raises(NotTheSame, match="nothing was written"):
        opsmith.optimize(mish_model, tmp_path / "out" / "v", rules=rules, timing=False)
    assert not (tmp_path / "out").exists()
    assert cli("optimize", mish_model, tmp_path / "out" / "v", "--rules", rules, "--quick") == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_rules_of_one_s_own(mish_model: Path, tmp_path: Path) -> None:
    rules = tmp_path / "own.py"
    rules.write_text(OWN)
    result = opsmith.optimize(mish_model, tmp_path / "y.onnx", rules=rules, timing=False)
    assert result.after.nodes == {"opsmith.Mish": 1}


def test_measure_drops_what_does_not_pay(mish_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = tmp_path / "own.py"
    rules.write_text(OWN)
    gains = iter((-1.0, 1.0, 0.1))
    monkeypatch.setattr(verb.trial, "compare", lambda *a, **k: verb.trial.Speed(10.0, 10.0 - next(gains), 0.2))
    for kept, why in ((False, "slower"), (True, "faster"), (False, "not measurably faster")):
        result = opsmith.optimize(mish_model, tmp_path / "m.onnx", rules=rules, measure=True, timing=False)
        (trial,) = result.trials
        assert (trial.rule, trial.matches, trial.kept, trial.why) == ("mish", 1, kept, why)
        assert ("opsmith.Mish" in result.after.nodes) is kept


def test_no_rule_is_said_in_a_line_instead_of_an_empty_table(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        g (float[n] x) => (float[n] y) { y = Relu(x) }""")
    source = tmp_path / "relu.onnx"
    onnx.save(model, source)
    with pytest.raises(SystemExit) as ended:
        main(["optimize", str(source), str(tmp_path / "same.onnx"), "--quick"])
    out = capsys.readouterr().out
    assert not ended.value.code and "no rule found anything to change" in out and "matches" not in out


def test_measure_prints_a_line_per_rule(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli("optimize", bert, tmp_path / "m.onnx", "--measure", "--only", "gelu", "--quick", "--shapes", 1) == 0
    out = capsys.readouterr().out
    assert "gelu" in out and ("kept" in out or "dropped" in out) and "all nodes" in out


def test_a_wrong_rule_is_dropped_under_measure(mish_model: Path, tmp_path: Path) -> None:
    rules = tmp_path / "wrong.py"
    rules.write_text(OWN.replace("b.Tanh(", "b.Sigmoid("))
    result = opsmith.optimize(mish_model, tmp_path / "m.onnx", rules=rules, measure=True, timing=False)
    assert not result.trials[0].kept and result.trials[0].why.startswith("wrong")


def test_explain(bert: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli("optimize", bert, "--explain", "attention") == 0
    assert "fires 2 times" in capsys.readouterr().out
    assert cli("optimize", bert, "--explain", "rotary") == 0
    assert "no Neg to start from" in capsys.readouterr().out


def test_explain_names_the_node_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    nodes = [h.make_node("Sigmoid", ["g"], ["s"], name="gate"), h.make_node("Mul", ["x", "s"], ["y"], name="multiply")]
    values = {n: h.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in "xgy"}
    graph = h.make_graph(nodes, "g", [values["x"], values["g"]], [values["y"]])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9), tmp_path / "gate.onnx")
    assert cli("optimize", tmp_path / "gate.onnx", "--explain", "silu") == 0
    out = capsys.readouterr().out
    assert "started at gate" in out and "stopped at Mul multiply" in out and "not multiplied by x itself" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--level", "7"], "there is no level 7"),
        (["--target", "tpu"], "there is no target 'tpu' ("),
        (["--only", "gellu"], "there is no rule 'gellu' (did you mean gelu? known: "),
        (["--explain", "gellu"], "there is no rule 'gellu'"),
        (["--rules", "absent.py"], "does not exist"),
    ],
)
def test_wrong_flags_are_one_line(
    args: list[str], message: str, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert cli("optimize", bert, tmp_path / "x", *args) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_a_broken_rule_file_is_one_line(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for text, message in (("RULES = 3", "no list RULES"), ("1 / 0", "ZeroDivisionError")):
        (tmp_path / "r.py").write_text(text)
        assert cli("optimize", bert, tmp_path / "x", "--rules", tmp_path / "r.py") == 2
        assert message in capsys.readouterr().err


def test_an_op_unknown_to_onnx_runtime_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    value = [h.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    node = h.make_node("Fancy", ["x"], ["y"], domain="somewhere")
    opsets = [h.make_opsetid("", 18), h.make_opsetid("somewhere", 1)]
    graph = h.make_graph([node], "g", value[:1], value[1:])
    onnx.save(h.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "f.onnx")
    assert cli("optimize", tmp_path / "f.onnx", tmp_path / "x") == 2
    err = capsys.readouterr().err
    assert "Fancy" in err and err.count("\n") == 1


def test_a_model_that_fails_its_own_test_data_is_refused(
    mish_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    x = np.ones((2, 4), np.float32)
    store.write_test_data(tmp_path, {"x": x}, {"y": x * 5})
    assert cli("optimize", mish_model, tmp_path / "out" / "v") == 2
    assert "its own test data" in capsys.readouterr().err
    with pytest.raises(OpsmithError, match="its own test data"):
        opsmith.optimize(mish_model, tmp_path / "out" / "v")


def test_an_op_without_a_kernel_is_never_emitted() -> None:
    assert targets.supports("ort-cpu", "com.microsoft.MultiHeadAttention")
    assert not targets.supports("ort-cpu", "com.microsoft.GroupNorm")  # FACTS: a model with it does not load on CPU
    assert targets.supports("ort-cuda", "com.microsoft.GroupNorm")
    assert not targets.supports("portable", "com.microsoft.Gelu") and targets.supports("portable", "opsmith.Gelu")


def test_weights_of_another_file_stay_there_until_the_model_is_written(tmp_path: Path) -> None:
    """The joined weight is made of memory-mapped ones and reads them only when it is saved."""
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((64, 64)).astype(np.float32) for n in "ab"}
    nodes = [h.make_node("MatMul", ["x", n], [f"p{n}"]) for n in "ab"] + [h.make_node("Mul", ["pa", "pb"], ["y"])]
    values = [h.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 64]) for n in "xy"]
    initializers = [onnx.numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = h.make_graph(nodes, "g", values[:1], values[1:], initializers)
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    model = ir.load(tmp_path / "m.onnx")
    from opsmith.rewriter import rewrite_model

    rewrite_model(model)
    tensors = [v.const_value for v in model.graph.initializers.values() if v.const_value.size > 4096]
    assert len(tensors) == 1 and isinstance(tensors[0], ir.LazyTensor)
    np.testing.assert_array_equal(tensors[0].numpy(), np.concatenate([weights["a"], weights["b"]], axis=1))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_body_takes_plain_numbers_of_the_type_of_its_data(dtype: type) -> None:
    body = functions.Body(opset=18, half=dtype is np.float16)
    kind = ir.DataType.FLOAT16 if dtype is np.float16 else ir.DataType.FLOAT
    x = ir.Value(name="x", type=ir.TensorType(kind), shape=ir.Shape([2, 3]))
    y = body.Reshape(body.Mul(x, body.Clip(body.Add(body.Div(x, 6), 0.5), 0, 1)), [-1])
    y.name, y.type, y.shape = "y", ir.TensorType(kind), ir.Shape([6])
    graph = ir.Graph([x], [y], nodes=body.nodes, opset_imports={"": 18}, name="g")
    proto = ir.to_proto(ir.Model(graph, ir_version=10))
    given = np.linspace(-5, 5, 6).astype(dtype).reshape(2, 3)
    (got,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": given})
    wanted = given.astype(np.float64) * np.clip(given.astype(np.float64) / 6 + 0.5, 0, 1)
    np.testing.assert_allclose(got, wanted.reshape(-1), rtol=2e-3 if dtype is np.float16 else 1e-6, atol=1e-3)


def test_the_pages_rule_with_constants_fires_and_says_why_it_does_not(tmp_path: Path) -> None:
    rules = tmp_path / "halve.py"
    rules.write_text(_PAGE.rpartition("```python\n")[2].partition("```")[0])
    for divisor, wanted in ((2.0, {"Mul": 1}), (3.0, {"Div": 1})):
        graph = h.make_graph(
            [h.make_node("Div", ["x", "c"], ["y"])],
            "g",
            [h.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
            [h.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
            [h.make_tensor("c", TensorProto.FLOAT, [], [divisor])],
        )
        onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10), tmp_path / "m.onnx")
        result = opsmith.optimize(tmp_path / "m.onnx", tmp_path / f"{divisor}.onnx", rules=rules, timing=False)
        assert result.after.nodes == wanted


def test_an_op_of_numbers_alone_is_said() -> None:
    with pytest.raises(OpsmithError, match=r"Add of numbers alone.*b\.number"):
        functions.Body(opset=18, half=False).Add(1, 2)
