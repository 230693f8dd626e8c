"""quantize: integers that mean what they say, files that stock ONNX Runtime runs, errors that are measured."""

from __future__ import annotations

import dataclasses
import json

import models
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import opsmith
from opsmith import store
from opsmith.cli import main
from opsmith.compress import quality
from opsmith.compress.blocks import dequantize_blocks, quantize_blocks
from opsmith.compress.prune import prune
from opsmith.compress.quantize import quantize
from opsmith.errors import OpsmithError


def linear(path, k=40, n=24, *, gemm=False, trans_b=False, bias_shape=(24,), seed=0):
    """x (rows, k) @ w + bias."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((n, k) if trans_b else (k, n)).astype(np.float32)
    bias = rng.standard_normal(bias_shape).astype(np.float32)
    weights = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(bias, "bias")]
    if gemm:
        nodes = [helper.make_node("Gemm", ["x", "w", "bias"], ["y"], name="fc", transB=int(trans_b))]
    else:
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["xw"], name="fc"),
            helper.make_node("Add", ["xw", "bias"], ["y"]),
        ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", n])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return w.T if trans_b else w, bias


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("k", [32, 40, 100])
def test_every_value_is_at_most_half_a_step_away_unless_its_block_is_clipped(bits, symmetric, k):
    w = np.random.default_rng(k).standard_normal((k, 7)).astype(np.float32)
    blocks = quantize_blocks(w, bits, 32, symmetric)
    back = dequantize_blocks(blocks)
    steps = np.repeat(np.abs(blocks.scales).T, 32, axis=0)[:k]  # (k, 7)
    off = np.abs(back - w) / steps
    assert back.shape == w.shape
    assert np.mean(off <= 0.501) > 0.9  # the rest are clipped on purpose: the block as a whole is better for it
    spread = np.abs(w).max() * (2 if symmetric else 1.6)
    assert np.sqrt(np.mean((back - w) ** 2)) < spread / (1 << bits) / 2


def test_clipping_never_makes_a_block_worse_than_plain_rounding():
    w = np.random.default_rng(1).standard_t(3, (64, 50)).astype(np.float32)  # heavy tails: clipping pays
    found = np.square(dequantize_blocks(quantize_blocks(w, 4, 32)) - w).reshape(2, 32, 50).sum(1)
    grouped = w.reshape(2, 32, 50)
    low, high = grouped.min(1), grouped.max(1)
    scale = -np.where(-low >= high, low, high) / 8
    q = np.clip(np.rint(grouped / scale[:, None]) + 8, 0, 15)
    plain = np.square((q - 8) * scale[:, None] - grouped).sum(1)
    assert np.all(found <= plain * 1.0001) and found.sum() < plain.sum()


def test_all_zero_and_constant_blocks_survive():
    w = np.zeros((64, 3), np.float32)
    w[32:, 1] = 0.25
    w[32:, 2] = -3.0
    for bits in (4, 8):
        for symmetric in (True, False):
            back = dequantize_blocks(quantize_blocks(w, bits, 32, symmetric))
            assert np.isfinite(back).all()
            np.testing.assert_allclose(back, w, atol=0.02 * 3)
            assert not back[:32].any()


@pytest.mark.parametrize(
    "gemm, trans_b, bias_shape", [(False, False, (24,)), (True, False, (24,)), (True, True, (1, 24))]
)
@pytest.mark.parametrize("bits, symmetric, block", [(8, True, 32), (4, True, 16), (4, False, 32), (8, False, 64)])
def test_stock_ort_computes_the_product_with_the_rounded_weight(
    tmp_path, gemm, trans_b, bias_shape, bits, symmetric, block
):
    w, bias = linear(tmp_path / "a.onnx", 64, 24, gemm=gemm, trans_b=trans_b, bias_shape=bias_shape)
    quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", bits=bits, block=block, symmetric=symmetric)
    x = np.random.default_rng(5).standard_normal((3, 64)).astype(np.float32)
    (y,) = ort.InferenceSession(tmp_path / "b.onnx").run(None, {"x": x})
    rounded = dequantize_blocks(quantize_blocks(w, bits, block, symmetric))
    np.testing.assert_allclose(y, x @ rounded + bias, rtol=1e-4, atol=1e-4)
    proto = onnx.load(tmp_path / "b.onnx")
    assert [n.op_type for n in proto.graph.node].count("MatMulNBits") == 1
    assert "w" not in {i.name for i in proto.graph.initializer}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_decoders_get_smaller_and_the_error_is_on_record(tmp_path, name):
    src = models.tiny_variant(name)
    eight = quantize(src, tmp_path / "m" / "int8", threads=1)
    four = quantize(src, tmp_path / "m" / "int4", bits=4, threads=1)
    assert eight.after < 0.5 * eight.before and four.after < 0.8 * eight.after
    assert eight.quality.error < 0.03 and eight.quality.top1 > 0.9 and four.quality.error > 4 * eight.quality.error
    record = json.loads((tmp_path / "m" / "int8" / "opsmith.json").read_text())
    assert record["verb"] == "quantize" and record["quantized"]["quality"]["error"] == pytest.approx(
        eight.quality.error, rel=1e-4
    )
    assert not eight.left and eight.quantized == (9 if name == "gpt2" else 15)  # GPT-2's tied head is among them


def test_half_precision_storage_halves_the_file(tmp_path):
    result = quantize(models.tiny_variant("gpt2"), tmp_path / "m" / "fp16", method="fp16", threads=1)
    assert result.after < 0.6 * result.before and result.quality.error < 2e-3
    kinds = {
        v.dtype.name for v in store.open_model(result.variant).graph.initializers.values() if v.const_value.size > 2000
    }
    assert kinds == {"FLOAT16"}


def test_a_weight_beyond_half_precision_stays_and_is_named(tmp_path):
    linear(tmp_path / "a.onnx", 64, 64, bias_shape=(64,))
    proto = onnx.load(tmp_path / "a.onnx")
    w = numpy_helper.to_array(proto.graph.initializer[0]).copy()
    w[0, 0] = 1e6
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    onnx.save(proto, tmp_path / "a.onnx")
    with pytest.raises(OpsmithError, match="nothing that fp16"):
        quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", method="fp16")
    assert not (tmp_path / "b.onnx").exists()


@pytest.mark.parametrize("options", [{"method": "dynamic"}, {"method": "static", "calibration": "generated"}])
def test_ort_s_own_methods_give_int8_models_that_run(tmp_path, options):
    result = quantize(models.tiny_variant("llama"), tmp_path / "m" / "q", threads=1, **options)
    assert result.after < 0.6 * result.before and result.quality.error < 0.1 and result.quantized >= 15
    ort.InferenceSession(result.variant.path)


@pytest.mark.parametrize("ranges", ["entropy", "percentile"])
def test_static_calibrates_with_other_ranges(tmp_path, ranges):
    linear(tmp_path / "a.onnx", 64, 64, bias_shape=(64,))
    result = quantize(
        tmp_path / "a.onnx", tmp_path / "b.onnx", method="static", ranges=ranges, calibration="generated", samples=4
    )
    assert result.quality.error < 0.1


def test_the_sweep_spares_the_worst_layers_first_and_reaches_the_goal(tmp_path):
    src = models.tiny_variant("llama")
    plain = quantize(src, tmp_path / "m" / "plain", bits=4, threads=1)
    mixed = quantize(src, tmp_path / "m" / "mixed", bits=4, max_error=plain.quality.error / 2, threads=1)
    assert mixed.quality.error <= plain.quality.error / 2 < plain.quality.error
    bits = [row.bits for row in mixed.sweep]
    errors = [row.error for row in mixed.sweep]
    assert bits == sorted(bits, reverse=True) and set(bits) == {4, 8} and errors == sorted(errors, reverse=True)
    used = {n.attributes["bits"].value for n in store.open_model(mixed.variant).graph if n.op_type == "MatMulNBits"}
    assert used == {4, 8}
    strict = quantize(src, tmp_path / "m" / "strict", bits=4, max_error=0.004, threads=1)
    assert {row.bits for row in strict.sweep} >= {32} and any("too sensitive" in line for line in strict.left)


def test_a_goal_out_of_reach_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(OpsmithError, match="cannot be reached"):
        quantize(models.tiny_variant("llama"), tmp_path / "m" / "q", max_error=1e-9, threads=1)
    assert not (tmp_path / "m").exists()


def test_large_models_keep_their_weights_outside_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "EMBED_LIMIT", 10_000)
    result = quantize(models.tiny_variant("gpt2"), tmp_path / "m" / "int8", threads=1)
    folder = result.variant.folder
    assert (folder / "m_int8.onnx.data").stat().st_size > 100_000
    again = quantize(models.tiny_variant("gpt2"), tmp_path / "m" / "fp16", method="fp16", threads=1)
    assert again.quality.error < 0.01
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["fp16", "int8"]  # no stray temporary folders


@pytest.mark.parametrize("method", ["weight-only", "fp16"])
@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "a_int8_weight", "a_fp16", "a_fp16_1"]])
def test_nodes_without_names_and_names_that_are_taken_give_a_valid_model(tmp_path, method, names):
    rng = np.random.default_rng(0)
    weights = {name: (rng.standard_normal((64, 64)) / 8).astype(np.float32) for name in names}
    weights["bias"] = rng.standard_normal((1, 64)).astype(np.float32)  # two axes: it needs an Add of its own
    values = ["x", *(f"v{i}" for i in range(len(names) - 1)), "y"]
    nodes = [helper.make_node("Gemm", [values[i], name, "bias"], [values[i + 1]]) for i, name in enumerate(names)]
    if len(names) > 2:
        nodes[-1].name = "b_int8"  # which quantize would like to give to another
    inout = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 64]) for name in ("x", "y")]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "unnamed", inout[:1], inout[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "a.onnx")
    assert quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", method=method).quantized == len(names)
    made = onnx.load(tmp_path / "b.onnx").graph.node
    assert len({n.name for n in made}) == len(made) and all(n.name for n in made)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    before, after = (ort.InferenceSession(tmp_path / f"{n}.onnx").run(None, {"x": x})[0] for n in "ab")
    assert np.linalg.norm(after - before) < 0.03 * np.linalg.norm(before)


def test_an_excluded_layer_stays(tmp_path):
    result = quantize(models.tiny_variant("gpt2"), tmp_path / "m" / "q", exclude=["*mlp*"], threads=1)
    assert len(result.left) == 4 and result.quantized == 5


def test_a_pattern_that_no_name_fits_is_told(tmp_path):
    result = quantize(models.tiny_variant("gpt2"), tmp_path / "m" / "q", exclude=["nowhere*"], threads=1)
    assert result.left == ("nothing by --exclude nowhere*: no node or weight has such a name",)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("method", ["weight-only", "dynamic", "static"])
def test_the_ends_and_the_time_embedding_of_a_unet_stay_in_full_precision(tmp_path, method, exporter):
    source = models.tiny_variant("stable-diffusion", exporter, part="unet")
    feeds = source / "test_data_set_0"
    result = quantize(source, tmp_path / "m" / "q", method=method, calibration=feeds, threads=1)
    kept = [line.split(": ")[1].split(",")[0] for line in result.left if "full precision" in line]
    assert kept.count("time embedding") >= 2  # two products, and one per residual block
    if method != "weight-only":  # which has no convolutions
        assert {"first convolution", "last convolution"} <= set(kept)
        after = store.open_model(tmp_path / "m" / "q").graph
        convs = [n for n in after if n.op_type == "Conv" and n.inputs[1].is_initializer()]
        assert len(convs) == 2  # all others read integers
    everything = quantize(source, tmp_path / "m" / "all", method=method, calibration=feeds, spare=False, threads=1)
    assert everything.quantized > result.quantized
    assert not any("full precision" in line for line in everything.left)


@pytest.mark.parametrize("method", ["dynamic", "static"])
@pytest.mark.parametrize("opset", [9, 12])
def test_models_older_than_the_quantizing_operators_are_raised(tmp_path, method, opset):
    """Clip has its limits as attributes before opset 11, and DequantizeLinear one scale for all channels before 13."""
    rng = np.random.default_rng(0)
    clip = "Clip<min = 0.0, max = 6.0> (h)" if opset < 11 else "Clip (h, low, high)"
    text = f"""<ir_version: 6, opset_import: ["" : {opset}]> g (float[1, 4, 5, 5] x) => (float[1, 64, 5, 5] y) {{
        h = Conv (x, v, b)  c = {clip}  y = Conv (c, w, b) }}"""
    model = onnx.parser.parse_model(text)
    for name, shape in {"v": (64, 4, 1, 1), "w": (64, 64, 1, 1), "b": (64,)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape, np.float32), name))
    for name, limit in {"low": 0.0, "high": 6.0}.items() if opset > 10 else ():
        model.graph.initializer.append(numpy_helper.from_array(np.float32(limit), name))
    onnx.save(model, tmp_path / "a.onnx")
    result = quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", method=method, samples=2, threads=1)
    assert result.quality.cosine > 0.999 and result.quantized == 1  # v is small
    sizes = [tensor.dims for tensor in onnx.load(tmp_path / "b.onnx").graph.initializer if tensor.name == "w_scale"]
    assert sizes == [[64] if method == "static" else []]


def test_static_takes_a_shared_bias_beside_a_value_that_has_its_name_with_a_number(tmp_path):
    """The tool calls the second copy of `b` `b2`, whatever that is already."""
    rng = np.random.default_rng(0)
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[1, 4, 5, 5] x) => (float[1, 32, 5, 5] y) {
        h = Conv (x, v, b)  b2 = Conv (h, w, b)  r = Relu (b2)  y = Conv (r, w, b) }"""
    model = onnx.parser.parse_model(text)
    for name, shape in {"v": (32, 4, 1, 1), "w": (32, 32, 1, 1), "b": (32,)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape, np.float32), name))
    onnx.save(model, tmp_path / "a.onnx")
    result = quantize(tmp_path / "a.onnx", tmp_path / "m" / "q", method="static", samples=2, threads=1)
    assert result.quality.cosine > 0.99


@pytest.mark.parametrize(
    ("shape", "quantized"), [((1, 24), True), ((1,), True), ((), True), ((3, 24), False), ((3, 1), False)]
)
def test_static_takes_the_bias_of_a_gemm_whatever_its_rank(tmp_path, shape, quantized):
    """The tool reads one element of a bias per channel, as of the shape (24,)."""
    linear(tmp_path / "a.onnx", 64, bias_shape=shape, gemm=True)
    proto = onnx.load(tmp_path / "a.onnx")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    if not quantized:  # a layer beside it, so that something is left to quantize
        proto.graph.node[0].output[0] = "h"
        proto.graph.node.add(op_type="MatMul", input=["h", "v"], output=["y"])
        proto.graph.initializer.append(numpy_helper.from_array(np.ones((24, 24 * 2), np.float32), "v"))
        proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 48
    onnx.save(proto, tmp_path / "a.onnx")
    result = quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", method="static", samples=2, threads=1)
    assert result.quality.cosine > 0.99 and result.quantized == 1
    assert ("fc: its bias differs from row to row" in result.left) is not quantized


def test_weights_that_may_be_overridden_are_left_alone_and_the_refusal_says_so(tmp_path):
    linear(tmp_path / "a.onnx", 64)
    proto = onnx.load(tmp_path / "a.onnx")
    (weight,) = (w for w in proto.graph.initializer if len(w.dims) == 2)
    proto.graph.input.append(helper.make_tensor_value_info(weight.name, TensorProto.FLOAT, weight.dims))
    onnx.save(proto, tmp_path / "a.onnx")
    for method in ("weight-only", "fp16"):
        with pytest.raises(OpsmithError) as refused:
            quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", method=method, samples=2)
        assert refused.value.hint == (
            f"its weight {weight.name!r} may be overridden by who runs it: take them out of the graph's inputs, and they are constants"
        )


@pytest.mark.parametrize("method", ["dynamic", "static"])
def test_what_follows_an_operator_that_onnx_does_not_know_is_quantized(tmp_path, method):
    """The tool asks ONNX's inference for types, which knows none behind a contrib operator."""
    rng = np.random.default_rng(0)
    text = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[n, 64] x) => (float[n, 64] y) {
        a = com.microsoft.QuickGelu <alpha = 1.5> (x)  h = MatMul (a, w)  s = Sin (h)  y = Gemm (s, v, b) }"""
    model = onnx.parser.parse_model(text)
    for name, shape in {"v": (64, 64), "w": (64, 64), "b": (64,)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape, np.float32) / 8, name))
    onnx.save(model, tmp_path / "a.onnx")
    result = quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", method=method, samples=2, threads=1)
    assert result.quantized == 2 and result.quality.cosine > 0.99


@pytest.mark.parametrize("method", ["fp16", "int4"])
def test_an_export_goes_on_to_the_compiler_when_it_is_quantized(tmp_path, method):
    """The stored outputs are the smaller model's own, so that verify and compile hold it to what it computes."""
    source = models.tiny_variant("stable-diffusion", part="text_encoder")
    quantize(source, tmp_path / "m" / "small", method=method, threads=1)
    assert opsmith.verify(tmp_path / "m" / "small").ok
    assert not opsmith.verify(source, tmp_path / "m" / "small", rtol=1e-6, atol=1e-7).ok
    opsmith.compile(tmp_path / "m" / "small", tmp_path / "m" / "compiled", regions="all")


def test_a_compiled_int4_model_computes_what_ort_does(tmp_path):
    linear(tmp_path / "a.onnx", 64, 48, bias_shape=(48,))
    quantize(tmp_path / "a.onnx", tmp_path / "m" / "int4", bits=4, symmetric=False)
    opsmith.compile(tmp_path / "m" / "int4", tmp_path / "m" / "compiled", regions="all")
    assert opsmith.verify(tmp_path / "m" / "int4", tmp_path / "m" / "compiled").ok


@pytest.mark.parametrize(
    "options, words",
    [
        ({"bits": 3}, "bits 3"),
        ({"block": 48}, "block 48"),
        ({"method": "magic"}, "method 'magic'"),
        ({"method": "int9"}, "there is no method 'int9' .did you mean int8. known: int8, int4, weight-only"),
        ({"method": "int8", "bits": 4}, "--method int8 has 8 bits, not 4"),
        ({"method": "fp16", "bits": 4}, "--bits is for --method weight-only, and the method is fp16"),
        ({"method": "dynamic", "ranges": "entropy"}, "--ranges is for --method static"),
        ({"max_error": -1.0}, "makes no sense"),
        ({"calibration": "absent.npz"}, "does not exist"),
    ],
)
def test_bad_options_are_one_clear_line(tmp_path, options, words):
    linear(tmp_path / "a.onnx")
    with pytest.raises(OpsmithError, match=words):
        quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", **options)
    assert not (tmp_path / "b.onnx").exists()


def test_calibration_of_the_wrong_shape_names_the_input(tmp_path):
    linear(tmp_path / "a.onnx", 64, 24)
    np.savez(tmp_path / "c.npz", x=np.zeros((3, 63), np.float32))
    with pytest.raises(OpsmithError, match="'x' has shape 3x63, the model takes rowsx64"):
        quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", calibration=tmp_path / "c.npz")
    np.savez(tmp_path / "c.npz", z=np.zeros((3, 64), np.float32))
    with pytest.raises(OpsmithError, match="lacks the input 'x'"):
        quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", calibration=tmp_path / "c.npz")
    (tmp_path / "c.txt").write_text("words")
    with pytest.raises(OpsmithError, match="takes no input_ids"):
        quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", calibration=tmp_path / "c.txt")


def test_a_shape_is_that_of_every_generated_case(tmp_path, monkeypatch):
    seen = []
    answers = quality.answers
    monkeypatch.setattr(
        quality, "answers", lambda model, feeds, *rest: seen.extend(feeds) or answers(model, feeds, *rest)
    )
    linear(tmp_path / "a.onnx", 64, 24)
    with pytest.raises(SystemExit) as ended:
        main(["quantize", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--shape", "rows=5", "--samples", "3"])
    assert ended.value.code == 0
    assert [feed["x"].shape for feed in seen[:3]] == [(5, 64)] * 3
    assert not np.array_equal(seen[0]["x"], seen[1]["x"]), "the values differ where the sizes do not"
    prune(tmp_path / "a.onnx", tmp_path / "c.onnx", method="magnitude", ratio=0.5, shapes={"x": (7, 64)}, samples=2)
    assert seen[-1]["x"].shape == (7, 64)
    with pytest.raises(OpsmithError, match="no dim 'row'.*rows"):
        quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", shapes={"row": 5})
    with pytest.raises(OpsmithError, match="calibration files have their own"):
        quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", shapes={"rows": 5}, calibration=tmp_path / "c.npz")


def test_the_command_prints_the_sweep_and_the_error(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("a red apple on a table and a frog under it " * 4)
    model = models.tiny_model("gpt2")
    arguments = ["quantize", str(model / "dynamo"), str(tmp_path / "m" / "q"), "--bits", "4", "--max-error", "0.05"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--calibration", str(text), "--threads", "1"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert "sensitivity, worst first" in out and "top-1 agreement" in out and "KL divergence" in out


def test_kl_and_agreement_are_those_of_the_definition():
    a = np.log(np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]))
    b = np.log(np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]))
    kl, top1 = quality.next_token(a, b)
    expected = (0.5 * np.log(0.5 / 0.2) + 0.3 * np.log(0.3 / 0.5) + 0.2 * np.log(0.2 / 0.3)) / 2
    assert kl == pytest.approx(expected) and top1 == 0.5


def test_a_model_whose_branches_read_a_quantized_product_stays_in_order(tmp_path):
    """ONNX Runtime's tool put the If before the product that only its branches read."""
    rng = np.random.default_rng(0)
    body = "(float[n,64] x, bool c) => (float[n,64] y) { h = MatMul(x, w)  k = If(c) <then_branch = t () => (float[n,64] a) { a = Relu(h) }, else_branch = e () => (float[n,64] b) { b = Neg(h) }>  y = MatMul(k, v) }"
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> m {body}')
    for name in ("w", "v"):
        weights = (rng.standard_normal((64, 64)) / 8).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    onnx.save(proto, tmp_path / "m.onnx")
    opsmith.quantize(tmp_path / "m.onnx", tmp_path / "q", method="dynamic")
    feed = {"x": rng.standard_normal((3, 64)).astype(np.float32), "c": np.array(True)}
    want, got = (opsmith.load(m).run(None, feed)[0] for m in (tmp_path / "m.onnx", tmp_path / "q"))
    assert np.abs(got - want).max() < 0.1 * np.abs(want).max()


def test_a_model_that_runs_at_one_size_only_is_judged_at_that_size(tmp_path):
    """As voice detectors do: random sizes of calibration inputs did not run, and the model was refused."""
    rng = np.random.default_rng(0)
    body = "(float[1,s] x) => (float[1,64] y) { y = MatMul(x, w) }"
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> m {body}')
    weights = (rng.standard_normal((512, 64)) / 8).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(proto, tmp_path / "m.onnx")
    result = opsmith.quantize(tmp_path / "m.onnx", tmp_path / "q", method="dynamic")
    assert result.quality is not None and result.quality.cosine > 0.99


def hidden_weights(path):
    """Three matrices of 32x64 where exporters put them: in a Constant node, behind an Identity, inside a branch."""
    rng = np.random.default_rng(3)
    w = [numpy_helper.from_array(rng.standard_normal((32, 64)).astype(np.float32), f"w{i}") for i in range(3)]
    value = helper.make_tensor_value_info
    branch = helper.make_graph(
        [
            helper.make_node("Constant", [], ["inner"], value=w[2]),
            helper.make_node("MatMul", ["x", "inner"], ["z"], name="in_branch"),
        ],
        "then",
        [],
        [value("z", TensorProto.FLOAT, ["rows", 64])],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["sum"], ["o"])], "else", [], [value("o", TensorProto.FLOAT, ["rows", 64])]
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value=w[0]),
        helper.make_node("Identity", ["w1"], ["same"]),
        helper.make_node("MatMul", ["x", "c"], ["a"], name="of_constant"),
        helper.make_node("MatMul", ["x", "same"], ["b"], name="of_identity"),
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("If", ["go"], ["branched"], then_branch=branch, else_branch=other),
        helper.make_node("Add", ["branched", "sum"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["rows", 32]), value("go", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, ["rows", 64])],
        [w[1]],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


@pytest.mark.parametrize("method, error", [("weight-only", 0.01), ("fp16", 0.001)])
def test_weights_in_constants_behind_identity_and_in_branches_become_smaller(tmp_path, method, error):
    hidden_weights(tmp_path / "a.onnx")
    result = quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", method=method)
    assert result.quantized == 3 and result.after < result.before * 0.6
    x = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    for go in (True, False):
        feed = {"x": x, "go": np.array(go)}
        a, b = (ort.InferenceSession(tmp_path / f"{name}.onnx").run(None, feed)[0] for name in "ab")
        assert np.abs(a - b).max() < error * np.abs(a).max()


def test_a_result_that_is_far_off_or_no_smaller_says_so(tmp_path):
    linear(tmp_path / "a.onnx", k=64, n=64, bias_shape=(64,))
    with pytest.raises(OpsmithError, match="nothing that fp16.*half precision"):
        linear(tmp_path / "small.onnx", k=4, n=4, bias_shape=(4,))
        quantize(tmp_path / "small.onnx", tmp_path / "b.onnx", method="fp16")
    result = quantize(tmp_path / "a.onnx", tmp_path / "c.onnx")
    worse = dataclasses.replace(result, after=result.before, quality=dataclasses.replace(result.quality, cosine=0.6))
    assert not result.remarks
    assert [r.split(" ")[1] for r in worse.remarks] == ["answers", "file"]


TREES = """<ir_version: 8, opset_import: ["ai.onnx.ml": 1]> g (float[n, 2] x) => (int64[n] label, float[n, 2] scores) {
    label, scores = ai.onnx.ml.LinearClassifier <classlabels_ints = [0, 1], coefficients = [1.0, 2.0, -1.0, 0.5],
        intercepts = [0.1, 0.2]> (x)
}"""
IMAGE = (
    """<ir_version: 8, opset_import: ["": 17]> g (float[1, 8, 9, 9] x) => (float[1, 16, 7, 7] y) { y = Conv(x, w) }"""
)
HALVES = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 64] x) => (float[n, 64] y)
{ h = Cast <to = 10> (x)  m = MatMul(h, w)  y = Cast <to = 1> (m) }"""


@pytest.mark.parametrize(
    "text, weight, method, said",
    [
        (TREES, None, "dynamic", "nothing that dynamic quantization could make smaller"),
        (IMAGE, np.ones((16, 8, 3, 3), "f"), "weight-only", "--method dynamic takes convolutions, too"),
        (HALVES, np.ones((64, 64), np.float16), "fp16", "in half precision already"),
    ],
)
def test_where_a_method_finds_nothing_it_says_what_would(tmp_path, text, weight, method, said):
    model = onnx.parser.parse_model(text)
    if weight is not None:
        model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "a.onnx")
    with pytest.raises(OpsmithError, match=said):
        quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", method=method)


def test_outputs_whose_size_follows_the_data_are_not_compared():
    one, longer = np.zeros((1, 4), np.float32), np.zeros((1, 5), np.float32)
    with pytest.raises(OpsmithError, match="its size follows the data.*finer method"):
        quality.compare([[one]], [[longer]], logits=False)


@pytest.mark.parametrize("n", [32, 48])
@pytest.mark.parametrize("method", ["dynamic", "static"])
def test_layers_that_share_a_transposed_weight_keep_it_as_it_is(tmp_path, method, n):
    """As the steps of an unrolled LSTM do."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[rows, 32] x, float[rows, 32] z) => (float[rows, {n}] y) {{
            a = Gemm <transB = 1> (x, w, b)  c = Gemm <transB = 1> (z, w, b)  y = Sub(a, c) }}""")
    rng = np.random.default_rng(0)
    for name, shape in {"w": (n, 32), "b": (n,)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    onnx.save(model, tmp_path / "a.onnx")
    result = quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", method=method)
    assert result.quantized >= 1 and result.quality.error < 0.05
