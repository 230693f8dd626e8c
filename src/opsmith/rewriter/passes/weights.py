"""Weights that change form without being read: the new tensor computes itself when the file is written.

Transpose(weight) -> weight'      Concat(w1, w2, w3) -> w'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.rewriter.rule import attribute, input_of, is_op, register, tensor_of


def lazy(
    function: Callable[[], np.ndarray[Any, Any]], dtype: ir.DataType, shape: Sequence[int], name: str
) -> ir.LazyTensor:
    """A tensor that is computed each time it is read: nothing stays in memory."""

    def evaluate() -> ir.TensorProtocol:
        return ir.Tensor(np.ascontiguousarray(function()), dtype=dtype, name=name)

    return ir.LazyTensor(evaluate, dtype=dtype, shape=ir.Shape(shape), name=name)


def transpose_lazily(model: ir.Model) -> None:
    """Fold Transpose of a weight, which constant folding left alone because of its size."""
    for node in list(model.graph):
        tensor = tensor_of(input_of(node, 0)) if is_op(node, "Transpose") else None
        if tensor is None or node.outputs[0].is_graph_output():
            continue
        perm = list(attribute(node, "perm", list(reversed(range(len(tensor.shape))))))
        shape = [int(tensor.shape[i]) for i in perm]
        name = f"{tensor.name or 'weight'}_transposed"

        def function(tensor: ir.TensorProtocol = tensor, perm: list[int] = perm) -> np.ndarray[Any, Any]:
            return np.transpose(tensor.numpy(), perm)

        lazily = lazy(function, tensor.dtype, shape, name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(shape), const_value=lazily)
        register(model.graph, value)
        node.outputs[0].replace_all_uses_with(value)
        model.graph.remove(node, safe=True)
