"""Products in bf16 and int8: what runs in them, how it is stored, how its error is judged."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from batch import compile_batch
from small import graph

import opsmith
from opsmith import machine, settings
from opsmith.check import differences as checks
from opsmith.check.verify import Case, VerifyResult
from opsmith.cli.compile import show_error
from opsmith.compiler import auto, geometry
from opsmith.compiler.cut import cut
from opsmith.compiler.precision import AUTO, BF16, FP32, INT8, PRECISIONS, Precision
from opsmith.compiler.program import Program, Target
from opsmith.compiler.source import load, prepare
from opsmith.errors import NotTheSame, OpsmithError


def with_weights(model: onnx.ModelProto, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = rng.standard_normal(shape).astype(np.float32) / np.sqrt(np.prod(shape[1:], dtype=float))
        model.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float32), name))
    return model


def mlp() -> onnx.ModelProto:
    """Two products with a residual sum around them; `t` has an odd inner size."""
    return with_weights(
        graph(
            """mlp (float[n, 48] x) => (float[n, 48] y) {
              h = MatMul(x, w1)  a = Add(h, b1)  r = Relu(a)
              t = MatMul(r, w2)  s = Add(t, x)  y = MatMul(s, w3)
            }"""
        ),
        w1=(48, 65),
        b1=(65,),
        w2=(65, 48),
        w3=(48, 48),
    )


def convolutions() -> onnx.ModelProto:
    return with_weights(
        graph(
            """c (float[n, 3, h, w] x) => (float[n, 20, h, w] y) {
              a = Conv<pads=[1,1,1,1]>(x, w1)  b = Relu(a)
              c = Conv<pads=[1,1,1,1]>(b, w2)  d = Relu(c)
              y = Conv(d, w3)
            }"""
        ),
        w1=(20, 3, 3, 3),
        w2=(33, 20, 3, 3),
        w3=(20, 33, 1, 1),
    )


def lowered(model: onnx.ModelProto, isa: geometry.InstructionSet, precision: Precision = BF16) -> Program:
    (program,) = cut(prepare(load(ir.from_proto(model))), "whole", Target(isa, precision=precision)).programs
    return program


FAST = dataclasses.replace(geometry.AVX512, multiplies_bf16=True)


def test_weights_of_products_are_stored_once_and_in_bf16() -> None:
    program = lowered(mlp(), FAST)
    products = [c for c in program.calls if c.precision is BF16]
    assert [c.kernel.name for c in products] == ["gemm_bf16"] * 3
    sizes = sorted(b.elements.value for b in program.buffers if b.place == "weight" and b.dtype == ir.DataType.BFLOAT16)
    assert sizes == sorted([48 * 80, 66 * 48, 48 * 48])  # columns in whole vectors, rows in whole pairs
    assert program.weight_bytes < 2 * sum(s or 0 for s in sizes) + 3 * 4096


def test_a_value_that_only_products_read_is_stored_in_bf16_and_a_residual_is_not() -> None:
    types = {b.name: b.dtype for b in lowered(mlp(), FAST).buffers}
    assert types["r"] == ir.DataType.BFLOAT16
    assert types["s_bfloat16" if "s_bfloat16" in types else "s"] == ir.DataType.BFLOAT16
    assert types["in0_x_bfloat16"] == ir.DataType.BFLOAT16  # x itself is an input, and is added in fp32


def test_a_cpu_without_products_of_bf16_reads_bf16_weights_and_keeps_its_activations() -> None:
    program = lowered(mlp(), geometry.AVX2)
    assert [c.kernel.name for c in program.calls] == ["gemm_bf16"] * 3
    assert {b.dtype for b in program.buffers if b.place == "arena"} == {ir.DataType.FLOAT}


def test_few_channels_are_convolved_in_fp32() -> None:
    calls = lowered(convolutions(), FAST).calls
    assert [c.precision.name for c in calls if c.precision] == ["fp32", "bf16", "bf16"]


@pytest.mark.parametrize("make", [mlp, convolutions])
def test_a_model_in_bf16_states_its_error(make: object, tmp_path: Path) -> None:
    model = make()  # type: ignore[operator]
    result = opsmith.compile(ir.from_proto(model), tmp_path / "narrow", precision="bf16", regions="whole")
    assert result.verified is not None and result.verified.ok
    assert result.variant is not None
    record = opsmith.store.read_record(result.variant.path)
    (stated,) = record["verified"].values()
    assert 1e-5 < stated["of_scale"] < 2e-2 and stated["bound"] == checks.BOUNDS["bf16"] and stated["cosine"] > 0.999
    assert record["compiled"]["precision"]["bf16"] >= 2 and record["options"]["precision"] == "bf16"


def attention() -> onnx.ModelProto:
    """Self-attention with a causal mask as one would spell it out, between two linear layers."""
    model = graph(
        """a (float[n, s, 48] x) => (float[n, s, 48] y)
        <int64[4] heads = {0, 0, 3, 16}, int64[3] flat = {0, 0, 48}, float scale = {0.25}> {
          q0 = MatMul(x, wq)  k0 = MatMul(x, wk)  v0 = MatMul(x, wv)
          q1 = Reshape(q0, heads)  k1 = Reshape(k0, heads)  v1 = Reshape(v0, heads)
          q = Transpose<perm=[0,2,1,3]>(q1)  k = Transpose<perm=[0,2,3,1]>(k1)  v = Transpose<perm=[0,2,1,3]>(v1)
          d = MatMul(q, k)  c = Mul(d, scale)  p = Softmax<axis=-1>(c)  o = MatMul(p, v)
          t = Transpose<perm=[0,2,1,3]>(o)  u = Reshape(t, flat)  y = MatMul(u, wo)
        }"""
    )
    return with_weights(model, wq=(48, 48), wk=(48, 48), wv=(48, 48), wo=(48, 48))


MODELS = {"mlp": (mlp, (7, 48)), "convolutions": (convolutions, (2, 3, 9, 6)), "attention": (attention, (2, 65, 48))}


def test_attention_in_bf16_reads_what_products_wrote_in_bf16() -> None:
    program = lowered(attention(), FAST)
    (call,) = [c for c in program.calls if c.kernel.name == "attention_bf16"]
    assert {getattr(a, "dtype", None) for a in (call.arguments[n] for n in ("q", "k", "v", "out"))} == {
        ir.DataType.BFLOAT16
    }


@pytest.mark.parametrize("precision", [BF16, INT8], ids=lambda p: p.name)
@pytest.mark.parametrize(
    "isa", [geometry.native(), geometry.AVX2, geometry.GENERIC, geometry.SCALAR], ids=lambda s: s.name
)
def test_every_instruction_set_gives_the_same_answers_within_the_error_of_the_precision(
    isa: geometry.InstructionSet, precision: Precision, tmp_path: Path
) -> None:
    if not isa.features <= machine.cpu_features():
        pytest.skip(f"this CPU has no {isa.name}")
    models = [(name, make().SerializeToString()) for name, (make, _) in MODELS.items()]
    library, built = compile_batch(models, tmp_path, isa=isa, precision=precision)
    for item, (name, (make, shape)) in zip(built, MODELS.items()):
        assert item.native, (item.error, item.left)
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        options = ort.SessionOptions()
        options.register_custom_ops_library(str(library))
        (got,) = ort.InferenceSession(item.path, options).run(None, {"x": x})
        (want,) = ort.InferenceSession(make().SerializeToString()).run(None, {"x": x})
        most = {"bf16": 2e-2, "int8": 4e-2}[precision.name]
        assert 0 < np.abs(got - want).max() / np.abs(want).max() < most, name


def tower(layers: int = 4, width: int = 96) -> onnx.ModelProto:
    """Linear layers one after another; the first and the last stay in bf16."""
    steps = "".join(f" h{i} = MatMul({f'r{i - 1}' if i else 'x'}, w{i})  r{i} = Tanh(h{i})" for i in range(layers))
    model = graph(f"t (float[n, {width}] x) => (float[n, {width}] y) {{ {steps} y = Identity(r{layers - 1}) }}")
    return with_weights(model, **{f"w{i}": (width, width) for i in range(layers)})


MODELS["tower"] = (tower, (9, 96))


def mixed_convolutions() -> onnx.ModelProto:
    """What Winograd's transform cannot do: strides, 1x1, 5x5, groups; between two that stay in bf16."""
    return with_weights(
        graph(
            """c (float[n, 20, h, w] x) => (float[n, 18, p, q] y) {
              a = Conv<pads=[1,1,1,1]>(x, w0)  b = Relu(a)
              c = Conv<pads=[1,1,1,1], strides=[2,2]>(b, w1, b1)  d = Relu(c)
              e = Conv(d, w2)  f = Add(e, d)  g = Sigmoid(f)
              i = Conv<pads=[2,2,2,2]>(g, w3)  j = Conv<group=2>(i, w4)  k = Conv<strides=[2,2]>(j, w5)
              y = Conv(k, w6)
            }"""
        ),
        w0=(20, 20, 3, 3),
        w1=(40, 20, 3, 3),
        b1=(40,),
        w2=(40, 40, 1, 1),
        w3=(36, 40, 5, 5),
        w4=(38, 18, 3, 1),
        w5=(33, 38, 1, 1),
        w6=(18, 33, 1, 1),
    )


def signals() -> onnx.ModelProto:
    """Convolutions of signals."""
    steps = "a = Conv<pads=[1,1]>(x, w0)  b = Relu(a)  c = Conv<pads=[1,1]>(b, w1)  d = Conv(c, w2)  y = Conv(d, w3)"
    return with_weights(
        graph(f"s (float[n, 20, t] x) => (float[n, 20, t] y) {{ {steps} }}"),
        w0=(20, 20, 3),
        w1=(32, 20, 3),
        w2=(20, 32, 1),
        w3=(20, 20, 1),
    )


MODELS |= {"mixed": (mixed_convolutions, (2, 20, 13, 10)), "signals": (signals, (2, 20, 17))}


def mobile() -> onnx.ModelProto:
    """Depthwise convolutions between others, and what only moves numbers: a pool, an enlarged image, a concatenation."""
    return with_weights(
        graph(
            """m (float[n, 20, h, w] x) => (float[n, 18, h, w] y) {
              a = Conv(x, w0)  b = Relu(a)
              c = Conv<pads=[1,1,1,1], group=32>(b, w1)  d = Relu(c)
              e = MaxPool<kernel_shape=[2,2], strides=[2,2]>(d)  f = Conv(e, w2)
              scales = Constant<value_floats=[1.0, 1.0, 2.0, 2.0]>()
              g = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(f, , scales)
              i = Conv(d, w3)  j = Concat<axis=1>(g, i)
              y = Conv(j, w4)
            }"""
        ),
        w0=(32, 20, 1, 1),
        w1=(32, 1, 3, 3),
        w2=(24, 32, 1, 1),
        w3=(21, 32, 1, 1),
        w4=(18, 45, 1, 1),
    )


MODELS["mobile"] = (mobile, (2, 20, 8, 12))


def test_what_moves_numbers_between_products_in_bf16_moves_them_as_bf16() -> None:
    program = lowered(mobile(), FAST)
    wide = [b.name for b in program.buffers if b.place == "arena" and b.dtype != ir.DataType.BFLOAT16]
    assert wide == ["y"]  # the result
    assert [c.label for c in program.calls].count("cast") == 1  # of the input
    (depthwise,) = [c for c in program.calls if c.kernel.name == "conv2d_depthwise"]
    assert {depthwise.arguments[n].dtype for n in ("x", "y")} == {ir.DataType.BFLOAT16}  # type: ignore[union-attr]


def test_what_computes_between_products_in_bf16_computes_in_fp32() -> None:
    model = graph(
        """r (float[n, 32, h, w] x) => (float[n, 32, p, q] y) {
          a = Conv(x, w0)  scales = Constant<value_floats=[1.0, 1.0, 2.0, 2.0]>()
          b = Resize<mode="linear">(a, , scales)  c = AveragePool<kernel_shape=[2,2]>(b)  y = Conv(c, w1)
        }"""
    )
    types = {b.name: b.dtype for b in lowered(with_weights(model, w0=(32, 32, 1, 1), w1=(32, 32, 1, 1)), FAST).buffers}
    assert types["a"] == types["b"] == types["c"] == ir.DataType.FLOAT


def test_what_is_also_added_stays_in_fp32() -> None:
    model = graph(
        """r (float[n, 32, h, w] x) => (float[n, 32, h, w] y) {
          a = Conv(x, w0)  b = Conv(a, w1)  c = Add(a, b)  d = Concat<axis=1>(a, c)  y = Conv(d, w2)
        }"""
    )
    shapes = {"w0": (32, 32, 1, 1), "w1": (32, 32, 1, 1), "w2": (32, 64, 1, 1)}
    types = {b.name: b.dtype for b in lowered(with_weights(model, **shapes), FAST).buffers}
    assert types["a"] == ir.DataType.FLOAT and types["d"] == ir.DataType.BFLOAT16


def test_in_int8_convolutions_multiply_bytes_unless_winograd_is_as_fast_in_bf16() -> None:
    names = [c.kernel.name for c in lowered(mixed_convolutions(), FAST, INT8).calls if c.precision]
    assert names[1:-1] == ["conv_int8", "gemm_int8", "conv_int8", "conv_int8", "conv_int8"]
    assert {names[0], names[-1]} <= {"conv2d_bf16", "conv2d_winograd2_bf16"}
    calls = lowered(convolutions(), FAST, INT8).calls
    assert [c.kernel.name for c in calls if c.precision][1] == "conv2d_winograd2_bf16"


def test_in_int8_all_but_the_first_and_the_last_layer_multiply_bytes() -> None:
    program = lowered(tower(), FAST, INT8)
    assert [c.kernel.name for c in program.calls if c.precision] == [
        "gemm_bf16",
        "gemm_int8",
        "gemm_int8",
        "gemm_bf16",
    ]
    bytes_of = [b for b in program.buffers if b.place == "weight" and b.dtype == ir.DataType.INT8]
    assert [b.elements.value for b in bytes_of] == [96 * 96] * 2
    types = {b.name: b.dtype for b in program.buffers}
    assert types["r0"] == ir.DataType.BFLOAT16 and types["r0_bytes"] == ir.DataType.UINT8


def test_a_choice_for_one_node_is_what_it_computes_in() -> None:
    source = prepare(load(ir.from_proto(tower())))
    names = [n.name or "" for n in source.nodes() if n.op_type == "MatMul"]
    target = Target(FAST, precisions={names[0]: INT8, names[1]: BF16})
    (program,) = cut(source, "whole", target).programs
    assert [c.precision.name for c in program.calls if c.precision] == ["int8", "bf16", "fp32", "fp32"]


def test_one_far_larger_channel_does_not_cost_the_others_their_precision(tmp_path: Path) -> None:
    """Its weights are as much smaller: it is balanced, and what is left is shared by 32. Otherwise steps of 2.4 would be left for
    numbers below 1."""
    model = tower(3)
    weights = {i.name: i for i in model.graph.initializer}
    outlier = onnx.numpy_helper.to_array(weights["w1"]).copy()
    outlier[7] /= 300
    weights["w1"].CopyFrom(onnx.numpy_helper.from_array(outlier, "w1"))
    scale = np.ones(96, np.float32)
    scale[7] = 300
    model.graph.initializer.append(onnx.numpy_helper.from_array(scale, "scale"))
    node = next(n for n in model.graph.node if n.output[0] == "h1")
    node.input[0] = "loud"
    at = list(model.graph.node).index(node)
    model.graph.node.insert(at, onnx.helper.make_node("Mul", ["r0", "scale"], ["loud"]))
    result = opsmith.compile(ir.from_proto(model), tmp_path / "loud", precision="int8", regions="whole")
    assert result.verified is not None
    (worst,) = result.verified.worst
    assert worst.of_scale < 0.05 and worst.cosine > 0.999


def test_a_model_in_int8_states_its_error(tmp_path: Path) -> None:
    result = opsmith.compile(ir.from_proto(tower()), tmp_path / "bytes", precision="int8", regions="whole")
    assert result.verified is not None and result.verified.ok and result.variant is not None
    record = opsmith.store.read_record(result.variant.path)
    (stated,) = record["verified"].values()
    assert 1e-4 < stated["of_scale"] < 3e-2 and stated["bound"] == checks.BOUNDS["int8"] and stated["cosine"] > 0.999
    assert record["compiled"]["precision"] == {"bf16": 2, "int8": 2} and record["options"]["precision"] == "int8"
    assert result.remarks == ["products: 2 in int8, 2 in bf16"]


def test_an_error_beyond_the_bound_that_the_source_has_itself_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    check = checks.compare_arrays(np.float32([1e-7]), np.float32([1.2e-7]), bound=0.05, name="y")
    check = dataclasses.replace(check, problem=None, spread=2.5e-8)
    show_error(VerifyResult((Case("random", {}, (check,)),)))
    said = capsys.readouterr().out
    assert "its own spread" in said and "by rounding alone the source is 2.5e-01 from itself" in " ".join(said.split())


def test_a_precision_that_no_product_runs_in_is_said(tmp_path: Path) -> None:
    stem = with_weights(graph("g (float[1, 3, 9, 9] x) => (float[1, 8, 7, 7] y) { y = Conv (x, w) }"), w=(8, 3, 3, 3))
    result = opsmith.compile(ir.from_proto(stem), tmp_path / "stem", precision="int8", regions="whole")
    assert result.remarks == ["no product of the model runs in int8: 1 in fp32"]


def test_beyond_the_bound_compile_fails_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checks.BOUNDS, "bf16", 1e-6)
    with pytest.raises(NotTheSame, match=r"bf16 .* 1e-06 of the output's scale") as failed:
        opsmith.compile(ir.from_proto(mlp()), tmp_path / "narrow", precision="bf16")
    assert "--precision fp32" in str(failed.value.hint)
    assert not (tmp_path / "narrow").exists()


def test_the_bound_of_bf16_says_nothing_about_fp32() -> None:
    a = np.linspace(-1, 1, 100, dtype=np.float32)
    b = a + np.float32(0.01)
    assert not checks.compare_arrays(a, b).ok
    assert checks.compare_arrays(a, b, bound=0.02).ok
    assert not checks.compare_arrays(a, b, bound=0.009).ok
    assert not checks.compare_arrays(a, np.where(a > 0.9, np.nan, a), bound=1.0).ok


def test_the_words_of_the_settings_are_those_of_the_compiler(tmp_path: Path) -> None:
    assert (*PRECISIONS, AUTO) == settings.PRECISIONS
    assert set(checks.BOUNDS) == set(PRECISIONS) - {"fp32"}
    with pytest.raises(OpsmithError, match="fp32, bf16, int8 or auto"):
        opsmith.compile(ir.from_proto(mlp()), tmp_path / "x", precision="half")


@pytest.mark.parametrize(("bound", "cheapest"), [(0.5, "int8"), (1e-2, "bf16"), (1e-5, "fp32")])
def test_auto_takes_the_cheapest_that_stays_within_the_bound(bound: float, cheapest: str, tmp_path: Path) -> None:
    dest = tmp_path / "auto"
    result = opsmith.compile(ir.from_proto(tower()), dest, precision="auto", max_error=bound, regions="whole")
    assert result.verified is not None and result.verified.ok and result.variant is not None
    (worst,) = result.verified.worst
    assert worst.of_scale <= bound and worst.bound == bound
    record = opsmith.store.read_record(result.variant.path)
    assert record["options"]["precision"] == "auto" and record["options"]["max_error"] == bound
    assert {c["node"]: c["precision"] for c in record["compiled"]["chosen"]} == {
        c.node: c.precision for c in result.choices
    }
    assert len(result.choices) == 4 and cheapest in {c.precision for c in result.choices}
    ranks = [list(PRECISIONS).index(c.precision) for c in result.choices]
    assert max(ranks) == list(PRECISIONS).index(cheapest)
    assert opsmith.store.precision_of(result.variant.path) == cheapest


def test_the_worst_per_operation_leave_int8_first() -> None:
    layers = [
        auto.Layer("cheap and bad", 0.1, {"int8": 4e-2, "bf16": 1e-3}),
        auto.Layer("large and good", 0.8, {"int8": 1e-2, "bf16": 1e-3}),
        auto.Layer("attention", 0.1, {"bf16": 1e-3}),
    ]
    assert auto.plan(layers, 0) == {"cheap and bad": INT8, "large and good": INT8, "attention": BF16}
    assert auto.plan(layers, 4) == {"cheap and bad": BF16, "large and good": INT8, "attention": BF16}
    assert set(auto.plan(layers, auto.STEPS).values()) == {BF16}
    assert set(auto.plan(layers, 2 * auto.STEPS).values()) == {FP32}
    asked: list[dict[str, Precision]] = []

    def within(plan: dict[str, Precision]) -> bool:
        asked.append(plan)
        return INT8 not in plan.values()

    assert set(auto.search(layers, within).values()) == {BF16} and len(asked) <= 6


def test_a_bound_without_auto_and_one_that_is_no_share_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OpsmithError, match="needs --precision auto"):
        opsmith.compile(ir.from_proto(mlp()), tmp_path / "x", precision="int8", max_error=0.1)
    with pytest.raises(OpsmithError, match="between 0 and 1"):
        opsmith.compile(ir.from_proto(mlp()), tmp_path / "x", precision="auto", max_error=0.0)
