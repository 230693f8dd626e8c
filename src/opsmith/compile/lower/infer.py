"""Inference over a list of nodes: types, symbolic dims, and shape arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from opsmith.compile.lower.elementwise import SPECS
from opsmith.compile.lower.registry import INFER, LOWER, Node, key_of
from opsmith.compile.values import CPP, Abstract, Unsupported


def infer_node(node: ir.Node, facts: dict[ir.Value, Abstract], opset: int) -> Node:
    """Facts about one node's outputs, added to `facts`; Unsupported says why ORT keeps it."""
    found = key_of(node)
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
        raise Unsupported("control flow stays with ONNX Runtime")
    if found not in INFER:
        raise Unsupported(f"no kernel for {node.op_type}" + (f" of domain {node.domain}" if node.domain else ""))
    inputs: list[Abstract | None] = []
    for value in node.inputs:
        if value is None:
            inputs.append(None)
        elif value in facts:
            inputs.append(facts[value])
        else:
            raise Unsupported(f"the rank or type of its input {value.name} is unknown")
    for fact in inputs:
        if fact is not None and fact.constant is None and fact.dtype not in CPP:
            raise Unsupported(f"element type {fact.dtype.name} stays with ONNX Runtime")
    known = Node(node, inputs, opset)
    try:
        known.outputs = INFER[found](known)
    except Unsupported:
        raise
    except (IndexError, ValueError, TypeError, AttributeError, AssertionError) as error:
        raise Unsupported(f"not understood: {error}") from error
    for value, fact in zip(node.outputs, known.outputs):
        facts[value] = fact
    if (
        found not in LOWER
        and found not in SPECS
        and any(f.elements is None and f.constant is None for f in known.outputs)
    ):
        raise Unsupported(f"{node.op_type} is only supported in shape arithmetic")
    return known


def infer_nodes(nodes: Sequence[ir.Node], facts: dict[ir.Value, Abstract], opset: int) -> dict[ir.Node, Node]:
    return {node: infer_node(node, facts, opset) for node in nodes}
