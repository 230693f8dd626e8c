"""What a loop hands on unchanged is read from around it.

    Loop(n, cond, w)  { body(i, c, w') -> ..., w' }    inside: w' is w; behind: its output is w

tf2onnx and others carry the weights of a recurrent cell through the loop: as values that each step makes, they are packed in every
step, and nothing about them can be folded. The loop still carries them, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from opsmith.nodes import ONNX


def read_invariants_outside(model: ir.Model) -> None:
    """Readers of what a Loop or Scan carries unchanged read what it began with; in place."""
    for node in list(model.graph.all_nodes()):
        for begin, inside, behind in _carried_unchanged(node):
            for value in (inside, behind):
                for reader, index in tuple(value.uses()):
                    reader.replace_input_with(index, begin)


def _carried_unchanged(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
    """For each value that is carried unchanged: what it begins with, the body's input, the node's output."""
    if node.op_type not in ("Loop", "Scan") or node.domain not in ONNX or "body" not in node.attributes:
        return
    body: ir.Graph = node.attributes["body"].value
    if len(body.inputs) < len(node.inputs):
        return  # a Scan of opset 8: its body sees one item of the batch
    if node.op_type == "Loop":
        carried = zip(node.inputs[2:], body.inputs[2:], body.outputs[1:], node.outputs)
    else:
        states = len(node.inputs) - node.attributes["num_scan_inputs"].as_int()
        carried = zip(node.inputs[:states], body.inputs, body.outputs, node.outputs)
    for begin, inside, end, behind in carried:
        if begin is not None and _origin(end) is inside:
            yield begin, inside, behind


def _origin(value: ir.Value) -> ir.Value:
    """What a value is a copy of."""
    seen: set[ir.Value] = set()  # a malformed graph may go round in a circle
    while value not in seen and (maker := value.producer()) is not None and maker.op_type == "Identity":
        seen.add(value)
        value = maker.inputs[0] or value
    return value
