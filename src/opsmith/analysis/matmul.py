"""MatMul, Gemm, and products with weights of 8 or 4 bits in blocks.

x (..., M, K) @ w (K, N) -> (..., M, N)
"""

from __future__ import annotations

from opsmith.analysis.elementwise import broadcast_dims
from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import FLOATS, Abstract, DataType, Unsupported, abstract
from opsmith.sizes import ONE

_DIFFER = "the inner sizes of the product differ"
PLAIN = (DataType.DOUBLE, DataType.INT32, DataType.INT64, DataType.UINT32, DataType.UINT64)


def is_plain(node: Node) -> bool:
    """Doubles and integers go through plain loops."""
    return node.input(0).dtype in PLAIN and node.input(1).dtype == node.input(0).dtype


def _need_floats(node: Node, *indices: int) -> None:
    for i in indices:
        if node.has(i) and node.input(i).dtype not in FLOATS:
            raise Unsupported(f"{node.op} on {node.input(i).dtype.name} stays with ONNX Runtime")


@infers("MatMul")
def _matmul(node: Node) -> list[Abstract]:
    if not is_plain(node):
        _need_floats(node, 0, 1)
    a, b = node.input(0), node.input(1)
    if a.rank == 0 or b.rank == 0:
        raise Unsupported("a scalar operand")
    x = a.dims if a.rank > 1 else (ONE, *a.dims)
    y = b.dims if b.rank > 1 else (*b.dims, ONE)
    node.expect(x[-1], "==", y[-2], _DIFFER)
    lead = broadcast_dims(node, x[:-2], y[:-2])
    dims = [*lead, *([x[-2]] if a.rank > 1 else []), *([y[-1]] if b.rank > 1 else [])]
    return [abstract(a.dtype, dims)]


@infers("Gemm")
def _gemm(node: Node) -> list[Abstract]:
    _need_floats(node, 0, 1, 2)
    a, b = node.input(0), node.input(1)
    m, k = (a.dims[1], a.dims[0]) if node.attribute("transA", 0) else a.dims
    j, n = (b.dims[1], b.dims[0]) if node.attribute("transB", 0) else b.dims
    node.expect(k, "==", j, _DIFFER)
    if node.has(2):
        node.expect_all(broadcast_dims(node, (m, n), node.input(2).dims), "==", (m, n), "C does not broadcast")
    return [abstract(a.dtype, [m, n])]


@infers("com.microsoft::MatMulNBits")
def _matmul_nbits(node: Node) -> list[Abstract]:
    x = node.input(0)
    k, n, bits, block = (int(node.attribute(a, 0)) for a in ("K", "N", "bits", "block_size"))
    if x.dtype not in FLOATS or bits not in (4, 8) or not 16 <= block <= 256 or block % 8:
        raise Unsupported(f"MatMulNBits of {bits} bits in blocks of {block}")
    if node.has(4):
        raise Unsupported("MatMulNBits with a group index")
    for i in (1, 2, *([3] if node.has(3) else [])):
        if node.input(i).constant is None:
            raise Unsupported("the weights are not constant")
    # ONNX Runtime takes zero points of the scales' type for 4 bits only.
    if node.has(3) and node.input(3).dtype not in (DataType.UINT8, *([node.input(2).dtype] if bits == 4 else [])):
        raise Unsupported(f"zero points of the type {node.input(3).dtype.name} for {bits} bits")
    node.expect(x.dims[-1], "==", k, _DIFFER)
    return [abstract(x.dtype, [*x.dims[:-1], n])]
