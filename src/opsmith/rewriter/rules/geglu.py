"""a * Gelu(b) with a, b = the halves of x along the last dimension -> Geglu(x)

Cases: (1) Split in two equal parts; (2) two Slices of the last dimension.
"""

from __future__ import annotations

import onnx_ir as ir

from opsmith.rewriter.rule import Site, attribute, input_of, ints_of, is_op, rank_of, rule, size_of


@rule("geglu", "a * Gelu(b), [a, b] = x -> Geglu(x)", roots=("opsmith.Gelu",), makes=("opsmith.Geglu",))
def geglu(site: Site) -> None:
    gate = input_of(site.root, 0)
    multiply = site.only_user(site.root.outputs[0], "Mul")
    hidden = site.other_input(multiply, site.root.outputs[0])
    source = gate.producer() if gate is not None else None
    if is_op(source, "Split") and source is not None:  # (1)
        x = _halves_by_split(site, source, hidden, gate)
    else:  # (2)
        x = _half_by_slice(site, hidden, first=True)
        site.need(_half_by_slice(site, gate, first=False) is x, "the halves come from different tensors")
    site.replace(multiply.outputs[0], site.call("Geglu", x))


def _halves_by_split(site: Site, split: ir.Node, hidden: ir.Value, gate: ir.Value | None) -> ir.Value:
    x = input_of(split, 0)
    assert x is not None
    site.take(split)
    site.need(len(split.outputs) == 2, f"Split into {len(split.outputs)} parts", split)
    parts = attribute(split, "split") or ints_of(input_of(split, 1))
    site.need(parts is None or parts[0] == parts[1], "Split into unequal parts", split)
    if parts is None:
        site.need(input_of(split, 1) is None, "the parts of the Split are computed", split)
        size = size_of(x, -1)
        site.need(isinstance(size, int) and size % 2 == 0, "the last size is not known", split)
    site.need(_is_last(attribute(split, "axis", 0), x), "the Split is not along the last dimension", split)
    site.need(hidden is split.outputs[0] and gate is split.outputs[1], "the gate is not the second half", split)
    return x


def _half_by_slice(site: Site, value: ir.Value | None, *, first: bool) -> ir.Value:
    node = site.producer(value, "Slice")
    x = input_of(node, 0)
    assert x is not None
    starts, ends, axes = (ints_of(input_of(node, i)) for i in (1, 2, 3))
    steps = ints_of(input_of(node, 4)) or [1]
    size = size_of(x, -1)
    site.need(isinstance(size, int) and size % 2 == 0, "the last size is not known", node)
    assert isinstance(size, int)
    single = starts and ends and axes and len(starts) == len(axes) == 1 and steps == [1]
    site.need(single and _is_last(axes[0], x), "not a Slice of the last dimension", node)  # type: ignore[index]
    wanted = range(size // 2) if first else range(size // 2, size)
    site.need(range(size)[slice(starts[0], ends[0])] == wanted, "the Slice is not that half", node)  # type: ignore[index]
    return x


def _is_last(axis: int, x: ir.Value) -> bool:
    return axis == -1 or (rank_of(x) is not None and axis == rank_of(x) - 1)  # type: ignore[operator]
