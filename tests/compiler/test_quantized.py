"""Quantized graphs as ORT's tools write them: integers equal stock ORT's bit for bit, quantized results within one step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from batch import compile_batch
from onnx import numpy_helper

from opsmith import session
from opsmith.compiler.source import load, prepare

Array = np.ndarray[Any, Any]
NAMES: dict[Any, str] = {np.uint8: "uint8", np.int8: "int8"}
RNG = np.random.default_rng(0)


@dataclass
class Case:
    name: str
    text: str  # the graph, in ONNX's own syntax
    feed: dict[str, Array]
    weights: dict[str, Array]
    step: float = 0.0  # how far a result may be off; 0: equal

    def model(self) -> bytes:
        head = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
        model = onnx.parser.parse_model(f"{head} {self.name} {self.text}")
        model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in self.weights.items())
        return model.SerializeToString()


def number(value: float) -> Array:
    return np.array(value, np.float32)


def some(dtype: Any, *shape: int) -> Array:
    """Bytes over their whole range; floats around 0."""
    if dtype == np.float32:
        return RNG.standard_normal(shape).astype(np.float32)
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def check(cases: list[Case], folder: Path) -> None:
    library, built = compile_batch([(c.name, c.model()) for c in cases], folder)
    plain, own = ort.SessionOptions(), ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # what the graph says, node by node
    own.register_custom_ops_library(str(library))
    for case, result in zip(cases, built):
        assert result.native, f"{case.name}: {result.error or result.left}"
        expected = ort.InferenceSession(case.model(), plain, providers=["CPUExecutionProvider"]).run(None, case.feed)
        outputs = ort.InferenceSession(result.path, own, providers=["CPUExecutionProvider"]).run(None, case.feed)
        for got, want in zip(outputs, expected):
            assert got.dtype == want.dtype and got.shape == want.shape, case.name
            difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
            assert difference.max(initial=0) <= case.step, f"{case.name}: {difference.max()}"


def kernels_in(folder: Path) -> list[str]:
    """The kernels that the compiled graphs call."""
    lines = next(folder.glob("lib*.cpp")).read_text().splitlines()
    return [line.split('"')[1] for line in lines if line.startswith("  watch.lap(")]


PAIRS = [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8), (np.int8, np.uint8)]


def test_integer_products_are_exact(tmp_path: Path) -> None:
    cases = []
    for i, (a, b) in enumerate(PAIRS):
        weights = {"w": some(b, 33, 50), "wz": some(b, 50)}
        cases += [
            Case(
                f"packed{i}",
                f"({NAMES[a]}[b,7,33] a, {NAMES[a]} az) => (int32[b,7,50] y) {{ y = MatMulInteger(a, w, az, wz) }}",
                {"a": some(a, 3, 7, 33), "az": np.array(5, a)},
                weights,
            ),
            Case(
                f"computed{i}",
                f"({NAMES[a]}[b,7,33] a, {NAMES[b]}[b,33,50] w) => (int32[b,7,50] y) {{ y = MatMulInteger(a, w) }}",
                {"a": some(a, 3, 7, 33), "w": some(b, 3, 33, 50)},
                {},
            ),
        ]
    check(cases, tmp_path)


def test_integer_convolutions_are_exact(tmp_path: Path) -> None:
    cases = []
    for name, rank, attributes, weights in (
        ("plain", 4, "pads = [1, 1, 1, 1]", some(np.uint8, 20, 12, 3, 3)),
        ("strided", 4, "strides = [2, 2], pads = [0, 1, 1, 0], dilations = [2, 1]", some(np.uint8, 50, 12, 3, 2)),
        ("grouped", 4, "group = 2, auto_pad = \"SAME_UPPER\"", some(np.uint8, 10, 6, 3, 3)),
        ("depthwise", 4, "group = 12, pads = [2, 2, 2, 2], strides = [1, 2]", some(np.uint8, 12, 1, 5, 5)),
        ("signal", 3, "pads = [1, 1]", some(np.uint8, 8, 12, 3)),
        ("pointwise", 4, "group = 1", some(np.uint8, 8, 12, 1, 1)),
    ):  # fmt: skip
        dims = "n, 12, 17, 19" if rank == 4 else "n, 12, 19"
        text = f"(uint8[{dims}] x) => (int32[{', '.join('abcd'[:rank])}] y) {{ y = ConvInteger<{attributes}>(x, w, xz, wz) }}"
        shape = (2, 12, 17, 19) if rank == 4 else (2, 12, 19)
        zeros = {"xz": np.array(7, np.uint8), "wz": np.array(120, np.uint8)}
        cases.append(Case(f"conv_{name}", text, {"x": some(np.uint8, *shape)}, {"w": weights, **zeros}))
    check(cases, tmp_path)


def test_what_dynamic_quantization_makes_is_one_kernel_with_its_epilogue(tmp_path: Path) -> None:
    scale = {"wz": np.array(120, np.uint8), "ws": number(0.01)}
    matmul = Case(
        "dynamic_matmul",
        """(float[b,7,33] x, float[50] bias) => (float[b,7,50] y) {
            q, s, z = DynamicQuantizeLinear(x)  i = MatMulInteger(q, w, z, wz)  f = Cast<to = 1>(i)
            ss = Mul(s, ws)  m = Mul(f, ss)  a = Add(m, bias)  y = Relu(a) }""",
        {"x": some(np.float32, 3, 7, 33), "bias": some(np.float32, 50)},
        {"w": some(np.uint8, 33, 50), **scale},
        1e-5,
    )
    conv = Case(
        "dynamic_conv",
        """(float[b,12,h,k] x, float[1,20,1,1] bias) => (float[b,20,h2,k2] y) {
            q, s, z = DynamicQuantizeLinear(x)  i = ConvInteger<pads = [1, 1, 1, 1]>(q, w, z, wz)  f = Cast<to = 1>(i)
            ss = Mul(s, ws)  m = Mul(f, ss)  a = Add(m, bias)  y = Relu(a) }""",
        {"x": some(np.float32, 2, 12, 9, 11), "bias": some(np.float32, 1, 20, 1, 1)},
        {"w": some(np.uint8, 20, 12, 3, 3), **scale},
        1e-5,
    )
    fused = Case(
        "fused_by_ort",
        """(float[b,7,33] x, float[50] bias) => (float[b,7,50] y, float[b,7,50] z) {
            y = com.microsoft.DynamicQuantizeMatMul(x, w, ws, wz, bias)
            q, s, qz = DynamicQuantizeLinear(x)  z = com.microsoft.MatMulIntegerToFloat(q, w, s, ws, qz, wz, bias) }""",
        {"x": some(np.float32, 3, 7, 33), "bias": some(np.float32, 50)},
        {"w": some(np.uint8, 33, 50), **scale},
        1e-5,
    )
    check([matmul, conv, fused], tmp_path)
    kernels = kernels_in(tmp_path)
    assert sum("gemm_bytes_cast_mul_add_relu" in k for k in kernels) == 1
    assert sum("conv_bytes_cast_mul_add_relu" in k for k in kernels) == 1


def test_quantized_operators_equal_ort(tmp_path: Path) -> None:
    scales = {n: number(v) for n, v in (("xs", 0.02), ("ys", 0.9))}
    zeros = {n: np.array(v, np.uint8) for n, v in (("xz", 120), ("yz", 100))}
    per_channel = {"ws": (0.01 + RNG.random(50)).astype(np.float32), "wz": np.zeros(50, np.int8)}
    matmul = Case(
        "qlinear_matmul",
        "(uint8[b,33] x) => (uint8[b,50] y) { y = QLinearMatMul(x, xs, xz, w, ws, wz, ys, yz) }",
        {"x": some(np.uint8, 40, 33)},
        {"w": some(np.int8, 33, 50), **scales, **zeros, **per_channel},
    )
    conv = Case(
        "qlinear_conv",
        """(uint8[b,12,h,k] x) => (uint8[b,50,h2,k2] y) {
            y = QLinearConv<pads = [1, 1, 1, 1]>(x, xs, xz, w, ws, wz, ys, yz, bias) }""",
        {"x": some(np.uint8, 1, 12, 9, 11)},
        {"w": some(np.int8, 50, 12, 3, 3), "bias": RNG.integers(-9999, 9999, 50).astype(np.int32), **scales, **zeros, **per_channel},
    )  # fmt: skip
    gemm = Case(
        "qgemm",
        "(uint8[b,33] x) => (uint8[b,50] y) { y = com.microsoft.QGemm<transB = 1>(x, xs, xz, w, ws, wz, c, ys, yz) }",
        {"x": some(np.uint8, 40, 33)},
        {"w": some(np.int8, 50, 33), "c": RNG.integers(-999, 999, 50).astype(np.int32), **scales, **zeros, **per_channel},
    )  # fmt: skip
    add = Case(
        "qlinear_add",
        """(uint8[b,8,5,5] x, uint8[b,8,5,5] z) => (uint8[b,8,5,5] y) {
            a = com.microsoft.QLinearAdd(x, xs, xz, z, xs, xz, ys, yz)
            s = com.microsoft.QLinearSigmoid(a, ys, yz, xs, xz)
            l = com.microsoft.QLinearLeakyRelu<alpha = 0.1>(s, xs, xz, xs, xz)
            y = com.microsoft.QLinearMul(l, xs, xz, z, xs, xz, xs, xz) }""",
        {"x": some(np.uint8, 2, 8, 5, 5), "z": some(np.uint8, 2, 8, 5, 5)},
        {**scales, **zeros},
        1,
    )
    check([matmul, conv, gemm, add], tmp_path)


def test_quantizers_with_one_scale_are_elementwise(tmp_path: Path) -> None:
    case = Case(
        "quantizers",
        """(float[b,12] x, float[b,12] z) => (uint8[b,12] y) {
            q = QuantizeLinear(x, s, zp)  d = DequantizeLinear(q, s, zp)  e = Add(d, z)  r = Relu(e)
            y = QuantizeLinear(r, s, zp) }""",
        {"x": some(np.float32, 300, 12), "z": some(np.float32, 300, 12)},
        {"s": number(0.02), "zp": np.array(100, np.uint8)},
    )
    check([case], tmp_path)
    assert len(kernels_in(tmp_path)) == 1


def test_products_of_dequantized_tensors_run_on_integers(tmp_path: Path) -> None:
    """What static quantization makes: DequantizeLinear, product, QuantizeLinear. Floats round where integers do not: one step."""
    scales = {"xs": number(0.02), "ys": number(0.35), "ws": (0.005 + 0.01 * RNG.random(50)).astype(np.float32)}
    zeros = {"xz": np.array(120, np.uint8), "yz": np.array(100, np.uint8), "wz": np.zeros(50, np.int8)}
    shared = {**scales, **zeros, "c": RNG.integers(-999, 999, 50).astype(np.int32), "cs": number(0.0002)}
    matmul = Case(
        "qdq_matmul",
        """(uint8[b,7,33] x) => (uint8[b,7,50] y) {
            f = DequantizeLinear(x, xs, xz)  g = DequantizeLinear<axis = 1>(w, ws, wz)  m = MatMul(f, g)
            c32 = DequantizeLinear(c, cs)  a = Add(m, c32)  y = QuantizeLinear(a, ys, yz) }""",
        {"x": some(np.uint8, 3, 7, 33)},
        {"w": some(np.int8, 33, 50), **shared},
        1,
    )
    gemm = Case(
        "qdq_gemm",
        """(uint8[b,33] x) => (uint8[b,50] y) {
            f = DequantizeLinear(x, xs, xz)  g = DequantizeLinear<axis = 0>(w, ws, wz)  c32 = DequantizeLinear(c, cs)
            m = Gemm<transB = 1, beta = 0.5>(f, g, c32)  a = Relu(m)  y = QuantizeLinear(a, ys, yz) }""",
        {"x": some(np.uint8, 9, 33)},
        {"w": some(np.int8, 50, 33), **shared},
        1,
    )
    conv = Case(
        "qdq_conv",
        """(uint8[b,12,h,k] x) => (uint8[b,50,h2,k2] y) {
            f = DequantizeLinear(x, xs, xz)  g = DequantizeLinear<axis = 0>(w, ws, wz)  c32 = DequantizeLinear(c, cs)
            m = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(f, g, c32)  y = QuantizeLinear(m, ys, yz) }""",
        {"x": some(np.uint8, 2, 12, 9, 11)},
        {"w": some(np.int8, 50, 12, 3, 3), **shared},
        1,
    )
    activations = Case(
        "qdq_activations",
        """(uint8[b,7,33] x, uint8[b,33,5] z) => (uint8[b,7,5] y) {
            f = DequantizeLinear(x, xs, xz)  g = DequantizeLinear(z, xs, xz)  m = MatMul(f, g)
            y = QuantizeLinear(m, ys, yz) }""",
        {"x": some(np.uint8, 3, 7, 33), "z": some(np.uint8, 3, 33, 5)},
        {n: shared[n] for n in ("xs", "xz", "ys", "yz")},
        1,
    )
    check([matmul, gemm, conv, activations], tmp_path)
    products = [k for k in kernels_in(tmp_path) if "_bytes_" in k]
    assert len(products) == 4 and all("quantizelinear" in k or "ops_" in k for k in products)


def test_weights_and_tables_are_not_dequantized_at_run_time(tmp_path: Path) -> None:
    weight = Case(
        "dequantized_weight",
        """(float[b,33] x) => (float[b,50] y) { g = DequantizeLinear<axis = 1>(w, ws, wz)  y = MatMul(x, g) }""",
        {"x": some(np.float32, 7, 33)},
        {"w": some(np.int8, 33, 50), "ws": RNG.random(50).astype(np.float32), "wz": some(np.int8, 50)},
        0.05,
    )
    table = Case(
        "dequantized_table",
        """(int64[b] i) => (float[b,40] y) { g = DequantizeLinear(t, s, z)  y = Gather(g, i) }""",
        {"i": np.array([3, 0, -1])},
        {"t": some(np.uint8, 3000, 40), "s": number(0.1), "z": np.array(3, np.uint8)},
    )
    scaled = Case(
        "scaled_weight",
        """(float[b,100,10] x) => (float[b,256,8] y) {
            c = Cast<to = 1>(w)  m = Mul(c, s)  a = Add(m, o)  y = Conv(x, a) }""",
        {"x": some(np.float32, 2, 100, 10)},
        {"w": some(np.uint8, 256, 100, 3), "s": number(0.01), "o": number(-1.0)},  # too large to be folded as such
        1e-3,
    )
    check([weight, table, scaled], tmp_path)
    kernels = [k for k in kernels_in(tmp_path) if not k.startswith("copy")]
    assert len(kernels) == 4, "two products, a gather, and the quantizer of what was gathered"


def test_the_working_copy_of_symmetric_weights_runs_in_onnx_runtime(tmp_path: Path) -> None:
    """Whose ConvInteger takes one zero point, not one per channel; the parts of a compiled model are compared with it."""
    text = """<ir_version: 9, opset_import: ["" : 17]> g (uint8[1,2,5] x) => (float[1,3,3] y) {
        f = DequantizeLinear(x, s)  g = DequantizeLinear<axis = 0>(w, ws, wz)  y = Conv(f, g) }"""
    model = onnx.parser.parse_model(text)
    constants = {
        "s": number(0.5),
        "w": some(np.int8, 3, 2, 3),
        "ws": np.ones(3, np.float32),
        "wz": np.zeros(3, np.int8),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
    onnx.save(model, tmp_path / "m.onnx")
    source = prepare(load(tmp_path / "m.onnx"))
    assert "ConvInteger" in [n.op_type for n in source.working.graph]
    x = some(np.uint8, 1, 2, 5)
    got, want = (session.run(session.load(m), {"x": x})[0] for m in (source.working, tmp_path / "m.onnx"))
    np.testing.assert_allclose(got, want, rtol=1e-5)
