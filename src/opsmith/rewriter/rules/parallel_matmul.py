"""x @ a, x @ b, x @ c -> Split(x @ [a b c]): the projections of one input (QKV, time embeddings) in one product

Cases: (1) MatMul with constant matrices of equal height; (2) Gemm with biases, all with the same transB; (3) MatMuls
that are all followed by a bias.
The joined weight is computed when the file is written; nothing is read before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.rewriter.passes import weights
from opsmith.rewriter.rule import Site, attribute, distinct_users, input_of, is_op, rank_of, rule, tensor_of


@rule(
    "parallel_matmul", "x @ a, x @ b -> Split(x @ [a b])", roots=("MatMul", "Gemm"), makes=("MatMul", "Gemm", "Split")
)
def parallel_matmul(site: Site) -> None:
    x = input_of(site.root, 0)
    assert x is not None
    kind = _kind(site.root, x)
    group = [n for n in distinct_users(x) if n.graph is site.graph and _kind(n, x) == kind]
    site.need(kind is not None, "the second operand is not a constant matrix of its own")
    site.need(len(group) > 1, "no other product reads the same input")
    site.need(group[0] is site.root, "its group is joined at its first product")
    site.take(*group)
    turned = is_op(site.root, "Gemm") and bool(attribute(site.root, "transB", 0))
    matrices = [_constant(n.inputs[1]) for n in group]
    widths = [int(m.shape[0 if turned else 1]) for m in matrices]  # type: ignore[arg-type]
    weight = _joined(site, matrices, 0 if turned else 1)
    results = [n.outputs[0] for n in group]
    if is_op(site.root, "MatMul"):
        product = site.op("MatMul", x, weight)  # (1)
        biased = list(filter(None, map(_bias_after, results, widths)))
        if len(biased) == len(results):  # (3)
            site.take(*[add for add, _ in biased])
            product = site.op("Add", product, _joined(site, [bias for _, bias in biased], 0))
            results = [add.outputs[0] for add, _ in biased]
    else:
        bias = [] if input_of(site.root, 2) is None else [_joined(site, [_constant(n.inputs[2]) for n in group], 0)]
        product = site.op("Gemm", x, weight, *bias, transB=int(turned))  # (2)
    parts = site.op("Split", product, site.constant(widths), axis=-1, outputs=len(group))
    for result, part in zip(results, parts):
        site.replace(result, part)
    site.place = group[0]


def _constant(value: ir.Value | None) -> ir.TensorProtocol:
    tensor = tensor_of(value)
    assert tensor is not None
    return tensor


def _bias_after(value: ir.Value, width: int) -> tuple[ir.Node, ir.TensorProtocol] | None:
    """The Add of a constant vector that is the only reader of a product."""
    users = distinct_users(value)
    if len(users) != 1 or value.is_graph_output() or not is_op(users[0], "Add") or len(value.uses()) != 1:
        return None
    a, b = users[0].inputs
    bias = tensor_of(b if a is value else a)
    return (users[0], bias) if bias is not None and list(bias.shape) == [width] else None


def _kind(node: ir.Node, x: ir.Value) -> tuple[Any, ...] | None:
    """What two products must have in common to be joined; None for anything else."""
    if not is_op(node, "MatMul", "Gemm") or node.inputs[0] is not x or node.inputs[1] is x:
        return None
    weight = node.inputs[1]
    tensor = tensor_of(weight)
    if tensor is None or rank_of(weight) != 2 or weight is None or len(distinct_users(weight)) != 1:
        return None
    if is_op(node, "MatMul"):
        return "MatMul", tensor.dtype
    turned = int(attribute(node, "transB", 0))
    plain = attribute(node, "alpha", 1.0) == 1.0 and attribute(node, "beta", 1.0) == 1.0
    bias = tensor_of(input_of(node, 2))
    width = int(tensor.shape[0 if turned else 1])  # type: ignore[arg-type]
    fits = input_of(node, 2) is None or (bias is not None and list(bias.shape) == [width])
    if attribute(node, "transA", 0) or not plain or not fits:
        return None
    return "Gemm", tensor.dtype, turned, bias is None


def _joined(site: Site, parts: list[ir.TensorProtocol], axis: int) -> ir.Value:
    """The weights side by side, computed when they are written."""
    shape = [int(s) for s in parts[0].shape]  # type: ignore[arg-type]
    for part in parts[1:]:
        shape[axis] += int(part.shape[axis])  # type: ignore[arg-type]

    def join() -> np.ndarray[Any, Any]:
        return np.concatenate([p.numpy() for p in parts], axis=axis)

    name = f"{parts[0].name or 'weight'}_joined"
    return site.weight(weights.lazy(join, parts[0].dtype, shape, name), name)
