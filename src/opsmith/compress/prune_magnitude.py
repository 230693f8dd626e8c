"""The smallest weights become zeros. The file and the time stay what they are: dense kernels multiply by zeros too."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from opsmith.compress.layers import find_layers, stored


def zero_smallest(model: ir.Model, ratio: float) -> tuple[int, int]:
    """Zero the RATIO of smallest weights of every matrix, each judged by itself. Returns zeroed and all weights of matrices."""
    zeroed = total = 0
    done: set[str] = set()
    for layer in find_layers(model):
        name = layer.weight.name or ""
        if name in done:
            continue
        done.add(name)
        tensor = stored(layer.weight)
        array = tensor.numpy().copy()
        count = round(ratio * array.size)
        if count:
            flat = np.abs(array).reshape(-1)
            array.reshape(-1)[np.argpartition(flat, count - 1)[:count]] = 0
        zeroed += count
        total += array.size
        layer.weight.const_value = ir.Tensor(array, name=tensor.name)
    return zeroed, total
