"""LayerNormalization(x + skip, scale, bias) -> SkipLayerNorm(x, skip, scale, bias) -> (y, x + skip)

Only where x and skip have the same shape: a broadcast operand is a bias, not a residual. The sum stays available, since
the next residual usually needs it.
"""

from __future__ import annotations

from opsmith.rewriter.rule import Site, attribute, input_of, rule, sizes_of
from opsmith.rewriter.rules._norms import is_last_axis, need_independent


@rule(
    "skip_layer_norm",
    "LayerNormalization(x + skip) -> SkipLayerNorm(x, skip) -> (y, x + skip)",
    roots=("LayerNormalization",),
    makes=("opsmith.SkipLayerNorm",),
)
def skip_layer_norm(site: Site) -> None:
    add = site.input(site.root, 0, "Add")
    x, skip = add.inputs
    scale, bias = input_of(site.root, 1), input_of(site.root, 2)
    site.need(len(site.root.outputs) == 1, "mean or inverse deviation are asked for")
    site.need(bias is not None, "there is no bias")
    assert x is not None and skip is not None
    site.need(is_last_axis(attribute(site.root, "axis", -1), x), "not over the last dimension")
    site.need(attribute(site.root, "stash_type", 1) == 1, "computed in another precision than float32")
    site.need(sizes_of(x) is not None and sizes_of(x) == sizes_of(skip), "x and skip differ in shape", add)
    need_independent(site, add, scale, bias)
    epsilon = float(attribute(site.root, "epsilon", 1e-5))
    y, total = site.call("SkipLayerNorm", x, skip, scale, bias, epsilon=epsilon, outputs=2)
    site.replace(add.outputs[0], total)
    site.replace(site.root.outputs[0], y)
