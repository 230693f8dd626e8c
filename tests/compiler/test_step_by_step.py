"""Wrong kernels in quantized models, which the model's own spread would hide."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest

import opsmith
from opsmith.check.verify import verify
from opsmith.compiler import cut, find_wrong
from opsmith.compiler.partition import Region
from opsmith.sizes import as_size, compare

sys.path.insert(0, str(Path(__file__).parents[1] / "check"))
import test_spread as nets


def planted(monkeypatch: pytest.MonkeyPatch, layer: int) -> None:
    """Half of the scales of a layer are packed 2 % too large."""
    right = cut.lower_region

    def wrong(*args: Any) -> Any:
        program = right(*args)
        for key, weight in program.weights.items():
            if key.split(":")[0] == f"s{layer}":

                def write(write: Any = weight.write) -> Any:
                    scales = np.array(write())
                    scales[: scales.size // 2] *= np.float32(1.02)
                    return scales

                program.weights[key] = dataclasses.replace(weight, write=write)
        return program

    monkeypatch.setattr(cut, "lower_region", wrong)


@pytest.mark.parametrize("at_once", [256 << 20, 1])  # bytes: all parts at once, or one after the other
def test_an_error_that_the_spread_hides_is_found_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    for module in ("find_wrong", "step_by_step"):
        monkeypatch.setattr(sys.modules[f"opsmith.compiler.{module}"], "AT_ONCE", at_once)
    layer = nets.DEPTH - 1
    model = nets.net("dynamic")
    hidden = verify(model, nets.net("dynamic", nets._scale(layer, 1.02), order=7), shapes=nets.SHAPES)
    assert hidden.ok and any(o.spread is not None for o in hidden.worst)  # by itself the comparison lets it pass
    onnx.save(model, tmp_path / "m.onnx")
    planted(monkeypatch, layer)
    result = opsmith.compile(tmp_path / "m.onnx", tmp_path / "c", regions="all")
    assert any("a defect of ours" in r for r in result.remarks), result.remarks
    stays = {name for _, name, _ in result.left}
    assert any(str(layer) in name for name in stays) and result.native > result.nodes // 2
    x = np.random.default_rng(1).standard_normal((2, 16, nets.WIDTH)).astype(np.float32)
    got, want = (opsmith.load(m).run(None, {"x": x})[0] for m in (tmp_path / "c", tmp_path / "m.onnx"))
    assert np.abs(got - want).max() < 0.1 * np.abs(want).max()


def test_rounding_alone_is_no_finding(tmp_path: Path) -> None:
    onnx.save(nets.net("static"), tmp_path / "m.onnx")
    result = opsmith.compile(tmp_path / "m.onnx", tmp_path / "c", regions="all")
    assert result.verified is not None and any(o.spread is not None for o in result.verified.worst)
    assert not result.remarks and len(result.regions) == 1


def test_what_was_not_compared_within_the_time_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("find_wrong", "step_by_step"):
        monkeypatch.setattr(sys.modules[f"opsmith.compiler.{module}"], "AT_ONCE", 1)
    monkeypatch.setattr(sys.modules["opsmith.compiler.step_by_step"], "PATIENCE", 0.0)
    onnx.save(nets.net("static"), tmp_path / "m.onnx")
    (remark,) = opsmith.compile(tmp_path / "m.onnx", tmp_path / "c", regions="all").remarks
    assert "not all of its parts were compared: 1 of " in remark


def test_a_model_without_steps_that_amplifies_large_inputs_is_compiled(tmp_path: Path) -> None:
    """It passes by its spread there, and is not compared in parts: it has none."""
    onnx.save(nets._waves(), tmp_path / "m.onnx")
    result = opsmith.compile(tmp_path / "m.onnx", tmp_path / "c", regions="all", shapes={"n": 500})
    assert result.verified is not None and any(o.spread is not None for o in result.verified.worst)
    assert result.native == result.nodes and not result.remarks


def test_a_region_that_refuses_its_inputs_goes_back_with_what_it_said_in_one_short_line() -> None:
    chain = (
        "does not run: Non-zero status code returned while running If node. Name:'if' Status Message: opsmith region "
    )
    region = Region("region0", [ir.Node("", "Softmax", [], name="soft")], [], [])
    found = find_wrong._whole_regions([region], f"{chain}region0, node attention_a: the mask does not fit the scores")
    assert found.nodes == {"soft": "its region did not run: the mask does not fit the scores"}
    assert found.remark.startswith(
        "1 region goes back to ONNX Runtime: the mask does not fit the scores, at attention_a."
    )


def test_a_node_that_refuses_its_inputs_goes_back_and_its_region_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = cut.lower_region

    def refusing(*args: Any) -> Any:
        program = right(*args)
        calls = [c for c in program.calls if c.kernel.name == "attention"]
        program.checks += [
            (c.nodes[0], compare(as_size(1), "==", 2), "the mask does not fit the scores") for c in calls
        ]
        return program

    monkeypatch.setattr(cut, "lower_region", refusing)
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[1,2,s,8] x, float[1,2,8,t] k, float[1,2,t,8] v) => (float[1,2,s,8] y) {
        q = Abs(x)   scores = MatMul(q, k)   soft = Softmax(scores)   a = MatMul(soft, v)   y = Tanh(a) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    result = opsmith.compile(tmp_path / "m.onnx", tmp_path / "c", regions="all")
    assert {(op, why) for op, _, why in result.left} == {
        (op, "it did not run: the mask does not fit the scores") for op in ("MatMul", "Softmax")
    }
    assert result.native == 2 and any("3 nodes go back" in r for r in result.remarks), result.remarks


def test_a_wrong_node_beside_a_weight_that_has_a_default_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = cut.lower_region

    def wrong(*args: Any) -> Any:
        program = right(*args)
        for key, weight in program.weights.items():

            def twice(write: Any = weight.write) -> Any:
                return 2 * np.array(write())

            program.weights[key] = dataclasses.replace(weight, write=twice)
        return program

    monkeypatch.setattr(cut, "lower_region", wrong)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 32] x, float[32, 32] v) => (float[n, 32] y) { h = MatMul(x, v)  y = MatMul(h, w) }""")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.eye(32, dtype=np.float32), n) for n in "vw")
    onnx.save(model, tmp_path / "m.onnx")
    result = opsmith.compile(tmp_path / "m.onnx", tmp_path / "c", regions="all")
    assert result.native == 1 and len(result.left) == 1, result.remarks
    assert any("it stays there. This is a defect of ours" in r for r in result.remarks), result.remarks
