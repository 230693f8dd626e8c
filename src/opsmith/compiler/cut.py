"""Cut: the working copy falls into regions, and each region becomes a program.

choose    nodes that the compiler understands, that the user wants, and that nobody handed back to ONNX Runtime
regions   connected and convex; what one reads must be a value of the source
demand    what the source still asks of each region, walking back from its outputs: those are the region's outputs
body      a region as a graph of its own, in which the rules rewrite; nothing outside is touched
lower     the body's nodes become kernel calls; a node that does not lower goes back, and the cut is made again
"""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from opsmith.analysis import Facts, infer_node
from opsmith.analysis.values import Unsupported
from opsmith.check.origins import graph_of, origins
from opsmith.compiler.choose import chooser, structure
from opsmith.compiler.geometry import InstructionSet, native
from opsmith.compiler.lower import Program, Target, can_lower, lower_region
from opsmith.compiler.partition import Region, bodies, make_regions, producers_of, region_facts
from opsmith.compiler.source import Scope, Source, rewrite
from opsmith.errors import OpsmithError

HandedBack = dict[str, str]  # node of the working copy -> why it stays with ONNX Runtime


@dataclasses.dataclass
class Cut:
    """A model cut into regions, each lowered to a program."""

    source: Source
    regions: list[Region]
    programs: list[Program]
    reasons: dict[ir.Node, str]  # nodes of the working copy that stay with ORT
    left: list[ir.Node]  # nodes of the source that stay; constants do not count
    handed_back: HandedBack = dataclasses.field(default_factory=dict)
    target: Target | None = None  # that it was lowered for

    @property
    def isa(self) -> InstructionSet:
        return self.target.isa if self.target is not None else native()

    @property
    def whole(self) -> bool:
        return len(self.regions) == 1 and not self.left

    @property
    def in_place(self) -> bool:
        """Whether caches grow in the caller's memory: all appending is compiled, and nothing that stays looks at a cache."""
        appends = [n for n in self.source.working.graph if n.op_type == "CacheAppend"]
        inside = {n for r in self.regions for n in r.nodes}
        caches = {v.name for n in appends for v in (n.inputs[0], n.outputs[0]) if v is not None}
        looks = any(v is not None and v.name in caches for n in self.left for v in n.inputs)
        return self.source.in_place and inside.issuperset(appends) and not looks


@dataclasses.dataclass(frozen=True)
class Demand:
    outputs: dict[str, list[ir.Value]]  # region -> what is asked of it, values of the working copy
    left: list[ir.Node]  # nodes of the source that are still needed


def cut(source: Source, wanted: str, target: Target, handed_back: Mapping[str, str] | None = None) -> Cut:
    """Regions and their programs; every node that is in none has its reason."""
    choose = chooser(wanted, source)
    pieces = Cut(source, [], [], {}, [], dict(handed_back or {}), target)
    for scope in source.scopes:
        reasons = dict(scope.analysis.reasons)
        reasons |= {n: why for n in scope.working if (why := (handed_back or {}).get(n.name or "")) is not None}
        reasons |= {n: "not chosen" for n in scope.working if n not in reasons and not choose(n)}
        _cut_scope(pieces, scope, wanted, target, reasons)
    seen = [scope.graph for scope in source.scopes]
    for node in list(pieces.left):  # bodies that the working copy no longer has
        lost = [body for _, _, body in bodies(node) if body not in seen]
        pieces.left += [
            n for body in lost for n in ir.traversal.RecursiveGraphIterator(body) if n.op_type != "Constant"
        ]
    if wanted == "whole":
        _require_whole(pieces)
    return pieces


def _cut_scope(pieces: Cut, scope: Scope, wanted: str, target: Target, reasons: dict[ir.Node, str]) -> None:
    """Add the regions of one graph to PIECES."""
    facts, behind = scope.analysis.facts, _hidden_dependencies(scope)
    lowered: dict[tuple[object, ...], Program] = {}
    while True:
        regions = make_regions(scope.working, lambda n: n not in reasons, facts, behind, lambda v: not scope.holds(v))
        if _unknown_inputs(regions, scope, reasons):
            continue
        demand = demanded(scope, regions)
        for region in regions:
            region.outputs, region.path = demand.outputs[region.name], scope.path
        regions = [r for r in regions if _worthwhile(r, facts, wanted)]
        if len(regions) < len(demand.outputs):  # what is not worth a region is computed by the source's own nodes
            demand = demanded(scope, regions)
        if _in_a_circle(scope, regions, demand, reasons):
            continue
        if lower_all(regions, scope, pieces.source, target, reasons, lowered):
            break
    for region in regions:
        program = lowered[(*region.nodes, *region.outputs)]
        region.name = program.name = f"region{len(pieces.regions)}"
        pieces.regions.append(region)
        pieces.programs.append(program)
    pieces.reasons.update(reasons)
    pieces.left += demand.left


def _unknown_inputs(regions: Iterable[Region], scope: Scope, reasons: dict[ir.Node, str]) -> bool:
    """Nodes stay that read a value which only the working copy has, or of which nothing is known; whether there were any."""
    unknown = False
    for region in regions:
        for value in region.inputs:
            if scope.holds(value) and value in scope.analysis.facts:
                continue
            for node in value.consumers():
                if node in region.nodes:
                    reasons[node] = f"it reads {value.name}, which is made by a node that stays"
                    unknown = True
    return unknown


def _hidden_dependencies(scope: Scope) -> dict[ir.Node, set[ir.Node]]:
    """Node of the working copy -> nodes it depends on in the source, where simplifying made it independent of them.

    A node that stays is run as the source has it. If that one takes a size from a tensor inside a region, it runs after the
    region, although its simplified form could run before.
    """
    made = {v.name: n for n in scope.working for v in n.outputs}
    memory: dict[str, set[ir.Node]] = {}

    def sources_of(names: Iterable[str]) -> set[ir.Node]:
        return set().union(*(memory.get(n, {made[n]} if n in made else set()) for n in names))

    hidden: dict[ir.Node, set[ir.Node]] = {}
    for node in scope.graph:
        reads = [v.name or "" for v in node.inputs if v is not None] + [
            v.name or "" for p in producers_of(node) for v in p.outputs
        ]
        behind = sources_of(reads)
        for value in node.outputs:
            if value.name in made:
                hidden.setdefault(made[value.name], set()).update(behind)
            elif value.name:
                memory[value.name] = behind
    order = {n: i for i, n in enumerate(scope.working)}
    return {n: {p for p in before if order[p] < order[n]} for n, before in hidden.items()}


def demanded(scope: Scope, regions: Sequence[Region]) -> Demand:
    """Walk back from the outputs of the source: what regions must give, and which nodes must stay."""
    made = {v.name: (r, v) for r in regions for v in _results(r) if v.name in scope.producers}
    outputs: dict[str, dict[ir.Value, None]] = {r.name: {} for r in regions}
    stay: set[ir.Node] = set()
    pending = [v.name or "" for v in scope.graph.outputs]
    seen: set[str] = set()
    while pending:
        wanted = pending.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        if wanted in made:
            region, value = made[wanted]
            if not outputs[region.name]:
                pending += [v.name or "" for v in region.inputs]
            outputs[region.name][value] = None
        elif wanted in scope.producers:
            node = scope.producers[wanted]
            stay.add(node)
            pending += _reads(node)
    return Demand(
        {r.name: [v for v in _results(r) if v in outputs[r.name]] for r in regions},
        [n for n in scope.graph if n in stay and n.op_type != "Constant"],
    )


def _results(region: Region) -> Iterator[ir.Value]:
    return (v for n in region.nodes for v in n.outputs)


def _reads(node: ir.Node) -> list[str]:
    """Names of all that a node needs, by its inputs or in its bodies."""
    return [v.name or "" for v in node.inputs if v is not None] + captured(node)


def _in_a_circle(scope: Scope, regions: Sequence[Region], demand: Demand, reasons: dict[ir.Node, str]) -> bool:
    """Whether a region and nodes that stay wait for each other; then the region's nodes stay, too.

    Simplifying can turn things round: of two values that are equal, the working copy may compute the one from the other, and
    the source the other from the one.
    """
    maker: dict[str, Region | ir.Node] = {v.name or "": n for n in demand.left for v in n.outputs}
    maker |= {v.name or "": r for r in regions for v in r.outputs}
    waits: dict[int, set[int]] = {}
    for region in regions:
        waits[id(region)] = {id(maker[v.name or ""]) for v in region.inputs if v.name in maker}
    for node in demand.left:
        makers = {id(maker[r]) for r in _reads(node) if r in maker}
        waits[id(node)] = makers - {id(node)}  # a body may hold a name of its own node's
    try:
        graphlib.TopologicalSorter(waits).prepare()
    except graphlib.CycleError as circle:
        stuck = [r for r in regions if id(r) in circle.args[1]]
        reasons.update({n: "the source computes what it reads from what it gives" for r in stuck for n in r.nodes})
        return bool(stuck)
    return False


def captured(node: ir.Node) -> list[str]:
    """Names of outer values that the bodies of a node read; names of its own inner values may be among them."""
    names = []
    for _, _, body in bodies(node):
        names += [v.name or "" for v in body.outputs]
        for inner in ir.traversal.RecursiveGraphIterator(body):
            names += [v.name or "" for v in inner.inputs if v is not None]
    return names


def _worthwhile(region: Region, facts: Facts, wanted: str) -> bool:
    """A region that only does shape arithmetic has nothing to run: it is compiled only if everything is. Constants never are."""
    if all(n.op_type == "Constant" for n in region.nodes):  # the results of a branch
        return False
    if wanted in ("all", "whole"):
        return bool(region.outputs)
    return any(facts[v].runs for v in region.outputs)


# --- a region on its own ---


def lower_all(
    regions: Iterable[Region],
    scope: Scope,
    source: Source,
    target: Target,
    reasons: dict[ir.Node, str],
    lowered: dict[tuple[object, ...], Program],
) -> bool:
    """Lower the regions that were not lowered before; False if a node of one must go back to ONNX Runtime."""
    for region in regions:
        key = (*region.nodes, *region.outputs)
        if key in lowered:
            continue
        try:
            lowered[key] = lower(region, source, scope.analysis.facts, target)
        except GoesBack as left:
            reasons.update(dict.fromkeys(left.nodes, left.why))
            return False
    return True


class GoesBack(Exception):
    """Nodes of a region that cannot be compiled after all."""

    def __init__(self, nodes: list[ir.Node], why: str) -> None:
        super().__init__(why)
        self.nodes, self.why = nodes, why


def lower(region: Region, source: Source, known: Facts, target: Target) -> Program:
    body = body_of(region, source)
    rewrite(body)
    stands_for = _stands_for(region, body.graph)
    graph = body.graph
    opset = body.opset_imports.get("", source.opset)
    facts = region_facts(region, graph, known)
    for value, name in zip(graph.outputs, region.outputs):
        if value.producer() is None:  # it became a constant, or is an input as it came
            writer = name.producer()
            raise GoesBack([writer] if writer is not None else region.nodes, "nothing is left of it to compile")
    try:
        _understand(graph, dict(facts), opset)
        program = lower_region(region.name, list(graph), list(graph.inputs), list(graph.outputs), facts, opset, target)
    except Unsupported as reason:
        blamed = stands_for.get(reason.node.name or "", ()) if reason.node is not None else ()
        raise GoesBack([n for n in region.nodes if n.name in blamed] or region.nodes[-1:], str(reason)) from reason
    program.origins = stands_for
    return program


def _understand(graph: ir.Graph, facts: Facts, opset: int) -> None:
    for node in graph:
        try:
            infer_node(node, facts, opset)
            if not can_lower(node) and any(facts[o].runs for o in node.outputs):
                raise Unsupported(f"{node.op_type} is only supported in shape arithmetic")
        except Unsupported as reason:
            reason.node = node
            raise


def body_of(region: Region, source: Source) -> ir.Model:
    """The region's nodes as a model of their own; inputs and outputs in the region's order."""
    working = source.working
    read = {v for n in region.nodes for v in n.inputs if v is not None}
    constants = [v for v in read - set(region.inputs) if v.producer() is None]
    view = ir.GraphView(
        region.inputs,
        region.outputs,
        nodes=region.nodes,
        initializers=constants,
        opset_imports=working.graph.opset_imports,
        name=region.name,
    )
    functions = [f.clone() for f in working.functions.values()]
    return ir.Model(view.clone(), ir_version=working.ir_version, functions=functions)


def _stands_for(region: Region, body: ir.Graph) -> dict[str, tuple[str, ...]]:
    """Node of a region's rewritten body -> the nodes of the region that it stands for."""
    names = {v.name for v in region.inputs}
    before, after = (graph_of(structure(g, names)) for g in (region.nodes, body))
    return {node.name: found for node, found in zip(after.nodes, origins(before, after))}


def _require_whole(pieces: Cut) -> None:
    if pieces.whole:
        return
    stay = [f"{n.op_type} {n.name}: {why}" for n, why in pieces.reasons.items()]
    if not stay:
        stay = [f"the graph falls into {len(pieces.regions)} unconnected parts"]
    more = f" and {len(stay) - 8} more" if len(stay) > 8 else ""
    raise OpsmithError(f"the whole graph cannot be one op: {'; '.join(stay[:8])}{more}", "use --regions auto")
