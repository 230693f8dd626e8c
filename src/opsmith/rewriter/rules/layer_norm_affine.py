"""x * m + (bias - mean x * m) with m = scale / sqrt(var x + epsilon) -> LayerNormalization(x, scale, bias)

As TensorFlow's batch_normalization writes it, which its BERTs and Keras use for layer norms. Over the last dimension. Cases:
(1) the mean times m is subtracted from the bias, or the negative mean times m is added to it, or stands without a bias; (2) scale and
bias are constants of one row, also as [1, 1, n].
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from opsmith.rewriter.rule import Site, distinct_users, input_of, is_op, name_of, rule, scalar_of, size_of, tensor_of
from opsmith.rewriter.rules._norms import deviation


@rule(
    "layer_norm_affine",
    "x * m + (bias - mean x * m), m = scale / sqrt(var x + e) -> LayerNormalization",
    roots=("Sqrt",),
    makes=("LayerNormalization",),
)
def layer_norm_affine(site: Site) -> None:
    site.need(site.model.opset_imports.get("", 0) >= 17, "LayerNormalization needs opset 17")
    found = deviation(site)
    inverse = site.only_user(site.root.outputs[0], "Reciprocal", "Div")
    if is_op(inverse, "Div"):
        site.need(scalar_of(input_of(inverse, 0)) == 1.0, "not 1 / sqrt(...)", inverse)
    scaled = site.only_user(inverse.outputs[0], "Mul")
    scale = _row(site, site.other_input(scaled, inverse.outputs[0]), found.x)
    by_x, by_mean = _products(site, scaled.outputs[0], found.x)
    add = site.only_user(by_x.outputs[0], "Add")
    bias = _bias(
        site,
        site.other_input(add, by_x.outputs[0]),
        by_mean.outputs[0],
        _is_negative(site, by_mean, found.mean, scaled),
    )
    row = _row(site, bias, found.x) if bias is not None else None
    result = site.op("LayerNormalization", found.x, scale, row, axis=-1, epsilon=found.epsilon)
    site.replace(add.outputs[0], result)


def _products(site: Site, m: ir.Value, x: ir.Value) -> tuple[ir.Node, ir.Node]:
    """x * m and the product of the mean."""
    users = distinct_users(m)
    site.need(len(users) == 2 and not m.is_graph_output(), f"{name_of(m)} is read by {len(users)} nodes, expected two")
    site.need(all(is_op(u, "Mul") for u in users), "not products of x and of its mean", users[0])
    site.take(*users)
    by_x = [u for u in users if x in u.inputs]
    site.need(len(by_x) == 1, "not one product of x", users[0])
    return by_x[0], next(u for u in users if u is not by_x[0])


def _is_negative(site: Site, by_mean: ir.Node, mean: ir.Value, scaled: ir.Node) -> bool:
    """Whether it is the negative mean that is multiplied."""
    other = site.other_input(by_mean, scaled.outputs[0])
    if other is mean:
        return False
    negative = site.producer(other, "Neg")
    site.need(input_of(negative, 0) is mean, "neither the mean nor the negative mean", by_mean)
    return True


def _bias(site: Site, rest: ir.Value, by_mean: ir.Value, negative: bool) -> ir.Value | None:
    """(1) bias of bias - mean * m, None of -mean * m."""
    if rest is by_mean:
        site.need(negative, "the mean is added")
        return None
    node = site.producer(rest, "Add" if negative else "Sub")
    if negative:
        return site.other_input(node, by_mean)
    site.need(input_of(node, 1) is by_mean, "not bias - mean * m", node)
    return input_of(node, 0)


def _row(site: Site, value: ir.Value | None, x: ir.Value) -> ir.Value:
    """(2) A constant as long as the last dimension of x."""
    tensor, size = tensor_of(value), size_of(x, -1)
    one = tensor is not None and tensor.size == size and list(tensor.shape)[-1:] == [size] and tensor.dtype == x.dtype
    site.need(one, f"{name_of(value)} is no row as long as the last dimension")
    assert tensor is not None and value is not None
    if len(tensor.shape) == 1:
        return value
    return site.weight(ir.tensor(np.asarray(tensor.numpy()).reshape(-1)), f"{name_of(value)}_row")
