"""Weights that the graph computes from other weights become weights, as ONNX Runtime folds them when it loads a model.

(1) g * v / ReduceL2(v) -> w            weight_norm of PyTorch, exported as it is
(2) Reshape(w), Transpose(w)            of what was computed so
(3) ConstantOfShape(64, 3, 3, 3) -> w   what a product or convolution reads as its weight, up to GROWTH elements altogether

Constant folding leaves them alone because of their size. A computed weight holds no memory: it computes itself when it is read.
Casts and DequantizeLinear stay, since kernels read narrow weights; so does a Transpose of a weight that is there already.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from opsmith import session
from opsmith.rewriter.passes.weights import lazy
from opsmith.rewriter.rule import is_op, register, tensor_of

ARITHMETIC = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Neg", "Abs", "Exp", "Log", "Tanh", "Sigmoid", "Softplus", "Clip"),
    *("Max", "Min", "Where", "ReduceL1", "ReduceL2", "ReduceSum", "ReduceSumSquare", "ReduceMean", "ReduceMax", "ReduceMin"),
)  # fmt: skip
LAYOUT = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity")
WEIGHT_AT = {  # operator -> its operands that are weights and biases
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), (1, 2)),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (1, 2, 3)),
    **dict.fromkeys(("InstanceNormalization", "LayerNormalization", "GroupNormalization"), (1, 2)),
    **dict.fromkeys(("MatMul", "PRelu"), (1,)),
    "BatchNormalization": (1, 2, 3, 4),
}
GROWTH = 1 << 26  # elements: 256 MB of floats
_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE}


def fold_computed_weights(model: ir.Model) -> None:
    """Fold them in place; nodes that nobody reads any more are left to the removal of dead ones."""
    computed: set[ir.Value] = set()
    left = GROWTH
    for node in list(model.graph):
        size = _foldable(node, computed)
        if size is None:
            continue
        grown = size - sum(t.size for v in node.inputs if (t := tensor_of(v)) is not None)
        if grown > 0:
            if grown > left or not _is_a_weight(node.outputs[0]):
                continue
            left -= grown
        computed.add(_replaced(model, node))


def _foldable(node: ir.Node, computed: set[ir.Value]) -> int | None:
    """The size of what the node makes of constants alone; None if it is to stay a node."""
    foldable = is_op(node, "ConstantOfShape", *ARITHMETIC) or (is_op(node, *LAYOUT) and node.inputs[0] in computed)
    if not foldable or len(node.outputs) != 1 or node.outputs[0].is_graph_output():
        return None
    made = node.outputs[0]
    if made.dtype not in _FLOATS or made.shape is None or not all(isinstance(d, int) for d in made.shape):
        return None
    if not node.inputs or any(v is not None and tensor_of(v) is None for v in node.inputs):
        return None
    return math.prod(d for d in made.shape if isinstance(d, int))


def _is_a_weight(value: ir.Value) -> bool:
    return any(index in WEIGHT_AT.get(user.op_type, ()) for user, index in value.uses())


def _replaced(model: ir.Model, node: ir.Node) -> ir.Value:
    made = node.outputs[0]
    assert made.shape is not None and made.dtype is not None
    proto = ir.to_proto(node)
    opset = [onnx.helper.make_opsetid("", model.opset_imports.get("", 18))]
    tensors = {v.name or "": t for v in node.inputs if v is not None and (t := tensor_of(v)) is not None}

    def compute() -> np.ndarray[Any, Any]:
        return np.asarray(_run(proto, tensors, opset))

    name = made.name or "weight"
    tensor = lazy(compute, made.dtype, list(made.shape.numpy()), name)
    made.name = f"{name}.computed"
    weight = ir.Value(name=name, type=ir.TensorType(made.dtype), shape=made.shape, const_value=tensor)
    register(model.graph, weight)
    made.replace_all_uses_with(weight)
    return weight


def _run(node: onnx.NodeProto, tensors: dict[str, ir.TensorProtocol], opset: list[onnx.OperatorSetIdProto]) -> Any:
    feed = {name: np.asarray(tensor.numpy()) for name, tensor in tensors.items()}
    make = onnx.helper.make_tensor_value_info
    inputs = [make(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feed.items()]
    graph = onnx.helper.make_graph([node], "weight", inputs, [onnx.ValueInfoProto(name=node.output[0])])
    proto = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    return session.run(session.load(proto, threads=1, optimize=False), feed)[0]
