"""The layers of a model that compression works on: products with a constant matrix, and embedding tables.

MatMul(x, W)              W (K, N)
MatMul(x, Transpose(W))   W (N, K)
MatMul(x, Cast(W))        W (K, N) stored in half precision, where that is asked for; a Transpose may come before or after
Gemm(x, W, bias)          W (K, N), or (N, K) with transB = 1
Gather(W, ids)            W (rows, width), axis 0
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from opsmith.nodes import ONNX

Array = np.ndarray[Any, Any]
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclasses.dataclass
class Layer:
    """One product x (..., K) @ w (K, N) with a constant w."""

    name: str
    node: ir.Node
    weight: ir.Value
    transposed: bool  # the stored matrix is (N, K)
    bias: ir.Value | None = None  # of a Gemm
    dtype: ir.DataType | None = None  # what it is cast to before the product; None: as it is stored

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = stored(self.weight).shape.numpy()
        return (columns, rows) if self.transposed else (rows, columns)

    def matrix(self) -> Array:
        """w (K, N) as it is multiplied; still a view of the mapped file if it is stored so."""
        array = stored(self.weight).numpy()
        array = array if self.dtype is None else array.astype(self.dtype.numpy())
        return array.T if self.transposed else array


def stored(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None
    return value.const_value


def constant(value: ir.Value | None) -> bool:
    """An initializer that no caller can override."""
    return value is not None and value.is_initializer() and not value.is_graph_input() and value.const_value is not None


def free_name(model: ir.Model, wanted: str) -> str:
    """WANTED, with a number if an initializer has that name already."""
    name, number = wanted, 1
    while name in model.graph.initializers:
        name, number = f"{wanted}_{number}", number + 1
    return name


def tidy(model: ir.Model) -> None:
    """After a change: nothing unused, and no two nodes or values of one name, whatever names the model came with."""
    common.RemoveUnusedNodesPass()(model)
    common.NameFixPass()(model)


def expose_weights(model: ir.Model) -> None:
    """Weights in Constant nodes, behind an Identity, or inside branches and loops become initializers of the main graph."""
    common.LiftConstantsToInitializersPass()(model)
    common.LiftSubgraphInitializersToMainGraphPass()(model)
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Identity" or node.domain not in ONNX or not constant(node.inputs[0]):
            continue
        if not node.outputs[0].is_graph_output() and node.inputs[0] is not None:
            node.outputs[0].replace_all_uses_with(node.inputs[0])


def find_layers(model: ir.Model, *, casts: bool = False) -> list[Layer]:
    """All products with a constant float matrix, in order, those inside branches and loops too. CASTS: also those stored in another float type."""
    layers = []
    for node in model.graph.all_nodes():
        layer = _layer(node, casts)
        if layer is not None:
            layers.append(layer)
    # Two layers may share a weight; their names must still differ.
    seen: dict[str, int] = {}
    for layer in layers:
        seen[layer.name] = seen.get(layer.name, 0) + 1
        if seen[layer.name] > 1:
            layer.name = f"{layer.name}#{seen[layer.name]}"
    return layers


def _layer(node: ir.Node, casts: bool) -> Layer | None:
    if node.domain not in ONNX or node.op_type not in ("MatMul", "Gemm") or node.inputs[1] is None:
        return None
    operands = _gemm_operands(node) if node.op_type == "Gemm" else (node.inputs[1], False, None)
    if operands is None:
        return None
    weight, transposed, bias = operands
    weight, dtype = _uncast(weight) if casts else (weight, None)
    if node.op_type == "MatMul":
        weight, transposed = _untransposed(weight)
    if casts and dtype is None:
        weight, dtype = _uncast(weight)
    if not constant(weight):
        return None
    tensor = stored(weight)
    if len(tensor.shape) != 2 or tensor.dtype not in FLOATS:
        return None
    name = weight.name or ""
    # Exporters that fold transposes name the result val_52; the node then says more than the weight.
    if name.startswith(("val_", "onnx::")) and node.name:
        name = node.name
    return Layer(name, node, weight, transposed, bias, dtype)


def _gemm_operands(node: ir.Node) -> tuple[ir.Value, bool, ir.Value | None] | None:
    """(weight, whether it is transposed, bias); None for a Gemm that does more than x @ w + b."""
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    plain = node.attributes.get_float("alpha", 1.0) == 1.0 and not node.attributes.get_int("transA", 0)
    if weight is None or not plain or (bias is not None and node.attributes.get_float("beta", 1.0) != 1.0):
        return None
    return weight, bool(node.attributes.get_int("transB", 0)), bias


def _uncast(weight: ir.Value) -> tuple[ir.Value, ir.DataType | None]:
    """(what a Cast reads, what it gives); a value that is not cast to a float type is itself."""
    maker = weight.producer()
    if maker is None or maker.op_type != "Cast" or maker.domain not in ONNX or maker.inputs[0] is None:
        return weight, None
    to = ir.DataType(maker.attributes.get_int("to"))
    return (maker.inputs[0], to) if to in FLOATS else (weight, None)


def _untransposed(weight: ir.Value) -> tuple[ir.Value, bool]:
    """(what is stored, whether it is transposed before the product)."""
    maker = weight.producer()
    if maker is None or maker.op_type != "Transpose" or maker.domain not in ONNX:
        return weight, False
    source = maker.inputs[0]
    if source is None or list(maker.attributes.get_ints("perm", [1, 0])) != [1, 0]:
        return weight, False
    return source, True


def find_tables(model: ir.Model) -> list[tuple[ir.Node, ir.Value]]:
    """Embedding tables: Gather nodes on a constant float matrix, along its rows."""
    tables = []
    for node in model.graph.all_nodes():
        if node.op_type == "Gather" and node.domain in ONNX and node.attributes.get_int("axis", 0) == 0:
            table = node.inputs[0]
            if table is None or not constant(table):
                continue
            if len(stored(table).shape) == 2 and stored(table).dtype == ir.DataType.FLOAT:
                tables.append((node, table))
    return tables
