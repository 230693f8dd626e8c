"""InstanceNormalization(x as (N, groups, -1)) as x * scale + bias -> GroupNorm(x, scale, bias)

Cases:
  (1) scale and bias are constants (C,1,1...) that turn into vectors (C);
  (2) the scale and bias of the InstanceNormalization are all ones and zeros; any other would be per group;
  (3) the same with mean and variance written out by ReduceMean over the last dimension of (N,groups,-1);
  (4) GroupNormalization of opset 21.

Not in double precision, for which ONNX Runtime has no InstanceNormalization, of which GroupNorm's body is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.rewriter.rule import (
    Site,
    array_of,
    attribute,
    input_of,
    is_op,
    rank_of,
    rule,
    scalar_of,
    size_of,
    sizes_of,
    tensor_of,
)
from opsmith.rewriter.rules._norms import mean_of_last, normalised, square_of


@rule(
    "group_norm",
    "InstanceNorm(x as (N, groups, -1)) * scale + bias -> GroupNorm(x, scale, bias)",
    roots=("InstanceNormalization", "Sqrt", "GroupNormalization"),
    makes=("opsmith.GroupNorm",),
)
def group_norm(site: Site) -> None:
    x = input_of(site.root, 0)
    site.need(x is not None and x.dtype != ir.DataType.DOUBLE, "group norms are in single precision")
    if is_op(site.root, "GroupNormalization"):
        _from_standard_op(site)
        return
    if is_op(site.root, "InstanceNormalization"):
        rows, normal, epsilon = _instance_norm(site)
    else:
        rows, normal, epsilon = _written_out(site)
    inward = site.producer(rows, "Reshape")
    x = input_of(inward, 0)
    groups = size_of(rows, 1)
    site.need(rank_of(rows) == 3 and isinstance(groups, int), "x is not reshaped to (N, groups, -1)", inward)
    assert x is not None and isinstance(groups, int)
    channels = size_of(x, 1)
    site.need(isinstance(channels, int) and channels % groups == 0, "the channels are not a multiple of groups", inward)
    assert isinstance(channels, int)
    site.need(size_of(rows, 0) is not None and size_of(rows, 0) == size_of(x, 0), "the batch is reshaped", inward)
    outward = site.only_user(normal, "Reshape")
    sizes = sizes_of(outward.outputs[0])
    site.need(sizes is not None and sizes == sizes_of(x), "the result is not reshaped to the shape of x", outward)
    scale, result = _per_channel(site, outward.outputs[0], "Mul", channels, x)  # (1)
    bias, result = _per_channel(site, result, "Add", channels, x)
    site.replace(result, site.call("GroupNorm", x, scale(), bias(), groups=groups, epsilon=epsilon))


def _instance_norm(site: Site) -> tuple[ir.Value, ir.Value, float]:
    ones, zeros = array_of(input_of(site.root, 1)), array_of(input_of(site.root, 2))
    plain = ones is not None and zeros is not None and bool((ones == 1).all() and (zeros == 0).all())
    site.need(plain, "the InstanceNormalization scales each group by itself")  # (2)
    rows = input_of(site.root, 0)
    assert rows is not None
    return rows, site.root.outputs[0], float(attribute(site.root, "epsilon", 1e-5))


def _written_out(site: Site) -> tuple[ir.Value, ir.Value, float]:
    """(3) (rows - mean) / sqrt(mean((rows - mean)^2) + epsilon)"""
    plus = site.input(site.root, 0, "Add")
    epsilon, variance = scalar_of(input_of(plus, 1)), input_of(plus, 0)
    if epsilon is None:
        site.miss("epsilon is not a constant added under the root", plus)
    difference = square_of(site, mean_of_last(site, variance))
    subtract = site.producer(difference, "Sub")
    rows = input_of(subtract, 0)
    site.need(mean_of_last(site, input_of(subtract, 1)) is rows, "the subtracted mean is not the mean of x", subtract)
    assert rows is not None
    return rows, normalised(site, difference), epsilon


def _per_channel(site: Site, value: ir.Value, op_type: str, channels: int, x: ir.Value) -> tuple[Any, ir.Value]:
    """A constant (C,1,1...) or (1,C,1,1...) beside VALUE, as a way to get the vector (C)."""
    node = site.only_user(value, op_type)
    operand = site.other_input(node, value)
    rank = rank_of(x) or 0
    tensor = tensor_of(operand)
    site.need(tensor is not None, "scale or bias is not a constant", node)
    assert tensor is not None
    shape = [int(s) for s in tensor.shape]  # type: ignore[arg-type]
    wanted = [channels] + [1] * (rank - 2)
    site.need(shape in (wanted, [1, *wanted]), f"the operand is {shape}, expected {wanted}", node)
    site.need(tensor.dtype == x.dtype, "scale or bias has another type than x", node)
    vector = operand if rank == 2 else None

    def make() -> ir.Value:
        if vector is not None:
            return vector
        flat = ir.tensor(np.asarray(tensor.numpy()).reshape(channels), dtype=tensor.dtype)
        return site.weight(flat, f"{operand.name}_vector")

    return make, node.outputs[0]


def _from_standard_op(site: Site) -> None:
    """(4)"""
    site.need(site.model.opset_imports.get("", 0) >= 21, "before opset 21 the scale is per group")
    x, scale, bias = (input_of(site.root, i) for i in range(3))
    groups = int(attribute(site.root, "num_groups"))
    epsilon = float(attribute(site.root, "epsilon", 1e-5))
    site.replace(site.root.outputs[0], site.call("GroupNorm", x, scale, bias, groups=groups, epsilon=epsilon))
