"""act(Conv(x, weight, bias) + time) + residual -> Conv[Time][Act][Residual](x, weight, bias[, time][, residual])

Cases: (1) the time embedding is (N,C,1,1), added to every pixel; (2) activation and residual as in `linear`.
A bare Conv stays the standard op: there is nothing to fuse.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from opsmith.rewriter.rule import Site, attribute, distinct_users, input_of, is_op, rank_of, rule, size_of, tensor_of
from opsmith.rewriter.rules.linear import epilogue


@rule(
    "conv",
    "act(Conv(x) + time) + residual -> Conv[Time][Act][Residual](x, weight, bias, time, residual)",
    roots=("Conv",),
    makes=("opsmith.ConvTime",),
)
def conv(site: Site) -> None:
    x, weight, bias = (input_of(site.root, i) for i in range(3))
    site.need(bias is not None, "there is no bias")
    site.need(rank_of(x) == 4, "not a convolution over two dimensions")
    site.need(attribute(site.root, "auto_pad", "NOTSET") == "NOTSET", "the padding is not spelled out")
    name, operands, value = "Conv", [], site.root.outputs[0]
    time = _time_embedding(site, value)
    if time is not None:
        name, value = "ConvTime", distinct_users(value)[0].outputs[0]
        operands.append(time)
    name, more, value = epilogue(site, name, value)
    site.need(name != "Conv", "nothing follows that could be fused")
    site.replace(value, site.call(name, x, weight, bias, *operands, *more, **conv_attributes(site.root)))


def _time_embedding(site: Site, value: ir.Value) -> ir.Value | None:
    """(1)"""
    users = distinct_users(value)
    if len(users) != 1 or value.is_graph_output() or not is_op(users[0], "Add") or len(value.uses()) != 1:
        return None
    operand = site.other_input(users[0], value)
    per_channel = rank_of(operand) == 4 and size_of(operand, 2) == 1 and size_of(operand, 3) == 1
    same = size_of(operand, 0) == size_of(value, 0) and size_of(operand, 1) == size_of(value, 1)
    if not per_channel or not same or tensor_of(operand) is not None:
        return None
    site.take(users[0])
    return operand


def conv_attributes(node: ir.Node) -> dict[str, Any]:
    """All attributes of a convolution over two dimensions, written out."""
    return {
        "pads": list(attribute(node, "pads", [0, 0, 0, 0])),
        "strides": list(attribute(node, "strides", [1, 1])),
        "dilations": list(attribute(node, "dilations", [1, 1])),
        "group": int(attribute(node, "group", 1)),
    }
