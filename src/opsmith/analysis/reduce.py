"""Reductions: Reduce*, ArgMax and ArgMin, CumSum and CumProd. Axes may be constants or arrive as data.

x (outer..., reduced..., inner...) -> the kept dims, with 1s in place of the reduced ones if keepdims
"""

from __future__ import annotations

from opsmith.analysis.axes import axes_of, check_axes, check_rank, plain_axes
from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import INTEGERS, Abstract, DataType, Unsupported, abstract
from opsmith.sizes import ONE, ZERO, AnyOf, Size, apply, compare, holds, product

REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"),
    *("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
)


def reduced_axes(node: Node) -> tuple[list[Size] | None, bool]:
    """The axes, and whether they are all of them; (None, False) means nothing is reduced."""
    given = axes_of(node, 1)
    if given:
        return given, False
    if node.attribute("noop_with_empty_axes", 0):
        return None, False
    return [], True


@infers(*REDUCTIONS)
def _reduce(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype == DataType.BOOL and node.op not in ("ReduceMax", "ReduceMin"):
        raise Unsupported(f"{node.op} on BOOL stays with ONNX Runtime")
    if x.dtype in INTEGERS and node.op.startswith("ReduceLog"):
        # What the logarithm of 0 becomes is ONNX Runtime's choice.
        raise Unsupported(f"{node.op} on integers stays with ONNX Runtime")
    axes, every = reduced_axes(node)
    if axes is None:
        return [Abstract(x.dtype, x.dims)]
    dims = _reduced_dims(node, x, axes, every)
    return [abstract(x.dtype, dims, _folded(node, x) if every or axes else None)]


def _reduced_dims(node: Node, x: Abstract, axes: list[Size], every: bool) -> list[Size]:
    keep = node.flag("keepdims", True)
    if every:
        return [ONE] * x.rank if keep else []
    plain = plain_axes(axes, x.rank)
    if plain is not None:
        return [ONE if i in plain else d for i, d in enumerate(x.dims) if keep or i not in plain]
    check_axes(node, axes, x.rank)
    check_rank(x.dims)
    if keep:
        return [apply("pick", apply("has_axis", i, x.rank, axes), 1, d) for i, d in enumerate(x.dims)]
    return [apply("nth_kept", k, x.dims, axes) for k in range(x.rank - len(axes))]


def _folded(node: Node, x: Abstract) -> list[Size] | None:
    """The sum or product of a shape."""
    if x.elements is None or x.rank != 1 or x.dtype not in INTEGERS:
        return None
    sizes = [e for e in x.elements if isinstance(e, Size)]
    if node.op == "ReduceProd":
        return [product(sizes)]
    return [sum(sizes, ZERO)] if node.op == "ReduceSum" else None


@infers("ArgMax", "ArgMin")
def _arg(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype == DataType.BOOL:
        raise Unsupported(f"{node.op} on BOOL stays with ONNX Runtime")
    if x.rank == 0:
        raise Unsupported(f"{node.op} of a scalar")
    axis = node.axis(x.rank, 0)
    others = product([*x.dims[:axis], *x.dims[axis + 1 :]])
    if x.dims[axis].value == 0 and others.value != 0:
        raise Unsupported("the axis is empty")
    if x.dims[axis].value is None:  # where nothing is asked for there may be nothing
        node.require(AnyOf((compare(x.dims[axis], ">", 0), compare(others, "==", 0))), "the axis is empty")
    kept = [ONE] if node.flag("keepdims", True) else []
    return [abstract(DataType.INT64, [*x.dims[:axis], *kept, *x.dims[axis + 1 :]])]


@infers("CumSum", "CumProd")
def _cumulate(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype == DataType.BOOL or x.rank == 0:
        raise Unsupported(f"{node.op} on {x.dtype.name} of rank {x.rank} stays with ONNX Runtime")
    (axis,) = node.elements(1, "the axis")
    if plain_axes([axis], x.rank) is None:
        node.require(holds("axis_ok", axis, x.rank), f"the axis is outside rank {x.rank}")
    return [Abstract(x.dtype, x.dims)]
