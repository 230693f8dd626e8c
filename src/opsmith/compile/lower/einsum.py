"""Einsum of one or two operands: transposed views, and one batched product.

"bhid,bhjd->bhij": labels in both operands and the result are batch dims, labels in both but not in the result are summed (K), the
others are rows (M) of the left or columns (N) of the right. All of it is strides; only what does not lie evenly is copied.
"""

from __future__ import annotations

import dataclasses
import string

from opsmith.compile.dims import Dim, broadcast, product
from opsmith.compile.lower.axes import sizes
from opsmith.compile.lower.matmul import as_float
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.lower.view import reshape
from opsmith.compile.values import CPP, FLOATS, Abstract, DataType, Unsupported, View, abstract, permuted


@dataclasses.dataclass
class _Equation:
    operands: list[str]  # one letter per dim
    result: str
    sizes: dict[str, Dim]


def _equation(node: Node) -> _Equation:
    text = str(node.attribute("equation", "")).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    present = [node.input(i) for i in range(len(node.inputs))]
    if len(terms) != len(present) or not 1 <= len(terms) <= 2:
        raise Unsupported(f"Einsum of {len(present)} operands")
    free = [c for c in string.ascii_uppercase + string.ascii_lowercase if c not in text]
    spread = max((x.rank - len(t.replace("...", "")) for t, x in zip(terms, present) if "..." in t), default=0)
    dots = "".join(free[:spread])
    operands: list[str] = []
    for term, x in zip(terms, present):
        named = len(term.replace("...", ""))
        count = x.rank - named
        if ("..." not in term and count != 0) or count < 0:
            raise Unsupported("the equation does not fit the ranks")
        operands.append(term.replace("...", dots[spread - count :] if count else ""))
    if arrow:
        result = right.replace("...", dots)
    else:
        letters = sorted(c for c in set("".join(operands)) - set(dots))
        result = dots + "".join(c for c in letters if sum(o.count(c) for o in operands) == 1)
    found: dict[str, Dim] = {}
    for labels, x in zip(operands, present):
        if len(set(labels)) != len(labels):
            raise Unsupported("a label that is repeated within one operand")
        for label, size in zip(labels, x.dims):
            old = found.get(label, size)
            if old != size and label not in dots:
                if old.value is not None and size.value is not None:
                    raise Unsupported("sizes of one label differ")
                node.checks.append((f"{old.cpp()} == {size.cpp()}", "sizes of one label differ"))
            if old != size and label in dots and 1 not in (old.value, size.value):
                raise Unsupported("broadcast dims differ")
            found[label] = broadcast(old, size) if label in dots else old
    if len(set(result)) != len(result) or not set(result) <= set(found):
        raise Unsupported("the result repeats a label or names an unknown one")
    return _Equation(operands, result, found)


@infers("Einsum")
def _einsum(node: Node) -> list[Abstract]:
    e = _equation(node)
    dtype = node.input(0).dtype
    if any(v is None or v.dtype != dtype for v in node.inputs) or dtype not in FLOATS:
        raise Unsupported(f"Einsum on {dtype.name}")
    return [abstract(dtype, [e.sizes[c] for c in e.result])]


@lowers("Einsum")
def _lower_einsum(node: Node, out: Lowering) -> None:
    e = _equation(node)
    value = node.ir.outputs[0]
    views = [out.tensor(v) for v in node.ir.inputs]
    labels = list(e.operands)
    for i, other in enumerate([labels[1] if len(labels) > 1 else "", labels[0]][: len(labels)]):
        views[i], labels[i] = _sum_out(out, views[i], labels[i], keep=set(e.result) | set(other))
    if len(views) == 1:
        out.alias(value, permuted(views[0], [labels[0].index(c) for c in e.result]))
        return
    left, right = views
    a, b = labels
    batch = [c for c in e.result if c in a and c in b]
    summed = [c for c in a if c in b and c not in e.result]
    rows = [c for c in e.result if c in a and c not in b]
    columns = [c for c in e.result if c in b and c not in a]
    target_dims = [e.sizes[c] for c in (*batch, *rows, *columns)]
    x = _matrix(out, as_float(left, out), a, e, batch, rows, summed)  # (batch, M, K)
    y = _matrix(out, as_float(right, out), b, e, batch, summed, columns)  # (batch, K, N)
    order = [*batch, *rows, *columns]
    perm = [order.index(c) for c in e.result]
    straight = perm == list(range(len(perm))) and out.facts[value].dtype == DataType.FLOAT
    target = out.result(value) if straight else out.allocate(target_dims, DataType.FLOAT, hint="product")
    m, n, k = (product(e.sizes[c] for c in part) for part in (rows, columns, summed))
    count = product(e.sizes[c] for c in batch)
    name = out.instance(
        "matmul",
        "const Pool& pool, i64 batch, i64 m, i64 n, i64 k, const float* a, i64 a_batch, i64 a_row, i64 a_col, const float* b, "
        "i64 b_batch, i64 b_row, i64 b_col, float* c, i64 c_batch, i64 ldc, void* workspace",
        "matmul(pool, batch, m, n, k, a, a_batch, a_row, a_col, b, b_batch, b_row, b_col, c, c_batch, ldc, workspace, "
        "[](F acc, Row, i64, auto) -> F { return acc; });",
        ("gemm.hpp", "elementwise.hpp"),
        "product of two activations",
    )
    text = out.cpp
    space = out.workspace(f"matmul_workspace({text(count)}, {text(m)}, {text(n)}, {text(k)})", "gemm.hpp")
    arguments = [
        text(count), text(m), text(n), text(k), out.pointer(x), *(text(s) for s in x.strides),
        out.pointer(y), *(text(s) for s in y.strides), out.pointer(target), text(m * n), text(n), space,
    ]  # fmt: skip
    out.call(
        name, f"{name}(pool, {', '.join(arguments)});", reads=[x, y], writes=[target],
        comment=f"{count} x ({m}, {k}) @ ({k}, {n})", flops=count * m * n * k * 2,
    )  # fmt: skip
    if straight:
        return
    lies = permuted(target.with_(target_dims, target.strides), perm)
    if out.facts[value].dtype == DataType.FLOAT:
        out.alias(value, lies)
    else:
        out.emit_copy(lies, out.result(value))


def _sum_out(out: Lowering, view: View, labels: str, keep: set[str]) -> tuple[View, str]:
    """Labels that nobody else has are summed before anything else."""
    gone = [i for i, c in enumerate(labels) if c not in keep]
    if not gone:
        return view, labels
    t = CPP[view.dtype]
    left = [i for i in range(len(labels)) if i not in gone]
    target = out.allocate([view.dims[i] for i in left], view.dtype, hint="summed")
    name = out.instance(
        "reducesum",
        f"const Pool& pool, const Sizes& dims, const Sizes& strides, const Sizes& axes, bool every, const {t}* x, {t}* y",
        f"fold<FoldSum, {t}, {t}>(pool, dims, strides, axes, every, x, y);",
        ("fold.hpp",),
        "ReduceSum over any axes",
    )
    out.program.instance_headers.add("sizes.hpp")
    arguments = [sizes(out, view.dims), sizes(out, view.strides), sizes(out, gone), "false"]
    out.call(
        name, f"{name}(pool, {', '.join([*arguments, out.pointer(view), out.pointer(target)])});",
        reads=[view], writes=[target], comment="sum over labels of one operand", flops=product(view.dims),
    )  # fmt: skip
    return target, "".join(labels[i] for i in left)


def _matrix(
    out: Lowering, view: View, labels: str, e: _Equation, batch: list[str], rows: list[str], columns: list[str]
) -> View:
    """The operand as (batch, rows, columns); copied only if a group of labels does not lie evenly."""
    order = [*batch, *rows, *columns]
    turned = permuted(view, [labels.index(c) for c in order])
    wanted = [e.sizes[c] for c in order]
    if any(d != w for d, w in zip(turned.dims, wanted)):  # a broadcast dim
        strides = [s if d == w else s * 0 for d, w, s in zip(turned.dims, wanted, turned.strides)]
        turned = out.copy(turned.with_(wanted, strides))
    groups = [product(e.sizes[c] for c in part) for part in (batch, rows, columns)]
    return reshape(turned, groups, out)
