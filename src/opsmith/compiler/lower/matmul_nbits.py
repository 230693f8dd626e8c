"""MatMulNBits: weights of 8 or 4 bits in blocks, which the kernels read as they are.

x (..., K) @ dequantize(q (K, N), scales (K / block, N)) -> (..., N)

In fp32 the rows of x stay floats (quant.hpp); few of them may go through 16 bits (quant_rows.hpp). In int8 they become bytes, too:

x (rows, K)   -> bytes (rows, K filled up to blocks), unit and sum (rows, blocks)     quantize_blocks.hpp
q (K, N)      as it is, its integers as words of bytes                                gemm_blocks.hpp
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from opsmith.analysis.registry import Node
from opsmith.analysis.values import DataType
from opsmith.compiler import pack
from opsmith.compiler.geometry import InstructionSet
from opsmith.compiler.kernel import Kernel, Micro, read, size, sizes, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.fuse import Extra, Group, anchored
from opsmith.compiler.lower.matmul import STORED_AS
from opsmith.compiler.lower.products import blocking, even_rows, row_stride, rows_kernel, rows_product
from opsmith.compiler.lower.registry import anchors
from opsmith.compiler.precision import FP32, INT8, Precision
from opsmith.compiler.program import Argument, Buffer, Enumerator, Epilogue, Tunable, View
from opsmith.sizes import Size, SizeLike, as_size, product

_SHAPE = ("m", "n", "k", "block")
GEMM_QUANTIZED = rows_kernel(
    "gemm_quantized",
    "quant.hpp",
    [read("a"), size("lda")],
    [read("b")],
    "product with weights of few bits",
    shape=_SHAPE,
    tuned=True,
    micros=(Micro("a", "float"),),
)
QUANTIZE_BLOCKS = Kernel(
    "quantize_blocks",
    "quantize_blocks.hpp",
    [
        *sizes("rows", "columns", "block"),
        read("x"),
        size("x_row"),
        write("y", dtype=DataType.INT8),
        write("units", dtype=DataType.FLOAT),
        write("sums", dtype=DataType.FLOAT),
    ],
    "rows become bytes in blocks",
)
GEMM_BLOCKS = rows_kernel(
    "gemm_blocks",
    "gemm_blocks.hpp",
    [
        read("a", dtype=DataType.INT8),
        read("a_units", dtype=DataType.FLOAT),
        read("a_sums", dtype=DataType.FLOAT),
    ],
    [read("b", dtype=DataType.UINT8)],
    "product of bytes with weights in blocks",
    shape=_SHAPE,
)

# Notes of a call whose rows are rounded.
FEW_ROWS = "3 to 16 rows by quantized weights in 16 bits, rounded to 2^-16 of the largest of a block"  # quant_rows.hpp
IN_BYTES = "rows in bytes, rounded to 2^-8 of the largest of a block"


class Zeros(NamedTuple):
    """How the zero points of weights in blocks are stored: for the kernel (quant_rows.hpp), and for the tuner."""

    template: Enumerator
    suffix: str


NO_ZEROS, BYTE_ZEROS, FLOAT_ZEROS = (
    Zeros(Enumerator(name), suffix)
    for name, suffix in (("kNoZeros", ""), ("kByteZeros", "_zero"), ("kFloatZeros", "_float_zero"))
)


@anchors("com.microsoft::MatMulNBits")
def _matmul_nbits(node: Node, builder: Builder, group: Group) -> None:
    """x (..., K) @ dequantize(q (K, N), scales (K / block, N)) -> (..., N)"""
    left = even_rows(builder.tensor(node.ir.inputs[0]), builder)
    bias = [Extra(lambda acc, b: acc + b, builder.tensor(node.ir.inputs[5]))] if node.has(5) else []
    precision = FP32 if builder.target.strict else builder.target.precision_of(node.name)
    emit = _in_bytes if precision is INT8 else _in_floats
    anchored(node, builder, group, partial(emit, node, builder, left, _Blocks.of(node), precision), bias)


class _Blocks(NamedTuple):
    """A weight (K, N) in blocks, as a MatMulNBits has it."""

    name: str
    k: int
    n: int
    bits: int
    block: int
    scale_type: DataType
    zeros: Zeros
    zero_bytes: int

    @staticmethod
    def of(node: Node) -> _Blocks:
        k, n, bits, block = (int(node.attribute(a)) for a in ("K", "N", "bits", "block_size"))
        has_zeros = node.has(3)
        zeros = NO_ZEROS if not has_zeros else BYTE_ZEROS if node.input(3).dtype == DataType.UINT8 else FLOAT_ZEROS
        weight = node.ir.inputs[1] or node.ir.outputs[0]
        zero_bytes = int(node.input(3).dtype.itemsize) if has_zeros else 0
        return _Blocks(str(weight.name), k, n, bits, block, node.input(2).dtype, zeros, zero_bytes)

    def in_bytes(self, node: Node) -> _Blocks:
        """The same weight with its scales in halves, where that loses nothing."""
        zeros = node.array(3, "the zero points") if node.has(3) else None
        if self.scale_type != DataType.FLOAT or not pack.halves_hold(node.array(2, "the scales"), zeros):
            return self
        return self._replace(
            scale_type=DataType.FLOAT16, zero_bytes=2 if self.zeros is FLOAT_ZEROS else self.zero_bytes
        )

    def packed(
        self,
        node: Node,
        builder: Builder,
        key: str,
        layout: Callable[[pack.BlockQuantized, InstructionSet], pack.Array],
    ) -> Buffer:
        """The weight as LAYOUT orders it."""
        isa = builder.target.isa
        columns, blocks = isa.padded(self.n), -(-self.k // self.block)
        space = blocks * columns * (int(self.scale_type.itemsize) + self.zero_bytes + self.block * self.bits // 8)

        def write() -> pack.Array:
            weights, scales = node.array(1, "the weights"), node.array(2, "the scales")
            zeros = node.array(3, "the zero points") if node.has(3) else None
            sizes = {"k": self.k, "n": self.n, "bits": self.bits, "block": self.block}
            return layout(pack.unpack_matmul_nbits(weights, scales, zeros, **sizes), isa)

        return builder.packed(f"{key}({self.name})", DataType.UINT8, space, write)

    @property
    def note(self) -> str:
        return f"int{self.bits} weights in blocks of {self.block}"


def _in_floats(
    node: Node, builder: Builder, left: View, blocks: _Blocks, precision: Precision, target: View, epilogue: Epilogue
) -> None:
    rows, tunable = product(left.dims[:-1]), None
    if left.dtype == target.dtype == DataType.FLOAT and blocks.scale_type in STORED_AS:
        kernel = f"int{blocks.bits}_{STORED_AS[blocks.scale_type]}{blocks.zeros.suffix}"
        sizes: dict[str, SizeLike | str] = {
            "m": rows, "n": blocks.n, "k": blocks.k, "block": blocks.block, "storage": kernel,
        }  # fmt: skip
        tunable = Tunable("quantized", kernel, sizes, builder.limits(kernel))
    # Where one number of a block is thousands of times the others, as in the residuals of small decoders, 16 bits lose those.
    exact = precision is FP32
    store = blocks.packed(node, builder, "nbits", pack.pack_quantized)
    rows_product(
        builder,
        GEMM_QUANTIZED,
        rows,
        blocks.k,
        blocks.n,
        {
            "a": left,
            "lda": row_stride(left),
            "b": store,
            "block": as_size(blocks.block),
            "blocking": blocking(tunable),
        },
        target,
        epilogue,
        stored=f"int{blocks.bits} ",
        templates=(blocks.bits, blocks.scale_type, blocks.zeros.template, exact),
        label=f"gemm_int{blocks.bits}",
        notes=[blocks.note, *([] if exact else [FEW_ROWS])],
        tunable=tunable,
    )


def _in_bytes(
    node: Node, builder: Builder, left: View, blocks: _Blocks, precision: Precision, target: View, epilogue: Epilogue
) -> None:
    rows = product(left.dims[:-1])
    given = _as_bytes(builder, left, rows, blocks.k, row_stride(left), blocks.block)
    blocks = blocks.in_bytes(node)
    layout = partial(pack.pack_block_bytes, scales=blocks.scale_type.numpy())
    store = blocks.packed(node, builder, "nbits_bytes", layout)
    rows_product(
        builder,
        GEMM_BLOCKS,
        rows,
        blocks.k,
        blocks.n,
        {**given, "b": store, "block": as_size(blocks.block)},
        target,
        epilogue,
        stored=f"int{blocks.bits} ",
        templates=(blocks.bits, blocks.scale_type, blocks.zeros.template),
        label=f"gemm_int{blocks.bits}_bytes",
        notes=[blocks.note, IN_BYTES],
        precision=precision,
    )


def _as_bytes(builder: Builder, x: View, rows: Size, columns: int, row: Size, block: int) -> dict[str, Argument]:
    """x (rows, columns), rows `row` apart, as the product's arguments; once for all products with blocks of this size."""

    def make() -> dict[str, Argument]:
        name, blocks = x.buffer.name, -(-columns // block)
        values = builder.allocate([rows, as_size(blocks * block)], DataType.INT8, hint=f"{name}_bytes")
        units, sums = (
            builder.allocate([rows, as_size(blocks)], DataType.FLOAT, hint=f"{name}_{what}")
            for what in ("units", "sums")
        )
        builder.call(
            QUANTIZE_BLOCKS,
            rows=rows,
            columns=columns,
            block=block,
            x=x,
            x_row=row,
            y=values,
            units=units,
            sums=sums,
            comment=f"({rows}, {columns}) as bytes in blocks of {block}",
        )
        return {"a": values, "a_units": units, "a_sums": sums}

    return builder.once((QUANTIZE_BLOCKS.name, x.buffer, x.offset, rows, columns, row, block), make)
