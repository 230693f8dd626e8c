"""x * cos + [-x1, x0, -x3, x2 ...] * sin -> RotaryInterleaved(x, cos, sin)

The pairs are turned by Slices with step 2, each unsqueezed, joined along the new last dimension and flattened.
"""

from __future__ import annotations

import onnx_ir as ir

from opsmith.rewriter.rule import Site, attribute, input_of, ints_of, rank_of, rule, sizes_of
from opsmith.rewriter.rules._norms import is_last_axis
from opsmith.rewriter.rules.rotary import finish


@rule(
    "rotary_interleaved",
    "x * cos + [-x1, x0, -x3, x2 ...] * sin -> RotaryInterleaved(x, cos, sin)",
    roots=("Neg",),
    makes=("opsmith.RotaryInterleaved",),
)
def rotary_interleaved(site: Site) -> None:
    x = every_second(site, input_of(site.root, 0), second=True)
    odd = _unsqueezed(site, site.root.outputs[0])
    concat = site.only_user(odd, "Concat")
    site.need(len(concat.inputs) == 2 and concat.inputs[0] is odd, "not [-odd, even]", concat)
    unsqueeze = site.producer(concat.inputs[1], "Unsqueeze")
    site.need(is_new_last(unsqueeze), "the pairs are not joined along a new last dimension", unsqueeze)
    site.need(
        every_second(site, input_of(unsqueeze, 0), second=False) is x, "the parts come from different tensors", concat
    )
    site.need(is_last_axis(attribute(concat, "axis"), concat.outputs[0]), "not along the last dimension", concat)
    flatten = site.only_user(concat.outputs[0], "Reshape")
    flat = flatten.outputs[0]
    site.need(sizes_of(flat) is not None and sizes_of(flat) == sizes_of(x), "not flattened to the shape of x", flatten)
    finish(site, x, flat, "RotaryInterleaved")


def _unsqueezed(site: Site, value: ir.Value) -> ir.Value:
    node = site.only_user(value, "Unsqueeze")
    site.need(is_new_last(node), "the pairs are not joined along a new last dimension", node)
    return node.outputs[0]


def is_new_last(node: ir.Node) -> bool:
    rank = rank_of(input_of(node, 0))
    return ints_of(input_of(node, 1)) in ([-1], [rank])


def every_second(site: Site, value: ir.Value | None, *, second: bool) -> ir.Value:
    """x of which VALUE is every second element of the last dimension, from its first or second one on."""
    node = site.producer(value, "Slice")
    x = input_of(node, 0)
    assert x is not None
    starts, ends, axes, steps = (ints_of(input_of(node, i)) for i in (1, 2, 3, 4))
    if not starts or not ends or not axes or len(axes) != 1 or steps != [2] or not is_last_axis(axes[0], x):
        site.miss("not every second element of the last dimension", node)
    size = x.shape[-1] if x.shape is not None else None
    whole = isinstance(size, int) and size % 2 == 0 and ends[0] >= size
    site.need(whole and starts[0] == int(second), "the Slice does not take that half of the pairs", node)
    return x
