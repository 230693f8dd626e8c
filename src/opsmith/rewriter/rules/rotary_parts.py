"""[x1 * cos - x2 * sin, x1 * sin + x2 * cos] -> Rotary(x, [cos, cos], [sin, sin]), with x1, x2 the halves of x

So ONNX defines RotaryEmbedding, and so models that turn complex numbers spell it. Cases: (1) the factors and summands in either order;
(2) the halves by two Slices or by one Split; (3) x1 and x2 are every second element, and the results are interleaved again:
RotaryInterleaved. cos and sin are as long as a half, and must not be larger than it in any dimension.
"""

from __future__ import annotations

import onnx_ir as ir

from opsmith.rewriter.rule import Miss, Site, attribute, input_of, is_op, rank_of, rule, size_of, sizes_of
from opsmith.rewriter.rules._norms import is_last_axis
from opsmith.rewriter.rules.rotary import fits, half_of
from opsmith.rewriter.rules.rotary_interleaved import every_second, is_new_last


@rule(
    "rotary_parts",
    "[x1 * cos - x2 * sin, x1 * sin + x2 * cos] -> Rotary(x, [cos, cos], [sin, sin])",
    roots=("Sub",),
    makes=("opsmith.Rotary", "opsmith.RotaryInterleaved"),
)
def rotary_parts(site: Site) -> None:
    by_cos, by_sin = site.input(site.root, 0, "Mul"), site.input(site.root, 1, "Mul")
    joined, imaginary, interleaved = _joined(site)
    add = site.producer(imaginary, "Add")
    products = [site.input(add, i, "Mul") for i in (0, 1)]
    x1, cos, x2, sin = _operands(site, by_cos, by_sin)  # (1)
    crossed = [{x1, sin}, {x2, cos}]
    factors = [set(p.inputs) for p in products]
    site.need(factors in (crossed, crossed[::-1]), "the second part is not x1 * sin + x2 * cos", add)
    part_of = every_second if interleaved else half_of  # (2) (3)
    x = part_of(site, x1, second=False)
    site.need(part_of(site, x2, second=True) is x, "the parts come from different tensors")
    site.need(rank_of(x) == 4, "x has not four dimensions")
    site.need(sizes_of(joined) is not None and sizes_of(joined) == sizes_of(x), "not joined to the shape of x")
    for operand in (cos, sin):
        site.need(fits(operand, x1) and size_of(operand, -1) == size_of(x1, -1), "cos or sin does not fit a half of x")
    tables = [_twice(site, t, interleaved) for t in (cos, sin)]
    site.replace(joined, site.call("RotaryInterleaved" if interleaved else "Rotary", x, *tables))


def _joined(site: Site) -> tuple[ir.Value, ir.Value | None, bool]:
    """The value that holds both parts, the second part, and whether they are interleaved."""
    first = site.root.outputs[0]
    user = site.only_user(first, "Concat", "Unsqueeze")
    apart = is_op(user, "Unsqueeze")
    if apart:
        site.need(is_new_last(user), "the parts are not joined along a new last dimension", user)
        first = user.outputs[0]
    concat = site.only_user(first, "Concat") if apart else user
    result = concat.outputs[0]
    site.need(len(concat.inputs) == 2 and concat.inputs[0] is first, "not [x1 cos - x2 sin, ...]", concat)
    site.need(is_last_axis(attribute(concat, "axis"), result), "not along the last dimension", concat)
    if not apart:
        return result, concat.inputs[1], False
    unsqueeze = site.producer(concat.inputs[1], "Unsqueeze")
    site.need(is_new_last(unsqueeze), "the parts are not joined along a new last dimension", unsqueeze)
    return site.only_user(result, "Reshape").outputs[0], input_of(unsqueeze, 0), True


def _operands(site: Site, by_cos: ir.Node, by_sin: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """(x1, cos, x2, sin): x1 and x2 are the two operands that are cut from one tensor of four dimensions."""
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        x1, cos, x2, sin = by_cos.inputs[i], by_cos.inputs[1 - i], by_sin.inputs[j], by_sin.inputs[1 - j]
        assert x1 is not None and x2 is not None and cos is not None and sin is not None
        cut = [v.producer() for v in (x1, x2)]
        whole = [input_of(n, 0) for n in cut if n is not None and is_op(n, "Slice", "Split")]
        if len(whole) == 2 and whole[0] is whole[1] and rank_of(whole[0]) == 4 and fits(cos, x1) and fits(sin, x2):
            return x1, cos, x2, sin
    raise Miss("no two operands are parts of one tensor of four dimensions", site.root)


def _twice(site: Site, half: ir.Value, interleaved: bool) -> ir.Value:
    """[a b] as [a b a b], or interleaved as [a a b b]"""
    rank, size = rank_of(half), size_of(half, -1)
    assert rank is not None and isinstance(size, int) and half.shape is not None
    if interleaved:
        apart = site.op("Unsqueeze", half, site.constant([rank]))
        pairs = site.op("Concat", apart, apart, axis=-1)
        result: ir.Value = site.op("Reshape", pairs, site.constant([*[0] * (rank - 1), 2 * size]))
    else:
        result = site.op("Concat", half, half, axis=-1)
    result.type, result.shape = half.type, ir.Shape([*half.shape[:-1], 2 * size])
    return result
