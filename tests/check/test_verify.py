"""verify: what passes, what fails, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h

from opsmith import session, store
from opsmith.check.differences import compare_arrays
from opsmith.check.verify import Case, VerifyResult, verify
from opsmith.cli import main
from opsmith.errors import OpsmithError


def mlp(scale: float = 1.0, middle: str = "hidden", out: int = T.FLOAT, batch: str | int = "batch") -> onnx.ModelProto:
    """x [batch,4] -> MatMul -> Relu -> Mul by SCALE -> y [batch,3]"""
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.standard_normal((4, 3)).astype(np.float32), "weight")
    factor = onnx.numpy_helper.from_array(np.float32(scale), "factor")
    nodes = [
        h.make_node("MatMul", ["x", "weight"], [middle], name="project"),
        h.make_node("Relu", [middle], ["active"], name="activate"),
        h.make_node("Mul", ["active", "factor"], ["scaled"], name="scale"),
        h.make_node("Cast", ["scaled"], ["y"], to=out, name="last"),
    ]
    graph = h.make_graph(
        nodes,
        "mlp",
        [h.make_tensor_value_info("x", T.FLOAT, [batch, 4])],
        [h.make_tensor_value_info("y", out, [batch, 3])],
        [weight, factor],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)


def saved(folder: Path, model: onnx.ModelProto, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / f"{name}.onnx"))
    return folder / f"{name}.onnx"


# --- arrays -----------------------------------------------------------------------------------------------


def test_an_element_passes_up_to_atol_plus_rtol_times_the_reference() -> None:
    a = np.array([0.0, 10.0], np.float32)
    assert compare_arrays(a, a + np.float32(9e-5)).ok
    assert compare_arrays(a, np.array([0.0, 10.0099], np.float32)).ok
    check = compare_arrays(a, np.array([2e-4, 10.0], np.float32))
    assert not check.ok and check.max_abs == pytest.approx(2e-4)


def test_the_needed_tolerance_is_the_smallest_that_passes() -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal(1000).astype(np.float32)
    b = a + (rng.standard_normal(1000) * 0.01).astype(np.float32)
    check = compare_arrays(a, b)
    assert not check.ok and check.needed_rtol / check.needed_atol == pytest.approx(10)
    assert compare_arrays(a, b, rtol=check.needed_rtol * 1.0001, atol=check.needed_atol * 1.0001).ok
    assert not compare_arrays(a, b, rtol=check.needed_rtol * 0.999, atol=check.needed_atol * 0.999).ok


def test_nan_and_infinity_count_only_where_the_reference_has_something_else() -> None:
    a = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert compare_arrays(a, a.copy()).ok
    for b in ([np.nan, np.inf, -np.inf, np.nan], [np.nan, np.inf, np.inf, 1.0], [0.0, np.inf, -np.inf, 1.0]):
        check = compare_arrays(a, np.array(b, np.float32))
        assert not check.ok and "instead of" in str(check.problem)


numbers = st.floats(width=32, allow_subnormal=False) | st.sampled_from([0.0, 1.0, -1.0, 1.0005])


@given(st.lists(st.tuples(numbers, numbers), max_size=20), st.floats(0, 1), st.floats(0, 1))
def test_the_verdict_is_numpys(pairs: list[tuple[float, float]], rtol: float, atol: float) -> None:
    a, b = (np.array([pair[i] for pair in pairs], np.float32) for i in (0, 1))
    with np.errstate(all="ignore"):
        expected = np.allclose(b.astype(np.float64), a.astype(np.float64), rtol, atol, equal_nan=True)
    assert compare_arrays(a, b, rtol=rtol, atol=atol).ok == expected


def test_types_and_shapes_must_match() -> None:
    a = np.zeros((2, 3), np.float32)
    assert "float64 instead of float32" in str(compare_arrays(a, a.astype(np.float64)).problem)
    assert "shape [3, 2] instead of [2, 3]" in str(compare_arrays(a, np.zeros((3, 2), np.float32)).problem)


def test_integers_are_exact_unless_an_atol_of_one_is_asked_for() -> None:
    a = np.array([2**62, 5], np.int64)
    b = np.array([2**62 + 1, 5], np.int64)
    assert compare_arrays(a, a.copy()).ok
    check = compare_arrays(a, b, rtol=0.5)
    assert not check.ok and check.max_abs == 1 and check.needed_atol == 1
    assert compare_arrays(a, b, atol=1).ok


def test_half_precision_gets_looser_defaults() -> None:
    a = np.ones(4, np.float16)
    assert compare_arrays(a, a * np.float16(1.005)).ok
    assert not compare_arrays(a.astype(np.float32), a.astype(np.float32) * np.float32(1.005)).ok


def test_empty_outputs_are_equal() -> None:
    check = compare_arrays(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32))
    assert check.ok and check.max_abs == 0 and check.cosine == 1


def test_cosine_of_opposite_outputs_is_minus_one() -> None:
    a = np.array([1.0, 2.0], np.float32)
    assert compare_arrays(a, -a).cosine == pytest.approx(-1)


# --- models -----------------------------------------------------------------------------------------------


def randoms(result: VerifyResult) -> list[Case]:
    return [case for case in result.cases if case.name.startswith("random")]


def test_equal_models_pass_on_several_shapes() -> None:
    result = verify(mlp(), mlp())
    assert result.ok and len(randoms(result)) == 3
    assert {case.outputs[0].shape for case in result.cases} == {(1, 3), (2, 3), (3, 3)}


def test_a_small_difference_is_found_and_measured() -> None:
    result = verify(mlp(), mlp(1.01))
    assert not result.ok and result.worst[0].max_rel == pytest.approx(0.01, rel=1e-3)
    assert verify(mlp(), mlp(1.01), rtol=0.011, atol=1e-4).ok


def test_output_types_must_match() -> None:
    result = verify(mlp(), mlp(out=T.DOUBLE))
    assert not result.ok and "type float64 instead of float32" in result.problems[0]


def test_different_inputs_are_a_mistake_not_a_difference() -> None:
    other = mlp()
    other.graph.input[0].name = other.graph.node[0].input[0] = "z"
    with pytest.raises(OpsmithError, match="different inputs: x, z"):
        verify(mlp(), other)


def test_stored_data_is_compared_with_both_the_reference_and_the_stored_outputs(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a", mlp(), "a"), saved(tmp_path / "b", mlp(), "b")
    x = np.ones((5, 4), np.float32)
    (y,) = session.run(session.load(a), {"x": x})
    store.write_test_data(a.parent, {"x": x}, {"y": y})
    names = [case.name for case in verify(a, b, shapes=0).cases]
    assert names == ["test_data_set_0", "test_data_set_0, stored outputs"]
    assert verify(a).ok
    store.write_test_data(a.parent, {"x": x}, {"y": y + 1})
    assert not verify(a).ok
    result = verify(a, b, shapes=0)
    assert [case.ok for case in result.cases] == [True, False]


def test_a_shape_that_the_reference_refuses_is_dropped_visibly() -> None:
    def picky() -> onnx.ModelProto:
        model = mlp()  # Reshape to exactly two rows
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 4], np.int64), "two_rows"))
        model.graph.node.insert(0, h.make_node("Reshape", ["x", "two_rows"], ["flat"]))
        model.graph.node[1].input[0] = "flat"
        return model

    result = verify(picky(), picky())
    assert result.ok and len(randoms(result)) == 1 and len(result.dropped) == 2
    assert result.dropped[0].startswith("batch=1: ")


def test_sizes_found_by_trying_are_compared_on_degenerate_inputs_too() -> None:
    def of_four(scale: float) -> onnx.ModelProto:
        made = mlp(scale)
        made.graph.node.append(h.make_node("Reshape", ["y", "four_views"], ["views"]))
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([4, -1, 3], np.int64), "four_views"))
        made.graph.output[0].CopyFrom(h.make_tensor_value_info("views", T.FLOAT, [4, None, 3]))
        return made

    result = verify(of_four(1.0), of_four(1.0))
    assert result.ok and len(result.dropped) == 3  # batches of 1, 2 and 3
    names = [case.name for case in result.cases]
    assert names[0] == "the model's own sizes" and "zeros, the model's own sizes" in names
    assert all(case.dims == {"batch": 4} for case in result.cases)
    assert not verify(of_four(1.0), of_four(1.1)).ok


def test_a_shape_that_only_the_variant_refuses_is_a_difference() -> None:
    variant = mlp()
    variant.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 4], np.int64), "two_rows"))
    variant.graph.node.insert(0, h.make_node("Reshape", ["x", "two_rows"], ["flat"]))
    variant.graph.node[1].input[0] = "flat"
    result = verify(mlp(), variant)
    assert not result.ok and "does not run" in result.problems[0]


def test_a_variant_made_for_one_shape_is_checked_on_that_shape() -> None:
    result = verify(mlp(), mlp(batch=4))
    assert result.ok and [case.dims for case in randoms(result)] == [{"batch": 4}]


def test_given_shapes_replace_the_random_ones() -> None:
    assert [c.dims for c in randoms(verify(mlp(), mlp(), shapes={"batch": 7}))] == [{"batch": 7}]
    assert [c.dims for c in randoms(verify(mlp(), mlp(), shapes=[{"x": (8, 4)}, {"batch": 2}]))] == [
        {"batch": 8},
        {"batch": 2},
    ]
    with pytest.raises(OpsmithError, match="no dim 'rows'"):
        verify(mlp(), mlp(), shapes={"rows": 7})


def test_models_in_any_form_can_be_compared(tmp_path: Path) -> None:
    path = saved(tmp_path, mlp(), "m")
    assert verify(path, ir.from_proto(mlp())).ok
    assert verify(mlp(), str(path)).ok


def test_bfloat16_outputs_are_compared() -> None:
    result = verify(mlp(out=T.BFLOAT16), mlp(out=T.BFLOAT16))
    assert result.ok and result.worst[0].dtype == "bfloat16"
    assert not verify(mlp(out=T.BFLOAT16), mlp(1.3, out=T.BFLOAT16)).ok


# --- bisect -----------------------------------------------------------------------------------------------


def test_bisect_names_the_first_node_that_differs() -> None:
    result = verify(mlp(), mlp(1.5), bisect=True)
    assert result.parting is not None
    assert (result.parting.value, result.parting.node_a, result.parting.node_b) == ("scaled", "Mul scale", "Mul scale")


def test_bisect_closes_in_on_one_node_of_a_long_graph() -> None:
    def chain(bad: int | None) -> onnx.ModelProto:
        nodes, initializers = [], []
        for i in range(300):
            add = 2.0 if i == bad else 1.0
            initializers.append(onnx.numpy_helper.from_array(np.float32(add), f"c{i}"))
            nodes.append(h.make_node("Add", [f"v{i}", f"c{i}"], [f"v{i + 1}"], name=f"add{i}"))
        graph = h.make_graph(
            nodes,
            "chain",
            [h.make_tensor_value_info("v0", T.FLOAT, ["n"])],
            [h.make_tensor_value_info("v300", T.FLOAT, ["n"])],
            initializers,
        )
        return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)

    for bad in (0, 137, 299):
        result = verify(chain(None), chain(bad), bisect=True)
        assert result.parting is not None and result.parting.node_a == f"Add add{bad}"


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """As another exporter would name its values."""
    for node in model.graph.node:
        node.input[:] = [f"{n}_b" if n in ("hidden", "active", "scaled") else n for n in node.input]
        node.output[:] = [f"{n}_b" if n in ("hidden", "active", "scaled") else n for n in node.output]
        node.name += "_b"
    return model


def test_bisect_matches_by_values_where_no_names_are_shared() -> None:
    result = verify(mlp(2.0), renamed(mlp(3.0)), bisect=True)
    assert result.parting is not None and "by values" in str(result.note)
    assert (result.parting.value, result.parting.node_a, result.parting.node_b) == (
        "scaled",
        "Mul scale",
        "Mul scale_b",
    )
    assert result.parting.compared == 2 and not result.parting.check.ok  # hidden and active are the same in both


def test_bisect_by_values_steps_over_nodes_that_only_one_graph_has() -> None:
    other = renamed(mlp(3.0))
    other.graph.node.insert(1, h.make_node("Identity", ["hidden_b"], ["copy"], name="copy"))
    other.graph.node[2].input[0] = "copy"
    result = verify(mlp(2.0), other, bisect=True)
    assert result.parting is not None and result.parting.node_b == "Mul scale_b"


def test_bisect_says_what_is_the_same_where_the_structure_differs() -> None:
    other = renamed(mlp(3.0))  # y = 3 relu, as three sums of another shape
    del other.graph.node[2:]
    other.graph.node.append(h.make_node("Concat", ["active_b", "active_b"], ["wide"], axis=1, name="wide"))
    other.graph.node.append(h.make_node("Slice", ["wide", "from", "to", "axis"], ["y"], name="cut"))
    for name, value in (("from", 1), ("to", 4), ("axis", 1)):
        other.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value], np.int64), name))
    result = verify(mlp(2.0), other, bisect=True)
    assert result.parting is None and "the last of them active (Relu activate) as active_b" in str(result.note)


def test_bisect_says_when_nothing_is_the_same() -> None:
    other = renamed(mlp(3.0))
    other.graph.node.insert(0, h.make_node("Exp", ["x"], ["other"], name="other"))
    other.graph.node[1].input[0] = "other"
    other.graph.node[1].op_type, other.graph.node[1].output[0] = "MatMul", "hidden_b"
    result = verify(mlp(2.0), other, bisect=True)
    assert result.parting is None and "none holds the same numbers" in str(result.note)


def test_bisect_works_with_external_data(tmp_path: Path) -> None:
    for name, scale in (("a", 1.0), ("b", 2.0)):
        onnx.save(
            mlp(scale),
            str(tmp_path / f"{name}.onnx"),
            save_as_external_data=True,
            location=f"{name}.data",
            size_threshold=0,
        )
    result = verify(tmp_path / "a.onnx", tmp_path / "b.onnx", bisect=True)
    assert result.parting is not None and result.parting.value == "scaled"


# --- command line -----------------------------------------------------------------------------------------


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = saved(tmp_path, mlp(), "a"), saved(tmp_path, mlp(2.0), "b")

    def exit_code(*args: str) -> int:
        with pytest.raises(SystemExit) as stop:
            main(["verify", *args])
        return int(stop.value.code or 0)

    assert exit_code(str(a), str(a)) == 0
    assert exit_code(str(a), str(b)) == 1
    assert exit_code(str(a), str(b), "--rtol", "2", "--atol", "1") == 0
    capsys.readouterr()
    assert exit_code(str(a), str(b), "--json") == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert exit_code(str(a), str(tmp_path / "none.onnx")) == 2
    assert exit_code(str(a), str(b), "--shape", "nonsense") == 2


# --- memory --------------------------------------------------------------------------

PEAK = """
import sys
import numpy as np
from opsmith import session
from opsmith.check.verify import verify
what, path = sys.argv[1:]
running = session.load(path)
if what == "run":
    session.run(running, {"x": np.ones(2, np.float32)})
else:
    assert verify(path, path, shapes=[{"n": 2}, {"n": 3}]).ok
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_verify_holds_the_values_of_one_run_at_a_time(tmp_path: Path) -> None:
    """Two values of 64 MiB, a small output: that output must not hold the memory of the session that made it."""
    text = """agraph (float[n] x) => (float y) {
        zero = Constant <value_ints = [0]> ()  one = Constant <value_ints = [1]> ()
        size = Constant <value_ints = [16777216]> ()  first = Slice (x, zero, one)
        wide = Expand (first, size)  a = Sin (wide)  b = Cos (a)  y = ReduceMax <keepdims = 0> (b, zero) }"""
    path = saved(tmp_path, onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}'), "wide")

    def peak(what: str) -> int:
        command = [sys.executable, "-c", PEAK, what, str(path)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) // 1024

    assert peak("verify") < peak("run") + 100  # MiB
