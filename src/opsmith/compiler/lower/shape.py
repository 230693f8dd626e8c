"""Operators that make tensors out of a few numbers: ConstantOfShape, Range."""

from __future__ import annotations

import numpy as np

from opsmith.analysis.registry import Node
from opsmith.compiler.kernel import Kernel, size, value, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.program import View
from opsmith.sizes import product

FILL = Kernel("fill", "memory.hpp", [write("y"), size("count"), value("number", like="y")], "fill", inline=True)
IOTA = Kernel(
    "iota",
    "memory.hpp",
    [write("y"), size("count"), value("start", like="y"), value("step", like="y")],
    "range",
    pool=False,
    inline=True,
)


@lowers("ConstantOfShape")
def _constant_of_shape(node: Node, builder: Builder) -> None:
    number = node.attribute("value", np.zeros(1, np.float32)).reshape(-1)[0].item()
    fill(builder, builder.result(node.ir.outputs[0]), number)


def fill(builder: Builder, view: View, number: float) -> None:
    builder.call(FILL, y=view, count=product(view.dims), number=number)


@lowers("Range")
def _range(node: Node, builder: Builder) -> None:
    y = builder.result(node.ir.outputs[0])
    start, step = ((node.input(i).elements or ())[0] for i in (0, 2))
    builder.call(IOTA, y=y, count=y.dims[0], start=start, step=step)
