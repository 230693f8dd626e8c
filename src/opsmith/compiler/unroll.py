"""Scan over few steps, written out: its body once per step, on slices of what it scans.

Scan(s, x) -> s1, y1 = body(s, x[0]); s2, y2 = body(s1, x[1]); ...; s_n, Concat(y1, y2, ...)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from opsmith.analysis.values import Abstract
from opsmith.nodes import ONNX

MOST_STEPS, MOST_NODES = 16, 256

Expansion = tuple[list[ir.Node], list[ir.Value]]


def unroll_scan(node: ir.Node, facts: Mapping[ir.Value, Abstract], opset: int) -> Expansion | None:
    """The nodes, and what stands for the Scan's outputs; None if it is not a Scan of a known, small number of steps."""
    if node.op_type != "Scan" or node.domain not in ONNX or opset < 9:
        return None
    scan = _read(node, facts)
    if scan is None:
        return None
    body, states = scan.body, scan.states
    writer = _Writer(node.name or "Scan")
    constants = {v: writer.constant(v.const_value) for v in body.initializers.values() if v.const_value is not None}
    rows: list[list[ir.Value]] = [[] for _ in body.outputs[len(states) :]]
    for step in range(scan.count):
        values = {**constants, **dict(zip(body.inputs, [*states, *scan.slices(writer, step)]))}
        for inner in body:
            writer.copy(inner, values)
        results = [values.get(v, v) for v in body.outputs]
        states = results[: len(states)]
        for row, value in zip(rows, results[len(states) :]):
            row.append(value)
    places, reverse = _ints(node, "scan_output_axes", len(rows)), _ints(node, "scan_output_directions", len(rows))
    stacked = [writer.stack(r[::-1] if back else r, axis, opset) for r, axis, back in zip(rows, places, reverse)]
    return writer.nodes, [*states, *stacked]


@dataclasses.dataclass(frozen=True)
class _Scan:
    body: ir.Graph
    states: list[ir.Value]
    scanned: list[tuple[ir.Value, int, int]]  # value, axis, whether from its end
    count: int  # of steps

    def slices(self, writer: _Writer, step: int) -> list[ir.Value]:
        slices = []
        for value, axis, back in self.scanned:
            at = writer.constant(ir.tensor(np.array(self.count - 1 - step if back else step)))
            slices.append(writer.node("Gather", [value, at], [ir.AttrInt64("axis", axis)]))
        return slices


def _read(node: ir.Node, facts: Mapping[ir.Value, Abstract]) -> _Scan | None:
    """The parts of a Scan; None unless it has a known, small number of steps and no bodies within."""
    body: ir.Graph = node.attributes["body"].value
    scanned = node.attributes["num_scan_inputs"].as_int()
    inputs = [v for v in node.inputs if v is not None and v in facts]
    plain = all(a.type != ir.AttributeType.GRAPH for n in body for a in n.attributes.values())
    if len(inputs) != len(node.inputs) or not plain:
        return None
    carried = len(inputs) - scanned
    axes, backward = _ints(node, "scan_input_axes", scanned), _ints(node, "scan_input_directions", scanned)
    axes = [a % max(1, facts[v].rank) for a, v in zip(axes, inputs[carried:])]
    ranks = [facts[v].rank - (i >= carried) for i, v in enumerate(inputs)]
    if any(own.shape is not None and len(own.shape) != rank for own, rank in zip(body.inputs, ranks)):
        return None  # a Scan of opset 8, which has a batch as well
    counts = {facts[v].dims[a].value if facts[v].rank else None for v, a in zip(inputs[carried:], axes)}
    count = counts.pop() if len(counts) == 1 else None
    if count is None or not 1 <= count <= MOST_STEPS or count * len(body) > MOST_NODES:
        return None
    return _Scan(body, inputs[:carried], list(zip(inputs[carried:], axes, backward)), count)


def _ints(node: ir.Node, name: str, count: int) -> list[int]:
    attribute = node.attributes.get(name)
    return [0] * count if attribute is None else [int(v) for v in attribute.as_ints()]


class _Writer:
    """Nodes with names of their own."""

    def __init__(self, prefix: str) -> None:
        self.nodes: list[ir.Node] = []
        self._prefix = prefix

    def node(self, op: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr] = ()) -> ir.Value:
        return self._add(ir.Node("", op, inputs, attributes, num_outputs=1)).outputs[0]

    def constant(self, tensor: ir.TensorProtocol) -> ir.Value:
        return self.node("Constant", [], [ir.AttrTensor("value", tensor)])

    def copy(self, inner: ir.Node, values: dict[ir.Value, ir.Value]) -> None:
        """`values`: what stands for the body's own values; others are of the graph around it."""
        inputs = [None if v is None else values.get(v, v) for v in inner.inputs]
        made = ir.Node(
            inner.domain, inner.op_type, inputs, list(inner.attributes.values()), num_outputs=len(inner.outputs)
        )
        values.update(zip(inner.outputs, self._add(made).outputs))

    def stack(self, rows: Sequence[ir.Value], axis: int, opset: int) -> ir.Value:
        lifted = []
        for row in rows:
            if opset < 13:
                lifted.append(self.node("Unsqueeze", [row], [ir.AttrInt64s("axes", [axis])]))
            else:
                lifted.append(self.node("Unsqueeze", [row, self.constant(ir.tensor(np.array([axis])))]))
        return self.node("Concat", lifted, [ir.AttrInt64("axis", axis)])

    def _add(self, node: ir.Node) -> ir.Node:
        node.name = f"{self._prefix}/{node.op_type}_{len(self.nodes)}"
        for i, value in enumerate(node.outputs):
            value.name = f"{node.name}.{i}"
        self.nodes.append(node)
        return node
