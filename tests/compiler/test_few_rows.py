"""Rows by weights of 8 or 4 bits: the answers of floats by default, nearly theirs with --precision bf16, those of bytes with int8."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import opsmith
from opsmith import session
from opsmith.compiler.lower.matmul_nbits import FEW_ROWS, IN_BYTES

K, N, BLOCK = 96, 50, 32


def model(bits: int) -> onnx.ModelProto:
    rng = np.random.default_rng(bits)
    packed = rng.integers(0, 256, (N, K // BLOCK, BLOCK * bits // 8), np.uint8)
    scales = rng.uniform(0.01, 0.02, (N, K // BLOCK)).astype(np.float32)
    attributes = {"K": K, "N": N, "bits": bits, "block_size": BLOCK}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", K])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", N])
    weights = [onnx.numpy_helper.from_array(packed, "w"), onnx.numpy_helper.from_array(scales.reshape(-1), "s")]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "few", [x], [y], weights), opset_imports=opsets, ir_version=10)


def compare(source, made, *, tolerance, spread):
    """One to 17 rows against ONNX Runtime, and each row of a batch against itself alone."""
    stock, fast = session.load(source), session.load(made)
    rng = np.random.default_rng(0)
    for rows in (1, 3, 8, 16, 17):
        x = rng.standard_normal((rows, K), np.float32)
        (want,), (got,) = session.run(stock, {"x": x}), session.run(fast, {"x": x})
        assert np.abs(got - want).max() <= tolerance(rows) * np.abs(want).max()
        alone = np.concatenate([session.run(fast, {"x": row[None]})[0] for row in x])
        assert np.abs(got - alone).max() <= spread * np.abs(want).max()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("precision", "strict"), [("fp32", False), ("bf16", False), ("int8", True)])
def test_one_to_seventeen_rows_agree_with_onnx_runtime(tmp_path, bits, precision, strict):
    exact = strict or precision == "fp32"
    source = tmp_path / "few.onnx"
    onnx.save(model(bits), source)
    found = opsmith.compile(source, tmp_path / "m" / "fast", regions="whole", strict=strict, precision=precision)
    assert (FEW_ROWS in found.variant.record["compiled"]["algorithms"]) is not exact
    # 16 bits: 2^-16 of the largest of 32 numbers, about 3 times the others
    compare(source, found.variant.path, tolerance=lambda m: 5e-6 if exact or not 3 <= m <= 16 else 6e-5, spread=6e-5)


@pytest.mark.parametrize(("bits", "precision"), [(8, "int8"), (4, "int8"), (4, "auto")])
def test_in_int8_rows_are_multiplied_as_bytes_and_alone_as_beside_others(tmp_path, bits, precision):
    source = tmp_path / "few.onnx"
    onnx.save(model(bits), source)
    found = opsmith.compile(source, tmp_path / "m" / "fast", regions="whole", precision=precision)
    assert IN_BYTES in found.variant.record["compiled"]["algorithms"]
    # 2^-8 of the largest of 32 numbers is 3e-3 of a product
    compare(source, found.variant.path, tolerance=lambda m: 1e-2, spread=0)
