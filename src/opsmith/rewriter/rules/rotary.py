"""x * cos + rotate_half(x) * sin -> Rotary(x, cos, sin), rotate_half(x) = [-x2, x1] with x1, x2 the halves of x

Cases: (1) the halves by two Slices or by one Split; (2) the factors in either order. x has four dimensions; cos and sin
must not be larger than x in any of them.
"""

from __future__ import annotations

import onnx_ir as ir

from opsmith.rewriter.rule import Site, attribute, input_of, ints_of, is_op, rank_of, rule, size_of
from opsmith.rewriter.rules._norms import is_last_axis


@rule("rotary", "x * cos + [-x2, x1] * sin -> Rotary(x, cos, sin)", roots=("Neg",), makes=("opsmith.Rotary",))
def rotary(site: Site) -> None:
    concat = site.only_user(site.root.outputs[0], "Concat")
    site.need(len(concat.inputs) == 2 and concat.inputs[0] is site.root.outputs[0], "not [-x2, x1]", concat)
    x = half_of(site, input_of(site.root, 0), second=True)  # (1)
    site.need(half_of(site, concat.inputs[1], second=False) is x, "the halves come from different tensors", concat)
    site.need(is_last_axis(attribute(concat, "axis"), x), "not along the last dimension", concat)
    finish(site, x, concat.outputs[0], "Rotary")


def finish(site: Site, x: ir.Value, turned: ir.Value, function: str) -> None:
    """x * cos + turned * sin -> FUNCTION(x, cos, sin)"""
    site.need(rank_of(x) == 4, "x has not four dimensions")
    by_sin = site.only_user(turned, "Mul")
    sin = site.other_input(by_sin, turned)  # (2)
    add = site.only_user(by_sin.outputs[0], "Add")
    by_cos = site.producer(site.other_input(add, by_sin.outputs[0]), "Mul")
    site.need(x in by_cos.inputs, "the other summand is not x * cos", by_cos)
    cos = site.other_input(by_cos, x)
    for operand in (cos, sin):
        site.need(fits(operand, x), "cos or sin is larger than x", by_cos)
    site.replace(add.outputs[0], site.call(function, x, cos, sin))


def fits(operand: ir.Value, x: ir.Value) -> bool:
    """Whether multiplying x by the operand keeps the shape of x."""
    rank = rank_of(operand)
    if rank is None or rank > 4:
        return False
    sizes = [size_of(operand, i - rank) for i in range(rank)]
    return all(s == 1 or (s is not None and s == size_of(x, i - rank)) for i, s in enumerate(sizes))


def half_of(site: Site, value: ir.Value | None, *, second: bool) -> ir.Value:
    """x of which VALUE is the first or second half along the last dimension."""
    node = site.producer(value, "Slice", "Split")
    x = input_of(node, 0)
    assert x is not None
    size = size_of(x, -1)
    if not isinstance(size, int) or size % 2:
        site.miss("the last size is not known or odd", node)
    if is_op(node, "Split"):
        given = input_of(node, 1)
        sizes = attribute(node, "split", [size // 2] * len(node.outputs)) if given is None else ints_of(given)
        halves = is_last_axis(attribute(node, "axis", 0), x) and list(sizes or ()) == [size // 2] * 2
        site.need(halves and node.outputs[1 if second else 0] is value, "not that half", node)
        return x
    starts, ends, axes = (ints_of(input_of(node, i)) for i in (1, 2, 3))
    steps = ints_of(input_of(node, 4)) or [1]
    if not starts or not ends or not axes or len(axes) != 1 or steps != [1] or not is_last_axis(axes[0], x):
        site.miss("not a Slice of the last dimension", node)
    wanted = range(size // 2, size) if second else range(size // 2)
    site.need(range(size)[slice(starts[0], ends[0])] == wanted, "the Slice is not that half", node)
    return x
