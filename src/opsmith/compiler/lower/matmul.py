"""MatMul and Gemm: packed weights on the right where they are constant, a strided batched product where they are not.

x (..., M, K) @ w (K, N) -> (..., M, N), with whatever elementwise nodes follow as the epilogue
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opsmith.analysis.matmul import is_plain
from opsmith.analysis.registry import Node
from opsmith.analysis.values import Constant, DataType
from opsmith.compiler import pack
from opsmith.compiler.kernel import (
    EPILOGUE,
    SPACE,
    Kernel,
    Micro,
    Space,
    read,
    size,
    size_list,
    sizes,
    write,
)
from opsmith.compiler.lower import int8
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.fuse import Extra, Group, anchored, lower_rest
from opsmith.compiler.lower.products import blocking, even_rows, row_stride, rows_kernel, rows_product
from opsmith.compiler.lower.registry import anchors
from opsmith.compiler.precision import BF16, FP32, INT8, Precision
from opsmith.compiler.program import IDENTITY, Argument, Buffer, Epilogue, Tunable, View
from opsmith.expressions import Literal
from opsmith.sizes import ONE, ZERO, Size, SizeLike, broadcast, name, product, spread

GEMM, GEMM_BF16 = (
    rows_kernel(name, "gemm.hpp", [read("a"), size("lda")], [read("b")], comment, tuned=True, micros=(Micro("a", b),))
    for name, comment, b in (
        ("gemm", "product with packed weights", "b"),
        ("gemm_bf16", "product in bf16 with packed weights", "bf16x2"),
    )
)
MATMUL = Kernel(
    "matmul",
    "gemm.hpp",
    [
        *sizes("batch", "m", "n", "k"),
        read("a"),
        *sizes("a_batch", "a_row", "a_col"),
        read("b"),
        *sizes("b_batch", "b_row", "b_col"),
        write("c"),
        *sizes("c_batch", "ldc"),
        SPACE,
        EPILOGUE,
    ],
    "product of two activations",
    Space("matmul_workspace", ("batch", "m", "n", "k")),
)
MATMUL_PLAIN = Kernel(
    "matmul_plain",
    "matmul_plain.hpp",
    [
        size_list("batch"),
        *sizes("m", "n", "k"),
        read("a"),
        size_list("a_batch"),
        *sizes("a_row", "a_col"),
        read("b"),
        size_list("b_batch"),
        *sizes("b_row", "b_col"),
        write("c"),
    ],
    "product in plain loops",
)

STORED_AS = {DataType.FLOAT: "f32", DataType.FLOAT16: "f16"}  # the storage types that the tuner knows


@anchors("MatMul")
def _matmul(node: Node, builder: Builder, group: Group) -> None:
    if is_plain(node):
        _lower_plain(node, builder)
        lower_rest(group, builder)
        return
    b = node.input(1)
    right = b.constant
    if right is not None and right.dims and (b.rank <= 2 or all(d == 1 for d in right.dims[:-2])):
        k, n = (right.dims[-2], right.dims[-1]) if b.rank > 1 else (right.dims[0], 1)
        weights = right.map("matrix", (k, n), lambda w: w.reshape(k, n))
        left = builder.tensor(node.ir.inputs[0])
        missing = max(0, b.rank - len(left.dims)) if b.rank > 2 else 0
        left = left.with_((ONE,) * missing + left.dims, (ONE,) * missing + left.strides)
        linear(node, builder, group, left, weights, column=b.rank != 1)
        return
    left, view = builder.tensor(node.ir.inputs[0]), builder.tensor(node.ir.inputs[1])
    if len(left.dims) == 1:
        left = left.with_((ONE, *left.dims), (left.dims[0], *left.strides))
    if len(view.dims) == 1:
        view = view.with_((*view.dims, ONE), (*view.strides, ONE))
    batched(node, builder, group, left, view)


@anchors("Gemm")
def _gemm(node: Node, builder: Builder, group: Group) -> None:
    alpha, beta = (float(node.attribute(a, 1.0)) for a in ("alpha", "beta"))
    left = builder.tensor(node.ir.inputs[0])
    if node.attribute("transA", 0):
        left = left.with_(left.dims[::-1], left.strides[::-1])
    bias: list[Extra] = []
    if node.has(2):
        factor = Literal(beta, DataType.FLOAT)
        bias = [Extra(lambda acc, c: acc + (c if beta == 1.0 else c * factor), builder.tensor(node.ir.inputs[2]))]
    right = node.input(1).constant
    transposed = bool(node.attribute("transB", 0))
    if right is not None:
        weights = right.map("t", right.dims[::-1], lambda w: w.T) if transposed else right
        if alpha != 1.0:
            weights = weights.map(f"x{alpha}", weights.dims, lambda w: w * np.asarray(alpha, w.dtype))
        linear(node, builder, group, left, weights, bias)
        return
    view = builder.tensor(node.ir.inputs[1])
    if transposed:
        view = view.with_(view.dims[::-1], view.strides[::-1])
    scale = [] if alpha == 1.0 else [Extra(lambda acc, _: acc * Literal(alpha, DataType.FLOAT))]
    batched(node, builder, group, left, view, [*scale, *bias])


# --- constant right-hand side ---


def linear(
    node: Node,
    builder: Builder,
    group: Group,
    left: View,
    weights: Constant,
    extras: Sequence[Extra] = (),
    column: bool = True,
) -> None:
    """left (..., K) @ weights (K, N): all leading dims together are the rows. `column` False: the last axis, of size 1, was
    squeezed away (matrix times vector)."""
    precision = builder.precision(node)
    left = builder.operand(left, precision) if precision is BF16 else left
    left = even_rows(left, builder)

    def emit(target: View, epilogue: Epilogue) -> None:
        multiply(builder, left, weights, target, epilogue, precision)

    anchored(node, builder, group, emit, extras, apart=not column)


def multiply(
    builder: Builder,
    left: View,
    weights: Constant,
    target: View,
    epilogue: Epilogue = IDENTITY,
    precision: Precision = FP32,
) -> None:
    """target (rows, N) = epilogue(left (rows, K) @ weights (K, N)); the rows of `left` lie evenly."""
    if precision is INT8:
        _multiply_bytes(builder, left, weights, target, epilogue)
        return
    k, n = weights.dims
    narrow = precision is not FP32
    store = pack_pairs(builder, weights) if narrow else pack_gemm(builder, weights)
    rows = product(left.dims[:-1])
    tunable = None
    if not narrow and left.dtype == DataType.FLOAT and store.dtype in STORED_AS:
        kernel = f"gemm_{STORED_AS[store.dtype]}"
        sizes: dict[str, SizeLike | str] = {"m": rows, "n": n, "k": k, "storage": STORED_AS[store.dtype]}
        tunable = Tunable("gemm", kernel, sizes, builder.limits(kernel))
    given: dict[str, Argument] = {"a": left, "lda": row_stride(left), "b": store, "blocking": blocking(tunable)}
    kernel_of = GEMM_BF16 if narrow else GEMM
    rows_product(builder, kernel_of, rows, k, n, given, target, epilogue, tunable=tunable, precision=precision)


def _multiply_bytes(builder: Builder, left: View, weights: Constant, target: View, epilogue: Epilogue) -> None:
    """`multiply` in int8."""
    k, n = weights.dims
    rows = product(left.dims[:-1])
    a = int8.quantized_rows(builder, left, rows, k, row_stride(left), weights)
    given = {**a.operands(k), **int8.columns(builder, weights)}
    rows_product(builder, int8.GEMM_INT8, rows, k, n, given, target, epilogue, precision=INT8)


def pack_gemm(builder: Builder, weights: Constant) -> Buffer:
    """Weights (K, N) packed for the GEMM, in their own storage type: half-precision weights are read as such."""
    weights = weights.stored or weights
    k, n = weights.dims
    isa = builder.target.isa
    packed = lambda: pack.pack_gemm(np.asarray(weights.read()), isa)  # noqa: E731
    return builder.packed(f"gemm({weights.key})", weights.dtype, k * isa.padded(n), packed)


def pack_pairs(builder: Builder, weights: Constant) -> Buffer:
    """Weights (K, N) in bf16, packed for its GEMM."""
    k, n = weights.dims
    isa = builder.target.isa
    packed = lambda: pack.pack_pairs(np.asarray(weights.read()), isa)  # noqa: E731
    return builder.packed(f"pairs({weights.key})", DataType.BFLOAT16, (k + k % 2) * isa.padded(n), packed)


# --- both sides computed ---


def batched(node: Node, builder: Builder, group: Group, left: View, right: View, extras: Sequence[Extra] = ()) -> None:
    """left (..., M, K) @ right (..., K, N) with any strides; batch dims that one stride cannot walk become loops."""
    left, right = builder.as_float(left), builder.as_float(right)
    rank = max(len(left.dims), len(right.dims))
    left, right = (_with_rank(v, rank) for v in (left, right))
    m, k, n = left.dims[-2], left.dims[-1], right.dims[-1]
    dims = [broadcast(a, b, node.given) for a, b in zip(left.dims[:-2], right.dims[:-2])]
    steps = [[spread(d, w, s) for d, w, s in zip(v.dims, dims, v.strides)] for v in (left, right)]
    loops, inner = _merge(dims, steps)
    count = dims[inner] if inner is not None else ONE
    a_step, b_step = (s[inner] if inner is not None else ZERO for s in steps)
    names = [f"# b{i}" for i in loops]  # no dim of a model is called so

    def emit(result: View, epilogue: Epilogue) -> None:
        target = result  # the kernel writes floats; other types are converted afterwards
        if result.dtype != DataType.FLOAT:
            target = builder.allocate(result.dims, DataType.FLOAT, hint=f"{result.buffer.name}_f32")
        a, b, c, step = left, right, target, count * m * n
        for i, loop in reversed(list(zip(loops, names))):
            a, b, c = (_moved(v, name(loop) * s) for v, s in ((a, steps[0][i]), (b, steps[1][i]), (c, step)))
            step = step * dims[i]
        walks = (a_step, *left.strides[-2:]), (b_step, *right.strides[-2:])
        around = [(loop, dims[i]) for i, loop in zip(loops, names)]
        _call(builder, (count, m, n, k), (a, b), walks, c, epilogue, flops=step * k * 2, loops=around)
        if target is not result:
            builder.copy_into(target, result)

    # Inside a loop an epilogue would see rows of its own batch only, so there the group runs as a map afterwards.
    squeezed = len(node.outputs[0].dims) != rank
    anchored(node, builder, group, emit, extras, outer=False, apart=bool(loops) or squeezed)


def _merge(dims: list[Size], steps: Sequence[list[Size]]) -> tuple[list[int], int | None]:
    """Batch dims that need a loop, and the one that the kernel walks itself; dims that both sides walk evenly become one."""
    loops = [i for i, d in enumerate(dims) if d != 1]
    inner = loops.pop() if loops else None
    while loops and inner is not None:
        outer = loops[-1]
        if any(s[outer] != s[inner] * dims[inner] for s in steps):
            break
        loops.pop()
        dims[inner], dims[outer] = dims[outer] * dims[inner], ONE
    return loops, inner


def _with_rank(view: View, rank: int) -> View:
    extra = rank - len(view.dims)
    return view.with_((ONE,) * extra + view.dims, (ZERO,) * extra + view.strides)


def _moved(view: View, by: Size) -> View:
    return view.with_(view.dims, view.strides, view.offset + by)


def product_of(
    builder: Builder,
    x: View,
    y: View,
    target: View,
    m: Size,
    n: Size,
    k: Size,
    count: Size,
    epilogue: Epilogue = IDENTITY,
) -> None:
    """target (count, m, n) = x (count, m, k) @ y (count, k, n), three strides each."""
    _call(builder, (count, m, n, k), (x, y), (x.strides, y.strides), target, epilogue, flops=count * m * n * k * 2)


def _call(
    builder: Builder,
    dims: tuple[Size, Size, Size, Size],
    factors: tuple[View, View],
    walks: tuple[Sequence[Size], Sequence[Size]],
    target: View,
    epilogue: Epilogue,
    **about: Any,
) -> None:
    """One strided batched product; a walk is a factor's steps from batch to batch, row to row, column to column."""
    count, m, n, k = dims
    (a_batch, a_row, a_col), (b_batch, b_row, b_col) = walks
    builder.call(
        MATMUL,
        batch=count,
        m=m,
        n=n,
        k=k,
        a=factors[0],
        a_batch=a_batch,
        a_row=a_row,
        a_col=a_col,
        b=factors[1],
        b_batch=b_batch,
        b_row=b_row,
        b_col=b_col,
        c=target,
        c_batch=m * n,
        ldc=n,
        epilogue=epilogue,
        comment=f"{count} x ({m}, {k}) @ ({k}, {n})",
        **about,
    )


# --- doubles and integers, in plain loops ---


def _lower_plain(node: Node, builder: Builder) -> None:
    left, right = builder.tensor(node.ir.inputs[0]), builder.tensor(node.ir.inputs[1])
    target = builder.result(node.ir.outputs[0])
    kept = 2 - (len(left.dims) == 1) - (len(right.dims) == 1)
    if len(left.dims) == 1:
        left = left.with_((ONE, *left.dims), (ZERO, *left.strides))
    if len(right.dims) == 1:
        right = right.with_((*right.dims, ONE), (*right.strides, ZERO))
    batch = target.dims[: len(target.dims) - kept]
    m, n, k = left.dims[-2], right.dims[-1], left.dims[-1]
    builder.call(
        MATMUL_PLAIN,
        batch=batch,
        m=m,
        n=n,
        k=k,
        a=left,
        a_batch=_batch_strides(left, batch),
        a_row=left.strides[-2],
        a_col=left.strides[-1],
        b=right,
        b_batch=_batch_strides(right, batch),
        b_row=right.strides[-2],
        b_col=right.strides[-1],
        c=target,
        comment=f"({m}, {k}) @ ({k}, {n})",
        flops=product(target.dims) * k * 2,
    )


def _batch_strides(view: View, batch: Sequence[Size]) -> tuple[Size, ...]:
    dims, strides = view.dims[:-2], view.strides[:-2]
    lead = len(batch) - len(dims)
    return (ZERO,) * lead + tuple(spread(d, w, s) for d, w, s in zip(dims, batch[lead:], strides))
