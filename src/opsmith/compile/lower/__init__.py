"""Lowering: a region becomes a list of kernel calls. Read `lower_region` first; each operator family has its own file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from opsmith.compile.dims import Dim, assuming, truncated
from opsmith.compile.lower import conv, fuse
from opsmith.compile.lower.infer import infer_nodes
from opsmith.compile.lower.program import Group, Lowering, Port, Program, Target, identifier, input_name
from opsmith.compile.lower.registry import INFER, LOWER, Node, key_of
from opsmith.compile.values import Abstract, Buffer, Unsupported

_FAMILIES = [m.name for m in pkgutil.iter_modules(__path__)]
for _name in _FAMILIES:
    importlib.import_module(f"{__name__}.{_name}")


def lower_region(
    name: str,
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    given: Mapping[ir.Value, Abstract],
    opset: int,
    target: Target,
) -> Program:
    """`given` holds what is known of the inputs and of every constant that the nodes use."""
    # Once to see how sizes are written, and once more with what makes them simpler: see dims.py.
    seen = dict(given)
    spans = {span for node in infer_nodes(nodes, seen, opset).values() for span in node.spans}
    with assuming(spans & truncated(size for fact in seen.values() for size in sizes_of(fact))):
        program = Program(name)
        facts = dict(given)
        known = infer_nodes(nodes, facts, opset)
        for i, value in enumerate(inputs):
            buffer = Buffer(input_name(i, value), facts[value].dtype, facts[value].size, "input")
            program.inputs.append(Port(value, buffer, facts[value]))
        for i, value in enumerate(outputs):
            buffer = Buffer(
                f"out{i}_{identifier(value.name or '')}"[:48], facts[value].dtype, facts[value].size, "output"
            )
            program.outputs.append(Port(value, buffer, facts[value]))
        out = Lowering(program, facts, outputs, target)
        for port in program.inputs:
            out.bind_input(port)
        out.inside = set(nodes)
        out.algorithms = conv.plan_algorithms(known.values(), target)
        groups = fuse.make_groups(nodes, facts, outputs)
        for node in nodes:
            if all(facts[o].elements is not None or facts[o].constant is not None for o in node.outputs):
                continue  # shape arithmetic lives in the sizes of others, constants in the weight file
            lower_node(known[node], groups.get(node), out, known)
        out.finish(outputs)
        return program


def sizes_of(fact: Abstract) -> list[Dim]:
    return [*fact.dims, *(e for e in fact.elements or () if isinstance(e, Dim))]


def lower_node(node: Node, group: Group | None, out: Lowering, known: dict[ir.Node, Node]) -> None:
    out.node = node.name
    out.nodes = [node.name]
    for condition, message in node.checks:
        out.check(condition, message)
    if group is None:
        LOWER[key_of(node.ir)](node, out)
        return
    if node.ir is not group.root:
        return  # runs when the group's root is reached
    members = [*([group.anchor] if group.anchor else []), *group.nodes]
    out.nodes = [known[n].name for n in members]
    for member in members:
        if member is not node.ir:
            for condition, message in known[member].checks:
                out.check(condition, message)
    if group.anchor is None:
        fuse.lower_map(group, out, known)
        return
    out.node = known[group.anchor].name
    out.group = group
    out.known = known
    LOWER[key_of(group.anchor)](known[group.anchor], out)


__all__ = ["INFER", "LOWER", "Program", "Target", "Unsupported", "lower_region"]
