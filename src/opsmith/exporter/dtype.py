"""`--dtype fp16` or bf16: weights are rounded to it and stored in it, behind a Cast; what is computed stays fp32.

    PyTorch    weight -> float(half(weight))           so that the graph is proved equal to what it stores
    ONNX       weight -> Cast(half) -> its readers     where nothing is lost; what an exporter computed from weights stays fp32

A checkpoint that is in that type already loses nothing by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from opsmith.compress.quantize import SMALLEST
from opsmith.errors import OpsmithError, no_such
from opsmith.exporter.graph import Graph

if TYPE_CHECKING:
    import torch

FP32 = "fp32"
_HALVES = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
DTYPES = (FP32, *_HALVES)


def check(dtype: str) -> None:
    if dtype not in DTYPES:
        raise no_such("dtype", dtype, DTYPES)


def round_weights(graph: Graph, dtype: str) -> Graph:
    """The graph whose module computes with weights that DTYPE can hold."""
    import torch

    half = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    for name, weight in graph.model.named_parameters():
        if weight.dtype == torch.float32:
            weight.data = _rounded(name, weight.data, half, dtype)
    return graph


def _rounded(name: str, weight: torch.Tensor, half: torch.dtype, dtype: str) -> torch.Tensor:
    rounded = weight.to(half).float()
    if bool((rounded.isinf() & weight.isfinite()).any()):
        raise OpsmithError(f"the weight {name} exceeds the range of {dtype}", "bf16 has the range of fp32")
    return rounded


def store_as(model: ir.Model, dtype: str) -> None:
    """Every large weight that DTYPE holds without loss is stored in it, under its own name."""
    stored = _HALVES[dtype]
    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size < SMALLEST:
            continue
        if not value.uses() or value.is_graph_output() or not _holds(tensor.numpy(), stored):
            continue
        cast = ir.node("Cast", [value], attributes={"to": int(ir.DataType.FLOAT)}, name=f"{value.name}_cast")
        converted = cast.outputs[0]
        converted.name, converted.shape, converted.type = f"{value.name}_{FP32}", value.shape, value.type
        for user, index in list(value.uses()):
            if user is not cast:
                user.replace_input_with(index, converted)
        model.graph.insert_before(model.graph[0], cast)
        value.const_value = _converted(tensor, stored, value.name or "")
        value.type = ir.TensorType(stored)


def _holds(array: np.ndarray[Any, Any], stored: ir.DataType) -> bool:
    with np.errstate(over="ignore"):
        return np.array_equal(array.astype(stored.numpy()).astype(np.float32), array, equal_nan=True)


def _converted(tensor: ir.TensorProtocol, stored: ir.DataType, name: str) -> ir.LazyTensor:
    """Converted while the file is written, one tensor at a time."""

    def convert() -> ir.TensorProtocol:
        return ir.Tensor(tensor.numpy().astype(stored.numpy()), dtype=stored, name=name)

    return ir.LazyTensor(convert, dtype=stored, shape=ir.Shape(tensor.shape.numpy()), name=name)
