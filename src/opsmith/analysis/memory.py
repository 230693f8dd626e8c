"""Concat and Gather."""

from __future__ import annotations

from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import INTEGERS, Abstract, Unsupported, abstract
from opsmith.sizes import ZERO, Size


@infers("Concat")
def _concat(node: Node) -> list[Abstract]:
    first = node.input(0)
    axis = node.axis(first.rank)
    total: Size = ZERO
    elements = list(first.elements) if first.elements is not None and first.rank == 1 else None
    for i in range(len(node.inputs)):
        value = node.input(i)
        if value.rank != first.rank:
            raise Unsupported("operands of different rank")
        for a, (d, e) in enumerate(zip(value.dims, first.dims)):
            if a != axis:
                node.expect(d, "==", e, "the concatenated shapes differ")
        total = total + value.dims[axis]
        if i > 0 and elements is not None:
            elements = [*elements, *value.elements] if value.elements is not None else None
    return [abstract(first.dtype, [*first.dims[:axis], total, *first.dims[axis + 1 :]], elements)]


@infers("Gather")
def _gather(node: Node) -> list[Abstract]:
    data, indices = node.input(0), node.input(1)
    if data.rank == 0:
        raise Unsupported("Gather from a scalar")
    if indices.dtype not in INTEGERS:
        raise Unsupported(f"indices of type {indices.dtype.name}")
    axis = node.axis(data.rank, 0)
    dims = [*data.dims[:axis], *indices.dims, *data.dims[axis + 1 :]]
    elements = None
    if data.rank == 1 and data.elements is not None and indices.elements is not None and len(dims) <= 1:
        wanted = [e.value for e in indices.elements if isinstance(e, Size)]
        if None not in wanted:
            size = len(data.elements)
            if any(w is None or not -size <= w < size for w in wanted):
                raise Unsupported("an index is out of range")
            elements = [data.elements[w] for w in wanted if w is not None]
    return [abstract(data.dtype, dims, elements)]
