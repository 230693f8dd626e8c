"""Reshape(Transpose(Reshape(x, [-1, s, d]), [0, 2, 1]), [b, h, d, s]) -> Transpose(x, [0, 1, 3, 2])

torch's exporter swaps the last two dimensions of K by way of three dimensions; with the shape arithmetic around it that
hides a single Transpose.
"""

from __future__ import annotations

from opsmith.rewriter.rule import Site, attribute, input_of, rank_of, rule, sizes_of
from opsmith.sizes import product


@rule(
    "view_chain",
    "Reshape(Transpose(Reshape(x))) -> Transpose(x), where it swaps the last two dimensions",
    roots=("Transpose",),
    makes=("Transpose",),
)
def view_chain(site: Site) -> None:
    site.need(
        list(attribute(site.root, "perm", [])) == [0, 2, 1], "not a Transpose of the last two of three dimensions"
    )
    inward = site.input(site.root, 0, "Reshape")
    outward = site.only_user(site.root.outputs[0], "Reshape")
    x = input_of(inward, 0)
    assert x is not None
    site.need((rank_of(x) or 0) > 3, "x has no more than three dimensions", inward)
    source, rows, result = sizes_of(x), sizes_of(inward.outputs[0]), sizes_of(outward.outputs[0])
    if source is None or rows is None or result is None:
        site.miss("the sizes are not known", inward)
    site.need(rows == [product(source[:-2]), *source[-2:]], "the first Reshape does more than flatten", inward)
    site.need(result == [*source[:-2], source[-1], source[-2]], "the last Reshape does not undo the first", outward)
    rank = len(source)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    site.replace(outward.outputs[0], site.op("Transpose", x, perm=perm))
