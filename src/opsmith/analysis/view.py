"""Operators that only say how memory is read: Reshape and its relatives, Transpose, Expand, Slice, Split, Identity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from opsmith.analysis.axes import axes_of, check_axes, check_rank, plain_axes
from opsmith.analysis.elementwise import broadcast_dims
from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import SMALL, Abstract, Array, DataType, Unsupported, with_numbers
from opsmith.sizes import (
    ONE,
    ZERO,
    Scalar,
    Size,
    apply,
    as_size,
    certainly_at_most,
    compare,
    exact_div,
    floor_div,
    holds,
    maximum,
    minimum,
    never_negative,
    product,
    reads_data,
)

# --- Reshape and its relatives ---


@infers("Reshape")
def _reshape(node: Node) -> list[Abstract]:
    source = node.input(0)
    target = node.elements(1, "the new shape")
    if source.squeezed and any(t == 0 or reads_data(t) for t in target):
        raise Unsupported("the rank of its input is known only when it runs")
    if any(reads_data(t) for t in target):
        return [Abstract(source.dtype, _reshape_by_data(node, source, target))]
    dims: list[Size] = []
    hole: int | None = None
    for i, size in enumerate(target):
        if size == 0 and not node.attribute("allowzero", 0):
            if i >= source.rank:
                raise Unsupported("a 0 in the new shape has no dimension to copy")
            dims.append(source.dims[i])
        elif size == -1:
            hole = i
            dims.append(ONE)
        else:
            dims.append(size)
    if hole is not None:
        rest = product(dims)
        missing = exact_div(source.size, rest)
        if missing is None:
            node.require(holds("divides", rest, source.size), "the new shape does not fit")
            missing = floor_div(source.size, rest)
        dims[hole] = missing
    elif product(dims) != source.size:
        node.require(compare(product(dims), "==", source.size), "the new shape does not fit")
    for d in dims:
        if any(c < 0 for c in d.terms.values()):
            node.require(compare(d, ">=", 0), "a size is negative")
    return [_same_data(source, dims)]


def _reshape_by_data(node: Node, source: Abstract, target: Sequence[Size]) -> tuple[Size, ...]:
    """A shape that arrives as data: 0 and -1 are only known at run time."""
    check_rank(target)
    keep = 0 if node.attribute("allowzero", 0) else 1
    copied = [apply("reshape_copy", t, source.dims[i] if i < source.rank else -1, keep) for i, t in enumerate(target)]
    rest = product(apply("reshape_known", c) for c in copied)
    dims = tuple(apply("reshape_hole", c, source.size, rest) for c in copied)
    node.require(holds("sizes_hold", dims, source.size), "the new shape does not fit")
    return dims


def _same_data(source: Abstract, dims: Sequence[Size]) -> Abstract:
    constant = None
    sizes = Abstract(source.dtype, tuple(dims)).static_dims()
    if source.constant is not None and sizes is not None:
        constant = source.constant.map(f"reshape{list(sizes)}", sizes, lambda a: a.reshape(sizes))
    return with_numbers(source.dtype, dims, source.numbers, constant)


@infers("Flatten")
def _flatten(node: Node) -> list[Abstract]:
    source = node.input(0)
    axis = int(node.attribute("axis", 1))
    axis = axis + source.rank if axis < 0 else axis
    return [_same_data(source, [product(source.dims[:axis]), product(source.dims[axis:])])]


@infers("Squeeze")
def _squeeze(node: Node) -> list[Abstract]:
    source = node.input(0)
    given = axes_of(node, 1)
    if given is not None and not given:
        raise Unsupported("Squeeze by no axes: ONNX keeps all dims, ONNX Runtime drops those of 1")
    if given is None:
        if any(d.value is None for d in source.dims):
            check_rank(source.dims)
            return [Abstract(source.dtype, source.dims, squeezed=True)]
        axes = [i for i, d in enumerate(source.dims) if d == 1]
    else:
        plain = plain_axes(given, source.rank)
        if plain is None:
            return [_same_data(source, _squeezed_by_data(node, source, given))]
        axes = plain
    for a in axes:
        node.expect(source.dims[a], "==", 1, "Squeeze of a dimension that is not 1")
    return [_same_data(source, [d for i, d in enumerate(source.dims) if i not in axes])]


def _squeezed_by_data(node: Node, source: Abstract, axes: list[Size]) -> list[Size]:
    check_axes(node, axes, source.rank)
    check_rank(source.dims)
    dims = [apply("nth_kept", k, source.dims, axes) for k in range(source.rank - len(axes))]
    node.require(holds("sizes_hold", dims, source.size), "a squeezed dimension is not 1")
    return dims


@infers("Unsqueeze")
def _unsqueeze(node: Node) -> list[Abstract]:
    source = node.input(0)
    given = axes_of(node, 1)
    if given is None:
        raise Unsupported("Unsqueeze without axes")
    rank = source.rank + len(given)
    axes = plain_axes(given, rank)
    if axes is None:
        check_axes(node, given, rank)
        check_rank(source.dims)
        return [_same_data(source, [apply("nth_inserted", k, source.dims, given) for k in range(rank)])]
    old = iter(source.dims)
    return [_same_data(source, [ONE if i in axes else next(old) for i in range(rank)])]


@infers("Identity", "Dropout")
def _identity(node: Node) -> list[Abstract]:
    source = node.input(0)
    if node.op == "Dropout" and node.has(2) and node.input(2).elements != (ZERO,):
        raise Unsupported("Dropout in training mode")
    if (
        len(node.ir.outputs) > 1
        and node.opset < 12
        and (node.ir.outputs[1].uses() or node.ir.outputs[1].is_graph_output())
    ):
        raise Unsupported("the mask of a Dropout before opset 12, which ONNX Runtime leaves at 0")
    return [source, Abstract(DataType.BOOL, source.dims)][: len(node.ir.outputs)]


# --- Transpose, Expand ---


def permutation(node: Node) -> list[int]:
    return node.attribute("perm") or list(reversed(range(node.input(0).rank)))


@infers("Transpose")
def _transpose(node: Node) -> list[Abstract]:
    source = node.input(0)
    perm = permutation(node)
    if sorted(perm) != list(range(source.rank)):
        raise Unsupported("perm is not a permutation")
    dims = tuple(source.dims[p] for p in perm)
    constant = source.constant
    if constant is not None:
        sizes = [constant.dims[p] for p in perm]
        constant = constant.map(f"transpose{perm}", sizes, lambda a: a.transpose(perm))
    return [with_numbers(source.dtype, dims, _numbers_at(source, lambda places: places.transpose(perm)), constant)]


def _numbers_at(source: Abstract, view: Callable[[Array], Array]) -> tuple[Scalar, ...] | None:
    """The elements that a view of a small value picks, where they are known."""
    sizes = source.static_dims()
    if source.numbers is None or sizes is None or math.prod(sizes) != len(source.numbers):
        return None
    places = view(np.arange(len(source.numbers)).reshape(sizes))
    return tuple(source.numbers[i] for i in places.reshape(-1))


@infers("Expand")
def _expand(node: Node) -> list[Abstract]:
    source = node.input(0)
    dims = broadcast_dims(node, source.dims, tuple(node.elements(1, "the new shape")))
    elements = None
    if len(dims) <= 1 and source.elements is not None and len(source.elements) == 1:
        count = dims[0].value if dims else 1
        if count is not None and count <= SMALL:
            elements = source.elements * count
    return [Abstract(source.dtype, dims, elements)]


# --- Slice, Split ---


def _bound(value: Size, size: Size) -> Size:
    """A slice bound with a positive step: negative counts from the end, everything is clamped to [0, size]."""
    number = value.value
    if number is not None and number < 0:
        if size.value is not None:
            return as_size(max(0, size.value + number))
        return maximum(0, size + number)
    if certainly_at_most(size, value) or (number is not None and number >= 2**31 - 1):
        return size
    if number == 0 or (number is None and certainly_at_most(value, size) and certainly_at_most(ZERO, value)):
        return value
    if number is not None:
        return minimum(value, size)
    if never_negative(value):
        return minimum(value, size)
    if certainly_at_most(value, ZERO):  # minus a size: counts from the end
        return maximum(0, size + value)
    return apply("slice_bound", value, size)


@infers("Slice")
def _slice(node: Node) -> list[Abstract]:
    source = node.input(0)
    windows = slices(node, source.dims)
    rows = [_plain_row(window) for window in windows]
    known = [row for row in rows if row is not None]
    numbers = _numbers_at(source, lambda places: places[np.ix_(*known)]) if len(known) == len(rows) else None
    return [with_numbers(source.dtype, [count for _, count, _ in windows], numbers)]


def _plain_row(window: tuple[Size, Size, Size]) -> list[int] | None:
    """Which indices of a dim are taken: first, first + step, ...; None where they are only known at run time."""
    first, count, step = (size.value for size in window)
    if first is None or count is None or step is None:
        return None
    return [first + step * i for i in range(count)]


def picked(start: int, end: int, step: int, size: int) -> range:
    """The indices of a slice. With a negative step it starts inside the dim: ONNX moves a start before its first element there,
    where Python's slice would be empty."""
    if step < 0 and start < -size:
        start = 0
    return range(size)[slice(start, end if end >= -(2**62) else None, step)]


def slices(node: Node, dims: Sequence[Size]) -> list[tuple[Size, Size, Size]]:
    """First index, count and step for every dim."""
    if sliced_by_data(node):
        return _data_slices(node, dims)
    windows = [(ZERO, d, ONE) for d in dims]
    for axis, start, end, step in _plain_slices(node, len(dims)):
        windows[axis] = (*_window(start, end, step, dims[axis]), as_size(step))
    return windows


def _plain_slices(node: Node, rank: int) -> list[tuple[int, Size, Size, int]]:
    if node.opset < 10:
        starts, ends = ([as_size(v) for v in node.attribute(n)] for n in ("starts", "ends"))
        axes, steps = node.attribute("axes") or list(range(len(starts))), [1] * len(starts)
    else:
        starts, ends = node.elements(1, "the start"), node.elements(2, "the end")
        axes = node.integers(3, "the axes") if node.has(3) else list(range(len(starts)))
        steps = node.integers(4, "the steps") if node.has(4) else [1] * len(starts)
    if any(s == 0 for s in steps):
        raise Unsupported("a step of 0")
    return [(a % rank, s, e, step) for a, s, e, step in zip(axes, starts, ends, steps)]


def sliced_by_data(node: Node) -> bool:
    """Whether axes or steps are only known at run time."""
    if node.opset < 10:
        return False
    return any(e.value is None for i in (3, 4) if node.has(i) for e in node.elements(i, "the axes or steps"))


def _data_slices(node: Node, dims: Sequence[Size]) -> list[tuple[Size, Size, Size]]:
    rank = len(dims)
    starts, ends = node.elements(1, "the start"), node.elements(2, "the end")
    axes = node.elements(3, "the axes") if node.has(3) else [as_size(i) for i in range(len(starts))]
    steps = node.elements(4, "the steps") if node.has(4) else [ONE] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) <= rank:
        raise Unsupported("starts, ends, axes and steps differ in length")
    check_axes(node, axes, rank)
    for s in steps:
        node.expect(s, "!=", 0, "a step of 0")
    windows = []
    for a, size in enumerate(dims):
        start, end, step = (
            apply("for_axis", a, rank, values, axes, otherwise)
            for values, otherwise in ((starts, 0), (ends, 2**63 - 1), (steps, 1))
        )
        windows.append((apply("slice_first", start, step, size), apply("slice_count", start, end, step, size), step))
    return windows


def _window(start: Size, end: Size, step: int, size: Size) -> tuple[Size, Size]:
    """First index and length."""
    if step > 0:
        first, last = _bound(start, size), _bound(end, size)
        length = last - first
        if not certainly_at_most(first, last):
            length = maximum(0, length)
        return first, length if step == 1 else floor_div(length + (step - 1), step)
    if size.value is not None and start.value is not None and end.value is not None:
        window = picked(start.value, end.value, step, size.value)
        return as_size(window[0] if len(window) else 0), as_size(len(window))
    first, last = apply("slice_start_back", start, size), apply("slice_end_back", end, size)
    return first, maximum(0, floor_div(first - last + (-step - 1), -step))


@infers("Split")
def _split(node: Node) -> list[Abstract]:
    source = node.input(0)
    axis = node.axis(source.rank, 0)
    parts = split_sizes(node, source.dims[axis])
    return [Abstract(source.dtype, (*source.dims[:axis], size, *source.dims[axis + 1 :])) for size in parts]


def split_sizes(node: Node, size: Size) -> list[Size]:
    count = len(node.ir.outputs)
    given = node.attribute("split")
    if given is not None:
        return [as_size(v) for v in given]
    if node.has(1):
        sizes = node.elements(1, "the split")
        total = sum(sizes, ZERO)
        if total != size:
            node.require(compare(total, "==", size), "the split does not add up")
        return sizes
    part = exact_div(size, count)
    if part is not None:
        return [part] * count
    if size.value is None:
        raise Unsupported("an even split of a dynamic dimension")
    each = -(-size.value // count)
    return [as_size(each)] * (count - 1) + [as_size(size.value - each * (count - 1))]
