"""How large the values of a model become at given sizes of its inputs: before anyone runs it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from opsmith import bounds

_SMALL = 4096  # bytes; larger constants are no shapes


def largest_value(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> int:
    """Elements of the largest value whose size ONNX can infer, with the inputs of these SHAPES; 0 where it infers none."""
    light = _light(model, shapes)
    try:
        inferred = bounds.infer_shapes(light)
    except Exception:  # stale or wrong shapes: running the model will tell
        return 0
    largest = 0
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        dims = info.type.tensor_type.shape.dim
        if dims and all(d.HasField("dim_value") for d in dims):
            largest = max(largest, math.prod(d.dim_value for d in dims))
    return largest


def _light(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """The model with inputs of these shapes, and with inputs in place of its weights."""
    proto = onnx.ModelProto(ir_version=model.ir_version)
    proto.opset_import.extend(onnx.helper.make_opsetid(domain, v) for domain, v in model.opset_imports.items())
    proto.functions.extend(ir.to_proto(f) for f in model.functions.values())
    proto.graph.name = "footprint"
    proto.graph.node.extend(ir.to_proto(node) for node in model.graph)
    for value in model.graph.inputs:
        if value.dtype is not None and value.name and value.name in shapes:
            info = onnx.helper.make_tensor_value_info(value.name, int(value.dtype), list(shapes[value.name]))
            proto.graph.input.append(info)
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or name in shapes:
            continue
        if tensor.nbytes <= _SMALL and tensor.dtype != ir.DataType.STRING:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(tensor.numpy(), name))
        else:
            dims = [int(d) for d in tensor.shape.numpy()]
            proto.graph.input.append(onnx.helper.make_tensor_value_info(name, int(tensor.dtype), dims))
    return proto
