"""Gather(DequantizeLinear(table), indices) -> DequantizeLinear(Gather(table, indices))

One scale for the whole table: only the rows that are read are dequantized.
"""

from __future__ import annotations

from opsmith.rewriter.rule import Site, attribute, input_of, is_op, rule, tensor_of


@rule("dequantized_gather", "Gather(DQ(table), indices) -> DQ(Gather(table, indices))", roots=("Gather",))
def dequantized_gather(site: Site) -> None:
    table = input_of(site.root, 0)
    node = table.producer() if table is not None else None
    if node is None or not is_op(node, "DequantizeLinear"):
        site.miss("the table is not dequantized")
    scale = tensor_of(input_of(node, 1))
    site.need(tensor_of(input_of(node, 0)) is not None, "the table is not a constant", node)
    site.need(scale is not None and scale.size == 1 and len(scale.shape) <= 1, "several scales", node)
    axis = int(attribute(site.root, "axis", 0))
    rows = site.op("Gather", input_of(node, 0), input_of(site.root, 1), axis=axis)
    scales = [input_of(node, i) for i in range(1, len(node.inputs))]
    site.replace(site.root.outputs[0], site.op("DequantizeLinear", rows, *scales))
