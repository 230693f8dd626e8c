"""Einsum of one or two operands: transposed views, and one batched product.

"bhid,bhjd->bhij": labels in both operands and the result are batch dims, labels in both but not in the result are summed (K), the
others are rows (M) of the left or columns (N) of the right. All of it is strides; only what does not lie evenly is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from opsmith.analysis.einsum import Equation, equation_of
from opsmith.analysis.registry import Node
from opsmith.analysis.values import DataType
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.matmul import product_of
from opsmith.compiler.lower.reduce import fold
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.lower.view import reshape
from opsmith.compiler.program import View, permuted
from opsmith.sizes import product, spread


@lowers("Einsum")
def _einsum(node: Node, builder: Builder) -> None:
    e = equation_of(node)
    value = node.ir.outputs[0]
    views = [builder.tensor(v) for v in node.ir.inputs]
    labels = list(e.operands)
    for i, other in enumerate([labels[1] if len(labels) > 1 else "", labels[0]][: len(labels)]):
        views[i], labels[i] = _sum_out(builder, views[i], labels[i], keep=set(e.result) | set(other))
    if len(views) == 1:
        builder.alias(value, permuted(views[0], [labels[0].index(c) for c in e.result]))
        return
    _multiply(node, e, views, labels, builder)


def _multiply(node: Node, e: Equation, views: Sequence[View], labels: Sequence[str], builder: Builder) -> None:
    """Both operands as batches of matrices, one product, turned the way the result lies."""
    value = node.ir.outputs[0]
    left, right = views
    a, b = labels
    batch, rows, columns = (
        [c for c in e.result if (c in a, c in b) == lies] for lies in ((True, True), (True, False), (False, True))
    )
    summed = [c for c in a if c in b and c not in e.result]
    x = _matrix(builder, builder.as_float(left), a, e, batch, rows, summed)  # (batch, M, K)
    y = _matrix(builder, builder.as_float(right), b, e, batch, summed, columns)  # (batch, K, N)
    order = [*batch, *rows, *columns]
    perm = [order.index(c) for c in e.result]
    dims = [e.sizes[c] for c in order]
    straight = perm == list(range(len(perm))) and node.outputs[0].dtype == DataType.FLOAT
    target = builder.result(value) if straight else builder.allocate(dims, DataType.FLOAT, hint="product")
    m, n, k, count = (product(e.sizes[c] for c in part) for part in (rows, columns, summed, batch))
    product_of(builder, x, y, target, m, n, k, count)
    if straight:
        return
    lies = permuted(target.with_(dims, target.strides), perm)
    if node.outputs[0].dtype == DataType.FLOAT:
        builder.alias(value, lies)
    else:
        builder.copy_into(lies, builder.result(value))


def _sum_out(builder: Builder, view: View, labels: str, keep: set[str]) -> tuple[View, str]:
    """Labels that nobody else has are summed before anything else."""
    gone = [i for i, c in enumerate(labels) if c not in keep]
    if not gone:
        return view, labels
    left = [i for i in range(len(labels)) if i not in gone]
    target = builder.allocate([view.dims[i] for i in left], view.dtype, hint="summed")
    fold(builder, "ReduceSum", view, target, gone)
    return target, "".join(labels[i] for i in left)


def _matrix(
    builder: Builder, view: View, labels: str, e: Equation, batch: list[str], rows: list[str], columns: list[str]
) -> View:
    """The operand as (batch, rows, columns); copied only if a group of labels does not lie evenly."""
    order = [*batch, *rows, *columns]
    turned = permuted(view, [labels.index(c) for c in order])
    wanted = [e.sizes[c] for c in order]
    if turned.dims != tuple(wanted):  # stretched where it is 1, which may show only when the program runs
        strides = [spread(d, w, s) for d, w, s in zip(turned.dims, wanted, turned.strides)]
        turned = builder.copy(turned.with_(wanted, strides))
    groups = [product(e.sizes[c] for c in part) for part in (batch, rows, columns)]
    return reshape(turned, groups, builder)
