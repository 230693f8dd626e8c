"""Operators that ONNX Runtime's own optimizer writes (com.microsoft), and the arithmetic ones of ai.onnx.ml: native, and equal to ONNX
Runtime's kernels of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from batch import compile_batch
from onnx import parser
from test_random_graphs import options

from opsmith.compiler import geometry
from opsmith.compiler.cut import cut
from opsmith.compiler.lower import Target
from opsmith.compiler.program import show
from opsmith.compiler.source import load, prepare

RANDOM = np.random.default_rng(0)
Feed = dict[str, np.ndarray]


@dataclasses.dataclass
class Case:
    """`y = Op(x)` of com.microsoft on inputs declared as "float[n, 8] x"; sizes of the dims, or whole inputs, one run each."""

    inputs: str
    body: str
    runs: list[dict[str, Any]] = dataclasses.field(default_factory=lambda: [{"b": 2, "s": 5}, {"b": 1, "s": 1}])
    values: Mapping[str, int] = dataclasses.field(default_factory=dict)  # of an integer input: random below this
    outputs: str = "float[b, s, d] y"
    opset: int = 17
    whole: bool = True  # nothing is left to ONNX Runtime

    def model(self) -> bytes:
        text = f"""<ir_version: 9, opset_import: ["" : {self.opset}, "com.microsoft" : 1, "ai.onnx.ml" : 3]>
        g ({self.inputs}) => ({self.outputs}) {{ {self.body} }}"""
        return parser.parse_model(text).SerializeToString()

    def feed(self, sizes: Mapping[str, Any]) -> Feed:
        feed: Feed = {}
        for value in onnx.load_from_string(self.model()).graph.input:
            kind = value.type.tensor_type
            shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in kind.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            if value.name in sizes:
                feed[value.name] = np.array(sizes[value.name], dtype)
            elif dtype.kind in "iu":
                feed[value.name] = RANDOM.integers(0, self.values[value.name], shape).astype(dtype)
            else:
                feed[value.name] = RANDOM.normal(0, 1, shape).astype(dtype)
        return feed


def check(cases: list[Case], folder: Path) -> None:
    sources = [c.model() for c in cases]
    library, built = compile_batch([(f"case{i}", m) for i, m in enumerate(sources)], folder)
    for case, source, result in zip(cases, sources, built):
        assert result.native or not case.whole, (case.body, result.error, result.left)
        stock_options = options()
        stock_options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        stock = ort.InferenceSession(source, stock_options, providers=["CPUExecutionProvider"])
        own = ort.InferenceSession(result.path, options(library), providers=["CPUExecutionProvider"])
        for sizes in case.runs:
            feed = case.feed(sizes)
            for want, got in zip(stock.run(None, feed), own.run(None, feed)):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=case.body)


AB = [{"b": 2, "n": 5}, {"b": 1, "n": 1}]


def test_products_with_transposes_and_activations(tmp_path: Path) -> None:
    y = "float[b, m, n] y"
    cases = [
        Case("float[b, n, 6] a, float[b, 6, 4] c", "y = com.microsoft.FusedMatMul(a, c)", AB, outputs=y),
        Case(
            "float[b, n, 6] a, float[b, n, 4] c",
            "y = com.microsoft.FusedMatMul<transA = 1, alpha = 0.25>(a, c)",
            AB,
            outputs=y,
        ),
        Case(
            "float[b, 7, 6] a, float[b, n, 6] c",
            "y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.125>(a, c)",
            AB,
            outputs=y,
        ),
        Case(
            "float[b, 6, n] a, float[5, 6] c",
            "y = com.microsoft.TransposeMatMul<transA = 1, transB = 1>(a, c)",
            AB,
            outputs=y,
        ),
        Case(
            "float[n, b, 6] a, float[b, 6, 4] c", "y = com.microsoft.FusedMatMul<transBatchA = 1>(a, c)", AB, outputs=y
        ),
        Case(
            "float[6, b, n] a, float[4, b, 6] c",
            "y = com.microsoft.FusedMatMul<transBatchA = 1, transA = 1, transBatchB = 1, transB = 1>(a, c)",
            AB,
            outputs=y,
        ),
        Case(
            "float[6] a, float[b, 6, n] c",
            "y = com.microsoft.FusedMatMul<transA = 1>(a, c)",
            AB,
            outputs="float[b, n] y",
        ),
    ]
    for options_, operands in (
        ('activation = "Relu"', "a, w, c"),
        ('activation = "Tanh", alpha = 0.5, transB = 1', "a, v"),
        ('activation = "LeakyRelu", activation_alpha = 0.3, beta = 0.5', "a, w, c"),
        ('activation = "HardSigmoid", activation_alpha = 0.3, activation_beta = 0.4', "a, w, c"),
    ):
        inputs = "float[n, 6] a, float[6, 4] w, float[4, 6] v, float[4] c"
        cases.append(Case(inputs, f"y = com.microsoft.FusedGemm<{options_}>({operands})", AB, outputs="float[n, 4] y"))
    check(cases, tmp_path)


def test_convolutions_with_activation_and_residual(tmp_path: Path) -> None:
    inputs = "float[b, 4, h, h] x, float[6, 4, 3, 3] w, float[6] c, float[b, 6, h, h] z"
    runs = [{"b": 2, "h": 9}, {"b": 1, "h": 3}]
    cases = [
        Case(inputs, f"y = com.microsoft.FusedConv<{o}, pads = [1, 1, 1, 1]>({i})", runs, outputs="float[b, 6, p, q] y")
        for o, i in (
            ('activation = "Relu"', "x, w, c"),
            ('activation = "Relu"', "x, w, c, z"),
            ('activation = "Sigmoid"', "x, w"),
            ('activation = "Relu"', "x, w, , z"),
            ('activation = "Clip", activation_params = [0.0, 6.0], strides = [2, 2]', "x, w, c"),
            ('activation = "LeakyRelu", activation_params = [0.1]', "x, w, c"),
            ('activation = "HardSigmoid", activation_params = [0.2, 0.5]', "x, w, c"),
        )
    ]
    check(cases, tmp_path)


def test_norms_of_sums(tmp_path: Path) -> None:
    inputs = "float[b, s, 24] x, float[b, s, 24] k, float[s, 24] r, float[24] g, float[24] e, float[24] c"
    both = "float[b, s, d] y, float[b, s, d] t"
    cases = [Case(inputs, body) for body in (
        "y = com.microsoft.SkipLayerNormalization<epsilon = 0.00001>(x, k, g, e)",
        "y = com.microsoft.SkipLayerNormalization(x, k, g)",
        "y = com.microsoft.SkipLayerNormalization(x, k, g, e, c)",
        "y = com.microsoft.SkipLayerNormalization(x, k, g, , c)",
        "y = com.microsoft.SkipLayerNormalization(x, r, g, e)",
        "y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.00001>(x, k, g)",
        "y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.00001>(x, k, g, c)",
    )]  # fmt: skip
    for op, operands in (("SkipLayerNormalization", "x, k, g, e, c"), ("SkipSimplifiedLayerNormalization", "x, k, g")):
        cases.append(Case(inputs, f"y, m, v, t = com.microsoft.{op}<epsilon = 0.00001>({operands})", outputs=both))
        cases.append(
            Case(inputs, f"y, , , t = com.microsoft.{op}<epsilon = 0.00001>({operands})", outputs=both, opset=14)
        )
    check(cases, tmp_path)


def test_embeddings(tmp_path: Path) -> None:
    tables = "float[11, 16] w, float[8, 16] p, float[2, 16] t, float[16] g, float[16] e"
    inputs = f"int32[b, s] ids, int32[b, s] kinds, {tables}, int32[b, s] mask, int32[b, s] at"
    values = {"ids": 11, "kinds": 2, "mask": 2, "at": 8}
    cases = [Case(inputs, f"{o} = com.microsoft.EmbedLayerNormalization<epsilon = 0.00001>({i})", values=values, outputs=r)
        for o, i, r in (
            ("y, m", "ids, kinds, w, p, t, g, e", "float[b, s, d] y"),
            ("y, m", "ids, , w, p, , g, e", "float[b, s, d] y"),
            ("y, m", "ids, kinds, w, p, t, g, e, mask", "float[b, s, d] y, int32[b] m"),
            ("y, m", "ids, kinds, w, p, t, g, e", "float[b, s, d] y, int32[b] m"),
            ("y, m, a", "ids, kinds, w, p, t, g, e, mask, at", "float[b, s, d] y, int32[b] m, float[b, s, d] a"),
        )]  # fmt: skip
    check(cases, tmp_path)


KV = "float[b, s, d] y, float[b, 3, t, 8] pk, float[b, 3, t, 8] pv"


def test_multi_head_attention(tmp_path: Path) -> None:
    self_, cross = (
        "float[b, s, 24] q, float[b, s, 24] k, float[b, s, 24] v",
        "float[b, s, 24] q, float[b, t, 24] k, float[b, t, 24] v",
    )
    cached = "float[b, s, 24] q, float[b, 3, t, 8] k, float[b, 3, t, 8] v"
    past = f"{self_}, float[b, 3, p, 8] c, float[b, 3, p, 8] d"
    runs = [{"b": 2, "s": 5, "t": 7, "p": 4, "a": 9}, {"b": 1, "s": 1, "t": 3, "p": 0, "a": 1}]
    mha = "com.microsoft.MultiHeadAttention"
    cases = [
        Case(inputs, body, runs, values={"m": 2, "len": 5}, outputs=outputs)
        for inputs, body, outputs in (
            (self_, f"y = {mha}<num_heads = 3>(q, k, v)", "float[b, s, d] y"),
            (self_, f"y = {mha}<num_heads = 3, unidirectional = 1, scale = 0.2>(q, k, v)", "float[b, s, d] y"),
            (f"{self_}, float[72] bias", f"y = {mha}<num_heads = 3>(q, k, v, bias)", "float[b, s, d] y"),
            (f"{cross}, int32[b, t] m", f"y = {mha}<num_heads = 3>(q, k, v, , m)", "float[b, s, d] y"),
            (
                f"{cross}, float[72] bias, int32[b, t] m, float[1, 3, s, t] e",
                f"y = {mha}<num_heads = 3, mask_filter_value = -3.0>(q, k, v, bias, m, e)",
                "float[b, s, d] y",
            ),
            (f"{self_}, int32[b] len", f"y = {mha}<num_heads = 3, mask_filter_value = -3.0>(q, k, v, , len)", "float[b, s, d] y"),
            (f"{self_}, float[b, 1, s, s] e", f"y = {mha}<num_heads = 3>(q, k, v, , , e)", "float[b, s, d] y"),
            (self_, f"y, pk, pv = {mha}<num_heads = 3>(q, k, v)", KV),
            (past, f"y, pk, pv = {mha}<num_heads = 3>(q, k, v, , , , c, d)", KV),
            (past, f"y, pk, pv = {mha}<num_heads = 3, unidirectional = 1>(q, k, v, , , , c, d)", KV),
            (f"{past}, float[72] bias", f"y, pk, pv = {mha}<num_heads = 3, unidirectional = 1>(q, k, v, bias, , , c, d)", KV),
            (cached, f"y = {mha}<num_heads = 3>(q, k, v)", "float[b, s, d] y"),
            (f"{cached}, float[72] bias", f"y = {mha}<num_heads = 3>(q, k, v, bias)", "float[b, s, d] y"),
        )
    ]  # fmt: skip
    inputs = f"{past}, int32[b, a] m"
    for filtered in ("", ", mask_filter_value = -3.4028234663852886e+38"):
        body = f"y, pk, pv = {mha}<num_heads = 3, unidirectional = 1{filtered}>(q, k, v, , m, , c, d)"
        cases.append(Case(inputs, body, runs, {"m": 2}, KV))
    check(cases, tmp_path)


def test_attention(tmp_path: Path) -> None:
    inputs = "float[b, s, 12] x, float[12, 72] w, float[72] c"
    runs = [{"b": 2, "s": 5, "p": 4, "a": 9}, {"b": 1, "s": 1, "p": 0, "a": 1}]
    both = "float[b, s, d] y, float[2, b, 3, t, 8] present"
    past = "float[2, b, 3, p, 8] old"
    op = "com.microsoft.Attention"  # never without a bias: ONNX Runtime's kernel crashes then
    cases = [
        Case(i, body, runs, values={"m": 2, "len": 5}, outputs=outputs)
        for i, body, outputs in (
            (inputs, f"y = {op}<num_heads = 3>(x, w, c)", "float[b, s, d] y"),
            (inputs, f"y = {op}<num_heads = 3, unidirectional = 1, scale = 0.5>(x, w, c)", "float[b, s, d] y"),
            (inputs, f"y = {op}<num_heads = 3, qkv_hidden_sizes = [24, 24, 24]>(x, w, c)", "float[b, s, d] y"),
            (inputs, f"y = {op}<num_heads = 3, qkv_hidden_sizes = [30, 30, 12]>(x, w, c)", "float[b, s, d] y"),
            (f"{inputs}, int32[b, s] m", f"y = {op}<num_heads = 3>(x, w, c, m)", "float[b, s, d] y"),
            (f"{inputs}, int32[b] len", f"y = {op}<num_heads = 3>(x, w, c, len)", "float[b, s, d] y"),
            (f"{inputs}, int32[b, s, s] m", f"y = {op}<num_heads = 3>(x, w, c, m)", "float[b, s, d] y"),
            (f"{inputs}, float[b, 3, s, s] e", f"y = {op}<num_heads = 3>(x, w, c, , , e)", "float[b, s, d] y"),
            (inputs, f"y, present = {op}<num_heads = 3>(x, w, c)", both),
            (f"{inputs}, {past}", f"y, present = {op}<num_heads = 3, unidirectional = 1>(x, w, c, , old)", both),
            (
                f"{inputs}, int32[b, a] m, {past}",
                f"y, present = {op}<num_heads = 3, unidirectional = 1>(x, w, c, m, old)",
                both,
            ),
        )
    ]
    check(cases, tmp_path)


def test_grouped_queries_over_caches_of_texts_of_different_lengths(tmp_path: Path) -> None:
    runs = [
        {"b": 2, "s": 5, "p": 0, "t": 5, "n": [4, 2], "at": [[0, 1, 2, 3, 4]] * 2},  # first call, one text padded
        {"b": 2, "s": 1, "p": 4, "t": 5, "n": [4, 2], "at": [[4], [2]]},
        {"b": 1, "s": 3, "p": 4, "t": 7, "n": [6], "at": [[4, 5, 6]]},
        {"b": 1, "s": 1, "p": 9, "t": 6, "n": [5], "at": [[5]]},  # a buffer with room
    ]
    qkv, caches = (
        "float[b, s, 64] q, float[b, s, 32] k, float[b, s, 32] v",
        "float[b, 2, p, 16] c, float[b, 2, p, 16] d",
    )
    lengths, tables = "int32[b] n, int32 t", "float[16, 8] cos, float[16, 8] sin"
    given = f"{qkv}, {caches}, {lengths}, {tables}"
    outputs = "float[b, s, 64] y, float[b, 2, x, 16] e, float[b, 2, x, 16] f"
    op, heads = "y, e, f = com.microsoft.GroupQueryAttention", "num_heads = 4, kv_num_heads = 2"
    whole = "float[b, s, 64] q, float[b, s, 64] k, float[b, s, 64] v, float[b, 4, p, 16] c, float[b, 4, p, 16] d"
    cases = [
        Case(inputs, body, runs, outputs=out)
        for inputs, body, out in (
            (given, f"{op}<{heads}, do_rotary = 1>(q, k, v, c, d, n, t, cos, sin)", outputs),
            (given, f"{op}<{heads}, do_rotary = 1, rotary_interleaved = 1, softcap = 1.5>(q, k, v, c, d, n, t, cos, sin)", outputs),
            (f"{given}, int64[b, s] at", f"{op}<{heads}, do_rotary = 1>(q, k, v, c, d, n, t, cos, sin, at)", outputs),
            (
                f"float[b, s, 128] q, {caches}, {lengths}, {tables}",
                f"{op}<{heads}, do_rotary = 1, scale = 0.2>(q, , , c, d, n, t, cos, sin)",
                outputs,
            ),
            (f"{qkv}, {caches}, {lengths}", f"{op}<{heads}, local_window_size = 2>(q, k, v, c, d, n, t)", outputs),
            (
                f"{whole}, {lengths}",
                f"{op}<num_heads = 4, kv_num_heads = 4>(q, k, v, c, d, n, t)",
                outputs.replace("b, 2, x", "b, 4, x"),
            ),
        )
    ]  # fmt: skip
    cases.append(Case(f"{qkv}, {lengths}", f"{op}<{heads}>(q, k, v, , , n, t)", runs[:1], outputs=outputs))
    check(cases, tmp_path)


def test_rotary_embedding(tmp_path: Path) -> None:
    inputs = "float[b, s, 24] x, float[b, 3, s, 8] h, int64[b, s] at, int64[1] first, float[16, 4] cos, float[16, 4] sin, float[16, 2] c, float[16, 2] n"
    op = "com.microsoft.RotaryEmbedding"
    cases = [Case(inputs, body, values={"at": 16, "first": 4}, outputs=outputs) for body, outputs in (
        (f"y = {op}(x, at, cos, sin)", "float[b, s, d] y"),
        (f"y = {op}(x, first, cos, sin)", "float[b, s, d] y"),
        (f"y = {op}(h, at, cos, sin)", "float[b, 3, s, d] y"),
        (f"y = {op}<interleaved = 1>(h, first, cos, sin)", "float[b, 3, s, d] y"),
        (f"y = {op}<interleaved = 1>(x, at, cos, sin)", "float[b, s, d] y"),
        (f"y = {op}<num_heads = 3, rotary_embedding_dim = 4>(x, at, c, n)", "float[b, s, d] y"),
        (f"y = {op}<num_heads = 3, rotary_embedding_dim = 4, interleaved = 1>(x, at, c, n)", "float[b, s, d] y"),
    )]  # fmt: skip
    check(cases, tmp_path)


def test_rows_of_tables_in_blocks(tmp_path: Path) -> None:
    inputs = "int64[b, s] i, int32[s] j, uint8[7, 20] t, float[7, 3] c, uint8[7, 2] z, uint8[7, 40] w, uint8[7, 3] e, uint8[7, 1] n"
    more = f"{inputs}, uint8[7, 2, 10] t3, float[7, 2, 2] c3, float16[7, 3] h"
    values = {"i": 9, "j": 7, "t": 256, "z": 256, "w": 256, "e": 256, "n": 256, "t3": 256}
    op = "com.microsoft.GatherBlockQuantized"
    cases = [Case(more, body, values=values, outputs=outputs, opset=21) for body, outputs in (
        (f"y = {op}<block_size = 16>(t, i, c, z)", "float[b, s, 40] y"),
        (f"y = {op}<block_size = 16, bits = 4>(t, j, c)", "float[s, 40] y"),
        (f"y = {op}<block_size = 16, bits = 4>(t, j, h, z)", "float16[s, 40] y"),
        (f"y = {op}<block_size = 16, bits = 8>(w, i, c, e)", "float[b, s, 40] y"),
        (f"y = {op}<block_size = 16, bits = 8>(w, j, c)", "float[s, 40] y"),
        (f"y = {op}<block_size = 16, quantize_axis = 2>(t3, i, c3)", "float[b, s, 2, 20] y"),
        (f"y = {op}<block_size = 32, bits = 2>(t, i, c, n)", "float[b, s, 80] y"),
    )]  # fmt: skip
    check(cases, tmp_path)


def test_definitions_are_found_again_and_run_in_the_kernels_of_what_they_define() -> None:
    x, past = "float[b, s, 12] x, float[12, 72] w, float[72] c", "float[2, b, 3, p, 8] old"
    rotary = "float[b, s, 24] x, int64[b, s] at, float[16, 4] cos, float[16, 4] sin"
    for inputs, body, kernel, without in (
        (x, "y = com.microsoft.Attention<num_heads = 3>(x, w, c)", "mask=NoMask()", "BiasMask"),
        (x, "y = com.microsoft.Attention<num_heads = 3, unidirectional = 1>(x, w, c)", "causal=True", "BiasMask"),
        (
            f"{x}, {past}",
            "y, z = com.microsoft.Attention<num_heads = 3, unidirectional = 1>(x, w, c, , old)",
            "causal=True",
            "BiasMask",
        ),
        (rotary, "y = com.microsoft.RotaryEmbedding(x, at, cos, sin)", "rotary<False>(", " - "),
        (rotary, "y = com.microsoft.RotaryEmbedding<interleaved = 1>(x, at, cos, sin)", "rotary<True>(", " - "),
    ):
        outputs = "float[b, s, d] y" + (", float[2, b, 3, t, 8] z" if "z =" in body else "")
        model = onnx.load_from_string(Case(inputs, body, outputs=outputs).model())
        pieces = cut(prepare(load(ir.from_proto(model))), "whole", Target(geometry.AVX2))
        text = "\n".join(map(show, pieces.programs))
        assert kernel in text and "softmax" not in text and without not in text, text


def test_a_model_that_went_through_the_optimizer_is_native(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 14]> g (float[b, s, 16] x, float[b, s, 16] r) => (float[b, s, 16] y) {
        a = MatMul(x, w1)  h = Add(a, b1)
        d = Div(h, root)  e = Erf(d)  f = Add(e, one)  k = Mul(h, f)  gelu = Mul(k, half)
        o = MatMul(gelu, w2)  p = Add(o, b2)  t = Add(p, r)
        m = ReduceMean<axes = [-1]>(t)  c = Sub(t, m)  q = Pow(c, two)  v = ReduceMean<axes = [-1]>(q)
        u = Add(v, epsilon)  z = Sqrt(u)  n = Div(c, z)  l = Mul(n, scale)  y = Add(l, shift) }"""
    model = parser.parse_model(text)
    shapes = {"w1": (16, 32), "b1": 32, "w2": (32, 16), "b2": 16, "scale": 16, "shift": 16}
    arrays = {n: RANDOM.normal(0, 1, shape) for n, shape in shapes.items()}
    arrays |= {"root": np.sqrt(2), "one": 1, "half": 0.5, "two": 2, "epsilon": 1e-5}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.float32(a), n) for n, a in arrays.items())
    optimizer = options()
    optimizer.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    optimizer.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    stock = ort.InferenceSession(model.SerializeToString(), optimizer, providers=["CPUExecutionProvider"])
    source = (tmp_path / "optimized.onnx").read_bytes()
    written = {n.op_type for n in onnx.load_from_string(source).graph.node}
    assert written == {"MatMul", "BiasGelu", "SkipLayerNormalization"}
    library, (result,) = compile_batch([("optimized", source)], tmp_path)
    assert result.native, (result.error, result.left)
    own = ort.InferenceSession(result.path, options(library), providers=["CPUExecutionProvider"])
    for shape in ((2, 5, 16), (1, 1, 16)):
        feed = {name: RANDOM.normal(0, 1, shape).astype(np.float32) for name in "xr"}
        np.testing.assert_allclose(own.run(None, feed)[0], stock.run(None, feed)[0], rtol=1e-4, atol=1e-5)


def test_arithmetic_of_ai_onnx_ml(tmp_path: Path) -> None:
    """Classical models: what scales, fills and normalizes columns, and the linear model behind it."""
    rows = [[0, 0, 0], [1, -2, 3], [0.5, 2, -1e-3]]
    runs: list[dict[str, Any]] = [{"x": rows, "n": 3}, {"x": rows[:1], "n": 1}]
    scales = "offset = [0.5, 1.0, -2.0], scale = [2.0, 0.1, 1.0]"
    filled = "imputed_value_floats = [7.0, 8.0, 9.0], replaced_value_float"
    line = "coefficients = [1.0, 2.0, 3.0, 0.5, -1.0, 0.25], targets = 2, intercepts = [0.5, -0.5]"
    many = [{"n": 3}, {"n": 1}]

    def case(kind: str, body: str, runs: list[dict[str, Any]] = runs, columns: int = 3) -> Case:
        return Case(f"{kind}[n, 3] x", f"y = ai.onnx.ml.{body}(x)", runs, {"x": 9}, f"float[n, {columns}] y", 18)

    check(
        [
            case("float", f"Scaler<{scales}>"),
            case("double", f"Scaler<{scales}>"),
            case("int64", f"Scaler<{scales}>", many),
            case("float", "Scaler<offset = [0.5], scale = [4.0]>"),
            case("float", f"Imputer<{filled} = 0.0>"),
            case("float", "Binarizer<threshold = 0.5>"),
            case("float", 'Normalizer<norm = "L1">'),
            case("float", 'Normalizer<norm = "L2">'),
            case("float", f"LinearRegressor<{line}>", many, 2),
        ],
        tmp_path,
    )
