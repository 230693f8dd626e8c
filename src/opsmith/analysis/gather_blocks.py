"""GatherBlockQuantized: rows of a table of small integers in blocks, as embeddings of decoders are quantized.

table (V, ..., K * bits / 8) bytes, scales (V, ..., K / block), indices (...) -> (indices..., ..., K)
"""

from __future__ import annotations

from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import Abstract, DataType, Unsupported, abstract
from opsmith.sizes import as_size


def layout(node: Node) -> tuple[int, int, int]:
    """Bits of an integer, integers in a row, integers in a block."""
    bits, block = int(node.attribute("bits", 4)), int(node.attribute("block_size", 128))
    width = node.input(0).dims[-1].value
    if width is None:
        raise Unsupported("a table of unknown width")
    return bits, width * 8 // bits if bits in (2, 4, 8) else 0, block


@infers("com.microsoft::GatherBlockQuantized")
def _gather_blocks(node: Node) -> list[Abstract]:
    table, indices, scales = (node.input(i) for i in range(3))
    if table.dtype != DataType.UINT8 or table.rank < 2:
        raise Unsupported(f"a table of {table.dtype.name}, rank {table.rank}")
    if scales.dtype not in (DataType.FLOAT, DataType.FLOAT16) or indices.dtype not in (DataType.INT32, DataType.INT64):
        raise Unsupported(f"scales of {scales.dtype.name} and indices of {indices.dtype.name}")
    bits, columns, block = layout(node)
    if bits not in (2, 4, 8) or block < 1:
        raise Unsupported(f"integers of {bits} bits in blocks of {block}")
    if node.axis(table.rank, 0, "gather_axis") != 0 or node.axis(table.rank, 1, "quantize_axis") != table.rank - 1:
        raise Unsupported("rows that are not gathered along the first axis and quantized along the last")
    blocks = -(-columns // block)
    if scales.dims != (*table.dims[:-1], as_size(blocks)):
        raise Unsupported("the scales do not fit the table")
    if node.has(3):
        zeros = node.input(3)
        if zeros.dtype != DataType.UINT8 or zeros.dims != (*table.dims[:-1], as_size(-(-blocks * bits // 8))):
            raise Unsupported("the zero points do not fit the table")
    return [abstract(scales.dtype, [*indices.dims, *table.dims[1:-1], as_size(columns)])]
