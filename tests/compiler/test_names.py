"""Names come from the model: anything may stand in them, and nothing of it may become code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import opsmith
from opsmith import session
from opsmith.measure.profile import profile

LINE_ENDS = "\r\x0b\x0c\x85\u2028"
NAMES = ["two words", 'a "quote', "back\\slash\\", "100 %s%n", "n²", "größe", "??/", *LINE_ENDS]


def model(name: str) -> onnx.ModelProto:
    code = f"{name};#error {name}\\"
    nodes = [
        helper.make_node("MatMul", [f"x{code}", f"w{code}"], [f"a{code}"], f"product {code}"),
        helper.make_node("Softmax", [f"a{code}"], [f"y{code}"], f"rows {code}"),
    ]
    weight = onnx.numpy_helper.from_array(np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8), f"w{code}")
    value = helper.make_tensor_value_info
    shapes = [value(n, TensorProto.FLOAT, [f"n{code}", 8]) for n in (f"x{code}", f"y{code}")]
    graph = helper.make_graph(nodes, f"g{code}", shapes[:1], shapes[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_what_is_written_has_no_line_that_a_name_ended_or_joined(name: str, tmp_path: Path) -> None:
    onnx.save(model(name), tmp_path / "model.onnx")
    opsmith.compile(tmp_path / "model.onnx", tmp_path / "c", regions="whole", emit_only=True)
    sources = [file for file in tmp_path.rglob("*.[ch]pp") if file.parent.name != "kernels"]
    assert len(sources) > 3
    for file in sources:
        lines = file.read_bytes().decode().split("\n")
        assert all(line.isprintable() for line in lines), file
        assert not any(line.rstrip().endswith("\\") for line in lines), file
        assert not any(line.startswith("#") and "error" in line for line in lines), file


def test_a_model_of_odd_names_compiles_and_is_profiled_node_by_node(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(model(" ".join(NAMES)), source)
    result = opsmith.compile(source, tmp_path / "c", regions="whole")
    assert result.native == 2 and result.variant is not None
    x = np.random.default_rng(0).standard_normal((3, 8), dtype=np.float32)
    sessions = [session.load(path) for path in (source, result.variant.path)]
    ours, theirs = (session.run(s, {s.get_inputs()[0].name: x})[0] for s in sessions)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    (found,) = profile(result.variant.path, threads=1, iterations=3)
    assert {n.name for n in onnx.load(source).graph.node} <= {name for row in found.rows for name in row.origin}
