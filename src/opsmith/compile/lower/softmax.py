"""Softmax and LogSoftmax along one axis."""

from __future__ import annotations

from opsmith.compile.dims import product
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import CPP, FLOATS, Abstract, Unsupported


@infers("Softmax", "LogSoftmax")
def _softmax(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype not in FLOATS:
        raise Unsupported(f"Softmax on {x.dtype.name} stays with ONNX Runtime")
    if x.rank == 0:
        raise Unsupported("Softmax of a scalar")
    node.axis(x.rank, -1 if node.opset >= 13 else 1)
    return [Abstract(x.dtype, x.dims)]


@lowers("Softmax", "LogSoftmax")
def _lower_softmax(node: Node, out: Lowering) -> None:
    x = out.rows(node.ir.inputs[0])
    y = out.result(node.ir.outputs[0])
    axis = node.axis(len(x.dims), -1 if node.opset >= 13 else 1)
    if node.opset >= 13:
        outer, size, inner = product(x.dims[:axis]), x.dims[axis], product(x.dims[axis + 1 :])
    else:  # before opset 13 all trailing dims together are the axis
        outer, size, inner = product(x.dims[:axis]), product(x.dims[axis:]), product(())
    kernel = "softmax" if node.ir.op_type == "Softmax" else "log_softmax"
    name = out.instance(
        kernel,
        f"const Pool& pool, i64 outer, i64 axis, i64 inner, const {CPP[x.dtype]}* x, {CPP[y.dtype]}* y",
        f"{kernel}(pool, outer, axis, inner, x, y);",
        ("softmax.hpp",),
        f"{kernel} along an axis",
    )
    arguments = [out.cpp(outer), out.cpp(size), out.cpp(inner), out.pointer(x), out.pointer(y)]
    out.call(
        name, f"{name}(pool, {', '.join(arguments)});", reads=[x], writes=[y],
        comment=f"({outer}, {size}, {inner})", flops=product(x.dims) * 20,
    )  # fmt: skip
