"""Products in int8 of a model of floats: rows of activations become bytes while running, weights when compiling.

x (rows, K) -> bytes (rows, K), scale (rows), zero (rows)       quantize_rows.hpp: balanced, rotated
w (K, N)    -> int8 (K, N), scale (N), sum (N)                  the same undone
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opsmith.analysis.values import Constant, DataType
from opsmith.compiler import pack
from opsmith.compiler.kernel import Kernel, read, size, sizes, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.products import rows_kernel
from opsmith.compiler.program import Argument, View
from opsmith.sizes import ONE, Size, as_size

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
QUANTIZE_IMAGE = Kernel(
    "quantize_image",
    "quantize_rows.hpp",
    [
        *sizes("rows", "columns"),
        read("x"),
        size("x_row"),
        write("y", dtype=DataType.UINT8),
        write("scale", dtype=DataType.FLOAT),
        write("zero", dtype=DataType.UINT8),
    ],
    "an image becomes bytes",
)
COLUMNS = [read("b", dtype=DataType.INT8), read("b_sums", dtype=DataType.INT32), read("b_scales", dtype=DataType.FLOAT)]
GEMM_INT8 = rows_kernel(
    "gemm_int8",
    "gemm_int8.hpp",
    [
        read("a", dtype=DataType.UINT8),
        size("lda"),
        read("a_scales", dtype=DataType.FLOAT),
        read("a_zeros", dtype=DataType.UINT8),
    ],
    COLUMNS,
    "product in int8 with packed weights",
)


@dataclass(frozen=True)
class Bytes:
    """Rows as bytes, each with its scale and zero point, or all with one."""

    values: View
    scales: View
    zeros: View

    def operands(self, row: int) -> dict[str, Argument]:
        """The arguments of GEMM_INT8 for these rows, ROW bytes apart."""
        return {"a": self.values, "lda": as_size(row), "a_scales": self.scales, "a_zeros": self.zeros}


def quantized_rows(
    builder: Builder, x: View, rows: Size, columns: int, row: Size, weights: Constant | None = None
) -> Bytes:
    """x (rows, columns), rows `row` apart; balanced and rotated for its product with `weights` (columns, N), if they are given."""
    factors, block = None, 1
    if weights is not None:
        block = pack.rotation_block(columns)
        factors = builder.packed(
            f"factors({weights.key})", DataType.FLOAT, columns, lambda: pack.row_factors(_floats(weights))
        )

    return _quantized(
        builder, QUANTIZE_ROWS, x, rows, columns, row, rows, {"factors": factors, "block": as_size(block)}
    )


def quantized_image(builder: Builder, x: View, rows: Size, columns: int, row: Size) -> Bytes:
    """x (rows, columns), rows `row` apart, with one scale."""
    return _quantized(builder, QUANTIZE_IMAGE, x, rows, columns, row, ONE, {})


def _quantized(
    builder: Builder,
    kernel: Kernel,
    x: View,
    rows: Size,
    columns: int,
    row: Size,
    scales: Size,
    balance: Mapping[str, Argument],
) -> Bytes:
    """x as bytes with so many scales, made once for all products that ask for the same."""

    def make() -> Bytes:
        name = x.buffer.name
        made = Bytes(
            builder.allocate([rows, as_size(columns)], DataType.UINT8, hint=f"{name}_bytes"),
            builder.allocate([scales], DataType.FLOAT, hint=f"{name}_scales"),
            builder.allocate([scales], DataType.UINT8, hint=f"{name}_zeros"),
        )
        *_, scale, zero = (p.name for p in kernel.parameters)
        builder.call(
            kernel,
            {**balance, scale: made.scales, zero: made.zeros},
            rows=rows,
            columns=columns,
            x=x,
            x_row=row,
            y=made.values,
            comment=f"({rows}, {columns}) as bytes",
        )
        return made

    return builder.once((kernel.name, x.buffer, x.offset, rows, columns, row, *balance.values()), make)


def _floats(weights: Constant) -> npt.NDArray[np.float32]:
    return np.asarray(weights.read(), np.float32)


def columns(builder: Builder, weights: Constant) -> dict[str, Argument]:
    """Weights (K, N) as bytes, packed, with the sums and scales of their columns."""
    k, n = weights.dims
    isa = builder.target.isa

    def quantized() -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
        return pack.int8_columns(_floats(weights), pack.rotation_block(k))

    space = -(-k // 4) * 4 * isa.padded(n)
    return _columns(
        builder, f"int8({weights.key})", n, space, quantized, lambda q: pack.pack_bytes(q, isa), lambda q: q
    )


def channels(builder: Builder, weights: Constant, groups: int) -> dict[str, Argument]:
    """Weights (O, C/groups, KH, KW) of a convolution as bytes, packed, with the sums and scales of their output channels."""
    o, c, *taps = weights.dims
    isa = builder.target.isa
    space = groups * int(np.prod(taps)) * -(-c // 4) * 4 * isa.padded(o // groups)
    return _columns(
        builder,
        f"int8_conv({weights.key})",
        o,
        space,
        lambda: pack.int8_channels(_floats(weights)),
        lambda q: pack.pack_conv_bytes(q, groups, isa),
        lambda q: q.reshape(o, -1).T,
    )


Int8 = npt.NDArray[np.int8]


def _columns(
    builder: Builder,
    key: str,
    count: int,
    space: int,
    quantized: Callable[[], tuple[Int8, npt.NDArray[np.float32]]],
    packed: Callable[[Int8], Int8],
    matrix: Callable[[Int8], Int8],
) -> dict[str, Argument]:
    no_zeros = np.zeros(count, np.int32)
    sums = lambda: pack.column_sums(matrix(quantized()[0]), no_zeros)  # noqa: E731
    return {
        "b": builder.packed(key, DataType.INT8, space, lambda: packed(quantized()[0])),
        "b_sums": builder.packed(f"sums({key})", DataType.INT32, count, sums),
        "b_scales": builder.packed(f"scales({key})", DataType.FLOAT, count, lambda: quantized()[1]),
    }
