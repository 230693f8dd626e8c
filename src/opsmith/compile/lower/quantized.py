"""Products with weights of 8 or 4 bits in blocks: the kernel reads the packed integers directly.

x (..., K) @ dequantize(q (K, N), scales (K / block, N)) -> (..., N)
"""

from __future__ import annotations

from opsmith.compile import pack
from opsmith.compile.dims import DimLike, product
from opsmith.compile.lower import fuse
from opsmith.compile.lower.matmul import STORED_AS, _even_rows, anchored, tuned_product
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import CPP, FLOATS, Abstract, Array, DataType, Unsupported, View, abstract


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
    if node.has(3) and node.input(3).dtype != DataType.UINT8:
        raise Unsupported("zero points of a floating type")
    if x.dims[-1] != k:
        node.checks.append((f"{x.dims[-1].cpp()} == {k}", "the inner sizes of the product differ"))
    return [abstract(x.dtype, [*x.dims[:-1], n])]


@lowers("com.microsoft::MatMulNBits", anchor=True)
def _lower_matmul_nbits(node: Node, out: Lowering) -> None:
    left = _even_rows(out.tensor(node.ir.inputs[0]), out)
    k, n, bits, block = (int(node.attribute(a)) for a in ("K", "N", "bits", "block_size"))
    zero = node.has(3)
    scale_type = node.input(2).dtype
    lanes = out.target.lanes
    columns, blocks = -(-n // lanes) * lanes, -(-k // block)
    size = blocks * (columns * (int(scale_type.itemsize) + zero) + block * columns * bits // 8)

    def weights() -> Array:
        return pack.pack_quantized(
            pack.unpack_matmul_nbits(
                node.array(1, "the weights"), node.array(2, "the scales"), node.array(3, "the zero points") if zero else None,
                k=k, n=n, bits=bits, block=block,
            ),
            lanes,
        )  # fmt: skip

    key = f"nbits({(node.ir.inputs[1] or node.ir.outputs[0]).name})"
    store = out.packed(key, DataType.UINT8, size, 1, weights)
    rows = product(left.dims[:-1])
    bias = [fuse.ExtraLeaf(out.tensor(node.ir.inputs[5]), "acc + {0}")] if node.has(5) else []

    def emit(target: View, epilogue: fuse.Epilogue) -> None:
        ta, tc, ts = CPP[left.dtype], CPP[target.dtype], CPP[scale_type]
        kernel = f"int{bits}_{STORED_AS.get(scale_type, '')}{'_zero' if zero else ''}"
        parameter, limit, argument, tunable = tuned_product(
            out, "quantized", kernel, {"m": rows, "n": n, "k": k, "block": block, "storage": kernel},
            ta == tc == "float" and scale_type in STORED_AS,
        )  # fmt: skip
        name = out.instance(
            f"gemm_int{bits}_{epilogue.slug}" if epilogue.slug else f"gemm_int{bits}",
            f"const Pool& pool, i64 m, i64 n, i64 k, i64 block, const {ta}* a, i64 lda, const uint8_t* b, {tc}* c, i64 ldc, "
            f"[[maybe_unused]] i64 rows_per_item{parameter}{epilogue.parameters}",
            f"gemm_quantized<{bits}, {ts}, {str(zero).lower()}>(pool, m, n, k, block, a, lda, b, c, ldc, {epilogue.lambda_text}, rows_per_item{limit});",
            ("quant.hpp", "elementwise.hpp"),
            f"product with {bits}-bit weights{'; then ' + epilogue.comment if epilogue.comment else ''}",
        )
        lda = left.strides[-2] if len(left.dims) > 1 else left.dims[-1]
        numbers: list[DimLike] = [rows, n, k, block]
        arguments = [
            *(out.cpp(v) for v in numbers),
            out.pointer(left),
            out.cpp(lda),
            store.name,
            out.pointer(target),
            str(n),
        ]
        out.call(
            name,
            f"{name}(pool, {', '.join(arguments)}, {out.cpp(product(target.dims[1:-1]))}{argument}{epilogue.arguments});",
            reads=[left, store, *epilogue.views],
            writes=[target],
            comment=f"({rows}, {k}) @ int{bits} ({k}, {n}){'; ' + epilogue.comment if epilogue.comment else ''}",
            flops=rows * (2 * k * n),
            notes=[f"int{bits} weights in blocks of {block}"],
            tunable=tunable,
        )

    anchored(node, out, emit, bias)
