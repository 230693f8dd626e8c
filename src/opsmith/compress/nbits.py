"""MatMulNBits in a graph: the tensors of a weight in blocks, and the node that takes a product's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.compress.blocks import Blocks
from opsmith.compress.layers import Layer, free_name

Array = np.ndarray[Any, Any]
Tensors = tuple[ir.Value, ir.Value, ir.Value | None]  # integers, scales, zero points


def register(model: ir.Model, packed: Blocks, name: str, spool: Path | None = None) -> Tensors:
    """The three tensors of a quantized weight as initializers; large ones wait in SPOOL until they are written."""

    def value(kind: str, array: Array) -> ir.Value:
        tensor = ir.Tensor(_spooled(array, spool) if spool else array, name=free_name(model, f"{name}_{kind}"))
        made = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        model.graph.register_initializer(made)
        return made

    zeros = None if packed.zeros is None else value("zeros", packed.zeros.reshape(-1))
    return value("weight", packed.packed), value("scales", packed.scales.reshape(-1)), zeros


def _spooled(array: Array, spool: Path) -> Array:
    """Large arrays wait on disk: the weights of a model need not fit in memory together."""
    if array.nbytes < 1 << 20:
        return array
    file = spool / f"{len(list(spool.iterdir()))}.npy"
    np.save(file, array)
    mapped: Array = np.load(file, mmap_mode="r")
    return mapped


def replace(layer: Layer, attributes: dict[str, int], tensors: Tensors) -> None:
    """MatMul or Gemm -> MatMulNBits, with the bias inside where it is one value per column."""
    node, (k, n) = layer.node, layer.shape
    weight, scales, zeros = tensors
    inputs: list[ir.Value | None] = [node.inputs[0], weight, scales, zeros]
    inside = layer.bias is not None and layer.bias.shape is not None and list(layer.bias.shape) == [n]
    if inside:
        inputs += [None, layer.bias]
    while inputs[-1] is None:
        inputs.pop()
    result = node.outputs[0]
    stem = node.name or layer.name
    name = f"{stem}_int{attributes['bits']}"
    made = ir.node("MatMulNBits", inputs, attributes={"K": k, "N": n} | attributes, domain="com.microsoft", name=name)
    new = [made]
    if layer.bias is not None and not inside:
        new.append(ir.node("Add", [made.outputs[0], layer.bias], name=f"{stem}_bias"))
    last = new[-1].outputs[0]
    last.type, last.shape = result.type, result.shape
    graph = node.graph
    assert graph is not None
    ir.convenience.replace_nodes_and_values(graph, node, [node], new, [result], [last])
