"""Operators that move numbers: Concat, Gather, Tile, Pad, nearest Resize, Trilu, CumSum..."""

from __future__ import annotations

from opsmith.compile.dims import ZERO, Dim, dim, product
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import CPP, INTEGERS, Abstract, DataType, Unsupported, View, abstract, memory_order

# --- Concat ---


@infers("Concat")
def _concat(node: Node) -> list[Abstract]:
    first = node.input(0)
    axis = node.axis(first.rank)
    total: Dim = ZERO
    elements = list(first.elements) if first.elements is not None and first.rank == 1 else None
    for i in range(len(node.inputs)):
        value = node.input(i)
        if value.rank != first.rank:
            raise Unsupported("operands of different rank")
        for a, (d, e) in enumerate(zip(value.dims, first.dims)):
            if a != axis and d != e:
                if d.value is not None and e.value is not None:
                    raise Unsupported("operands of different shape")
                node.checks.append((f"{d.cpp()} == {e.cpp()}", "the concatenated shapes differ"))
        total = total + value.dims[axis]
        if i > 0 and elements is not None:
            elements = [*elements, *value.elements] if value.elements is not None else None
    dims = [*first.dims[:axis], total, *first.dims[axis + 1 :]]
    return [abstract(first.dtype, dims, elements)]


@lowers("Concat")
def _lower_concat(node: Node, out: Lowering) -> None:
    views = [out.tensor(v) for v in node.ir.inputs]
    axis = node.axis(len(views[0].dims))
    order = next((o for v in views if (o := memory_order(v)) is not None), None)
    target = out.result(node.ir.outputs[0], order)
    offset = target.offset
    for view in views:
        if view.dims[axis] != 0:
            part = target.with_(
                [*target.dims[:axis], view.dims[axis], *target.dims[axis + 1 :]], target.strides, offset
            )
            out.emit_copy(view, part, order)
        offset = offset + view.dims[axis] * target.strides[axis]


# --- Gather ---


@infers("Gather")
def _gather(node: Node) -> list[Abstract]:
    data, indices = node.input(0), node.input(1)
    if data.rank == 0:
        raise Unsupported("Gather from a scalar")
    axis = node.axis(data.rank, 0)
    dims = [*data.dims[:axis], *indices.dims, *data.dims[axis + 1 :]]
    elements = None
    if data.rank == 1 and data.elements is not None and indices.elements is not None and len(dims) <= 1:
        wanted = [e.value for e in indices.elements if isinstance(e, Dim)]
        if None not in wanted:
            size = len(data.elements)
            if any(w is None or not -size <= w < size for w in wanted):
                raise Unsupported("an index is out of range")
            elements = [data.elements[w] for w in wanted if w is not None]
    return [abstract(data.dtype, dims, elements)]


@lowers("Gather")
def _lower_gather(node: Node, out: Lowering) -> None:
    value = node.ir.outputs[0]
    axis = node.axis(node.input(0).rank, 0)
    picked = node.input(1).elements
    if picked is not None and len(picked) == 1 and isinstance(picked[0], Dim):  # one index: a view
        at = picked[0]
        view = out.tensor(node.ir.inputs[0])
        size = view.dims[axis]
        if at.value is not None and at.value < 0:
            at = size + at
        out.check(f"({out.cpp(at)}) >= 0 && ({out.cpp(at)}) < {out.cpp(size)}", "an index is out of range")
        keep = len(node.input(1).dims)
        dims = [*view.dims[:axis], *node.input(1).dims, *view.dims[axis + 1 :]]
        strides = [*view.strides[:axis], *([dim(1)] * keep), *view.strides[axis + 1 :]]
        out.alias(value, view.with_(dims, strides, view.offset + at * view.strides[axis]))
        return
    data, indices = out.rows(node.ir.inputs[0]), out.rows(node.ir.inputs[1])
    target = out.result(value)
    sizes = [product(data.dims[:axis]), data.dims[axis], product(data.dims[axis + 1 :])]
    count = product(indices.dims)
    arguments = [
        *(out.cpp(s) for s in sizes),
        out.pointer(data),
        out.cpp(count),
        out.pointer(indices),
        out.pointer(target),
    ]
    out.call(
        "gather",
        f'run.check({_quote(out.node)}, gather(pool, {", ".join(arguments)}), "an index is out of range");',
        reads=[indices, data],
        writes=[target],
        comment=f"{count} of {sizes[1]} rows of {sizes[2]}",
        can_fail=True,
    )


def _quote(text: str) -> str:
    from opsmith.compile.emit import quoted

    return quoted(text)


__all__ = ["CPP", "INTEGERS", "DataType", "View"]
