"""Lowering: a region becomes a program of kernel calls. Read `lower_region` first; each operator family has its own file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from opsmith import ops
from opsmith.analysis import infer_nodes
from opsmith.analysis.registry import Node, key_of
from opsmith.analysis.values import Abstract, Unsupported
from opsmith.compiler.lower import fuse, memory, plan_winograd, precision, resize
from opsmith.compiler.lower.builder import Builder, Region, identifier
from opsmith.compiler.lower.registry import ANCHORS, LOWER
from opsmith.compiler.program import Buffer, Port, Program, Target
from opsmith.sizes import Given, truncated

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def lower_region(
    name: str,
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    known: Mapping[ir.Value, Abstract],
    opset: int,
    target: Target,
) -> Program:
    """`known` holds the facts of the inputs and of every constant that the nodes use."""
    facts = dict(known)
    analysed = infer_nodes(nodes, facts, opset, _ruled_out(nodes, known, opset))
    program = Program(name, _ports(inputs, facts, "input", "in"), _ports(outputs, facts, "output", "out"))
    precisions = precision.plan_precisions(analysed.values(), target)
    algorithms = plan_winograd.plan_algorithms(analysed.values(), target, precisions)
    precisions = precision.settle_winograd(precisions, algorithms)
    narrow = precision.plan_narrow(analysed.values(), precisions, outputs, target)
    region = Region(
        frozenset(nodes),
        facts,
        {v: i for i, v in enumerate(outputs)},
        algorithms,
        resize.plan_upsamples(analysed.values(), set(outputs), facts),
        memory.plan_places(analysed.values(), facts),
        precisions,
        narrow,
    )
    builder = Builder(program, region, target)
    for port in program.inputs:
        builder.bind_input(port)
    groups = fuse.make_groups(analysed, facts, set(outputs))
    for node in analysed.values():
        if any(facts[o].runs for o in node.ir.outputs):  # shape arithmetic lives in sizes, constants in the weight file
            lower_node(node, groups.get(node.ir), builder)
    builder.finish()
    program.verify()
    return program


def _ruled_out(nodes: Sequence[ir.Node], known: Mapping[ir.Value, Abstract], opset: int) -> Given:
    """Spans of windows that a run-time check keeps from being negative, where that makes one size of two (see sizes.py)."""
    facts = dict(known)
    spans = {span for node in infer_nodes(nodes, facts, opset).values() for span in node.spans}
    return frozenset(spans & truncated(size for fact in facts.values() for size in fact.sizes()))


def _ports(values: Sequence[ir.Value], facts: Mapping[ir.Value, Abstract], place: str, prefix: str) -> list[Port]:
    """The region's inputs or outputs, under readable names."""
    ports = []
    for i, value in enumerate(values):
        name = f"{prefix}{i}_{identifier(value.name or '')}"[:48]
        ports.append(Port(value, Buffer(name, facts[value].dtype, facts[value].size, place), facts[value]))
    return ports


def lower_node(node: Node, group: fuse.Group | None, builder: Builder) -> None:
    try:
        _lower_node(node, group, builder)
    except Unsupported as reason:
        reason.node = reason.node or node.ir
        raise


def _lower_node(node: Node, group: fuse.Group | None, builder: Builder) -> None:
    builder.begin(node.name, [node.name])
    if group is None:
        builder.check_all([node])
        LOWER[key_of(node.ir)](node, builder)
    elif node is group.root:  # other members run with it
        members = group.members()
        builder.begin((group.anchor or node).name, [m.name for m in members])
        builder.check_all(members)
        if group.anchor is None:
            fuse.lower_map(group, builder)
        else:
            ANCHORS[key_of(group.anchor.ir)](group.anchor, builder, group)
    else:
        return


def can_lower(node: ir.Node) -> bool:
    key = key_of(node)
    return key in LOWER or key in ANCHORS or key in ops.TABLE


__all__ = ["Program", "Target", "Unsupported", "can_lower", "lower_region"]
