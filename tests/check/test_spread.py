"""verify of models that amplify rounding: their own spread is told from an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from opsmith import session
from opsmith.check import spread
from opsmith.check.verify import verify
from opsmith.measure.bench import bench

DEPTH, WIDTH = 12, 48
Change = Callable[[dict[str, np.ndarray]], None]


def net(quantizer: str, change: Change | None = None, order: int | None = None) -> onnx.ModelProto:
    """x [n,48] through 12 layers of quantize, multiply by int8 weights, normalise, Relu.

    ORDER permutes the channels between the layers, and the weights with them: the same function, summed in another order.
    """
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {"axes": np.array([-1], np.int64), "eps": np.float32(1e-5)}
    for i in range(DEPTH):
        weights[f"w{i}"] = rng.integers(-127, 128, (WIDTH, WIDTH)).astype(np.int8)
        weights[f"s{i}"] = rng.uniform(0.5, 1.5, WIDTH).astype(np.float32) / 127
        weights[f"qs{i}"], weights[f"qz{i}"] = np.float32(4 / 255), np.uint8(120)
        weights[f"m{i}"] = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / np.float32(np.sqrt(WIDTH))
    if change is not None:
        change(weights)
    if order is not None:
        for i in range(DEPTH):
            mixed = np.random.default_rng(order + i).permutation(WIDTH)
            weights[f"m{i}"] = np.ascontiguousarray(weights[f"m{i}"][:, mixed])
            weights[f"w{i}"] = np.ascontiguousarray(weights[f"w{i}"][mixed])
            if i + 1 < DEPTH:  # float sums in another order
                turned = np.random.default_rng(100 + order + i).permutation(WIDTH)
                weights[f"w{i}"] = np.ascontiguousarray(weights[f"w{i}"][:, turned])
                weights[f"s{i}"] = weights[f"s{i}"][turned]
                weights[f"m{i + 1}"] = np.ascontiguousarray(weights[f"m{i + 1}"][turned])
    nodes, x = [], "x"
    for i in range(DEPTH):
        nodes.append(h.make_node("MatMul", [x, f"m{i}"], [f"a{i}"]))
        if quantizer == "dynamic":
            nodes.append(h.make_node("DynamicQuantizeLinear", [f"a{i}"], [f"q{i}", f"qs_{i}", f"qz_{i}"]))
            nodes.append(h.make_node("MatMulInteger", [f"q{i}", f"w{i}", f"qz_{i}"], [f"y{i}"]))
            nodes.append(h.make_node("Mul", [f"qs_{i}", f"s{i}"], [f"by{i}"]))
        else:
            nodes.append(h.make_node("QuantizeLinear", [f"a{i}", f"qs{i}", f"qz{i}"], [f"q{i}"]))
            nodes.append(h.make_node("MatMulInteger", [f"q{i}", f"w{i}", f"qz{i}"], [f"y{i}"]))
            nodes.append(h.make_node("Mul", [f"qs{i}", f"s{i}"], [f"by{i}"]))
        nodes.append(h.make_node("Cast", [f"y{i}"], [f"f{i}"], to=T.FLOAT))
        nodes.append(h.make_node("Mul", [f"f{i}", f"by{i}"], [f"z{i}"]))
        nodes.append(h.make_node("ReduceL2", [f"z{i}", "axes"], [f"n{i}"]))
        nodes.append(h.make_node("Div", [f"z{i}", f"n{i}"], [f"d{i}"]))
        nodes.append(h.make_node("Mul", [f"d{i}", "width"], [f"x{i}"]))
        x = f"x{i}"
    weights["width"] = np.float32(np.sqrt(WIDTH))
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, ["n", "t", WIDTH])],
        [h.make_tensor_value_info(x, T.FLOAT, ["n", "t", WIDTH])],
        [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)


KINDS = ("dynamic", "static")
SHAPES = {"n": 2, "t": 16}


@pytest.mark.parametrize("kind", KINDS)
def test_another_order_of_sums_is_within_the_models_own_spread(kind: str) -> None:
    plain = verify(net(kind), net(kind, order=7), shapes=SHAPES)
    worst = plain.worst[0]
    assert plain.ok, plain.problems
    assert worst.spread is not None and worst.max_abs > worst.atol  # it needed the spread, and it is told


def _scale(layer: int, factor: float) -> Change:
    def change(weights: dict[str, np.ndarray]) -> None:
        weights[f"s{layer}"][: WIDTH // 2] *= np.float32(factor)

    return change


def _channel(layer: int) -> Change:
    def change(weights: dict[str, np.ndarray]) -> None:
        weights[f"w{layer}"][:, 5] = np.roll(weights[f"w{layer}"][:, 5], 1)

    return change


def _zero_point(layer: int) -> Change:
    def change(weights: dict[str, np.ndarray]) -> None:
        # as if the zero point were subtracted wrongly: every sum moves by what the column's weights add up to
        weights[f"w{layer}"] = np.clip(weights[f"w{layer}"].astype(int) + 6, -128, 127).astype(np.int8)

    return change


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", [1, DEPTH // 2, DEPTH - 1])
@pytest.mark.parametrize("error", ["scale", "channel", "zero point"])
def test_a_planted_error_is_found(kind: str, layer: int, error: str) -> None:
    change = {"scale": _scale(layer, 1.2), "channel": _channel(layer), "zero point": _zero_point(layer)}[error]
    result = verify(net(kind), net(kind, change, order=7), shapes=SHAPES)
    assert not result.ok, [(c.max_abs, c.spread) for c in result.worst]


@pytest.mark.parametrize("change", [None, _scale(1, 1.2)], ids=["rounding", "an error"])
def test_bench_judges_outputs_as_verify_does(change: Change | None, tmp_path: Path) -> None:
    for name, model in {"plain": net("static"), "variant": net("static", change, order=7)}.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
    result = bench([tmp_path / "plain.onnx", tmp_path / "variant.onnx"], shapes=SHAPES, rounds=2, processes=1)
    assert result.verified == (change is None)


def test_bench_calls_different_what_verify_cannot_judge(tmp_path: Path) -> None:
    plain, more = net("static"), net("static", _scale(1, 1.2))
    more.graph.output.append(h.make_tensor_value_info("x0", T.FLOAT, ["n", "t", WIDTH]))
    for name, model in {"plain": plain, "more": more}.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
    result = bench([tmp_path / "plain.onnx", tmp_path / "more.onnx"], shapes=SHAPES, rounds=2, processes=1)
    assert not result.verified


def test_a_model_without_steps_is_not_asked_for_its_spread() -> None:
    x = h.make_tensor_value_info("x", T.FLOAT, ["n", 4])
    y = h.make_tensor_value_info("y", T.FLOAT, ["n", 4])

    def scaled(by: float) -> onnx.ModelProto:
        weight = onnx.numpy_helper.from_array(np.float32(by), "k")
        graph = h.make_graph([h.make_node("Mul", ["x", "k"], ["y"])], "g", [x], [y], [weight])
        return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)

    result = verify(scaled(1.0), scaled(1.01))
    assert not result.ok
    assert all(o.spread is None for c in result.cases if c.name.startswith("random") for o in c.outputs)


def test_steps_inside_branches_are_shaken_too() -> None:
    inner = h.make_graph(
        [h.make_node("Round", ["x"], ["r"])], "then", [], [h.make_tensor_value_info("r", T.FLOAT, [2])]
    )
    graph = h.make_graph(
        [h.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)],
        "g",
        [h.make_tensor_value_info("c", T.BOOL, []), h.make_tensor_value_info("x", T.FLOAT, [2])],
        [h.make_tensor_value_info("y", T.FLOAT, [2])],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)
    x = np.array([0.49999997, 1.5000001], np.float32)  # an ulp or so from a tie
    seen = {
        tuple(session.run(session.load(model, edit=spread._shaken(s)), {"c": np.array(True), "x": x})[0])
        for s in range(8)
    }
    assert len(seen) > 1


def test_equal_numbers_are_moved_alike() -> None:
    """As by another order of sums in a picture of one colour: a whole channel meets its tie from above, or from below."""
    info = [h.make_tensor_value_info(n, T.FLOAT, [2, 100]) for n in "xy"]
    graph = h.make_graph([h.make_node("Round", ["x"], ["y"])], "g", info[:1], info[1:])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)
    x = np.array([[0.5], [1.5]], np.float32).repeat(100, 1)
    seen = set()
    for seed in range(8):
        (y,) = session.run(session.load(model, edit=spread._shaken(seed, alike=True)), {"x": x})
        assert np.ptp(y, axis=1).max() == 0
        seen.add(tuple(y[:, 0]))
    assert len(seen) > 1
    (zeros,) = session.run(session.load(model, edit=spread._shaken(0, alike=True)), {"x": 0 * x})
    assert not zeros.any()


def test_statistics_show_a_wrong_channel_an_offset_and_a_gain() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((64, 32)).astype(np.float32)
    noise = a + (rng.standard_normal(a.shape) * 0.1).astype(np.float32)
    own = spread.statistics(a, a + (rng.standard_normal(a.shape) * 0.1).astype(np.float32))
    assert own is not None
    channel, offset, gain = noise.copy(), noise + np.float32(0.03), noise + a * np.float32(0.03)
    channel[:, 3] += np.float32(0.1)
    for wrong, where in ((channel, "offset on axis 1"), (offset, "offset"), (gain, "gain")):
        found = spread.statistics(a, wrong)
        assert found is not None and str(spread.exceeds(found, own, 0.01)).startswith(where)
    fine = spread.statistics(a, noise)
    assert fine is not None and spread.exceeds(fine, own, 0.01) is None


def test_rounding_that_only_zeros_amplify_is_not_an_error(tmp_path: Path) -> None:
    """A norm makes numbers of 1 out of what rounding leaves of a constant row; zeros have no ulp that would show it."""
    rng = np.random.default_rng(0)
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n, 2, 64] x) => (float[n, 2, 64] y) <float[2] one = {1, 1}, float[2] none = {0, 0}>
    { r = Add(x, rounding) y = InstanceNormalization<epsilon = 1e-16>(r, one, none) }"""
    for name, size in (("a", 0.0), ("b", 1e-8), ("far", 1e-3)):
        model = onnx.parser.parse_model(text.replace("none = {0, 0}", "none = {0, 0}, float[64] rounding"))
        given = onnx.numpy_helper.from_array((size * rng.standard_normal(64)).astype(np.float32), "rounding")
        model.graph.initializer.append(given)
        onnx.save(model, tmp_path / f"{name}.onnx")
    assert verify(tmp_path / "a.onnx", tmp_path / "b.onnx").ok
    assert not verify(tmp_path / "a.onnx", tmp_path / "far.onnx").ok


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        ("s = Shape(x)  f = Cast<to = 1>(s)  h = Mul(f, half)  i = Cast<to = 7>(h)  y = Resize(x, , , i)", False),
        ("h = Cast<to = 10>(x)  g = Relu(h)  y = Cast<to = 1>(g)", True),
        ("i = Cast<to = 7>(x)  y = Cast<to = 1>(i)", True),
        ("y = Relu(x)", False),
    ],
)
def test_shape_arithmetic_is_no_step_and_rounding_to_half_is_one(body: str, steps: bool) -> None:
    text = f'<ir_version: 9, opset_import: ["" : 18]> g (float[1, 1, n, n] x) => (float y) <float half = {{0.5}}> {{ {body} }}'
    assert spread.has_steps(ir.from_proto(onnx.parser.parse_model(text))) is steps


def _waves(order: int | None = None, gain: float = 1.0) -> onnx.ModelProto:
    """y = Sin(GAIN * largest * (Clip(1000 x) @ w0 @ ... @ w11)), where the largest |x| counts up to 1000.

    Inputs of a thousand are cut, so that their own ulps do not matter, and what the sums round off becomes large.
    ORDER permutes the channels between the products, and the weights with them.
    """
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(12)]
    if order is not None:
        for i in range(11):
            mixed = np.random.default_rng(order + i).permutation(64)
            weights[i], weights[i + 1] = weights[i][:, mixed], weights[i + 1][mixed]
    lines = "".join(f"h{i + 1} = MatMul (h{i}, w{i})  " for i in range(12))
    text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[n, 64] x) => (float[n, 64] y) {{
        loud_x = Mul (x, most)  h0 = Clip (loud_x, low, high)  {lines}
        size = Abs (x)  largest = ReduceMax (size)  cut = Clip (largest, low, most)
        loud = Mul (h12, cut)  scaled = Mul (loud, gain)  y = Sin (scaled) }}"""
    model = onnx.parser.parse_model(text)
    named = {f"w{i}": w for i, w in enumerate(weights)} | {"gain": gain, "low": -1, "high": 1, "most": 1000}
    for name, array in named.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array, np.float32), name))
    return model


def test_large_inputs_that_amplify_the_order_of_sums_are_no_error_and_a_wrong_gain_is() -> None:
    shapes = [{"n": 500}]
    same = verify(_waves(), _waves(order=3), shapes=shapes)
    large = next(c for c in same.cases if c.name.startswith("large"))
    assert same.ok and large.outputs[0].spread is not None, same.problems
    assert not verify(_waves(), _waves(gain=1.01), shapes=shapes).ok


def _constant_channels(shifted: bool = False, bias: float = 0.0) -> onnx.ModelProto:
    """An image plus a constant per channel, normalized: of zeros nothing is left but how the mean of 16384 equal numbers is rounded."""
    shift = "most = GlobalMaxPool (h)  k = Sub (h, most)" if shifted else "k = Identity (h)"
    text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[n, 4, 128, 128] x) => (float[n, 4, 128, 128] y) {{
        h = Add (x, c)  {shift}  y = InstanceNormalization (k, scale, bias) }}"""
    model = onnx.parser.parse_model(text)
    constants = {
        "c": np.array([0.83, -0.71, 0.26, -0.31]).reshape(4, 1, 1),
        "scale": np.ones(4),
        "bias": np.full(4, bias),
    }
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array, np.float32), name))
    return model


def test_a_better_mean_of_a_constant_is_no_error_and_an_offset_is() -> None:
    same = verify(_constant_channels(), _constant_channels(shifted=True), shapes=[{"n": 1}])
    zeros = next(c for c in same.cases if c.name.startswith("zeros")).outputs[0]
    assert same.ok and zeros.max_abs > zeros.atol, same.problems  # it needed the spread
    assert not verify(_constant_channels(), _constant_channels(shifted=True, bias=0.02), shapes=[{"n": 1}]).ok


def caching(wrong: bool) -> onnx.ModelProto:
    """x [1,2,n,16] : its rows kept as bytes behind those of past. WRONG cuts off where the function rounds."""
    rounding = "Floor" if wrong else "Round"
    text = f"""<ir_version: 10, opset_import: ["" : 18, "opsmith" : 1]>
        caching (float[1,2,n,16] x, int8[1,2,p,16] past) => (int8[1,2,t,16] present, float[1,2,n,1] scale) {{
            bytes, scale = opsmith.CacheQuantize (x)
            present = Concat <axis = 2> (past, bytes)
        }}
        <domain: "opsmith", opset_import: ["" : 18]>
        CacheQuantize (x) => (y, scale) {{
            axes = Constant <value_ints = [-1]> ()
            size = Abs (x)
            scale = ReduceMax <keepdims = 1> (size, axes)
            most = Constant <value = float {{127.0}}> ()
            scaled = Mul (x, most)
            ratio = Div (scaled, scale)
            whole = {rounding} (ratio)
            y = Cast <to = 3> (whole)
        }}"""
    return onnx.parser.parse_model(text)


def test_few_bytes_of_a_cache_may_flip_and_none_be_cut_off() -> None:
    assert spread.bytes_of_caches(ir.serde.deserialize_model(caching(wrong=False))) == {"present"}
    rng = np.random.default_rng(0)
    rows = rng.uniform(-127, 127, (1, 2, 30, 16)).astype(np.float32)
    right = np.round(rows).astype(np.int8)
    assert spread.flipped(right, np.round(rows + np.float32(0.01)).astype(np.int8), {})
    assert not spread.flipped(right, np.floor(rows).astype(np.int8), {"largest": 2})
    two = np.where(right == right.max(), right - 2, right)
    assert spread.flipped(right, two, {"largest": 1}) and not spread.flipped(right, two, {"largest": 0.5})
    assert not spread.flipped(right, right.astype(np.int16), {}) and not spread.flipped(rows, rows, {})


def test_a_cache_that_is_cut_off_instead_of_rounded_fails(tmp_path: Path) -> None:
    for name, wrong in (("a", False), ("b", True)):
        onnx.save(caching(wrong), tmp_path / f"{name}.onnx")
    assert verify(tmp_path / "a.onnx", tmp_path / "a.onnx").ok
    found = verify(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert not found.ok and {o.name for c in found.cases for o in c.outputs if not o.ok} == {"present"}
