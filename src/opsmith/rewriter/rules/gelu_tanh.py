"""0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) -> GeluTanh(x)

Cases: (1) x^3 as Pow(x, 3) or x * x * x; (2) the inner sum expanded: x * (1 + 0.044715 x^2) is not matched;
(3) the product outside in any order; (4) the standard op of opset 20.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from opsmith.rewriter.rule import Site, attribute, factors, input_of, is_close, is_op, rank_of, rule, scalar_of
from opsmith.rewriter.rules._products import finish_product, peel


@rule(
    "gelu_tanh",
    "0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) -> GeluTanh(x)",
    roots=("Tanh", "Gelu"),
    makes=("opsmith.GeluTanh",),
)
def gelu_tanh(site: Site) -> None:
    if is_op(site.root, "Gelu"):  # (4)
        site.need(attribute(site.root, "approximate", "none") == "tanh", "this Gelu is the erf form")
        site.replace(site.root.outputs[0], site.call("GeluTanh", input_of(site.root, 0)))
        return
    total = peel(site, input_of(site.root, 0), math.sqrt(2 / math.pi), "the argument of tanh")
    add = site.producer(total, "Add")
    x = _cubic(site, add)
    site.need(rank_of(x) != 0, "x is a scalar")
    plus_one = site.only_user(site.root.outputs[0], "Add")
    one = scalar_of(site.other_input(plus_one, site.root.outputs[0]))
    site.need(is_close(one, 1.0), f"tanh(...) + {one}, expected + 1", plus_one)
    site.replace(finish_product(site, plus_one.outputs[0], x, 0.5), site.call("GeluTanh", x))  # (3)


def _cubic(site: Site, add: ir.Node) -> ir.Value:
    """x of x + 0.044715 x^3, in either order."""
    for x, cube in ((add.inputs[0], add.inputs[1]), (add.inputs[1], add.inputs[0])):
        if x is None or cube is None:
            continue
        constant, others, nodes = factors(cube, stop=None, keep=x)
        power = others[0].producer() if len(others) == 1 else None
        if is_op(power, "Pow") and power is not None and power.inputs[0] is x:  # (1)
            matches = scalar_of(power.inputs[1]) == 3.0
            nodes = [*nodes, power]
        else:
            matches = len(others) == 3 and all(o is x for o in others)  # (1)
        if matches and is_close(constant, 0.044715, cube.dtype):
            site.take(*nodes)
            return x
    return site.miss("expected x + 0.044715 x^3", add)
