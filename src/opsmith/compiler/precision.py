"""The numbers that a product computes in: a property of each kernel call, chosen before lowering.

    fp32    operands and sums in fp32
    bf16    operands rounded to bf16 (nearest, even), sums in fp32
    int8    weights in int8 with a scale per output channel, activations in bytes with a scale and zero point per row, found while
            running; exact sums in int32, scaled to fp32. What has no such kernel, or is sensitive, runs in bf16 (lower/precision.py)

Norms, softmax, residual sums and everything between products stay in fp32. A new precision is a row here, a bound in
check/differences.py, and kernels that the lowerings of products choose by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_ir import DataType


@dataclass(frozen=True)
class Precision:
    name: str
    operands: DataType  # of activations and weights, as they are multiplied
    stored: DataType  # of a value that only such products read
    sums: DataType = DataType.FLOAT


FP32 = Precision("fp32", DataType.FLOAT, DataType.FLOAT)
BF16 = Precision("bf16", DataType.BFLOAT16, DataType.BFLOAT16)
INT8 = Precision("int8", DataType.INT8, DataType.BFLOAT16, DataType.INT32)
AUTO = "auto"  # per product the cheapest that keeps the model within a bound: auto.py
PRECISIONS = {p.name: p for p in (FP32, BF16, INT8)}  # settings.py checks the word that a user writes


def cheapest(word: str) -> Precision:
    """The cheapest precision that products are asked to run in."""
    return INT8 if word == AUTO else PRECISIONS[word]
