"""Drop nodes and weights that nobody reads.

onnx-ir's pass drops optional outputs that nobody reads, too. `keeping_outputs` spares nodes this: ONNX Runtime's Attention refuses a
past whose present it may not write, and what stays with ONNX Runtime stays as it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import onnx_ir as ir
import onnx_ir.passes.common as common


@contextlib.contextmanager
def keeping_outputs(nodes: Iterable[ir.Node]) -> Iterator[None]:
    """Nodes keep all their outputs meanwhile: the pass takes them for operators of a domain that it does not know."""
    hidden = [(node, node.domain) for node in nodes]
    for node, domain in hidden:
        node.domain = f"kept.{domain}"
    try:
        yield
    finally:
        for node, domain in hidden:
            node.domain = domain


def remove_unused(model: ir.Model) -> None:
    """Drop what nobody reads. The bodies of an If or Loop that is gone no longer count as readers."""
    graphs = [model.graph, *(f.graph for f in model.functions.values())]
    live = {node for graph in graphs for node in graph.all_nodes()}
    values = [v for graph in graphs for v in (*graph.inputs, *graph.initializers.values())]
    for value in (*values, *(v for node in live for v in node.outputs)):
        for user, index in list(value.uses()):
            if user not in live:
                user.replace_input_with(index, None)
    with keeping_outputs(node for node in live if _has_past(node)):
        common.RemoveUnusedNodesPass()(model)


def _has_past(node: ir.Node) -> bool:
    return node.op_type == "Attention" and any(v is not None for v in node.inputs[4:6])
