"""MatMul of doubles and integers: a (..., M, K) @ b (..., K, N), any strides, in plain loops."""

from __future__ import annotations

from opsmith.compile.dims import ONE, ZERO, Dim, call
from opsmith.compile.lower import fuse
from opsmith.compile.lower.axes import sizes
from opsmith.compile.lower.program import Group, Lowering
from opsmith.compile.lower.registry import Node
from opsmith.compile.values import CPP, DataType, View

TYPES = (DataType.DOUBLE, DataType.INT32, DataType.INT64, DataType.UINT32, DataType.UINT64)


def is_plain(node: Node) -> bool:
    return node.input(0).dtype in TYPES and node.input(1).dtype == node.input(0).dtype


def lower(node: Node, out: Lowering) -> None:
    left, right = out.tensor(node.ir.inputs[0]), out.tensor(node.ir.inputs[1])
    target = out.result(node.ir.outputs[0])
    if len(left.dims) == 1:
        left = left.with_((ONE, *left.dims), (ZERO, *left.strides))
    if len(right.dims) == 1:
        right = right.with_((*right.dims, ONE), (*right.strides, ZERO))
    kept = 2 - (len(node.input(0).dims) == 1) - (len(node.input(1).dims) == 1)
    batch = target.dims[: len(target.dims) - kept]
    t = CPP[target.dtype]
    name = out.instance(
        "matmul_plain",
        f"const Pool& pool, const Sizes& batch, i64 m, i64 n, i64 k, const {t}* a, const Sizes& a_batch, i64 a_row, i64 a_col, const {t}* b, "
        f"const Sizes& b_batch, i64 b_row, i64 b_col, {t}* c",
        "matmul_plain(pool, batch, m, n, k, a, a_batch, a_row, a_col, b, b_batch, b_row, b_col, c);",
        ("matmul_plain.hpp",),
        f"product of {t}",
    )
    out.program.instance_headers.add("sizes.hpp")
    m, n, k = left.dims[-2], right.dims[-1], left.dims[-1]
    arguments = [sizes(out, batch), *(out.cpp(d) for d in (m, n, k))]
    for view in (left, right):
        arguments += [out.pointer(view), sizes(out, _batch_strides(view, batch))]
        arguments += [out.cpp(s) for s in view.strides[-2:]]
    out.call(
        name, f"{name}(pool, {', '.join([*arguments, out.pointer(target)])});", reads=[left, right], writes=[target],
        comment=f"({m}, {k}) @ ({k}, {n})", flops=m * n * k * 2,
    )  # fmt: skip
    if out.group.nodes:
        fuse.lower_map(Group(out.group.root, out.group.nodes), out, out.known)


def _batch_strides(view: View, batch: tuple[Dim, ...]) -> list[Dim]:
    own = view.dims[:-2]
    lead = len(batch) - len(own)
    strides = [ZERO] * lead
    for d, s, w in zip(own, view.strides, batch[lead:]):
        strides.append(s if d == w else ZERO if d == 1 else call("spread", d, s))
    return strides
