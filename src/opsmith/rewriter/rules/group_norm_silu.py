"""Silu(GroupNorm(x, scale, bias)) -> GroupNormSilu(x, scale, bias)"""

from __future__ import annotations

from opsmith.rewriter.rule import Site, attribute, rule


@rule(
    "group_norm_silu",
    "Silu(GroupNorm(x, scale, bias)) -> GroupNormSilu(x, scale, bias)",
    roots=("opsmith.Silu",),
    makes=("opsmith.GroupNormSilu",),
)
def group_norm_silu(site: Site) -> None:
    norm = site.input(site.root, 0, "opsmith.GroupNorm")
    groups, epsilon = attribute(norm, "groups"), attribute(norm, "epsilon")
    fused = site.call("GroupNormSilu", *norm.inputs, groups=groups, epsilon=epsilon)
    site.replace(site.root.outputs[0], fused)
