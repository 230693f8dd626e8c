"""Products in int8 of a model of floats: rows of activations become bytes while running, weights when compiling.

x (rows, K) -> bytes (rows, K), scale (rows), zero (rows)       quantize_rows.hpp: balanced, rotated
w (K, N)    -> int8 (K, N), scale (N), sum (N)                  the same undone
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opsmith.analysis.values import Constant, DataType
from opsmith.compiler import pack
from opsmith.compiler.kernel import EPILOGUE, Kernel, read, size, sizes, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.program import Argument, View
from opsmith.sizes import Size, SizeLike, as_size

QUANTIZE_ROWS = Kernel(
    "quantize_rows",
    "quantize_rows.hpp",
    [
        *sizes("rows", "columns"),
        read("x"),
        size("x_row"),
        read("factors", dtype=DataType.FLOAT),
        size("block"),
        write("y", dtype=DataType.UINT8),
        write("scales", dtype=DataType.FLOAT),
        write("zeros", dtype=DataType.UINT8),
    ],
    "rows become bytes",
)
COLUMNS = [read("b", dtype=DataType.INT8), read("b_sums", dtype=DataType.INT32), read("b_scales", dtype=DataType.FLOAT)]
GEMM_INT8 = Kernel(
    "gemm_int8",
    "gemm_int8.hpp",
    [
        *sizes("m", "n", "k"),
        read("a", dtype=DataType.UINT8),
        size("lda"),
        read("a_scales", dtype=DataType.FLOAT),
        read("a_zeros", dtype=DataType.UINT8),
        *COLUMNS,
        write("c"),
        size("ldc"),
        EPILOGUE,
        size("rows_per_item"),
    ],
    "product in int8 with packed weights",
)


@dataclass(frozen=True)
class Bytes:
    """Rows as bytes, each with its scale and zero point."""

    values: View
    scales: View
    zeros: View


def quantized_rows(builder: Builder, x: View, rows: Size, row: Size, weights: Constant) -> Bytes:
    """x (rows, K), rows `row` apart, for its product with weights (K, N)."""
    columns = weights.dims[0]
    key = f"factors({weights.key})"
    factors = builder.packed(key, DataType.FLOAT, columns, lambda: pack.row_factors(_floats(weights)))

    def make() -> Bytes:
        def allocate(dims: list[SizeLike], dtype: DataType, hint: str) -> View:
            return builder.allocate([as_size(d) for d in dims], dtype, hint=f"{x.buffer.name}_{hint}")

        made = Bytes(
            allocate([rows, columns], DataType.UINT8, "bytes"),
            allocate([rows], DataType.FLOAT, "scales"),
            allocate([rows], DataType.UINT8, "zeros"),
        )
        builder.call(
            QUANTIZE_ROWS,
            rows=rows,
            columns=columns,
            x=x,
            x_row=row,
            factors=factors,
            block=pack.rotation_block(columns),
            y=made.values,
            scales=made.scales,
            zeros=made.zeros,
            comment=f"({rows}, {columns}) as bytes",
        )
        return made

    return builder.once((QUANTIZE_ROWS.name, x.buffer, x.offset, rows, row, key), make)


def _floats(weights: Constant) -> npt.NDArray[np.float32]:
    return np.asarray(weights.read(), np.float32)


def columns(builder: Builder, weights: Constant) -> dict[str, Argument]:
    """Weights (K, N) as bytes, packed, with the sums and scales of their columns."""
    k, n = weights.dims
    isa = builder.target.isa
    key = f"int8({weights.key})"

    def quantized() -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
        return pack.int8_columns(_floats(weights), pack.rotation_block(k))

    no_zeros = np.zeros(n, np.int32)
    return {
        "b": builder.packed(
            key, DataType.INT8, -(-k // 4) * 4 * isa.padded(n), lambda: pack.pack_bytes(quantized()[0], isa)
        ),
        "b_sums": builder.packed(f"sums({key})", DataType.INT32, n, lambda: pack.column_sums(quantized()[0], no_zeros)),
        "b_scales": builder.packed(f"scales({key})", DataType.FLOAT, n, lambda: quantized()[1]),
    }
