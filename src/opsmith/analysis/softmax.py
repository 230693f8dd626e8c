"""Softmax, LogSoftmax, Hardmax: along one axis, or, before opset 13, along all axes from one on."""

from __future__ import annotations

from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import FLOATS, REALS, Abstract, Unsupported
from opsmith.sizes import ONE, Size, product


@infers("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype not in (REALS if node.op == "Hardmax" else FLOATS):
        raise Unsupported(f"{node.op} on {x.dtype.name} stays with ONNX Runtime")
    if x.rank == 0:
        raise Unsupported(f"{node.op} of a scalar")
    around_axis(node, x.dims)
    return [Abstract(x.dtype, x.dims)]


def around_axis(node: Node, dims: tuple[Size, ...]) -> tuple[Size, Size, Size]:
    """outer, axis, inner"""
    axis = node.axis(len(dims), -1 if node.opset >= 13 else 1)
    if node.opset < 13:
        return product(dims[:axis]), product(dims[axis:]), ONE
    return product(dims[:axis]), dims[axis], product(dims[axis + 1 :])
