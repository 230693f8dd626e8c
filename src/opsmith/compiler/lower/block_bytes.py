"""Products of bytes with weights in blocks: what a weight of 8 or 4 bits is in int8.

x (rows, K)   -> bytes (rows, K filled up to blocks), unit and sum (rows, blocks)     quantize_blocks.hpp
q (K, N)      as it is, its integers as words of bytes                                gemm_blocks.hpp
"""

from __future__ import annotations

from opsmith.analysis.values import DataType
from opsmith.compiler.kernel import EPILOGUE, Kernel, read, size, sizes, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.program import Argument, View
from opsmith.sizes import Size, as_size

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
GEMM_BLOCKS = Kernel(
    "gemm_blocks",
    "gemm_blocks.hpp",
    [
        *sizes("m", "n", "k", "block"),
        read("a", dtype=DataType.INT8),
        read("a_units", dtype=DataType.FLOAT),
        read("a_sums", dtype=DataType.FLOAT),
        read("b", dtype=DataType.UINT8),
        write("c"),
        size("ldc"),
        EPILOGUE,
        size("rows_per_item"),
    ],
    "product of bytes with weights in blocks",
)
NOTE = "rows in bytes, rounded to 2^-8 of the largest of a block"


def quantized(builder: Builder, x: View, rows: Size, columns: int, row: Size, block: int) -> dict[str, Argument]:
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
