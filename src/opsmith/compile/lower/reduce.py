"""Reductions: Reduce*, ArgMax and ArgMin, CumSum and CumProd. Axes may be constants or arrive as data.

x (outer..., reduced..., inner...) -> the kept dims, with 1s in place of the reduced ones if keepdims
"""

from __future__ import annotations

from collections.abc import Sequence

from opsmith.compile.dims import ONE, Dim, call, product
from opsmith.compile.lower.axes import axes_of, check_axes, plain_axes, sizes, sizes_text
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import CPP, FLOATS, INTEGERS, Abstract, DataType, Unsupported, View, abstract, memory_order

_FOLDS = {
    "ReduceSum": "FoldSum",
    "ReduceMean": "FoldMean",
    "ReduceMax": "FoldMax",
    "ReduceMin": "FoldMin",
    "ReduceProd": "FoldProd",
    "ReduceL1": "FoldL1",
    "ReduceL2": "FoldL2",
    "ReduceSumSquare": "FoldSumSquare",
    "ReduceLogSum": "FoldLogSum",
    "ReduceLogSumExp": "",
}


def _reduced(node: Node) -> tuple[list[Dim] | None, bool]:
    """The axes, and whether they are all of them; (None, False) means nothing is reduced."""
    given = axes_of(node, 1)
    if given:
        return given, False
    if node.attribute("noop_with_empty_axes", 0):
        return None, False
    return [], True


@infers(*_FOLDS)
def _reduce(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype == DataType.BOOL and node.ir.op_type not in ("ReduceMax", "ReduceMin"):
        raise Unsupported(f"{node.ir.op_type} on BOOL stays with ONNX Runtime")
    axes, every = _reduced(node)
    keep = bool(node.attribute("keepdims", 1))
    if axes is None:
        return [Abstract(x.dtype, x.dims)]
    if every:
        result = abstract(x.dtype, [ONE] * x.rank if keep else [])
    else:
        known = plain_axes(axes, x.rank)
        if known is not None:
            dims = [ONE if i in known else d for i, d in enumerate(x.dims) if keep or i not in known]
            result = abstract(x.dtype, dims)
        else:
            check_axes(node, axes, x.rank)
            result = abstract(x.dtype, _run_time_dims(x, axes, keep))
    if x.elements is not None and x.rank == 1 and x.dtype in INTEGERS and (every or axes):
        elements = [e for e in x.elements if isinstance(e, Dim)]
        folded: Dim | None = None
        if node.ir.op_type == "ReduceProd":
            folded = product(elements)
        elif node.ir.op_type == "ReduceSum":
            folded = sum(elements, Dim({}))
        if folded is not None:
            return [Abstract(result.dtype, result.dims, (folded,))]
    return [result]


def _run_time_dims(x: Abstract, axes: list[Dim], keep: bool) -> list[Dim]:
    text = sizes_text(axes)
    if keep:
        return [call("pick", Dim({(f"has_axis({i}, {x.rank}, {text})",): 1}), 1, d) for i, d in enumerate(x.dims)]
    all_dims = sizes_text(x.dims)
    return [Dim({(f"nth_kept({k}, {all_dims}, {text})",): 1}) for k in range(x.rank - len(axes))]


@lowers(*_FOLDS)
def _lower_reduce(node: Node, out: Lowering) -> None:
    value = node.ir.outputs[0]
    x = out.tensor(node.ir.inputs[0])
    axes, every = _reduced(node)
    op = node.ir.op_type
    if axes is None:  # nothing is reduced, but the operator still applies to every element
        axes = []
        if op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSumExp"):
            out.alias(value, x)
            return
    run = (
        None
        if x.dtype not in FLOATS
        else _run_in_memory(x, range(len(x.dims)) if every else plain_axes(axes, len(x.dims)))
    )
    if run is not None:
        _reduce_run(node, out, x, run)
        return
    target = out.result(value)
    tx, ty = CPP[x.dtype], CPP[target.dtype]
    template = f"fold<{_FOLDS[op]}, {ty}, {tx}>" if _FOLDS[op] else f"fold_log_sum_exp<{ty}, {tx}>"
    name = out.instance(
        op.lower(),
        f"const Pool& pool, const Sizes& dims, const Sizes& strides, const Sizes& axes, bool every, const {tx}* x, {ty}* y",
        f"{template}(pool, dims, strides, axes, every, x, y);",
        ("fold.hpp",),
        f"{op} over any axes",
    )
    out.program.instance_headers.add("sizes.hpp")
    arguments = [
        sizes(out, x.dims), sizes(out, x.strides), sizes(out, axes), str(every).lower(), out.pointer(x), out.pointer(target),
    ]  # fmt: skip
    out.call(
        name,
        f"{name}(pool, {', '.join(arguments)});",
        reads=[x],
        writes=[target],
        comment=f"{op} of ({', '.join(d.cpp() for d in x.dims)})",
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


def _reduce_run(node: Node, out: Lowering, x: View, run: tuple[tuple[int, ...], int, int]) -> None:
    """One run of axes of a dense tensor: the vector kernels. The kept axes lie as they lay before."""
    order, first, last = run
    value = node.ir.outputs[0]
    if node.attribute("keepdims", 1):
        lies = order
    else:
        kept = [a for i, a in enumerate(order) if not first <= i < last]
        lies = tuple(sorted(kept).index(a) for a in kept)
    target = out.result(value, lies)
    tx, ty = CPP[x.dtype], CPP[target.dtype]
    op = node.ir.op_type.removeprefix("Reduce")
    name = out.instance(
        node.ir.op_type.lower(),
        f"const Pool& pool, i64 outer, i64 axis, i64 inner, const {tx}* x, {ty}* y",
        f"reduce<op::{op}>(pool, outer, axis, inner, x, y);",
        ("reduce.hpp",),
        f"{node.ir.op_type} over one run of axes",
    )
    dims = [x.dims[a] for a in order]
    split = [product(dims[:first]), product(dims[first:last]), product(dims[last:])]
    out.call(
        name, f"{name}(pool, {', '.join(out.cpp(d) for d in split)}, {out.pointer(x)}, {out.pointer(target)});",
        reads=[x], writes=[target], comment=f"({split[0]}, {split[1]}, {split[2]})", flops=product(x.dims),
    )  # fmt: skip


@infers("ArgMax", "ArgMin")
def _arg(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype == DataType.BOOL:
        raise Unsupported(f"{node.ir.op_type} on BOOL stays with ONNX Runtime")
    if x.rank == 0:
        raise Unsupported(f"{node.ir.op_type} of a scalar")
    axis = node.axis(x.rank, 0)
    if x.dims[axis] == 0:
        raise Unsupported("the axis is empty")
    if x.dims[axis].value is None:
        node.checks.append((f"{x.dims[axis].cpp()} > 0", "the axis is empty"))
    keep = bool(node.attribute("keepdims", 1))
    return [abstract(DataType.INT64, [*x.dims[:axis], *([ONE] if keep else []), *x.dims[axis + 1 :]])]


@lowers("ArgMax", "ArgMin")
def _lower_arg(node: Node, out: Lowering) -> None:
    x = out.rows(node.ir.inputs[0])
    target = out.result(node.ir.outputs[0])
    last = str(bool(node.attribute("select_last_index", 0))).lower()
    name = out.instance(
        node.ir.op_type.lower(),
        f"const Pool& pool, i64 outer, i64 axis, i64 inner, const {CPP[x.dtype]}* x, i64* y",
        f"{node.ir.op_type.lower()}(pool, outer, axis, inner, x, y, {last});",
        ("reduce.hpp",),
        "the index of the largest or smallest element along an axis",
    )
    split = _around(x, node.axis(len(x.dims), 0))
    arguments = [*(out.cpp(d) for d in split), out.pointer(x), out.pointer(target)]
    out.call(
        name, f"{name}(pool, {', '.join(arguments)});", reads=[x], writes=[target],
        comment=f"along {split[1]}", flops=product(x.dims),
    )  # fmt: skip


def _around(x: View, axis: int) -> list[Dim]:
    return [product(x.dims[:axis]), x.dims[axis], product(x.dims[axis + 1 :])]


@infers("CumSum", "CumProd")
def _cumulate(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype == DataType.BOOL or x.rank == 0:
        raise Unsupported(f"{node.ir.op_type} on {x.dtype.name} of rank {x.rank} stays with ONNX Runtime")
    (axis,) = node.elements(1, "the axis")
    if plain_axes([axis], x.rank) is None:
        node.checks.append((f"axis_ok({axis.cpp()}, {x.rank})", f"the axis is outside rank {x.rank}"))
    return [Abstract(x.dtype, x.dims)]


@lowers("CumSum", "CumProd")
def _lower_cumulate(node: Node, out: Lowering) -> None:
    x = out.rows(node.ir.inputs[0])
    target = out.result(node.ir.outputs[0])
    (axis,) = node.elements(1, "the axis")
    known = plain_axes([axis], len(x.dims))
    if known is not None:
        split = [out.cpp(d) for d in _around(x, known[0])]
    else:
        split = [f"{f}({sizes(out, x.dims)}, {out.cpp(axis)})" for f in ("size_before", "size_at", "size_after")]
    t = CPP[x.dtype]
    product_form = node.ir.op_type == "CumProd"
    name = out.instance(
        node.ir.op_type.lower(),
        f"const Pool& pool, i64 outer, i64 axis, i64 inner, bool exclusive, bool reverse, const {t}* x, {t}* y",
        f"cumulate<{str(product_form).lower()}>(pool, outer, axis, inner, exclusive, reverse, x, y);",
        ("fold.hpp",),
        "running sums or products along an axis",
    )
    flags = [str(bool(node.attribute(a, 0))).lower() for a in ("exclusive", "reverse")]
    out.call(
        name, f"{name}(pool, {', '.join([*split, *flags, out.pointer(x), out.pointer(target)])});",
        reads=[x], writes=[target], comment=node.ir.op_type, flops=product(x.dims),
    )  # fmt: skip
