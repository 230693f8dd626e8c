"""Results that are as long as the data says: NonZero, Compress, NonMaxSuppression. Their length is a size of its own."""

from __future__ import annotations

import onnx_ir as ir

from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import Abstract, DataType, Unsupported, abstract
from opsmith.sizes import Size, as_size, minimum, name


def count_of(node: ir.Node) -> Size:
    """How many results the node finds; no dim of a model is called so."""
    return name(f"# found by {node.outputs[0].name}")


@infers("NonZero")
def _non_zero(node: Node) -> list[Abstract]:
    x = node.input(0)
    return [abstract(DataType.INT64, [max(1, x.rank), count_of(node.ir)])]


@infers("Compress")
def _compress(node: Node) -> list[Abstract]:
    x, condition = node.input(0), node.input(1)
    if condition.rank != 1 or condition.dtype != DataType.BOOL:
        raise Unsupported(f"a condition of rank {condition.rank}, {condition.dtype.name}")
    axis = compressed_axis(node)
    if axis is None:
        return [abstract(x.dtype, [count_of(node.ir)])]
    return [abstract(x.dtype, [*x.dims[:axis], count_of(node.ir), *x.dims[axis + 1 :]])]


def compressed_axis(node: Node) -> int | None:
    """The axis; None where the tensor is flattened first."""
    return None if node.attribute("axis") is None else node.axis(node.input(0).rank)


@infers("NonMaxSuppression")
def _non_max_suppression(node: Node) -> list[Abstract]:
    boxes, scores = node.input(0), node.input(1)
    if boxes.rank != 3 or scores.rank != 3 or boxes.dtype != DataType.FLOAT or scores.dtype != DataType.FLOAT:
        raise Unsupported(f"NonMaxSuppression on {boxes.dtype.name} of rank {boxes.rank}")
    node.expect_all(
        [*boxes.dims[:2], boxes.dims[2]], "==", [scores.dims[0], scores.dims[2], 4], "boxes and scores differ"
    )
    for i, dtype in ((2, DataType.INT64), (3, DataType.FLOAT), (4, DataType.FLOAT)):
        if node.has(i):
            if node.type_of(i) != dtype or node.input(i).rank > 1:
                raise Unsupported(f"input {i} of NonMaxSuppression is {node.type_of(i).name}")
            node.expect(node.input(i).size, "==", 1, f"input {i} is not one number")
    return [abstract(DataType.INT64, [count_of(node.ir), 3])]


def most_boxes(node: Node) -> Size:
    """How many boxes of one class are kept at most: what is asked for, if that is known, and never more than there are."""
    boxes = node.input(0).dims[1]
    if not node.has(2):
        return as_size(0)
    wanted = node.input(2).elements
    if wanted is None or not isinstance(wanted[0], Size) or wanted[0].value is None:
        return boxes
    return minimum(as_size(max(0, wanted[0].value)), boxes)
