"""RmsNorm(x + skip, scale) -> SkipRmsNorm(x, skip, scale) -> (y, x + skip), where x and skip have the same shape"""

from __future__ import annotations

from opsmith.rewriter.rule import Site, attribute, input_of, rule, sizes_of
from opsmith.rewriter.rules._norms import need_independent


@rule(
    "skip_rms_norm",
    "RmsNorm(x + skip) -> SkipRmsNorm(x, skip) -> (y, x + skip)",
    roots=("opsmith.RmsNorm",),
    makes=("opsmith.SkipRmsNorm",),
)
def skip_rms_norm(site: Site) -> None:
    add = site.input(site.root, 0, "Add")
    x, skip = add.inputs
    assert x is not None and skip is not None
    site.need(sizes_of(x) is not None and sizes_of(x) == sizes_of(skip), "x and skip differ in shape", add)
    need_independent(site, add, input_of(site.root, 1))
    epsilon = attribute(site.root, "epsilon")
    y, total = site.call("SkipRmsNorm", x, skip, input_of(site.root, 1), epsilon=epsilon, outputs=2)
    site.replace(add.outputs[0], total)
    site.replace(site.root.outputs[0], y)
