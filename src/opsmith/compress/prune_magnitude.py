"""The smallest weights become zeros. The file and the time stay what they are: dense kernels multiply by zeros too."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from opsmith.compress.layers import FLOATS, constant, find_layers, stored
from opsmith.nodes import ONNX

# operator -> its inputs that hold weights, besides the products of find_layers
_WEIGHTS = {"Conv": (1,), "ConvTranspose": (1,), "LSTM": (1, 2), "GRU": (1, 2), "RNN": (1, 2)}


def weights(model: ir.Model) -> list[ir.Value]:
    """What products, convolutions and recurrent layers multiply with, each once."""
    found = [layer.weight for layer in find_layers(model)]
    for node in model.graph.all_nodes():
        places = _WEIGHTS.get(node.op_type, ()) if node.domain in ONNX else ()
        values = [node.inputs[i] for i in places if i < len(node.inputs)]
        found += [v for v in values if v is not None and constant(v) and stored(v).dtype in FLOATS]
    return list({value.name: value for value in found}.values())


def zero_smallest(model: ir.Model, ratio: float) -> tuple[int, int]:
    """Zero the RATIO of smallest of every weight, each judged by itself. Returns how many, and how many there are."""
    zeroed = total = 0
    for value in weights(model):
        tensor = stored(value)
        array = tensor.numpy().copy()
        count = round(ratio * array.size)
        if count:
            flat = np.abs(array).reshape(-1)
            array.reshape(-1)[np.argpartition(flat, count - 1)[:count]] = 0
        zeroed += count
        total += array.size
        value.const_value = ir.Tensor(array, name=tensor.name)
    return zeroed, total
