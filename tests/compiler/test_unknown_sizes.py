"""Two sizes are equal, different, or unknown until the program runs: then both answers must be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from batch import compile_batch
from onnx import helper as h
from small import graph

from opsmith.compiler.cut import cut
from opsmith.compiler.geometry import native
from opsmith.compiler.lower import Target
from opsmith.compiler.source import load, prepare

Case = tuple[str, dict[str, list[int | str]], dict[str, Any], list[dict[str, int]]]

EINSUM = [
    ("ab,ea->bea", ["n", 4], [2, 3], [{"n": 3}, {"n": 1}]),
    ("bij,bjk->bik", ["b", 3, 4], ["c", 4, 5], [{"b": 2, "c": 2}, {"b": 1, "c": 2}, {"b": 2, "c": 1}]),
    ("bij,bjk->bik", ["b", 3, 4], [2, 4, 5], [{"b": 2}, {"b": 1}]),
    ("bij,bjk->bik", [2, 3, "k"], [2, "l", 5], [{"k": 4, "l": 4}, {"k": 1, "l": 4}, {"k": 4, "l": 1}]),
    ("bij,bjk->bik", ["b", 3, 4], ["b", 4, 5], [{"b": 2}, {"b": 1}]),
    ("...ij,...jk->...ik", ["b", 3, 4], ["c", 4, 5], [{"b": 2, "c": 2}, {"b": 1, "c": 2}]),
    ("ij,ij->", ["n", 4], ["m", "k"], [{"n": 3, "m": 3, "k": 4}, {"n": 3, "m": 1, "k": 1}]),
]
OTHERS: list[tuple[str, list[Any], list[Any], list[dict[str, int]]]] = [
    ("Add", ["n", 4], ["m", 4], [{"n": 3, "m": 3}, {"n": 1, "m": 3}, {"n": 3, "m": 1}, {"n": 1, "m": 0}]),
    ("Mul", ["n", "k"], [3, 1], [{"n": 3, "k": 2}, {"n": 1, "k": 2}]),
    ("MatMul", ["b", 2, "k"], ["c", "l", 5], [{"b": 2, "c": 2, "k": 4, "l": 4}, {"b": 1, "c": 2, "k": 3, "l": 3}]),
    ("MatMul", ["b", 2, 3], [4, 3, 5], [{"b": 4}, {"b": 1}]),
    ("Max", ["n", "m"], ["k", 4], [{"n": 2, "m": 4, "k": 2}, {"n": 2, "m": 1, "k": 1}, {"n": 1, "m": 1, "k": 3}]),
    ("PRelu", ["n", 3, "m"], ["k", 1], [{"n": 2, "m": 4, "k": 3}, {"n": 2, "m": 4, "k": 1}]),
]


def _model(op: str, x: list[Any], y: list[Any], **attributes: Any) -> bytes:
    values = [h.make_tensor_value_info(n, 1, s) for n, s in (("x", x), ("y", y))]
    node = h.make_node(op, ["x", "y"], ["z"], **attributes)
    graph = h.make_graph([node], "g", values, [h.make_tensor_value_info("z", 1, None)])
    found: bytes = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9).SerializeToString()
    return found


@pytest.mark.parametrize("family", ["einsum", "others"])
def test_sizes_that_are_only_known_at_run_time(family: str, tmp_path: Path) -> None:
    rows = (
        [("Einsum", *r[1:], {"equation": r[0]}) for r in EINSUM] if family == "einsum" else [(*r, {}) for r in OTHERS]
    )
    models = [(f"m{i}", _model(op, x, y, **attributes)) for i, (op, x, y, _, attributes) in enumerate(rows)]
    library, built = compile_batch(models, tmp_path)
    rng = np.random.default_rng(0)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    for (op, x, y, cases, _), result, (_, model) in zip(rows, built, models):
        assert result.native, f"{op} {x} {y}: {result.left or result.error}"
        own, stock = ort.InferenceSession(result.path, options), ort.InferenceSession(model)
        for case in cases:
            shapes = {n: [d if isinstance(d, int) else case[d] for d in s] for n, s in (("x", x), ("y", y))}
            feed = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
            want, got = stock.run(None, feed)[0], own.run(None, feed)[0]
            assert want.shape == got.shape, f"{op} {x} {y} {case}"
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{op} {x} {y} {case}")


def test_sizes_that_differ_are_refused_when_the_program_runs(tmp_path: Path) -> None:
    models = [("m0", _model("Add", ["n", 4], ["m", 4])), ("m1", _model("MatMul", [2, "k"], ["l", 5]))]
    library, built = compile_batch(models, tmp_path)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library))
    for result, x, y in zip(built, ((3, 4), (2, 3)), ((2, 4), (4, 5))):
        with pytest.raises(Exception, match="broadcast|inner"):
            ort.InferenceSession(result.path, options).run(None, {"x": np.ones(x, "f"), "y": np.ones(y, "f")})


SQUEEZED = """<ir_version: 9, opset_import: ["" : 18]>
squeezed (float[n, 1, m, 1] x) => (float y, float[k] z, float w) <float two = {2.0}, int64[1] flat = {-1}> {
    s = Squeeze(x)    t = Sigmoid(s)    u = Mul(t, two)    y = Add(u, s)
    z = Reshape(t, flat)
    w = ReduceSum <keepdims = 1> (s)
}"""


def test_a_squeeze_without_axes_is_native_and_what_needs_its_rank_stays(tmp_path: Path) -> None:
    """How many dims are left depends on the sizes; elementwise nodes and a flat Reshape do not mind."""
    model = onnx.parser.parse_model(SQUEEZED)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    library, (built,) = compile_batch([("squeezed", model.SerializeToString())], tmp_path)
    assert [op for op, _ in built.left] == ["ReduceSum"]
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    own, stock = ort.InferenceSession(built.path, options), ort.InferenceSession(model.SerializeToString())
    for n, m in ((3, 4), (1, 4), (3, 1), (1, 1), (0, 4)):
        x = np.random.default_rng(0).standard_normal((n, 1, m, 1)).astype(np.float32)
        for want, got in zip(stock.run(None, {"x": x}), own.run(None, {"x": x})):
            assert want.shape == got.shape
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_shape_that_another_region_computed_is_known_without_reading_it() -> None:
    """`k` stays with ONNX Runtime: behind it the target of the Reshape is an input, and still says n."""
    text = """g (float[n, 6] x) => (float[2, a, b] y)
    <int64[1] two = {2}, int64[1] rest = {-1}, int64[1] zero = {0}, int64[1] one = {1}> {
      h = Relu (x)  s = Shape (x)  rows = Slice (s, zero, one)  target = Concat <axis = 0> (two, rows, rest)
      k = Exp (h)  r = Reshape (k, target)  y = Neg (r)
    }"""
    source = prepare(load(graph(text), None))
    exp = next(n.name or "" for n in source.working.graph if n.op_type == "Exp")
    pieces = cut(source, "all", Target(native()), {exp: "a test"})
    assert [n.op_type for n in pieces.left] == ["Exp"]
    behind = next(p for p, r in zip(pieces.programs, pieces.regions) if any(n.op_type == "Reshape" for n in r.nodes))
    assert [str(d) for d in behind.outputs[0].facts.dims] == ["2", "n", "3"]


PAIRED = """g (float[n, 3, m] x) => (float[n, 3, wide] y, float[k, 3, m] turned)
    <int64[1] last = {2}, int64[1] eight = {8}, int64[5] rest = {0, 0, 0, 0, 0}, int64[2] pairs = {-1, 2}, int64[1] zero = {0},
     int64[1] minus = {-1}, int64[1] lowest = {-9223372036854775807}, int64[1] one = {1}, int64[2] three = {3, -1}> {
    shape = Shape(x)
    width = Gather(shape, last)
    missing = Sub(eight, width)
    amounts = Concat <axis = 0> (missing, rest)
    paired = Reshape(amounts, pairs)
    backwards = Slice(paired, minus, lowest, zero, minus)
    sides = Transpose <perm = [1, 0]> (backwards)
    pads = Reshape(sides, minus)
    y = Pad(x, pads)
    columns = Reshape(amounts, three)
    column = Slice(columns, zero, one, one)
    turns = Reshape(column, minus)
    more = Concat <axis = 0> (turns, turns)
    turned = Pad(x, more)
}"""


def test_pads_that_are_paired_in_a_matrix_and_turned_round_are_sizes(tmp_path: Path) -> None:
    """As torch exports F.pad with an amount that depends on a size; also where a column of the matrix is taken."""
    model = graph(PAIRED)
    library, (built,) = compile_batch([("paired", model.SerializeToString())], tmp_path)
    assert not built.left
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    own, stock = ort.InferenceSession(built.path, options), ort.InferenceSession(model.SerializeToString())
    for n, m in ((2, 5), (1, 8), (3, 1)):
        x = np.random.default_rng(0).standard_normal((n, 3, m)).astype(np.float32)
        for want, got in zip(stock.run(None, {"x": x}), own.run(None, {"x": x})):
            np.testing.assert_array_equal(got, want)
