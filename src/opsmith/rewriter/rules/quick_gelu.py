"""x * sigmoid(1.702 * x) -> QuickGelu(x)"""

from __future__ import annotations

from opsmith.rewriter.rule import Site, input_of, rank_of, rule
from opsmith.rewriter.rules._products import finish_product, peel


@rule("quick_gelu", "x * sigmoid(1.702 x) -> QuickGelu(x)", roots=("Sigmoid",), makes=("opsmith.QuickGelu",))
def quick_gelu(site: Site) -> None:
    x = peel(site, input_of(site.root, 0), 1.702, "the argument of sigmoid")
    site.need(rank_of(x) != 0, "x is a scalar")
    site.replace(finish_product(site, site.root.outputs[0], x, 1.0), site.call("QuickGelu", x))
