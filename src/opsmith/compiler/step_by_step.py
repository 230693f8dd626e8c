"""Does each part of a compiled model compute what ONNX Runtime does, where the model as a whole cannot tell?

A deep quantized model amplifies rounding until a wrong kernel near its end no longer stands out from the model's own spread
(check/spread.py). So a model that passes only by its spread is compiled once more in parts, none of which holds one step behind
another, and each part is given what ONNX Runtime computed:

    whole   x -> Q -> MatMul -> Add -> Q -> MatMul -> y
    before  x | Q MatMul Add | Q MatMul            cut before each step: products with their quantizer
    after   x -> Q | MatMul Add Q | MatMul         cut behind each step: products that requantize

Nothing is amplified in a part, and what its one step turns over is told apart by the part's own spread. As many parts are
compared at once as have little enough to read and write: their sum can be many times what the model needs to run.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from opsmith import machine, store
from opsmith.check import spread
from opsmith.check.verify import VerifyResult, verify
from opsmith.compiler import geometry
from opsmith.compiler.build import build, find_compiler
from opsmith.compiler.convert import region_node, seal_weights, write_weights
from opsmith.compiler.cut import Cut, GoesBack, HandedBack, lower
from opsmith.compiler.emit import Form, Source, emit_instances, emit_region, emit_registration, instances
from opsmith.compiler.find_wrong import AT_ONCE, Fault, Reference, Values
from opsmith.compiler.lower import Program, Target
from opsmith.compiler.partition import Region, producers_of, region_inputs
from opsmith.compiler.plan import plan_memory
from opsmith.errors import OpsmithError

DOMAIN = "opsmith.parts"
PATIENCE = 180.0  # seconds: after that no further parts are compared


def passed_by_spread(verified: VerifyResult) -> bool:
    return verified.ok and any(o.spread is not None for c in verified.cases for o in c.outputs)


def find_hidden(pieces: Cut, verified: VerifyResult, target: Target) -> Fault | None:
    """The parts that are wrong by themselves; None if there are none. OpsmithError: they could not be looked at.

    A model without steps passes by its spread on degenerate inputs alone. It has no parts, and amplifies there as a whole.
    """
    if not any(spread.is_step(n) for r in pieces.regions for n in r.nodes):
        return None
    case = next(c for c in verified.cases if any(o.spread is not None for o in c.outputs))
    reference = Reference(pieces, case)
    outside = [r for r in pieces.regions if not r.path]
    parts = {before: [p for r in outside for p in _parts(r, pieces, before)] for before in (True, False)}
    groups = [group for each in parts.values() for group in _groups(each, reference)]
    until = time.monotonic() + PATIENCE
    for number, group in enumerate(groups):
        if number and time.monotonic() > until:
            right = sum(map(len, groups[:number]))
            raise OpsmithError(f"{right} of {sum(map(len, groups))} were right, then {PATIENCE:.0f} s were over")
        if fault := _wrong_in_group(group, reference, target):
            return fault
    return None


def _wrong_in_group(group: Sequence[Region], reference: Reference, target: Target) -> Fault | None:
    machine.release_memory()  # the graphs of the last group refer to themselves, and hold the weights that they read
    values = reference.values({name for part in group for name in _names(part)})
    return _wrong_parts(group, reference.pieces, target, values)


def _names(part: Region) -> set[str]:
    return {v.name or "" for v in (*part.inputs, *part.outputs)}


def _groups(parts: Sequence[Region], reference: Reference) -> Iterator[list[Region]]:
    """The parts in their order, as many at once as read and write no more than AT_ONCE; one by itself may."""
    group: list[Region] = []
    for part in parts:
        if group and reference.bytes({name for p in (*group, part) for name in _names(p)}) > AT_ONCE:
            yield group
            group = []
        group.append(part)
    if group:
        yield group


def _parts(region: Region, pieces: Cut, cut_before: bool) -> list[Region]:
    """A region's nodes by the number of steps behind them: convex, as the number never falls along an edge."""
    level: dict[ir.Node, int] = {}
    for node in region.nodes:
        behind = [p for p in producers_of(node) if p in level]
        level[node] = max((level[p] + (not cut_before and spread.is_step(p)) for p in behind), default=0)
        level[node] += cut_before and spread.is_step(node)
    asked = set(region.outputs)
    parts = []
    for number in sorted(set(level.values())):
        nodes = [n for n in region.nodes if level[n] == number]
        inside = set(nodes)
        outputs = [v for n in nodes for v in n.outputs if v in asked or any(u not in inside for u in v.consumers())]
        facts = pieces.source.scopes[0].analysis.facts
        parts.append(Region(f"{region.name}_part{number}", nodes, region_inputs(nodes, facts), outputs))
    return parts


def _wrong_parts(parts: Sequence[Region], pieces: Cut, target: Target, values: Values) -> Fault | None:
    compiled = _lowered(parts, pieces, target, values)
    return _to_hand_back(compiled, _problems(compiled, pieces, target, values)) if compiled else None


def _lowered(parts: Sequence[Region], pieces: Cut, target: Target, values: Values) -> list[tuple[Region, Program]]:
    """The parts that can be compared, each with its program."""
    compiled: list[tuple[Region, Program]] = []
    for part in parts:
        computed = all((v.name or "") in values for v in (*part.inputs, *part.outputs))
        try:
            if computed and part.outputs:
                compiled.append((part, lower(part, pieces.source, pieces.source.scopes[0].analysis.facts, target)))
        except GoesBack:
            continue  # shape arithmetic, which has no program of its own
    return compiled


def _problems(
    compiled: Sequence[tuple[Region, Program]], pieces: Cut, target: Target, values: Values
) -> dict[str, str]:
    """What is wrong with the parts' outputs, by name, as verify finds it."""
    with tempfile.TemporaryDirectory(prefix="opsmith-parts-") as folder:
        given = {_given(v): np.asarray(values[v.name or ""]) for p, _ in compiled for v in p.inputs}
        expected, actual = Path(folder) / "expected" / "parts.onnx", Path(folder) / "actual" / "parts.onnx"
        for path in (expected, actual):
            path.parent.mkdir()
        store.save_model(_expected([p for p, _ in compiled], pieces.source.working), expected)
        store.write_test_data(expected.parent, given, {})
        _build(compiled, actual, pieces.source.working.ir_version, target.isa)
        result = verify(expected, actual, shapes=0)
    return {o.name: o.problem or "" for c in result.cases for o in c.outputs if not o.ok}


def _to_hand_back(compiled: Sequence[tuple[Region, Program]], wrong: dict[str, str]) -> Fault | None:
    """The parts with an output that is WRONG."""
    nodes: HandedBack = {}
    told = []
    for part, _ in compiled:
        problem = next((wrong[_out(v)] for v in part.outputs if _out(v) in wrong), None)
        if problem is not None:
            why = f"computed something else than ONNX Runtime ({problem})"
            nodes |= {n.name or "": why for n in part.nodes}
            told.append(f"{part.nodes[0].op_type} {part.nodes[0].name} to {part.nodes[-1].name} {why}")
    return Fault(nodes, f"{told[0]}: it stays there. This is a defect of ours") if nodes else None


def _given(value: ir.Value) -> str:
    return f"{value.name}.given"


def _out(value: ir.Value) -> str:
    return f"{value.name}.out"


def _expected(parts: Sequence[Region], working: ir.Model) -> ir.Model:
    """The parts beside each other in one graph, none reading what another writes."""
    model = working.clone()
    graph = model.graph
    nodes = {n.name: n for n in graph}
    values = {v.name: v for n in graph for v in n.outputs}
    inputs: dict[str, ir.Value] = {}
    for part in parts:
        own = [nodes[n.name] for n in part.nodes]
        for value in part.inputs:
            given = inputs.setdefault(_given(value), ir.Value(name=_given(value), type=value.type, shape=value.shape))
            for node in own:
                for i, v in enumerate(node.inputs):
                    if v is not None and v.name == value.name:
                        node.replace_input_with(i, given)
    graph.outputs.clear()
    graph.inputs[:] = list(inputs.values())
    for part in parts:
        for value in part.outputs:
            graph.outputs.append(values[value.name])
            values[value.name].name = _out(value)
    passes.RemoveUnusedNodesPass()(model)
    return model


def _build(
    compiled: Sequence[tuple[Region, Program]], path: Path, ir_version: int, isa: geometry.InstructionSet
) -> None:
    """A model of the compiled parts, with its library beside it."""
    programs = [program for _, program in compiled]
    data = path.with_name(f"{path.name}.data")
    blobs = write_weights(programs, data)
    seal_weights(data, blobs, DOMAIN)
    regions = "".join(emit_region(p, plan_memory(p)).text for p in programs)  # one file: its headers are read once
    sources = [*emit_instances(instances(programs)), Source("parts.cpp", regions)]
    sources.append(emit_registration(DOMAIN, [part for part, _ in compiled], [Form(programs, blobs)]))
    library = path.parent / "libparts.so"
    build(sources, path.parent / "src", library, compiler=find_compiler(), isa=isa)
    (path.parent / store.RECORD).write_text(json.dumps({"compiled": {"library": library.name}}), encoding="utf-8")
    inputs: dict[str, ir.Value] = {}
    nodes, constants = [], []
    for (part, _), blob in zip(compiled, blobs, strict=True):
        read = [inputs.setdefault(_given(v), ir.Value(name=_given(v), type=v.type, shape=v.shape)) for v in part.inputs]
        node, weights = region_node(part, [blob] if blob.bytes else [], DOMAIN, data, read)
        for value, written in zip(part.outputs, node.outputs, strict=True):
            written.name, written.type, written.shape = _out(value), value.type, value.shape
        nodes.append(node)
        constants += weights
    outputs = [v for node in nodes for v in node.outputs]
    opsets = {DOMAIN: 1, "": 17}
    graph = ir.Graph(
        list(inputs.values()), outputs, nodes=nodes, initializers=constants, name="parts", opset_imports=opsets
    )
    ir.save(ir.Model(graph, ir_version=ir_version), path)
