"""Softmax, LogSoftmax, Hardmax along one axis."""

from __future__ import annotations

from opsmith.analysis.registry import Node
from opsmith.analysis.softmax import around_axis
from opsmith.compiler.kernel import Kernel, read, sizes, value, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.registry import lowers
from opsmith.sizes import product

_AXIS = sizes("outer", "axis", "inner")
SOFTMAX = Kernel("softmax", "softmax.hpp", [*_AXIS, read("x"), write("y")], "softmax along an axis")
LOG_SOFTMAX = Kernel("log_softmax", "softmax.hpp", [*_AXIS, read("x"), write("y")], "log_softmax along an axis")
HARDMAX = Kernel("hardmax", "indexing.hpp", [*_AXIS, value("one", like="x"), read("x"), write("y")], inline=True)


@lowers("Softmax", "LogSoftmax")
def _softmax(node: Node, builder: Builder) -> None:
    x, y = builder.rows(node.ir.inputs[0]), builder.result(node.ir.outputs[0])
    outer, axis, inner = around_axis(node, x.dims)
    builder.call(
        SOFTMAX if node.op == "Softmax" else LOG_SOFTMAX,
        outer=outer,
        axis=axis,
        inner=inner,
        x=x,
        y=y,
        comment=f"({outer}, {axis}, {inner})",
        flops=product(x.dims) * 20,
    )


@lowers("Hardmax")
def _hardmax(node: Node, builder: Builder) -> None:
    x, y = builder.rows(node.ir.inputs[0]), builder.result(node.ir.outputs[0])
    outer, axis, inner = around_axis(node, x.dims)
    builder.call(HARDMAX, outer=outer, axis=axis, inner=inner, one=1, x=x, y=y, comment=f"along {axis}")
