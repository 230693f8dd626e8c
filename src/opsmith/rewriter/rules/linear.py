"""act(x @ weight + bias) + residual -> Linear[Act][Residual](x, weight, bias[, residual])

Cases: (1) MatMul with a constant matrix, plus a vector; (2) Gemm, a transposed weight being turned once; (3) an
activation that has exactly one reader; (4) the residual has the shape of the result.
A bare MatMul + bias is taken too: it is what a compiled or quantised linear layer is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.nodes import ONNX
from opsmith.rewriter.functions import ACTIVATIONS
from opsmith.rewriter.passes import weights
from opsmith.rewriter.rule import (
    Site,
    attribute,
    distinct_users,
    input_of,
    is_op,
    rank_of,
    rule,
    size_of,
    sizes_of,
    tensor_of,
)


@rule(
    "linear",
    "act(x @ weight + bias) + residual -> Linear[Act][Residual](x, weight, bias, residual)",
    roots=("MatMul", "Gemm"),
    makes=("opsmith.Linear",),
)
def linear(site: Site) -> None:
    if is_op(site.root, "MatMul"):
        x, weight, bias, value = _matmul(site)
    else:
        x, weight, bias, value = _gemm(site)
    name, operands, value = epilogue(site, "Linear", value)
    site.replace(value, site.call(name, x, weight(), bias, *operands))


def _matmul(site: Site) -> tuple[ir.Value, Any, ir.Value, ir.Value]:
    """(1)"""
    x, weight = site.root.inputs
    assert x is not None and weight is not None
    site.need(tensor_of(weight) is not None and rank_of(weight) == 2, "the second operand is not a constant matrix")
    value = site.root.outputs[0]
    add = site.only_user(value, "Add")
    bias = site.other_input(add, value)
    vector = rank_of(bias) == 1 and size_of(bias, 0) is not None and size_of(bias, 0) == size_of(weight, 1)
    site.need(vector and tensor_of(bias) is not None, "what is added is not a constant vector as long as a row", add)
    return x, lambda: weight, bias, add.outputs[0]


def _gemm(site: Site) -> tuple[ir.Value, Any, ir.Value, ir.Value]:
    """(2)"""
    x, weight, bias = (input_of(site.root, i) for i in range(3))
    if x is None or weight is None or bias is None:
        site.miss("there is no bias")
    tensor = tensor_of(weight)
    if tensor is None or tensor_of(bias) is None or rank_of(bias) != 1:
        site.miss("weight or bias is not a constant of the right rank")
    plain = attribute(site.root, "alpha", 1.0) == 1.0 and attribute(site.root, "beta", 1.0) == 1.0
    site.need(plain and not attribute(site.root, "transA", 0), "Gemm scales its operands or turns the first")
    if not attribute(site.root, "transB", 0):
        site.need(size_of(bias, 0) == size_of(weight, 1), "the bias is broadcast")
        return x, lambda: weight, bias, site.root.outputs[0]
    site.need(size_of(bias, 0) == size_of(weight, 0), "the bias is broadcast")
    site.need(len(distinct_users(weight)) == 1, "the weight has other readers; turning it would store it twice")
    rows, columns = (int(s) for s in tensor.shape)  # type: ignore[arg-type]

    def turned() -> ir.Value:
        def transpose() -> np.ndarray[Any, Any]:
            return np.transpose(tensor.numpy())

        name = f"{weight.name}_transposed"
        return site.weight(weights.lazy(transpose, tensor.dtype, [columns, rows], name), name)

    return x, turned, bias, site.root.outputs[0]


def epilogue(site: Site, name: str, value: ir.Value) -> tuple[str, list[ir.Value], ir.Value]:
    """(3) (4) The activation and the residual after VALUE: the function's name, its further inputs, the last value."""
    operands: list[ir.Value] = []
    users = distinct_users(value)
    if len(users) == 1 and not value.is_graph_output() and (act := activation_of(users[0])) and len(value.uses()) == 1:
        site.take(users[0])
        name, value = name + act, users[0].outputs[0]
        users = distinct_users(value)
    if len(users) == 1 and not value.is_graph_output() and is_op(users[0], "Add") and len(value.uses()) == 1:
        residual = site.other_input(users[0], value)
        same = sizes_of(value) is not None and sizes_of(residual) == sizes_of(value)
        if same and tensor_of(residual) is None:
            site.take(users[0])
            operands.append(residual)
            name, value = name + "Residual", users[0].outputs[0]
    return name, operands, value


def activation_of(node: ir.Node) -> str | None:
    """The name of an activation that the epilogue functions know."""
    approximate = node.domain in ONNX and attribute(node, "approximate", "none") != "none"
    for name in ACTIVATIONS:
        if is_op(node, name, f"opsmith.{name}") and len(node.inputs) == 1 and not approximate:
            return name
    return None
