"""GatherBlockQuantized: rows of a table of small integers in blocks become floats as they are read."""

from __future__ import annotations

from opsmith.analysis.gather_blocks import layout
from opsmith.analysis.registry import Node
from opsmith.analysis.values import DataType
from opsmith.compiler.kernel import Kernel, read, size, sizes, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.registry import lowers
from opsmith.sizes import product

GATHER_BLOCKS = Kernel(
    "gather_blocks",
    "gather_blocks.hpp",
    [
        *sizes("rows", "inner", "cols", "block"),
        read("table", dtype=DataType.UINT8),
        read("scales"),
        read("zeros", dtype=DataType.UINT8),
        size("count"),
        read("indices"),
        write("y"),
    ],
    "rows of a table of small integers",
)


@lowers("com.microsoft::GatherBlockQuantized")
def _gather_blocks(node: Node, builder: Builder) -> None:
    table, indices, scales = (builder.rows(v) for v in node.ir.inputs[:3])
    bits, columns, block = layout(node)
    count, inner = product(indices.dims), product(table.dims[1:-1])
    builder.call(
        GATHER_BLOCKS,
        templates=(bits,),
        rows=table.dims[0],
        inner=inner,
        cols=columns,
        block=block,
        table=table,
        scales=scales,
        zeros=builder.optional(node, 3),
        count=count,
        indices=indices,
        y=builder.result(node.ir.outputs[0]),
        label=f"gather_int{bits}",
        comment=f"{count} of {table.dims[0]} rows of {columns}, int{bits} in blocks of {block}",
        flops=count * inner * columns * 2,
    )
