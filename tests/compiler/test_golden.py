"""Generated C++ is a product, and so is the program before it: a dozen small graphs, held against stored text. OPSMITH_UPDATE_GOLDEN=1 rewrites them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from small import MLP, graph

from opsmith.compiler import geometry
from opsmith.compiler.convert import Blob
from opsmith.compiler.cut import cut
from opsmith.compiler.emit import Form
from opsmith.compiler.forms import write_code
from opsmith.compiler.lower import Target
from opsmith.compiler.program import show
from opsmith.compiler.source import load, prepare

GOLDEN = Path(__file__).parent / "golden"


def weights(model: onnx.ModelProto, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return model


GRAPHS = {
    "silu": graph("g (float[n, 8] x) => (float[n, 8] y) { s = Sigmoid(x)  y = Mul(x, s) }"),
    "broadcast": graph("g (float[a, b] x, float[c, b] y) => (float[a, b] z) { z = Add(x, y) }"),
    "masks": graph("g (float[n] x, float[n] y) => (float[n] z) { m = Less(x, y)  z = Where(m, x, y) }"),
    "integers": graph("g (int64[n] x, int64[n] y) => (int64[n] z) { q = Div(x, y)  z = Mod(q, y) }"),
    "mlp": MLP,
    "shape_arithmetic": graph(
        """g (float[batch, seq, 6] x) => (float[batch, 2, seq, 3] y) <int64[1] minus = {-1}, int64[2] tail = {2, 3}> {
          s = Shape<start=0, end=2>(x)  t = Concat<axis=0>(s, tail)  r = Reshape(x, t)  y = Transpose<perm=[0,2,1,3]>(r) }"""
    ),
    "slices": graph(
        """g (float[a, b] x) => (float[a, k] y)
        <int64[1] one = {1}, int64[1] big = {9223372036854775807}, int64[1] two = {2}> { y = Slice(x, one, big, one, two) }"""
    ),
    "concat": graph("g (float[a, 2] x, float[a, 3] y) => (float[a, 5] z) { z = Concat<axis=1>(x, y) }"),
    "gather": graph("g (float[rows, 4] t, int64[n] at) => (float[n, 4] y) { y = Gather(t, at) }"),
    "softmax": graph("g (float[n, m] x) => (float[n, m] y) { y = Softmax<axis=-1>(x) }"),
    "layer_norm": weights(
        graph("g (float[n, 8] x) => (float[n, 8] y) { l = LayerNormalization<axis=-1>(x, s, b)  y = Relu(l) }"),
        s=(8,),
        b=(8,),
    ),
    "conv": weights(
        graph("g (float[n, 3, h, w] x) => (float[n, 4, oh, ow] y) { c = Conv<pads=[1,1,1,1]>(x, k, b)  y = Relu(c) }"),
        k=(4, 3, 3, 3),
        b=(4,),
    ),
    "attention": graph(
        """g (float[b, 2, s, 4] q, float[b, 2, t, 4] k, float[b, 2, t, 4] v) => (float[b, 2, s, 4] y) <float half = {0.5}> {
          kt = Transpose<perm=[0,1,3,2]>(k)  a = MatMul(q, kt)  c = Mul(a, half)  p = Softmax<axis=-1>(c)  y = MatMul(p, v) }"""
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_generated_program_reads_as_it_did(name):
    pieces = cut(prepare(load(ir.from_proto(GRAPHS[name]))), "whole", Target(geometry.AVX2))
    sources, _ = write_code(
        {"native": pieces}, [Form(pieces.programs, [Blob(0, p.weight_bytes) for p in pieces.programs])]
    )
    kept = [s for s in sources if s.compiled and s.name != "register.cpp"]
    text = "\n".join(f"// ===== {s.name}\n{s.text}" for s in kept)
    hold(GOLDEN / f"{name}.cpp", text)
    hold(GOLDEN / f"{name}.txt", "\n".join(map(show, pieces.programs)))


def hold(path: Path, text: str) -> None:
    if os.environ.get("OPSMITH_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
