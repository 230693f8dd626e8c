"""Attention heads as units: a key head with the query heads that share it, its rows and columns in q, k, v and the output
projection, and its slice of the KV cache."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from opsmith import ops
from opsmith.compress.layers import Layer
from opsmith.compress.structure import OWN, Group, Refused, _heads, spread


def find_heads(model: ir.Model, layers: dict[ir.Node, Layer]) -> tuple[list[Group], list[str]]:
    """A group per attention, and why others are left alone."""
    groups: list[Group] = []
    refused: list[str] = []
    for node in model.graph:
        if node.domain != OWN or node.op_type not in ops.ATTENTIONS:
            continue
        name = f"attention {len(groups) + len(refused)}"
        try:
            k, v = node.inputs[1:3]
            units = _heads(k)
            if units < 2:
                raise Refused("it has one key head")
            assert k is not None and v is not None
            labels = np.arange(units)
            groups.append(spread(name, "heads", units, layers, [(k, 1, labels), (v, 1, labels)]))
        except Refused as reason:
            refused.append(f"{name} ({node.name}): {reason}")
    return groups, refused
