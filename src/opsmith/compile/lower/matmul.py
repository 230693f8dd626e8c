"""MatMul and Gemm: packed weights on the right where they are constant, a strided batched product where they are not.

x (..., M, K) @ w (K, N) -> (..., M, N), with whatever elementwise nodes follow as the epilogue
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from opsmith.compile import pack
from opsmith.compile.dims import ONE, ZERO, Dim, DimLike, product
from opsmith.compile.lower import fuse, matmul_plain
from opsmith.compile.lower.elementwise import broadcast_dims
from opsmith.compile.lower.program import Group, Lowering, Tunable, short_name
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import (
    CPP,
    FLOATS,
    Abstract,
    Array,
    Buffer,
    Constant,
    DataType,
    Unsupported,
    View,
    abstract,
    float_literal,
)


def _need_floats(node: Node, *indices: int) -> None:
    for i in indices:
        if node.has(i) and node.input(i).dtype not in FLOATS:
            raise Unsupported(f"{node.ir.op_type} on {node.input(i).dtype.name} stays with ONNX Runtime")


@infers("MatMul")
def _matmul(node: Node) -> list[Abstract]:
    if not matmul_plain.is_plain(node):
        _need_floats(node, 0, 1)
    a, b = node.input(0), node.input(1)
    if a.rank == 0 or b.rank == 0:
        raise Unsupported("a scalar operand")
    x = a.dims if a.rank > 1 else (ONE, *a.dims)
    y = b.dims if b.rank > 1 else (*b.dims, ONE)
    _check_inner(node, x[-1], y[-2])
    lead = broadcast_dims(node, x[:-2], y[:-2])
    dims = [*lead, *([x[-2]] if a.rank > 1 else []), *([y[-1]] if b.rank > 1 else [])]
    return [abstract(a.dtype, dims)]


def _check_inner(node: Node, a: Dim, b: Dim) -> None:
    if a == b:
        return
    if a.value is not None and b.value is not None:
        raise Unsupported(f"inner sizes {a} and {b} differ")
    node.checks.append((f"{a.cpp()} == {b.cpp()}", "the inner sizes of the product differ"))


@infers("Gemm")
def _gemm(node: Node) -> list[Abstract]:
    _need_floats(node, 0, 1, 2)
    a, b = node.input(0), node.input(1)
    m, k = (a.dims[1], a.dims[0]) if node.attribute("transA", 0) else a.dims
    j, n = (b.dims[1], b.dims[0]) if node.attribute("transB", 0) else b.dims
    _check_inner(node, k, j)
    if node.has(2):
        got = broadcast_dims(node, (m, n), node.input(2).dims)
        if got != (m, n):
            node.checks += [(f"{g.cpp()} == {w.cpp()}", "C does not broadcast") for g, w in zip(got, (m, n))]
    return [abstract(a.dtype, [m, n])]


@lowers("MatMul", anchor=True)
def _lower_matmul(node: Node, out: Lowering) -> None:
    if matmul_plain.is_plain(node):
        matmul_plain.lower(node, out)
        return
    b = node.input(1)
    right = b.constant
    if right is not None and right.dims and (b.rank <= 2 or all(d == 1 for d in right.dims[:-2])):
        k, n = (right.dims[-2], right.dims[-1]) if b.rank > 1 else (right.dims[0], 1)
        weights = right.map("matrix", (k, n), lambda w: w.reshape(k, n))
        left = out.tensor(node.ir.inputs[0])
        if b.rank > 2 and len(left.dims) < b.rank:
            left = left.with_(
                (ONE,) * (b.rank - len(left.dims)) + left.dims, (ONE,) * (b.rank - len(left.dims)) + left.strides
            )
        linear(node, out, left, weights, drop_column=b.rank == 1)
        return
    _lower_batched(node, out)


@lowers("Gemm", anchor=True)
def _lower_gemm(node: Node, out: Lowering) -> None:
    alpha, beta = float(node.attribute("alpha", 1.0)), float(node.attribute("beta", 1.0))
    left = out.tensor(node.ir.inputs[0])
    if node.attribute("transA", 0):
        left = left.with_(left.dims[::-1], left.strides[::-1])
    extra: list[fuse.ExtraLeaf] = []
    if node.has(2):
        scale = "" if beta == 1.0 else f" * splat({float_literal(beta)})"
        extra = [fuse.ExtraLeaf(out.tensor(node.ir.inputs[2]), f"acc + {{0}}{scale}")]
    right = node.input(1).constant
    transposed = bool(node.attribute("transB", 0))
    if right is not None:
        weights = right.map("t", right.dims[::-1], lambda w: w.T) if transposed else right
        if alpha != 1.0:
            weights = weights.map(f"x{alpha}", weights.dims, lambda w: w * np.asarray(alpha, w.dtype))
        linear(node, out, left, weights, extra)
        return
    view = out.tensor(node.ir.inputs[1])
    if transposed:
        view = view.with_(view.dims[::-1], view.strides[::-1])
    if alpha != 1.0:
        scale = f"acc * splat({float_literal(alpha)})"
        extra = [fuse.ExtraLeaf(e.view, e.template.replace("acc", f"({scale})")) for e in extra]
        if not extra:
            one = out.weight(Constant("alpha:1", DataType.FLOAT, (1,), lambda: np.ones(1, np.float32)))
            extra = [fuse.ExtraLeaf(one, f"{scale} * {{0}}")]
    batched(node, out, left, view, extra)


# --- constant right-hand side ---


def linear(
    node: Node,
    out: Lowering,
    left: View,
    weights: Constant,
    extra: Sequence[fuse.ExtraLeaf] = (),
    drop_column: bool = False,
) -> None:
    """left (..., K) @ weights (K, N): all leading dims together are the rows."""
    k, n = weights.dims
    left = _even_rows(left, out)
    rows = product(left.dims[:-1])
    store = pack_gemm(out, weights)

    def emit(target: View, epilogue: fuse.Epilogue) -> None:
        ta, tc = CPP[left.dtype], CPP[target.dtype]
        tb = CPP[store.dtype]
        kernel = f"gemm_{STORED_AS.get(store.dtype, tb)}"
        parameter, limit, argument, tunable = tuned_product(
            out,
            "gemm",
            kernel,
            {"m": rows, "n": n, "k": k, "storage": kernel[5:]},
            ta == "float" and store.dtype in STORED_AS,
        )
        name = out.instance(
            f"gemm_{epilogue.slug}" if epilogue.slug else "gemm",
            f"const Pool& pool, i64 m, i64 n, i64 k, const {ta}* a, i64 lda, const {tb}* b, {tc}* c, i64 ldc, [[maybe_unused]] i64 rows_per_item{parameter}{epilogue.parameters}",
            f"gemm(pool, m, n, k, a, lda, b, c, ldc, {epilogue.lambda_text}, rows_per_item{limit});",
            ("gemm.hpp", "elementwise.hpp"),
            f"product with packed weights{'; then ' + epilogue.comment if epilogue.comment else ''}",
        )
        lda = left.strides[-2] if len(left.dims) > 1 else left.dims[-1]
        arguments = [
            out.cpp(rows),
            str(n),
            str(k),
            out.pointer(left),
            out.cpp(lda),
            store.name,
            out.pointer(target),
            str(n),
            out.cpp(product(target.dims[1:-1])),
        ]
        out.call(
            name,
            f"{name}(pool, {', '.join(arguments)}{argument}{epilogue.arguments});",
            reads=[left, store, *epilogue.views],
            writes=[target],
            comment=f"({rows}, {k}) @ ({k}, {n}){'; ' + epilogue.comment if epilogue.comment else ''}",
            flops=rows * (2 * k * n),
            tunable=tunable,
        )

    anchored(node, out, emit, extra, column=not drop_column)


STORED_AS = {DataType.FLOAT: "f32", DataType.FLOAT16: "f16"}  # the storage types that the tuner knows


def tuned_product(
    out: Lowering, family: str, kernel: str, sizes: Mapping[str, DimLike | str], known: bool
) -> tuple[str, str, str, Tunable | None]:
    """C++ of the instance's parameter, of its use and of the call's argument; empty unless the tuner found something better
    than the kernel's own choice of limits."""
    if not known:
        return "", "", "", None
    limits = out.limits(kernel)
    tunable = Tunable(family, kernel, sizes, limits)
    if limits is None:
        return "", "", "", tunable
    out.program.instance_headers.add("gemm_micro.hpp")
    return ", Blocking blocking", ", blocking", f", Blocking{{{limits.rows}, {limits.panels}}}", tunable


def pack_gemm(out: Lowering, weights: Constant) -> Buffer:
    """Weights (K, N) packed for the GEMM, in their own storage type: half-precision weights are read as such."""
    weights = weights.stored or weights
    k, n = weights.dims
    lanes = out.target.lanes
    return out.packed(
        f"gemm({weights.key})",
        weights.dtype,
        k * -(-n // lanes) * lanes,
        weights.dtype.itemsize,
        lambda: pack.pack_gemm(np.asarray(weights.read()), lanes),
    )


def _even_rows(left: View, out: Lowering) -> View:
    """Rows that one stride walks over, contiguous inside."""
    if left.strides[-1] == 1 or left.dims[-1] == 1:
        rest = left.with_(left.dims[:-1], left.strides[:-1])
        if fuse._even(rest.strides, rest.dims):
            step = next((s for s, d in zip(reversed(rest.strides), reversed(rest.dims)) if d != 1), left.dims[-1])
            strides = [*rest.strides]
            if strides:
                strides[-1] = step
            return left.with_(left.dims, [*strides, ONE])
    return out.dense(left)


def anchored(
    node: Node,
    out: Lowering,
    emit: Callable[[View, fuse.Epilogue], None],
    extra: Sequence[fuse.ExtraLeaf] = (),
    column: bool = True,
    outer: bool = True,
    order: Sequence[int] | None = None,
) -> None:
    """Run `emit(target, epilogue)` with the node's group as epilogue, or store the plain result and run the group as a map.

    The output lies in `order`; `column` False means that its last axis was squeezed away (matrix times vector).
    """
    anchor, group = node.ir, out.group
    order = order or tuple(range(len(out.facts[anchor.outputs[0]].dims)))
    if column:
        epilogue = fuse.plan_epilogue(group, out, out.known, order, extra, outer)
        if epilogue is not None:
            emit(out.result(group.root.outputs[0], order), epilogue)
            return
    plain = Group(anchor, [], anchor)
    if not column and not extra:
        epilogue = fuse.Epilogue(fuse.IDENTITY, "", "", [], "", "", 0)
    else:
        epilogue = fuse.plan_epilogue(plain, out, out.known, order, extra, outer)
    if epilogue is None:
        raise Unsupported("an operand cannot be read row by row")
    emit(out.result(anchor.outputs[0], order), epilogue)
    if group.nodes:
        fuse.lower_map(Group(group.root, group.nodes), out, out.known)


# --- both sides computed ---


def _lower_batched(node: Node, out: Lowering) -> None:
    left, right = out.tensor(node.ir.inputs[0]), out.tensor(node.ir.inputs[1])
    if len(left.dims) == 1:
        left = left.with_((ONE, *left.dims), (left.dims[0], *left.strides))
    if len(right.dims) == 1:
        right = right.with_((*right.dims, ONE), (*right.strides, ONE))
    batched(node, out, left, right)


def batched(node: Node, out: Lowering, left: View, right: View, extra: Sequence[fuse.ExtraLeaf] = ()) -> None:
    """left (..., M, K) @ right (..., K, N) with any strides; batch dims that one stride cannot walk become loops."""
    facts = out.facts[node.ir.outputs[0]]
    left, right = as_float(left, out), as_float(right, out)
    rank = max(len(left.dims), len(right.dims))
    left, right = (_lead(v, rank) for v in (left, right))
    m, k, n = left.dims[-2], left.dims[-1], right.dims[-1]
    dims = [_wider(a, b) for a, b in zip(left.dims[:-2], right.dims[:-2])]
    a_strides = [_batch_stride(d, s, w) for d, s, w in zip(left.dims, left.strides, dims)]
    b_strides = [_batch_stride(d, s, w) for d, s, w in zip(right.dims, right.strides, dims)]
    loops = [i for i, d in enumerate(dims) if d != 1]
    squeezed = len(facts.dims) != rank
    inner = loops.pop() if loops else None
    while loops and inner is not None:  # merge batch dims that both sides walk evenly
        outer = loops[-1]
        if any(s[outer] != s[inner] * dims[inner] for s in (a_strides, b_strides)):
            break
        loops.pop()
        dims[inner] = dims[outer] * dims[inner]
        dims[outer] = ONE
    count = dims[inner] if inner is not None else ONE
    a_step = a_strides[inner] if inner is not None else ZERO
    b_step = b_strides[inner] if inner is not None else ZERO

    def emit(result: View, epilogue: fuse.Epilogue) -> None:
        target = result  # the kernel writes floats; other types are converted afterwards
        if result.dtype != DataType.FLOAT:
            target = out.allocate(result.dims, DataType.FLOAT, hint=f"{result.buffer.name}_f32")
        name = out.instance(
            f"matmul_{epilogue.slug}" if epilogue.slug else "matmul",
            "const Pool& pool, i64 batch, i64 m, i64 n, i64 k, const float* a, i64 a_batch, i64 a_row, i64 a_col, const float* b, "
            f"i64 b_batch, i64 b_row, i64 b_col, {CPP[target.dtype]}* c, i64 c_batch, i64 ldc, void* workspace{epilogue.parameters}",
            "matmul(pool, batch, m, n, k, a, a_batch, a_row, a_col, b, b_batch, b_row, b_col, c, c_batch, ldc, workspace, "
            f"{epilogue.lambda_text});",
            ("gemm.hpp", "elementwise.hpp"),
            f"product of two activations{'; then ' + epilogue.comment if epilogue.comment else ''}",
        )
        text = out.cpp
        space = out.workspace(f"matmul_workspace({text(count)}, {text(m)}, {text(n)}, {text(k)})", "gemm.hpp")
        a_at, b_at, c_at = out.pointer(left), out.pointer(right), out.pointer(target)
        head, depth = "", ""
        step = count * m * n
        for i in reversed(loops):
            head = f"for (i64 b{i} = 0; b{i} < {text(dims[i])}; ++b{i}) " + head
            a_at += f" + b{i} * {text(a_strides[i])}"
            b_at += f" + b{i} * {text(b_strides[i])}"
            c_at += f" + b{i} * {text(step)}"
            step = step * dims[i]
        arguments = [
            text(count), text(m), text(n), text(k), a_at, text(a_step), text(left.strides[-2]), text(left.strides[-1]),
            b_at, text(b_step), text(right.strides[-2]), text(right.strides[-1]), c_at, text(m * n), text(n), space,
        ]  # fmt: skip
        out.call(
            name,
            f"{head}{name}(pool, {', '.join(arguments)}{epilogue.arguments});{depth}",
            reads=[left, right, *epilogue.views],
            writes=[target],
            comment=f"{count} x ({m}, {k}) @ ({k}, {n})",
            flops=step * k * 2,
        )
        if target is not result:
            out.emit_copy(target, result)

    # Inside a loop an epilogue would see rows of its own batch only, so there the group runs as a map afterwards.
    if loops or squeezed:
        group = out.group
        plain = fuse.Epilogue(fuse.IDENTITY, "", "", [], "", "", 0)
        if extra:
            raise Unsupported("an added operand in a looped product")
        emit(out.result(node.ir.outputs[0]), plain)
        if group.nodes:
            fuse.lower_map(Group(group.root, group.nodes), out, out.known)
        return
    anchored(node, out, emit, extra, outer=False)


def as_float(view: View, out: Lowering) -> View:
    """The value in fp32; kernels that compute in place on activations want that."""
    if view.dtype == DataType.FLOAT:
        return view
    target = out.allocate(view.dims, DataType.FLOAT, hint=f"{view.buffer.name}_f32")
    out.emit_copy(view, target)
    return target


def _lead(view: View, rank: int) -> View:
    extra = rank - len(view.dims)
    return view.with_((ONE,) * extra + view.dims, (ZERO,) * extra + view.strides)


def _wider(a: Dim, b: Dim) -> Dim:
    from opsmith.compile.dims import broadcast

    return broadcast(a, b)


def _batch_stride(d: Dim, s: Dim, wanted: Dim) -> Dim:
    from opsmith.compile.dims import call

    if d == wanted:
        return s
    return ZERO if d == 1 else call("spread", d, s)


__all__ = ["Array", "anchored", "batched", "ir", "linear", "pack_gemm", "short_name"]
