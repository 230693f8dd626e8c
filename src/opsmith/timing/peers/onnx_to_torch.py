"""An ONNX graph as a torch.fx module, specialised to one set of input shapes.

The graph is walked once with real inputs. What depends on shapes and constants only is computed now, as it would be
by any exporter; every other node becomes one call in the module. Functions are inlined first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir

from opsmith import store
from opsmith.errors import OpsmithError
from opsmith.nodes import ONNX

# Inputs that must be numbers when the module is built (axes, shapes, pads), by op; everything else is a tensor.
_SECOND_IS_STATIC = """Reshape Expand Unsqueeze Squeeze Tile Split TopK Trilu CumSum
    ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL2 ReduceSumSquare"""
_STATIC = dict.fromkeys(_SECOND_IS_STATIC.split(), (1,)) | {
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 2, 3),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Clip": (1, 2),
}


def translate(path: Path, inputs: dict[str, Any]) -> tuple[Any, list[str], list[str]]:
    """(a torch module, the names of its inputs in order, the names of its outputs)."""
    import torch

    proto = store.read_proto(path)
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    weights = {
        tensor.name: torch.from_numpy(ir.serde.deserialize_tensor(tensor, str(path.parent)).numpy().copy())
        for tensor in proto.graph.initializer
    }
    made = _Translation(torch.nn.Module(), torch.fx.Graph(), dict(weights))
    fed = [value.name for value in proto.graph.input if value.name not in weights]
    for i, name in enumerate(fed):
        made.places[name] = made.graph.placeholder(f"input_{i}")
        made.values[name] = torch.from_numpy(inputs[name].copy())
    with torch.inference_mode():
        for node in proto.graph.node:
            made.add(node)
        made.graph.output(tuple(made.place(output.name) for output in proto.graph.output))
    return torch.fx.GraphModule(made.module, made.graph).eval(), fed, [output.name for output in proto.graph.output]


@dataclasses.dataclass
class _Translation:
    module: Any  # torch.nn.Module: holds the constants
    graph: Any  # torch.fx.Graph
    values: dict[str, Any]  # what each value is on these inputs
    places: dict[str, Any] = dataclasses.field(default_factory=dict)  # value -> its node in the new graph

    def place(self, name: str) -> Any:
        """The node of a value in the new graph; a constant gets its own when it is first read."""
        if name not in self.places:
            attribute = f"constant_{len(self.places)}"
            self.module.register_buffer(attribute, self.values[name])
            self.places[name] = self.graph.get_attr(attribute)
        return self.places[name]

    def is_computed(self, name: str) -> bool:
        """Whether it depends on what is fed, and not on constants and shapes alone."""
        return name in self.places and self.places[name].op != "get_attr"

    def add(self, node: onnx.NodeProto) -> None:
        function, attributes = _operator(node), _attributes(node)
        static = _STATIC.get(node.op_type, ())
        if any(self.is_computed(n) for i, n in enumerate(node.input) if i in static):
            raise OpsmithError(f"peer torch: node {node.name!r} ({node.op_type}) has a shape that depends on data")
        arguments = [
            _number(self.values[n], node) if n and i in static else self.values.get(n) for i, n in enumerate(node.input)
        ]
        result = function(*arguments, **attributes)
        several = isinstance(result, (list, tuple))
        self.values |= {n: r for n, r in zip(node.output, result if several else (result,)) if n}
        if node.op_type in ("Shape", "Size") or not any(map(self.is_computed, node.input)):
            return
        placed = [self.place(n) if n and i not in static else arguments[i] for i, n in enumerate(node.input)]
        call = self.graph.call_function(function, tuple(placed), attributes)
        for i, name in enumerate(node.output):
            if name:
                self.places[name] = self.graph.call_function(_take, (call, i)) if several else call


def _take(values: Any, index: int) -> Any:
    return values[index]


def _operator(node: onnx.NodeProto) -> Callable[..., Any]:
    from opsmith.timing.peers.torch_operators import OPERATORS

    if node.domain not in ONNX or node.op_type not in OPERATORS:
        op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        raise OpsmithError(f"peer torch has no translation of operator {op} (node {node.name!r})")
    return OPERATORS[node.op_type]


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    import torch

    attributes = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode()
        elif isinstance(value, onnx.TensorProto):
            value = torch.from_numpy(np.array(ir.serde.deserialize_tensor(value).numpy()))
        attributes[attribute.name] = list(value) if attribute.type == onnx.AttributeProto.INTS else value
    if node.op_type == "Split":
        attributes["parts"] = len(node.output)
    return attributes


def _number(value: Any, node: onnx.NodeProto) -> Any:
    if value is None:
        raise OpsmithError(f"peer torch: node {node.name!r} ({node.op_type}) lacks an input")
    return value.tolist()
