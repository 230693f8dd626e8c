"""Reductions: Reduce*, ArgMax and ArgMin, CumSum and CumProd.

One run of axes of a dense tensor goes through the vector kernels (reduce.hpp), any other axes through plain ones (fold.hpp).
"""

from __future__ import annotations

from collections.abc import Sequence

from opsmith.analysis.axes import plain_axes
from opsmith.analysis.reduce import REDUCTIONS, reduced_axes
from opsmith.analysis.registry import Node
from opsmith.analysis.values import FLOATS, DataType
from opsmith.compiler.kernel import Kernel, fixed, flag, read, size_list, sizes, write
from opsmith.compiler.lower.builder import Builder, shape_text
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.program import Enumerator, View, memory_order
from opsmith.sizes import Size, SizeLike, apply, product

_RUN = [*sizes("outer", "axis", "inner"), read("x"), write("y")]
REDUCE = Kernel("reduce", "reduce.hpp", _RUN, "a reduction over one run of axes")
_FOLD = [size_list("dims"), size_list("strides"), size_list("axes"), flag("every"), read("x"), write("y")]
FOLD = Kernel("fold", "fold.hpp", _FOLD, "a reduction over any axes")
FOLD_LOG_SUM_EXP = Kernel("fold_log_sum_exp", "fold.hpp", _FOLD, "ReduceLogSumExp over any axes")
_ARG = [*sizes("outer", "axis", "inner"), read("x"), write("y", dtype=DataType.INT64), fixed("last")]
ARGMAX = Kernel("argmax", "reduce.hpp", _ARG, "the index of the largest element along an axis")
ARGMIN = Kernel("argmin", "reduce.hpp", _ARG, "the index of the smallest element along an axis")
CUMULATE = Kernel(
    "cumulate",
    "fold.hpp",
    [*sizes("outer", "axis", "inner"), flag("exclusive"), flag("reverse"), read("x"), write("y")],
    "running sums or products along an axis",
)


@lowers(*REDUCTIONS)
def _reduce(node: Node, builder: Builder) -> None:
    value = node.ir.outputs[0]
    x = builder.tensor(node.ir.inputs[0])
    axes, every = reduced_axes(node)
    if axes is None:  # nothing is reduced, but the operator still applies to every element
        axes = []
        if node.op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSumExp"):
            builder.alias(value, x)
            return
    places = range(len(x.dims)) if every else plain_axes(axes, len(x.dims))
    run = _run_in_memory(x, places) if x.dtype in FLOATS else None
    if run is not None:
        _reduce_run(node, builder, x, run)
    else:
        fold(builder, node.op, x, builder.result(value), axes, every)


def fold(builder: Builder, op: str, x: View, target: View, axes: Sequence[SizeLike], every: bool = False) -> None:
    """Any axes of a tensor in any layout."""
    types = (target.dtype, x.dtype)
    log_sum_exp = op == "ReduceLogSumExp"
    builder.call(
        FOLD_LOG_SUM_EXP if log_sum_exp else FOLD,
        templates=types if log_sum_exp else (Enumerator(f"Fold{op.removeprefix('Reduce')}"), *types),
        dims=x.dims,
        strides=x.strides,
        axes=tuple(axes),
        every=every,
        x=x,
        y=target,
        label=op.lower(),
        comment=f"{op} of {shape_text(x)}",
        flops=product(x.dims),
    )


def _run_in_memory(x: View, axes: Sequence[int] | None) -> tuple[tuple[int, ...], int, int] | None:
    """The order in which the axes lie, and the run of them that is reduced, if it is one: (0, 2, 3, 1), 1, 3 for an image's pixels."""
    order = memory_order(x)
    if order is None or not axes:
        return None
    places = sorted(order.index(a) for a in axes)
    if places != list(range(places[0], places[0] + len(places))):
        return None
    return order, places[0], places[-1] + 1


def _reduce_run(node: Node, builder: Builder, x: View, run: tuple[tuple[int, ...], int, int]) -> None:
    """One run of axes of a dense tensor: the vector kernels. The kept axes lie as they lay before."""
    order, first, last = run
    if node.attribute("keepdims", 1):
        lies = order
    else:
        kept = [a for i, a in enumerate(order) if not first <= i < last]
        lies = tuple(sorted(kept).index(a) for a in kept)
    target = builder.result(node.ir.outputs[0], lies)
    dims = [x.dims[a] for a in order]
    outer, axis, inner = product(dims[:first]), product(dims[first:last]), product(dims[last:])
    builder.call(
        REDUCE,
        templates=(Enumerator(f"op::{node.op.removeprefix('Reduce')}"),),
        outer=outer,
        axis=axis,
        inner=inner,
        x=x,
        y=target,
        label=node.op.lower(),
        comment=f"({outer}, {axis}, {inner})",
        flops=product(x.dims),
    )


def _around(dims: Sequence[Size], axis: int) -> dict[str, Size]:
    return {"outer": product(dims[:axis]), "axis": dims[axis], "inner": product(dims[axis + 1 :])}


@lowers("ArgMax", "ArgMin")
def _arg(node: Node, builder: Builder) -> None:
    x = builder.rows(node.ir.inputs[0])
    target = builder.result(node.ir.outputs[0])
    around = _around(x.dims, node.axis(len(x.dims), 0))
    builder.call(
        ARGMAX if node.op == "ArgMax" else ARGMIN,
        around,
        x=x,
        y=target,
        last=node.flag("select_last_index"),
        comment=f"along {around['axis']}",
        flops=product(x.dims),
    )


@lowers("CumSum", "CumProd")
def _cumulate(node: Node, builder: Builder) -> None:
    x = builder.rows(node.ir.inputs[0])
    target = builder.result(node.ir.outputs[0])
    (axis,) = node.elements(1, "the axis")
    plain = plain_axes([axis], len(x.dims))
    if plain is not None:
        around = _around(x.dims, plain[0])
    else:
        names = {"outer": "size_before", "axis": "size_at", "inner": "size_after"}
        around = {n: apply(f, x.dims, axis) for n, f in names.items()}
    builder.call(
        CUMULATE,
        around,
        templates=(node.op == "CumProd",),
        exclusive=node.flag("exclusive"),
        reverse=node.flag("reverse"),
        x=x,
        y=target,
        label=node.op.lower(),
        comment=node.op,
        flops=product(x.dims),
    )
