"""Weights packed by compiler/pack.py, run through the kernels that read them, against numpy."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx.helper
import onnxruntime
import pytest

from opsmith.compiler import geometry
from opsmith.compiler.pack import (
    halves_hold,
    pack_block_bytes,
    pack_conv2d,
    pack_conv_pairs,
    pack_conv_transposed,
    pack_depthwise,
    pack_gemm,
    pack_pairs,
    pack_quantized,
    pack_winograd,
    pack_winograd_pairs,
    unpack_matmul_nbits,
)
from opsmith.compiler.winograd import WAYS, Way
from opsmith.errors import OpsmithError

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "opsmith" / "kernels"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    target = tmp_path_factory.mktemp("pack") / "pack_abi.so"
    flags = ["-std=c++20", "-O1", "-march=native", "-Wno-psabi", "-shared", "-fPIC", f"-I{KERNELS}"]
    subprocess.run([compiler, *flags, str(HERE / "pack_abi.cpp"), "-o", str(target)], check=True)
    library = ctypes.CDLL(str(target))
    library.winograd_workspace_bytes.restype = ctypes.c_int64
    library.conv2d_workspace_bytes.restype = ctypes.c_int64
    return library


def _call(function: object, *arguments: object) -> None:
    converted = [
        a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else ctypes.c_int64(a) for a in arguments
    ]
    function(*converted)  # type: ignore[operator]


# The rest of ConvShape: strides of pixels, upsampling, blocking, and the depth of a flat image.
FLAT = (0, 0, 1, 0, 0, 1, 1, 1, 1, 0, 1)


def _conv_shape(
    x: np.ndarray, w: np.ndarray, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1
) -> np.ndarray:
    """ConvShape in conv.hpp for x NHWC and w OIHW."""
    (n, h, wd, c), (o, _, kh, kw) = x.shape, w.shape
    oh = (h + 2 * pad - dilation * (kh - 1) - 1) // stride + 1
    ow = (wd + 2 * pad - dilation * (kw - 1) - 1) // stride + 1
    fields = [n, h, wd, c, oh, ow, o, kh, kw, stride, stride, pad, pad, dilation, dilation, groups, *FLAT]
    return np.array(fields, np.int64)


def _conv(
    x: np.ndarray, w: np.ndarray, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1
) -> np.ndarray:
    """Convolution of x NHWC with w OIHW by its definition, in double precision; NHWC."""
    _, _, _, _, oh, ow, o, kh, kw, *_ = _conv_shape(x, w, stride, pad, dilation, groups).tolist()
    padded = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    y = np.zeros((x.shape[0], oh, ow, o))
    per_out, per_in = o // groups, w.shape[1]
    for g in range(groups):
        out, into = slice(g * per_out, (g + 1) * per_out), slice(g * per_in, (g + 1) * per_in)
        for i in range(kh):
            for j in range(kw):
                top, left = i * dilation, j * dilation
                seen = padded[
                    :, top : top + (oh - 1) * stride + 1 : stride, left : left + (ow - 1) * stride + 1 : stride
                ]
                y[..., out] += seen[..., into] @ w[out, :, i, j].T
    return y


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 47, 5), (9, 48, 17), (5, 131, 8), (2, 16, 0)])
def test_packed_gemm_weight_gives_the_matrix_product(library: ctypes.CDLL, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(m * n + k)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    c = np.full((m, n), np.nan, np.float32)
    _call(library.gemm_f32, m, n, k, a, pack_gemm(b, geometry.native()), c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("channels", "out"), [(4, 6), (10, 100)])
def test_packed_conv_weight_gives_the_convolution(library: ctypes.CDLL, channels: int, out: int, groups: int) -> None:
    rng = np.random.default_rng(channels)
    x = rng.standard_normal((2, 7, 6, channels), np.float32)
    w = rng.standard_normal((out, channels // groups, 3, 2), np.float32)
    want = _conv(x, w, stride=2, pad=1, dilation=2, groups=groups)
    shape = _conv_shape(x, w, stride=2, pad=1, dilation=2, groups=groups)
    room = library.conv2d_workspace_bytes(shape.ctypes.data_as(ctypes.c_void_p))
    y, workspace = np.full(want.shape, np.nan, np.float32), np.empty(room, np.uint8)
    _call(library.conv2d_f32, shape, x, pack_conv2d(w, groups, geometry.native()), y, workspace)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 47, 5), (9, 48, 18), (2, 16, 0)])
def test_weights_packed_in_pairs_give_the_product_of_what_bf16_keeps_of_them(
    library: ctypes.CDLL, m: int, n: int, k: int
) -> None:
    rng = np.random.default_rng(m * n + k)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    c = np.full((m, n), np.nan, np.float32)
    _call(library.gemm_bf16_f32, m, n, k, a, pack_pairs(b, geometry.native()), c)
    np.testing.assert_allclose(c, a @ b.astype(ml_dtypes.bfloat16).astype(np.float32), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_conv_weights_packed_in_pairs_give_the_convolution(library: ctypes.CDLL, groups: int) -> None:
    rng = np.random.default_rng(groups)
    x, w = rng.standard_normal((2, 7, 6, 38), np.float32), rng.standard_normal((50, 38 // groups, 3, 2), np.float32)
    rounded = w.astype(ml_dtypes.bfloat16).astype(np.float32)
    want, shape = _conv(x, rounded, pad=1, groups=groups), _conv_shape(x, w, pad=1, groups=groups)
    y, workspace = np.full(want.shape, np.nan, np.float32), np.empty(4096, np.uint8)
    _call(library.conv2d_bf16_f32, shape, x, pack_conv_pairs(w, groups, geometry.native()), y, workspace)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_transformed_winograd_weight_gives_the_convolution(library: ctypes.CDLL, way: Way) -> None:
    rng = np.random.default_rng(way.tile)
    x, w = rng.standard_normal((2, 7, 9, 10), np.float32), rng.standard_normal((101, 10, 3, 3), np.float32)
    want, shape = _conv(x, w, pad=1, stride=way.stride), _conv_shape(x, w, pad=1, stride=way.stride)
    y = np.full(want.shape, np.nan, np.float32)
    size = library.winograd_workspace_bytes(shape.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(way.tile))
    transformed = pack_winograd(w, way, geometry.native())
    _call(library.winograd_f32, shape, way.tile, x, transformed, y, np.empty(size + 64, np.uint8))
    np.testing.assert_allclose(y, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("channels", [19, 64])
def test_transformed_weights_in_pairs_give_the_convolution_within_the_error_of_bf16(
    library: ctypes.CDLL, channels: int
) -> None:
    rng = np.random.default_rng(channels)
    x, w = rng.standard_normal((2, 7, 9, channels)), rng.standard_normal((101, channels, 3, 3)).astype(np.float32)
    narrow = x.astype(ml_dtypes.bfloat16)
    want, shape = _conv(narrow.astype(np.float32), w, pad=1), _conv_shape(narrow, w, pad=1)
    y, workspace = np.full(want.shape, np.nan, np.float32), np.empty(1 << 22, np.uint8)
    _call(library.winograd2_bf16, shape, narrow, pack_winograd_pairs(w, geometry.native()), y, workspace)
    np.testing.assert_allclose(y, want, rtol=0, atol=1e-2 * np.abs(want).max())


def test_packed_depthwise_weight_gives_the_convolution(library: ctypes.CDLL) -> None:
    rng = np.random.default_rng(7)
    x, w = rng.standard_normal((2, 8, 7, 21), np.float32), rng.standard_normal((21, 1, 3, 2), np.float32)
    want, shape = _conv(x, w, stride=2, pad=1, groups=21), _conv_shape(x, w, stride=2, pad=1, groups=21)
    y = np.full(want.shape, np.nan, np.float32)
    _call(library.depthwise_f32, shape, x, pack_depthwise(w), y)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("stride", "dilation", "groups"), [(1, 1, 1), (2, 1, 2), (3, 2, 1), (2, 2, 2)])
def test_packed_transposed_weight_gives_the_transposed_convolution(
    library: ctypes.CDLL, stride: int, dilation: int, groups: int
) -> None:
    rng = np.random.default_rng(stride)
    n, h, wd, c, o, kh, kw, pad = 2, 4, 5, 6, 14, 3, 4, 1
    x, w = rng.standard_normal((n, h, wd, c), np.float32), rng.standard_normal((c, o // groups, kh, kw), np.float32)
    oh, ow = ((size - 1) * stride + dilation * (k - 1) + 1 for size, k in ((h, kh), (wd, kw)))
    full = np.zeros((n, oh, ow, o))
    for g in range(groups):  # the definition: every input pixel adds its kernel to the output
        into, out = slice(g * c // groups, (g + 1) * c // groups), slice(g * o // groups, (g + 1) * o // groups)
        for i in range(kh):
            for j in range(kw):
                top, left = i * dilation, j * dilation
                rows, columns = slice(top, top + h * stride, stride), slice(left, left + wd * stride, stride)
                full[:, rows, columns, out] += x[..., into].astype(np.float64) @ w[into, :, i, j]
    want = full[:, pad:-pad, pad:-pad]
    fields = [n, h, wd, c, oh - 2 * pad, ow - 2 * pad, o, kh, kw, stride, stride, pad, pad, dilation, dilation, groups]
    y, workspace = np.full(want.shape, np.nan, np.float32), np.empty(4096, np.float32)
    packed = pack_conv_transposed(w, groups, (stride, stride), (dilation, dilation), geometry.native())
    _call(library.transposed_f32, np.array([*fields, *FLAT], np.int64), x, packed, y, workspace)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def _matmul_nbits(a: np.ndarray, k: int, n: int, bits: int, block: int, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """What ONNX Runtime computes for com.microsoft.MatMulNBits, scales and activations in fp32."""
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    node = onnx.helper.make_node("MatMulNBits", ["a", *inputs], ["c"], domain="com.microsoft", **attributes)
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [value("a", onnx.TensorProto.FLOAT, a.shape)],
        [value("c", onnx.TensorProto.FLOAT, (len(a), n))],
        [onnx.numpy_helper.from_array(x, name) for name, x in inputs.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"a": a})[0]


@pytest.mark.parametrize(("bits", "half_scales", "zeros"), [(8, 0, 0), (8, 1, 1), (4, 0, 1), (4, 1, 0), (4, 0, 2)])
@pytest.mark.parametrize("m", [1, 3, 20])
def test_packed_matmul_nbits_gives_what_onnxruntime_computes(
    library: ctypes.CDLL, m: int, bits: int, half_scales: int, zeros: int
) -> None:
    rng = np.random.default_rng(bits + m)
    k, n, block = 160, 70, 32
    blocks = k // block
    a = rng.standard_normal((m, k), np.float32)
    b = rng.integers(0, 256, (n, blocks, block * bits // 8), np.uint8)
    scales = (rng.random((n, blocks), np.float32) * 0.1).astype(np.float16 if half_scales else np.float32)
    inputs = {"b": b, "scales": scales.astype(np.float32).reshape(-1)}
    zero_points = None
    if zeros == 1:
        zero_points = rng.integers(0, 256, (n, -(-blocks * bits // 8)), np.uint8)
        inputs["zero_points"] = zero_points.reshape(-1)
    elif zeros == 2:  # of the scales' type
        zero_points = (rng.random((n, blocks), np.float32) * (1 << bits)).astype(scales.dtype)
        inputs["zero_points"] = zero_points.astype(np.float32).reshape(-1)
    weight = unpack_matmul_nbits(b, scales, zero_points, k=k, n=n, bits=bits, block=block)
    want = a.astype(np.float64) @ weight.dequantized()
    ort = _matmul_nbits(a, k, n, bits, block, inputs)
    np.testing.assert_allclose(ort, want, rtol=0, atol=1e-5 * np.abs(want).max())  # the meaning of the format
    c = np.full((m, n), np.nan, np.float32)
    _call(library.quantized, bits, half_scales, zeros, m, n, k, block, a, pack_quantized(weight, geometry.native()), c)
    np.testing.assert_allclose(c, want, rtol=0, atol=1e-5 * np.abs(want).max())
    # In bytes: numbers that bytes hold are multiplied exactly.
    a = np.rint(a * 40).clip(-127, 127)
    a[:, ::block] = 127
    want = a.astype(np.float64) @ weight.dequantized()
    packed = pack_block_bytes(weight, geometry.native(), scales.dtype)
    _call(library.quantized_bytes, bits, half_scales, zeros, m, n, k, block, a.astype(np.float32), packed, c)
    np.testing.assert_allclose(c, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("m", [1, 9])
def test_blocks_of_llama_cpp_keep_their_halves_in_products_of_bytes(library: ctypes.CDLL, m: int) -> None:
    """w = d q + smallest, d and smallest halves, arrives as (q - zero) d with a zero point that is a float."""
    rng = np.random.default_rng(m)
    k, n, block = 96, 50, 32
    shape = n, k // block
    d, smallest = ((rng.random(shape) + 0.1).astype(np.float16) for _ in range(2))
    zeros = (-smallest.astype(np.float32) / d).reshape(-1)
    scales = d.astype(np.float32).reshape(-1)
    assert halves_hold(scales, zeros) and not halves_hold(scales * np.float32(1.0001), zeros)
    assert not halves_hold(scales, zeros * np.float32(1.0001)) and not halves_hold(scales * 1e6, None)
    b = rng.integers(0, 256, (*shape, block // 2), np.uint8)
    weight = unpack_matmul_nbits(b, scales.reshape(shape), zeros, k=k, n=n, bits=4, block=block)
    q = weight.q.astype(np.float64) + 8
    a = rng.integers(-127, 128, (m, k)).astype(np.float32)
    a[:, ::block] = 127
    spread = [np.repeat(x.astype(np.float64).T, block, axis=0) for x in (d, smallest)]
    want, c = a @ (q * spread[0] + spread[1]), np.empty((m, n), np.float32)
    packed = pack_block_bytes(weight, geometry.native(), np.dtype(np.float16))
    _call(library.quantized_bytes, 4, 1, 2, m, n, k, block, a, packed, c)
    np.testing.assert_allclose(c, want, rtol=0, atol=1e-6 * np.abs(want).max())


def test_a_weight_of_the_wrong_rank_is_refused() -> None:
    with pytest.raises(OpsmithError, match="2 dims"):
        pack_gemm(np.zeros((2, 3, 4), np.float32), geometry.AVX2)
