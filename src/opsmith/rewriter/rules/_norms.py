"""The steps that LayerNorm and RMSNorm share."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from opsmith.rewriter.rule import (
    Site,
    attribute,
    distinct_users,
    input_of,
    ints_of,
    is_op,
    name_of,
    rank_of,
    scalar_of,
    size_of,
)


def mean_of_last(site: Site, value: ir.Value | None) -> ir.Value:
    """x of ReduceMean(x) over the last dimension only, which is kept as 1; tf2onnx pools where x has three dimensions."""
    node = site.producer(value, "ReduceMean", "GlobalAveragePool")
    x = input_of(node, 0)
    assert x is not None
    if is_op(node, "GlobalAveragePool"):
        site.need(rank_of(x) == 3, "the mean is not over the last dimension alone", node)
        return x
    axes = attribute(node, "axes") or ints_of(input_of(node, 1))
    rank = rank_of(x)
    last = axes is not None and len(axes) == 1 and (axes[0] == -1 or axes[0] == (rank or 0) - 1)
    site.need(last, f"the mean is over {list(axes) if axes else 'all dimensions'}, expected the last one", node)
    site.need(attribute(node, "keepdims", 1) == 1, "the mean drops its dimension", node)
    return x


@dataclasses.dataclass(frozen=True)
class Deviation:
    """What a layer norm computes of its input."""

    x: ir.Value
    mean: ir.Value
    difference: ir.Value  # x - mean
    epsilon: float


def deviation(site: Site) -> Deviation:
    """What goes into the site's root, sqrt(mean((x - mean)^2) + epsilon)."""
    plus = site.input(site.root, 0, "Add")
    epsilon = scalar_of(input_of(plus, 1))
    variance = input_of(plus, 0)
    if epsilon is None:
        epsilon, variance = scalar_of(input_of(plus, 0)), input_of(plus, 1)
    site.need(epsilon is not None, "epsilon is not a constant added under the root", plus)
    difference = square_of(site, mean_of_last(site, variance))
    subtract = site.producer(difference, "Sub")
    x, mean = subtract.inputs
    site.need(mean_of_last(site, mean) is x, "the subtracted mean is not the mean of x", subtract)
    assert x is not None and mean is not None and epsilon is not None
    return Deviation(x, mean, difference, epsilon)


def square_of(site: Site, value: ir.Value) -> ir.Value:
    """d of Pow(d, 2) or d * d."""
    node = site.producer(value, "Pow", "Mul")
    d = input_of(node, 0)
    assert d is not None
    if is_op(node, "Pow"):
        site.need(scalar_of(input_of(node, 1)) == 2.0, "the power is not 2", node)
    else:
        site.need(input_of(node, 1) is d, "the two factors differ: not a square", node)
    return d


def normalised(site: Site, x: ir.Value) -> ir.Value:
    """x / sqrt(...): Div(x, root) or Mul(x, Reciprocal(root)); the root is the site's root."""
    root = site.root.outputs[0]
    user = site.only_user(root, "Div", "Reciprocal")
    if is_op(user, "Div"):
        one = scalar_of(input_of(user, 0))
        if one is None:
            site.need(input_of(user, 0) is x and input_of(user, 1) is root, "not x / sqrt(...)", user)
            return user.outputs[0]
        site.need(one == 1.0, "not 1 / sqrt(...)", user)
    inverse = user.outputs[0]
    multiply = site.only_user(inverse, "Mul")
    site.need(site.other_input(multiply, inverse) is x, "1 / sqrt(...) is multiplied by another value", multiply)
    return multiply.outputs[0]


def vector_operand(site: Site, value: ir.Value, op_type: str, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(vector, result) of `value <op> vector`, the vector being as long as x's last dimension."""
    users = distinct_users(value)
    site.need(len(users) == 1 and not value.is_graph_output(), f"{name_of(value)} is used more than once")
    node = site.only_user(value, op_type)
    vector = site.other_input(node, value)
    size = size_of(x, -1)
    site.need(rank_of(vector) == 1, f"expected a vector, {name_of(vector)} is none", node)
    site.need(size is not None and size_of(vector, 0) == size, "the vector is not as long as the last dimension", node)
    return vector, node.outputs[0]


def need_independent(site: Site, add: ir.Node, *operands: ir.Value | None) -> None:
    """Scale and bias must not be computed from the sum that they are to be given along with."""
    seen: set[ir.Node] = set()
    todo = [v.producer() for v in operands if v is not None]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        site.need(node is not add, "scale or bias depends on the sum")
        seen.add(node)
        todo += [v.producer() for v in node.inputs if v is not None]


def is_last_axis(axis: int, x: ir.Value) -> bool:
    rank = rank_of(x)
    return axis == -1 or (rank is not None and axis == rank - 1)
