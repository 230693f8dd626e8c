"""Operators that only say how memory is read: Reshape, Transpose, Slice, Split, Expand... cost nothing where strides can
express them, and one copy where they cannot."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from opsmith.compile.dims import (
    ONE,
    ZERO,
    Dim,
    atom,
    call,
    contiguous,
    dim,
    exact_div,
    floor_div,
    maximum,
    minimum,
    product,
)
from opsmith.compile.lower.axes import axes_of, check_axes, plain_axes, sizes_text
from opsmith.compile.lower.elementwise import broadcast_dims
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.lower.shape import fill
from opsmith.compile.values import Abstract, DataType, Unsupported, View, permuted

# --- Reshape and its relatives ---


@infers("Reshape")
def _reshape(node: Node) -> list[Abstract]:
    source = node.input(0)
    target = node.elements(1, "the new shape")
    if any("[" in a for t in target for a in t.atoms()):
        return [Abstract(source.dtype, _reshape_by_data(node, source, target))]
    dims: list[Dim] = []
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
        found = exact_div(source.size, rest)
        if found is None:
            node.checks.append((f"divides({rest.cpp()}, {source.size.cpp()})", "the new shape does not fit"))
            found = floor_div(source.size, rest)
        dims[hole] = found
    elif product(dims) != source.size:
        node.checks.append((f"{product(dims).cpp()} == {source.size.cpp()}", "the new shape does not fit"))
    node.checks += [(f"{d.cpp()} >= 0", "a size is negative") for d in dims if any(c < 0 for c in d.terms.values())]
    return [_same_data(source, dims)]


def _reshape_by_data(node: Node, source: Abstract, target: Sequence[Dim]) -> tuple[Dim, ...]:
    """A shape that arrives as data: 0 and -1 are only known at run time."""
    keep = 0 if node.attribute("allowzero", 0) else 1
    copied = [call("reshape_copy", t, source.dims[i] if i < source.rank else -1, keep) for i, t in enumerate(target)]
    rest = ONE
    for c in copied:
        rest = rest * call("reshape_known", c)
    dims = tuple(call("reshape_hole", c, source.size, rest) for c in copied)
    node.checks.append((f"sizes_hold({sizes_text(dims)}, {source.size.cpp()})", "the new shape does not fit"))
    return dims


def _same_data(source: Abstract, dims: Sequence[Dim]) -> Abstract:
    elements = source.elements if len(dims) <= 1 else None
    constant = None
    sizes = [d.value for d in dims]
    known = [s for s in sizes if s is not None]
    if source.constant is not None and len(known) == len(sizes):
        constant = source.constant.map(f"reshape{known}", known, lambda a: a.reshape(known))
    return Abstract(source.dtype, tuple(dims), elements, constant)


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
    if given is None:
        if any(d.value is None for d in source.dims):
            raise Unsupported("Squeeze without axes on dynamic dims")
        axes = [i for i, d in enumerate(source.dims) if d == 1]
    else:
        known = plain_axes(given, source.rank)
        if known is None:
            return [_same_data(source, _squeezed_by_data(node, source, given))]
        axes = known
    for a in axes:
        if source.dims[a] != 1:
            if source.dims[a].value is not None:
                raise Unsupported("Squeeze of a dimension that is not 1")
            node.checks.append((f"{source.dims[a].cpp()} == 1", "the squeezed dimension is not 1"))
    return [_same_data(source, [d for i, d in enumerate(source.dims) if i not in axes])]


def _squeezed_by_data(node: Node, source: Abstract, axes: list[Dim]) -> list[Dim]:
    check_axes(node, axes, source.rank)
    texts = sizes_text(source.dims), sizes_text(axes)
    dims = [atom(f"nth_kept({k}, {texts[0]}, {texts[1]})") for k in range(source.rank - len(axes))]
    node.checks.append((f"sizes_hold({sizes_text(dims)}, {source.size.cpp()})", "a squeezed dimension is not 1"))
    return dims


@infers("Unsqueeze")
def _unsqueeze(node: Node) -> list[Abstract]:
    source = node.input(0)
    given = axes_of(node, 1)
    if given is None:
        raise Unsupported("Unsqueeze without axes")
    rank = source.rank + len(given)
    known = plain_axes(given, rank)
    if known is None:
        check_axes(node, given, rank)
        texts = sizes_text(source.dims), sizes_text(given)
        return [_same_data(source, [atom(f"nth_inserted({k}, {texts[0]}, {texts[1]})") for k in range(rank)])]
    axes = set(known)
    old = iter(source.dims)
    return [_same_data(source, [ONE if i in axes else next(old) for i in range(rank)])]


@infers("Identity", "Dropout")
def _identity(node: Node) -> list[Abstract]:
    source = node.input(0)
    if node.ir.op_type == "Dropout" and node.has(2) and node.input(2).elements != (ZERO,):
        raise Unsupported("Dropout in training mode")
    return [source, Abstract(DataType.BOOL, source.dims)][: len(node.ir.outputs)]


@lowers("Identity", "Dropout")
def _lower_identity(node: Node, out: Lowering) -> None:
    out.alias(node.ir.outputs[0], out.tensor(node.ir.inputs[0]))
    if len(node.ir.outputs) > 1:  # the mask of a Dropout that drops nothing
        fill(out, out.result(node.ir.outputs[1]), 1)


@lowers("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _lower_reshape(node: Node, out: Lowering) -> None:
    value = node.ir.outputs[0]
    if out.facts[value].constant is not None:
        return
    source = out.tensor(node.ir.inputs[0])
    out.alias(value, reshape(source, out.facts[value].dims, out))


def reshape(source: View, dims: Sequence[Dim], out: Lowering) -> View:
    """A view with new dims; the data is copied only if strides cannot express it."""
    strides = reshaped_strides(source, dims)
    if strides is None:
        source = out.dense(source)
        strides = contiguous(dims)
    return source.with_(dims, strides)


def reshaped_strides(view: View, dims: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """Match runs of old dims with runs of new dims of equal size; within a run the old dims must lie evenly."""
    if view.is_contiguous():
        return contiguous(dims)
    old = [(d, s) for d, s in zip(view.dims, view.strides) if d != 1]
    new = [i for i, d in enumerate(dims) if d != 1]
    strides: list[Dim] = [ONE] * len(dims)
    i = j = 0
    while i < len(old) or j < len(new):
        if i >= len(old) or j >= len(new):
            return None
        left, right = old[i][0], dims[new[j]]
        run_old, run_new = [old[i]], [new[j]]
        i, j = i + 1, j + 1
        while left != right:
            if i < len(old) and exact_div(right, left) is not None:
                left, i = left * old[i][0], i + 1
                run_old.append(old[i - 1])
            elif j < len(new) and exact_div(left, right) is not None:
                right, j = right * dims[new[j]], j + 1
                run_new.append(new[j - 1])
            else:
                return None
        for (_, outer), (inner_dim, inner) in itertools.pairwise(run_old):
            if outer != inner * inner_dim:
                return None
        step = run_old[-1][1]
        for axis in reversed(run_new):
            strides[axis] = step
            step = step * dims[axis]
    return tuple(strides)


# --- Transpose ---


@infers("Transpose")
def _transpose(node: Node) -> list[Abstract]:
    source = node.input(0)
    perm = node.attribute("perm") or list(reversed(range(source.rank)))
    if sorted(perm) != list(range(source.rank)):
        raise Unsupported("perm is not a permutation")
    dims = tuple(source.dims[p] for p in perm)
    constant = source.constant
    if constant is not None:
        sizes = [constant.dims[p] for p in perm]
        constant = constant.map(f"transpose{perm}", sizes, lambda a: a.transpose(perm))
    return [Abstract(source.dtype, dims, source.elements if source.rank <= 1 else None, constant)]


@lowers("Transpose")
def _lower_transpose(node: Node, out: Lowering) -> None:
    value = node.ir.outputs[0]
    if out.facts[value].constant is not None:
        return
    source = out.tensor(node.ir.inputs[0])
    out.alias(value, permuted(source, node.attribute("perm") or list(reversed(range(len(source.dims))))))


# --- Expand ---


@infers("Expand")
def _expand(node: Node) -> list[Abstract]:
    source = node.input(0)
    dims = broadcast_dims(node, source.dims, tuple(node.elements(1, "the new shape")))
    elements = None
    if len(dims) <= 1 and source.elements is not None and len(source.elements) == 1:
        count = dims[0].value if dims else 1
        if count is not None and count <= 64:
            elements = source.elements * count
    return [Abstract(source.dtype, dims, elements)]


@lowers("Expand")
def _lower_expand(node: Node, out: Lowering) -> None:
    value = node.ir.outputs[0]
    source = out.tensor(node.ir.inputs[0])
    dims = out.facts[value].dims
    lead = len(dims) - len(source.dims)
    strides: list[Dim] = []
    for axis, d in enumerate(dims):
        if axis < lead or (source.dims[axis - lead] == 1 and d != 1):
            strides.append(ZERO)
        elif source.dims[axis - lead] == d:
            strides.append(source.strides[axis - lead])
        else:
            strides.append(call("spread", source.dims[axis - lead], source.strides[axis - lead]))
    out.alias(value, source.with_(dims, strides))


# --- Slice, Split, and other windows ---


def certainly_at_most(a: Dim, b: Dim) -> bool:
    """a <= b for every value of the sizes in them, which are never negative."""
    gap = b - a
    return all(c >= 0 for c in gap.terms.values()) and all("[" not in x and "to_integer" not in x for x in gap.atoms())


def _bound(value: Dim, size: Dim) -> Dim:
    """A slice bound with a positive step: negative counts from the end, everything is clamped to [0, size]."""
    number = value.value
    if number is not None and number < 0:
        if size.value is not None:
            return dim(max(0, size.value + number))
        return maximum(0, size + number)
    if certainly_at_most(size, value) or (number is not None and number >= 2**31 - 1):
        return size
    if number == 0 or (number is None and certainly_at_most(value, size) and certainly_at_most(ZERO, value)):
        return value
    if number is not None:
        return minimum(value, size)
    if certainly_at_most(value, ZERO):  # minus a size: counts from the end
        return maximum(0, size + value)
    return call("slice_bound", value, size)


@infers("Slice")
def _slice(node: Node) -> list[Abstract]:
    source = node.input(0)
    dims = list(source.dims)
    elements = source.elements
    if _sliced_by_data(node):
        return [Abstract(source.dtype, tuple(count for _, count, _ in _data_slices(node, source.dims)))]
    for axis, start, end, step in _slices(node, source.rank):
        size = source.dims[axis]
        dims[axis] = slice_window(start, end, step, size)[1]
    if elements is not None:
        ((_, start, end, step),) = _slices(node, 1)
        if None in (start.value, end.value):
            elements = None
        else:
            elements = elements[slice(start.value, end.value if end.value != -(2**63) else None, step)]
    return [Abstract(source.dtype, tuple(dims), elements)]


def _slices(node: Node, rank: int) -> list[tuple[int, Dim, Dim, int]]:
    if node.opset < 10:
        starts, ends = ([dim(v) for v in node.attribute(n)] for n in ("starts", "ends"))
        axes, steps = node.attribute("axes") or list(range(len(starts))), [1] * len(starts)
    else:
        starts, ends = node.elements(1, "the start"), node.elements(2, "the end")
        axes = node.integers(3, "the axes") if node.has(3) else list(range(len(starts)))
        steps = node.integers(4, "the steps") if node.has(4) else [1] * len(starts)
    if any(s == 0 for s in steps):
        raise Unsupported("a step of 0")
    return [(a % rank, s, e, step) for a, s, e, step in zip(axes, starts, ends, steps)]


def _sliced_by_data(node: Node) -> bool:
    """Whether axes or steps are only known at run time."""
    if node.opset < 10:
        return False
    return any(e.value is None for i in (3, 4) if node.has(i) for e in node.elements(i, "the axes or steps"))


def _data_slices(node: Node, dims: Sequence[Dim]) -> list[tuple[Dim, Dim, Dim]]:
    """First index, count and step for every dim, found at run time."""
    rank = len(dims)
    starts, ends = node.elements(1, "the start"), node.elements(2, "the end")
    axes = node.elements(3, "the axes") if node.has(3) else [dim(i) for i in range(len(starts))]
    steps = node.elements(4, "the steps") if node.has(4) else [ONE] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) <= rank:
        raise Unsupported("starts, ends, axes and steps differ in length")
    check_axes(node, axes, rank)
    node.checks += [(f"{s.cpp()} != 0", "a step of 0") for s in steps if s.value is None]
    found = []
    for a, size in enumerate(dims):
        start, end, step = (
            f"for_axis({a}, {rank}, {sizes_text(values)}, {sizes_text(axes)}, {otherwise})"
            for values, otherwise in ((starts, "0"), (ends, "INT64_MAX"), (steps, "1"))
        )
        first = atom(f"slice_first({start}, {step}, {size.cpp()})")
        found.append((first, atom(f"slice_count({start}, {end}, {step}, {size.cpp()})"), atom(step)))
    return found


def slice_window(start: Dim, end: Dim, step: int, size: Dim) -> tuple[Dim, Dim]:
    """First index and length."""
    if step > 0:
        first, last = _bound(start, size), _bound(end, size)
        length = last - first
        if not certainly_at_most(first, last):
            length = maximum(0, length)
        return first, length if step == 1 else floor_div(length + (step - 1), step)
    first = call("slice_start_back", start, size)
    last = call("slice_end_back", end, size)
    if size.value is not None and start.value is not None and end.value is not None:
        window = range(size.value)[slice(start.value, end.value if end.value >= -(2**62) else None, step)]
        return dim(window[0] if len(window) else 0), dim(len(window))
    return first, maximum(0, floor_div(first - last + (-step - 1), -step))


@lowers("Slice")
def _lower_slice(node: Node, out: Lowering) -> None:
    value = node.ir.outputs[0]
    view = out.tensor(node.ir.inputs[0])
    dims, strides, offset = list(view.dims), list(view.strides), view.offset
    if _sliced_by_data(node):
        for axis, (first, length, factor) in enumerate(_data_slices(node, view.dims)):
            offset = offset + first * view.strides[axis]
            dims[axis], strides[axis] = length, view.strides[axis] * factor
        out.alias(value, view.with_(dims, strides, offset))
        return
    for axis, start, end, step in _slices(node, len(dims)):
        first, length = slice_window(start, end, step, view.dims[axis])
        offset = offset + first * view.strides[axis]
        dims[axis], strides[axis] = length, view.strides[axis] * step
    out.alias(value, view.with_(dims, strides, offset))


@infers("Split")
def _split(node: Node) -> list[Abstract]:
    source = node.input(0)
    axis = node.axis(source.rank, 0)
    results = []
    for size in _split_sizes(node, source.dims[axis]):
        dims = [*source.dims[:axis], size, *source.dims[axis + 1 :]]
        results.append(Abstract(source.dtype, tuple(dims)))
    return results


def _split_sizes(node: Node, size: Dim) -> list[Dim]:
    count = len(node.ir.outputs)
    given = node.attribute("split")
    if given is not None:
        return [dim(v) for v in given]
    if node.has(1):
        sizes = node.elements(1, "the split")
        total = sum(sizes, ZERO)
        if total != size:
            node.checks.append((f"{total.cpp()} == {size.cpp()}", "the split does not add up"))
        return sizes
    part = exact_div(size, count)
    if part is not None:
        return [part] * count
    if size.value is None:
        raise Unsupported("an even split of a dynamic dimension")
    each = -(-size.value // count)
    return [dim(each)] * (count - 1) + [dim(size.value - each * (count - 1))]


@lowers("Split")
def _lower_split(node: Node, out: Lowering) -> None:
    view = out.tensor(node.ir.inputs[0])
    axis = node.axis(len(view.dims), 0)
    offset = view.offset
    for value, size in zip(node.ir.outputs, _split_sizes(node, view.dims[axis])):
        dims = [*view.dims[:axis], size, *view.dims[axis + 1 :]]
        out.alias(value, view.with_(dims, view.strides, offset))
        offset = offset + size * view.strides[axis]
