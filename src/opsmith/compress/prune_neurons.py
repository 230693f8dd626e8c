"""MLP neurons as units: the column of each product that makes the neuron (one, or gate and up), its bias, and its row in the
product that reads it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from opsmith.compress.layers import Layer
from opsmith.compress.structure import Group, Refused, spread


def find_neurons(model: ir.Model, layers: dict[ir.Node, Layer]) -> tuple[list[Group], list[str]]:
    """A group per product whose inputs are made channel by channel by other products."""
    groups, refused = [], []
    for layer in layers.values():
        source, k = layer.node.inputs[0], layer.shape[0]
        if source is None or source.producer() is None:
            continue
        try:
            rank = len(source.shape) if source.shape is not None else 0
            if rank == 0:
                raise Refused("its input has no known rank")
            groups.append(spread(layer.name, "neurons", k, layers, [(source, rank - 1, np.arange(k))]))
        except Refused as reason:
            refused.append(f"{layer.name}: {reason}")
    return groups, refused
