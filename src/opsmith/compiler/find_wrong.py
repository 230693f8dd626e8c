"""Which node of a compiled model computes something other than ONNX Runtime does?

1. The working copy runs in ONNX Runtime on the inputs that differed, and every value in it is kept.
2. Each region runs alone on what it should have been given: the ones that answer wrongly are at fault.
3. In a region at fault the shortest run of its first nodes that is wrong is found by halving; its last node is the culprit.

The culprit stays with ONNX Runtime, and everything else can be compiled. Halving builds a library each time: where that takes too
long, all nodes among which the culprit is stay.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime as ort

from opsmith import machine, session, store
from opsmith.check.differences import BOUNDS, OutputCheck, worst_first
from opsmith.check.verify import Case, VerifyResult, compare_value
from opsmith.compiler import geometry
from opsmith.compiler.build import build, find_compiler
from opsmith.compiler.convert import Blob, region_node, seal_weights, write_weights
from opsmith.compiler.cut import Cut, GoesBack, HandedBack, lower
from opsmith.compiler.emit import Form, emit_instances, emit_region, emit_registration, instances
from opsmith.compiler.lower import Program, Target
from opsmith.compiler.partition import Region, region_inputs
from opsmith.compiler.plan import plan_memory
from opsmith.errors import OpsmithError
from opsmith.sizes import at

Values = Mapping[str, Any]
SHOWN = 160  # characters of a problem
PATIENCE = 60.0  # seconds of halving
LARGEST = 1 << 30  # bytes of values that are kept at once; above it, whole regions are handed back
AT_ONCE = 128 << 20  # bytes; if all values take no more, they are computed in one run


# What a compiled region says when it refuses its inputs, inside what ONNX Runtime makes of it (kernels/ort_abi.hpp).
_REFUSED = re.compile(r"opsmith region \w+, node (?P<node>.+): (?P<why>[^:]+)$", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Fault:
    """Nodes that go back to ONNX Runtime, because of what was seen of them."""

    nodes: HandedBack
    remark: str  # for the user


def find_wrong(pieces: Cut, verified: VerifyResult, target: Target, give_up: bool) -> Fault:
    """The nodes to hand back after a failed verification. GIVE_UP: whole regions, without looking closer."""
    failed = next(case for case in verified.cases if not case.ok)
    problem = failed.problem or next(o.problem for o in failed.outputs if not o.ok) or ""
    if give_up:
        return _whole_regions(pieces.regions, problem)
    if named := _named(pieces.regions, failed.problem or ""):  # it does not run
        return _that_refused(pieces, named, problem) or _whole_regions(named, problem)
    reference = Reference(pieces, failed)
    try:
        faults = _faults(reference, target)
    except OpsmithError as error:
        faults, problem = [], f"{problem}; {error}"
    if not faults:
        return _whole_regions([r for r in pieces.regions if r.path] or pieces.regions, problem)
    region, check = max(faults, key=lambda fault: fault[1].needed_rtol + fault[1].needed_atol)
    return _blame(_culprits(region, reference, target), check)


def _named(regions: Sequence[Region], problem: str) -> list[Region]:
    """The regions that ONNX Runtime names where a model does not run."""
    return [r for r in regions if re.search(rf"\b{r.name}\b", problem)]


def _blame(nodes: Sequence[ir.Node], check: OutputCheck) -> Fault:
    """The culprit, or the nodes among which it is."""
    why = f"computed something else than ONNX Runtime ({check.problem})"
    last = f"{nodes[-1].op_type} {nodes[-1].name}"
    if len(nodes) == 1:
        return Fault({nodes[0].name or "": why}, f"{last} {why}: it stays there. This is a defect of ours")
    remark = f"one of {len(nodes)} nodes up to {last} {why}: they stay there. This is a defect of ours"
    return Fault({n.name or "": f"one of {len(nodes)} nodes {why}" for n in nodes}, remark)


def _faults(reference: Reference, target: Target) -> list[tuple[Region, OutputCheck]]:
    """The regions that answer wrongly; those in bodies are not asked, their values change from turn to turn."""
    outside = [r for r in reference.pieces.regions if not r.path]
    return [(r, check) for r in outside if not (check := _check(r, reference, target)).ok]


def _that_refused(pieces: Cut, regions: Sequence[Region], problem: str) -> Fault | None:
    """The nodes of REGIONS that the one which refused its inputs stands for, if it says which it is."""
    refused = _REFUSED.search(problem)
    programs = [p for r, p in zip(pieces.regions, pieces.programs, strict=True) if r in regions]
    asked = {name for p in programs for name in p.origins_of([refused["node"]])} if refused else set()
    nodes = [n for r in regions for n in r.nodes if n.name in asked]
    if not nodes or refused is None:
        return None
    why = f"it did not run: {refused['why']}"
    which = f"{nodes[-1].op_type} {nodes[-1].name} goes" if len(nodes) == 1 else f"{len(nodes)} nodes go"
    remark = f"{which} back to ONNX Runtime: {refused['why']}, at {refused['node']}. This is a defect of ours"
    return Fault({n.name or "": why for n in nodes}, remark)


def _whole_regions(regions: Sequence[Region], problem: str) -> Fault:
    refused = _REFUSED.search(problem)
    why = f"its region did not run: {refused['why']}" if refused else f"the compiled model differed: {problem[:SHOWN]}"
    nodes = {n.name or "": why for r in regions for n in r.nodes}
    which = "1 region goes" if len(regions) == 1 else f"{len(regions)} regions go"
    told = f"{refused['why']}, at {refused['node']}" if refused else problem[-SHOWN:]
    return Fault(nodes, f"{which} back to ONNX Runtime: {told}. This is a defect of ours")


@dataclasses.dataclass(frozen=True)
class Reference:
    """The working copy on one set of inputs: any of its values, as ONNX Runtime computes it without optimizations."""

    pieces: Cut
    case: Case  # whose inputs they are

    @functools.cached_property
    def feed(self) -> Values:
        """The values of all inputs, those with a default included."""
        graph = self.pieces.source.working.graph
        tensors = (
            (v.name or "", graph.initializers[v.name or ""].const_value)
            for v in graph.inputs
            if v.name in graph.initializers
        )
        return {**{name: t.numpy() for name, t in tensors if t is not None}, **(self.case.inputs or {})}

    def values(self, names: Collection[str]) -> Values:
        """The named values and the inputs; all values, where they are small enough to be computed at once."""
        if set(names) <= self.all_names and self.bytes(self.all_names) <= AT_ONCE:
            return self._all
        return self._run(names)

    def bytes(self, names: Collection[str]) -> int:
        """The bytes of the named values, as far as their sizes are known before the model runs."""
        return sum(self._sizes.get(name, 0) for name in names)

    @functools.cached_property
    def all_names(self) -> set[str]:
        outside = [r for r in self.pieces.regions if not r.path]
        names = {v.name or "" for r in outside for n in r.nodes for v in n.outputs if v.name}
        return names | {v.name or "" for r in outside for v in r.inputs}

    @functools.cached_property
    def _all(self) -> Values:
        return self._run(self.all_names)

    @functools.cached_property
    def _sizes(self) -> dict[str, int]:
        """Bytes of each value; where the inputs' sizes do not say (rows of a NonZero), as a run of the model tells."""
        sizes = self.pieces.source.sizes_of(self.feed)
        facts = self.pieces.source.scopes[0].analysis.facts
        counts = {v.name or "": at(fact.size, sizes) for v, fact in facts.items()}
        computed = sorted(name for name in self.all_names if counts.get(name, 0) is None)
        counts |= self._counted(computed) if computed else {}
        return {v.name or "": (counts[v.name or ""] or 0) * fact.dtype.bitwidth // 8 for v, fact in facts.items()}

    def _counted(self, names: Sequence[str]) -> dict[str, int]:
        """How many elements values have when the model runs, of which nothing else is kept."""

        def expose(proto: onnx.ModelProto) -> None:
            del proto.graph.output[:]
            for i, name in enumerate(names):
                proto.graph.node.append(onnx.helper.make_node("Size", [name], [f"opsmith_count_{i}"]))
                proto.graph.output.append(onnx.ValueInfoProto(name=f"opsmith_count_{i}"))

        return dict(zip(names, map(int, self._ran(expose)[1])))

    def _run(self, names: Collection[str]) -> Values:
        if self.bytes(names) > LARGEST:
            raise OpsmithError("its values are too large to look closer")

        def expose(proto: onnx.ModelProto) -> None:
            inputs = {i.name for i in proto.graph.input}
            del proto.graph.output[:]
            proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in sorted(set(names) - inputs))

        return {**self.feed, **{name: session.detached(value) for name, value in zip(*self._ran(expose))}}

    def _ran(self, edit: Callable[[onnx.ModelProto], None]) -> tuple[list[str], list[Any]]:
        """The names of an edited working copy's outputs, and what they are."""
        with tempfile.TemporaryDirectory(prefix="opsmith-values-") as folder:
            path = Path(folder) / "working.onnx"
            store.save_model(self.pieces.source.working, path)
            options = ort.SessionOptions()
            options.execution_order = ort.ExecutionOrder.PRIORITY_BASED  # a Size as soon as it can, so its input may go
            running = session.load(path, optimize=False, edit=edit, lean=True, options=options)
            return [o.name for o in running.get_outputs()], session.run(running, self.feed)


def all_values(pieces: Cut, feed: Values) -> Values:
    """Every value outside bodies that a region reads or writes."""
    reference = Reference(pieces, Case("all values", {}, inputs=feed))
    return reference.values(reference.all_names)


def _culprits(region: Region, reference: Reference, target: Target) -> list[ir.Node]:
    """The last node of the shortest wrong run of first nodes, or those among which it is."""
    right, wrong = 0, len(region.nodes)
    until = time.monotonic() + PATIENCE
    while wrong - right > 1 and time.monotonic() < until:
        middle = (right + wrong) // 2
        machine.release_memory()  # each try leaves graphs that refer to themselves
        try:
            ok = _check(_first(region, middle, reference.pieces), reference, target).ok
        except (GoesBack, OpsmithError):
            ok = True  # this run cannot be compiled by itself: look behind it
        right, wrong = (middle, wrong) if ok else (right, middle)
    return region.nodes[right:wrong]


def _first(region: Region, count: int, pieces: Cut) -> Region:
    nodes = region.nodes[:count]
    inside = set(nodes)
    asked = set(region.outputs)
    outputs = [v for n in nodes for v in n.outputs if v in asked or any(user not in inside for user in v.consumers())]
    return Region(region.name, nodes, region_inputs(nodes, pieces.source.scopes[0].analysis.facts), outputs)


def _check(region: Region, reference: Reference, target: Target) -> OutputCheck:
    """The worst output of a region that runs alone on the right inputs."""
    pieces = reference.pieces
    values = reference.values({v.name or "" for v in (*region.inputs, *region.outputs)})
    answers = _run_alone(
        region,
        lower(region, pieces.source, pieces.source.scopes[0].analysis.facts, target),
        values,
        pieces.source.working.ir_version,
        target.isa,
    )
    bound = BOUNDS.get(target.precision.name)
    pairs = ((v.name or "", a) for v, a in zip(region.outputs, answers))
    checks = [compare_value(reference.case, values[name], a, bound=bound, name=name) for name, a in pairs]
    return worst_first(checks)[0]


def _run_alone(
    region: Region, program: Program, values: Values, ir_version: int, isa: geometry.InstructionSet
) -> list[Any]:
    """Build a library with nothing but this region, and run it."""
    domain = "opsmith.alone"
    with tempfile.TemporaryDirectory(prefix="opsmith-alone-") as scratch:
        folder = Path(scratch)
        data = folder / "alone.onnx.data"
        (blob,) = write_weights([program], data)
        seal_weights(data, [blob], domain)
        sources = [*emit_instances(instances([program])), emit_region(program, plan_memory(program))]
        sources.append(emit_registration(domain, [region], [Form([program], [blob])]))
        library = build(sources, folder / "src", folder / "alone.so", compiler=find_compiler(), isa=isa)
        path = folder / "alone.onnx"
        ir.save(_single(region, blob, domain, data, ir_version), path)
        options = ort.SessionOptions()
        options.register_custom_ops_library(str(library))
        running = session.load(path, options=options)
        return session.run(running, {v.name or "": values[v.name or ""] for v in region.inputs})


def _single(region: Region, blob: Blob, domain: str, data: Path, ir_version: int) -> ir.Model:
    """A model that holds nothing but the compiled region."""
    inputs = [ir.Value(name=v.name, type=v.type, shape=v.shape) for v in region.inputs]
    node, weights = region_node(region, [blob] if blob.bytes else [], domain, data, inputs)
    for old, new in zip(region.outputs, node.outputs):
        new.name, new.type, new.shape = old.name, old.type, old.shape
    opsets = {domain: 1, "": 17}
    graph = ir.Graph(inputs, node.outputs, nodes=[node], initializers=weights, name="alone", opset_imports=opsets)
    return ir.Model(graph, ir_version=ir_version)
