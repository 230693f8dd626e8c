"""Operators that only say how memory is read: Reshape, Transpose, Slice, Split, Expand... cost nothing where strides can
express them, and one copy where they cannot."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import onnx_ir as ir

from opsmith import ops
from opsmith.analysis.attention import total_rows
from opsmith.analysis.registry import Node
from opsmith.analysis.view import permutation, slices, split_sizes
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.precision import VIEWS
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.lower.shape import fill
from opsmith.compiler.program import View, permuted
from opsmith.sizes import ONE, ZERO, Size, contiguous, exact_div, spread


@lowers("Identity", "Dropout")
def _identity(node: Node, builder: Builder) -> None:
    builder.alias(node.ir.outputs[0], builder.tensor(node.ir.inputs[0]))
    if len(node.ir.outputs) > 1:  # the mask of a Dropout that drops nothing
        fill(builder, builder.result(node.ir.outputs[1]), True)


@lowers("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(node: Node, builder: Builder) -> None:
    source = builder.tensor(node.ir.inputs[0])
    builder.alias(node.ir.outputs[0], reshape(source, node.outputs[0].dims, builder))


def reshape(source: View, dims: Sequence[Size], builder: Builder) -> View:
    """A view with new dims; the data is copied only if strides cannot express it."""
    strides = reshaped_strides(source, dims)
    if strides is None:
        source = builder.dense(source)
        strides = contiguous(dims)
    return source.with_(dims, strides)


def reshaped_strides(view: View, dims: Sequence[Size]) -> tuple[Size, ...] | None:
    """Match runs of old dims with runs of new dims of equal size; within a run the old dims must lie evenly."""
    if view.is_contiguous():
        return contiguous(dims)
    old = [(d, s) for d, s in zip(view.dims, view.strides) if d != 1]
    new = [i for i, d in enumerate(dims) if d != 1]
    strides: list[Size] = [ONE] * len(dims)
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
        if any(outer != inner * size for (_, outer), (size, inner) in itertools.pairwise(run_old)):
            return None
        step = run_old[-1][1]
        for axis in reversed(run_new):
            strides[axis] = step
            step = step * dims[axis]
    return tuple(strides)


@lowers("Transpose")
def _transpose(node: Node, builder: Builder) -> None:
    builder.alias(node.ir.outputs[0], permuted(builder.tensor(node.ir.inputs[0]), permutation(node)))


@lowers("Expand")
def _expand(node: Node, builder: Builder) -> None:
    source = builder.tensor(node.ir.inputs[0])
    dims = node.outputs[0].dims
    lead = len(dims) - len(source.dims)
    strides = [ZERO] * lead
    for wanted, d, s in zip(dims[lead:], source.dims, source.strides):
        strides.append(s if d == wanted else spread(d, wanted, s))
    builder.alias(node.ir.outputs[0], source.with_(dims, strides))


@lowers("Slice")
def _slice(node: Node, builder: Builder) -> None:
    view = builder.tensor(node.ir.inputs[0])
    windows = slices(node, view.dims)
    offset = sum((first * s for (first, _, _), s in zip(windows, view.strides)), view.offset)
    strides = [s * step for (_, _, step), s in zip(windows, view.strides)]
    builder.alias(node.ir.outputs[0], view.with_([count for _, count, _ in windows], strides, offset))


@lowers("Split")
def _split(node: Node, builder: Builder) -> None:
    view = builder.tensor(node.ir.inputs[0])
    axis = node.axis(len(view.dims), 0)
    offset = view.offset
    for value, size in zip(node.ir.outputs, split_sizes(node, view.dims[axis])):
        dims = [*view.dims[:axis], size, *view.dims[axis + 1 :]]
        builder.alias(value, view.with_(dims, view.strides, offset))
        offset = offset + size * view.strides[axis]


@lowers("opsmith::CacheRows", "opsmith::CacheRowsAsFloat")
def _cache_rows(node: Node, builder: Builder) -> None:
    cache = builder.tensor(node.ir.inputs[0])
    rows = cache.with_([*cache.dims[:2], total_rows(node, 1), *cache.dims[3:]], cache.strides)
    stays = node.op == "CacheRows" or _only_attended(node.ir.outputs[0], builder)
    builder.alias(node.ir.outputs[0], rows if stays else builder.as_float(rows))


def _only_attended(value: ir.Value, builder: Builder) -> bool:
    """Whether a value is read by nothing but attention, as keys or values, which it reads in any type."""
    if builder.is_output(value):
        return False
    for reader, index in value.uses():
        if reader.op_type in ops.ATTENTIONS:
            if index not in (1, 2):
                return False
        elif reader.op_type not in VIEWS or not _only_attended(reader.outputs[0], builder):
            return False
    return True
