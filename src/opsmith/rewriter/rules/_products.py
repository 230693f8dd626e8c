"""Walk down a chain of Mul and Div until it holds a wanted product: how activations end."""

from __future__ import annotations

import onnx_ir as ir

from opsmith.rewriter.rule import Site, constant_factor, distinct_users, factors, is_close, is_op, name_of


def finish_product(site: Site, value: ir.Value, x: ir.Value, constant: float) -> ir.Value:
    """From VALUE down to the node that computes CONSTANT * x * VALUE, in any order; that node's result.

    The factors beside VALUE are taken as well: exporters write 0.5 * x as a node of its own.
    """
    current = value
    while True:
        users = distinct_users(current)
        site.need(not current.is_graph_output(), f"{name_of(current)} is an output of the graph")
        site.need(len(users) == 1, f"{name_of(current)} is read by {len(users)} nodes, expected one")
        user = users[0]
        site.need(is_op(user, "Mul", "Div"), f"expected Mul, found {user.op_type}", user)
        factor, others, nodes = factors(user.outputs[0], stop=value, keep=x)
        site.take(*nodes)
        site.need(value in others, f"{name_of(value)} is a divisor", user)
        rest = [o for o in others if o is not value]
        site.need(all(o is x for o in rest), f"{name_of(value)} is multiplied by another value than x", user)
        site.need(len(rest) <= 1 and len(others) - len(rest) == 1, "a factor appears twice", user)
        current = user.outputs[0]
        if rest and is_close(factor, constant, value.dtype):
            return current


def peel(site: Site, value: ir.Value | None, expected: float, what: str) -> ir.Value:
    """x of EXPECTED * x: constant factors are peeled off one by one until their product is EXPECTED."""
    assert value is not None
    scale, current = 1.0, value
    while not is_close(scale, expected, value.dtype):
        factor, inner = constant_factor(current)
        node = current.producer()
        if inner is None or node is None:
            site.miss(f"{what} is {scale:.6g} times a value, expected {expected:.6g}", node)
        site.take(node)
        scale, current = scale * factor, inner
    return current
