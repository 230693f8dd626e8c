"""0.5 * x * (1 + erf(x / sqrt 2)) -> Gelu(x)

Cases: (1) x / 1.414 or x * 0.7071 inside the erf; (2) the product outside in any order and association, with 0.5 as a
factor, as a division by 2, or multiplied into x first; (3) the standard op of opset 20.
"""

from __future__ import annotations

import math

from opsmith.rewriter.rule import Site, attribute, input_of, is_close, is_op, rank_of, rule, scalar_of
from opsmith.rewriter.rules._products import finish_product, peel


@rule("gelu", "x * 0.5 * (1 + erf(x / sqrt 2)) -> Gelu(x)", roots=("Erf", "Gelu"), makes=("opsmith.Gelu",))
def gelu(site: Site) -> None:
    if is_op(site.root, "Gelu"):  # (3)
        site.need(attribute(site.root, "approximate", "none") == "none", "this Gelu is the tanh form")
        site.replace(site.root.outputs[0], site.call("Gelu", input_of(site.root, 0)))
        return
    x = peel(site, input_of(site.root, 0), math.sqrt(0.5), "the argument of erf")  # (1)
    site.need(rank_of(x) != 0, "x is a scalar")
    plus_one = site.only_user(site.root.outputs[0], "Add")
    one = scalar_of(site.other_input(plus_one, site.root.outputs[0]))
    site.need(is_close(one, 1.0), f"erf(...) + {one}, expected + 1", plus_one)
    end = finish_product(site, plus_one.outputs[0], x, 0.5)  # (2)
    site.replace(end, site.call("Gelu", x))
