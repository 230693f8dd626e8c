"""Partition: which nodes form which region; the rest stays with ORT.

Every node is either supported or has a reason why not. Supported nodes are numbered by how many unsupported ones lie behind
them on the longest path; nodes of one number that are connected form a region. No path can leave a region and come back, because
on the way it would pass an unsupported node and its number would rise: regions are convex. A node whose result is as long as its
data says (NonZero) ends its region: memory is planned before a region runs, so whoever reads the result starts the next one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from opsmith.analysis import Analysis, Facts, analyse, constant_of, with_elements
from opsmith.analysis.counted import count_of
from opsmith.analysis.values import Abstract, of_constant
from opsmith.compiler.lower import can_lower
from opsmith.sizes import Name, Scalar, Size, name


class Step(NamedTuple):
    """From a graph into a body of one of its nodes."""

    node: str
    attribute: str
    place: int  # in the attribute
    gives: (
        str  # the first output of the node: its name is the same in ONNX Runtime, that of the node may be made up here
    )


@dataclasses.dataclass
class Region:
    """Nodes of the working copy that become one call. What it writes is what the rest of the source asks for (convert.py)."""

    name: str
    nodes: list[ir.Node]
    inputs: list[ir.Value]
    outputs: list[ir.Value] = dataclasses.field(default_factory=list)
    path: tuple[Step, ...] = ()  # to the body it lies in


def analyse_for_compiling(graph: ir.Graph, opset: int, outer: Facts | None = None, prefix: str = "") -> Analysis:
    """What is known of a graph; what is understood but has no kernel is left to ORT too."""
    analysis = analyse(graph, opset, outer, prefix)
    for node in graph:
        if node not in analysis.reasons and not can_lower(node) and any(analysis.facts[o].runs for o in node.outputs):
            analysis.reasons[node] = f"{node.op_type} is only supported in shape arithmetic"
    return analysis


def make_regions(
    graph: ir.Graph,
    chosen: Callable[[ir.Node], bool],
    facts: Facts,
    behind: Mapping[ir.Node, Collection[ir.Node]] | None = None,
    hidden: Callable[[ir.Value], bool] = lambda _: False,
) -> list[Region]:
    """Connected convex regions of the chosen nodes, in topological order.

    BEHIND adds nodes that a node which is not chosen depends on, beside those that write its inputs. HIDDEN says of a value that
    no region can give it to another one: the node that computes it belongs to the region that reads it, however late that is.
    """
    level: dict[ir.Node, int] = {}
    inside: dict[ir.Node, bool] = {}
    readers: dict[ir.Node, list[ir.Node]] = {}
    for node in graph:
        inside[node] = chosen(node)
        height = 0
        for producer in (*producers_of(node), *(behind or {}).get(node, ())):
            step = 1 if inside[node] and (not inside[producer] or _ends_region(producer, facts)) else 0
            height = max(height, level[producer] + step)
            readers.setdefault(producer, []).append(node)
        level[node] = height
    for node in reversed(readers):  # in which a node comes after those that it was first read by
        if inside[node] and any(map(hidden, node.outputs)) and not _ends_region(node, facts):
            level[node] = max(level[node], min(level[reader] for reader in readers[node]))
    parent: dict[ir.Node, ir.Node] = {n: n for n in inside if inside[n]}

    def find(n: ir.Node) -> ir.Node:
        while parent[n] is not n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    for node in parent:
        for producer in producers_of(node):
            if producer in parent and level[producer] == level[node]:
                parent[find(node)] = find(producer)
    members: dict[ir.Node, list[ir.Node]] = {}
    for node in parent:
        members.setdefault(find(node), []).append(node)
    groups = sorted(members.values(), key=lambda nodes: level[nodes[0]])
    return [Region(f"region{i}", nodes, region_inputs(nodes, facts)) for i, nodes in enumerate(groups)]


def _ends_region(node: ir.Node, facts: Facts) -> bool:
    """Whether a size of the node's results is known only when it has run."""
    return count_of(node) in (d for v in node.outputs for d in facts[v].dims)


def region_inputs(nodes: Sequence[ir.Node], facts: Facts) -> list[ir.Value]:
    """What a set of nodes reads, the graph's own inputs first. Constants travel with the region."""
    inside = set(nodes)
    inputs: dict[ir.Value, None] = {}
    for node in nodes:
        for value in node.inputs:
            if value is None or value.producer() in inside:
                continue
            fact = facts.get(value)
            if fact is None or fact.constant is None or value.producer() is not None:
                inputs[value] = None
    given = {v: i for i, v in enumerate(nodes[0].graph.inputs)} if nodes[0].graph is not None else {}
    return sorted(inputs, key=lambda v: given.get(v, len(given)))


def bodies(node: ir.Node) -> Iterator[tuple[str, int, ir.Graph]]:
    """The graphs that a node holds, If's branches or Loop's body: attribute, place in it, graph."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.name, 0, attribute.value
        elif attribute.type == ir.AttributeType.GRAPHS:
            for i, graph in enumerate(attribute.value):
                yield attribute.name, i, graph


def producers_of(node: ir.Node) -> list[ir.Node]:
    """The nodes of the same graph that a node depends on, also through what the bodies of If and Loop capture."""
    producers = [v.producer() for v in node.inputs if v is not None]
    for _, _, body in bodies(node):
        for inner in ir.traversal.RecursiveGraphIterator(body):
            producers += [v.producer() for v in inner.inputs if v is not None]
        producers += [v.producer() for v in body.outputs]
    return [p for p in producers if p is not None and p.graph is node.graph]


def region_facts(region: Region, body: ir.Graph, facts: Facts) -> Facts:
    """What lowering may assume of BODY, the region's own graph: constants, and its inputs with sizes in terms of each other.

    A size that needs dims which no input of this region shows becomes a dim of its own. So does an element of a small input, such as
    a shape that another region computed; one that is such a size is known without reading it.
    """
    assumed = {v: of_constant(constant) for v in body.initializers.values() if (constant := constant_of(v)) is not None}
    shown = {d.name for v in region.inputs for d in facts[v].dims if d.name is not None}
    fresh: dict[Size, Size] = {}

    def told(known: Scalar, read: Scalar) -> Scalar:
        """An element that is a size of which this region has the names, or as it is read."""
        if not isinstance(known, Size):
            return read
        return known if _told_by(known, shown) else fresh.get(known, read)

    for value, mine in zip(region.inputs, body.inputs):
        if facts[value].squeezed:
            continue  # only the region that squeezes it knows its shape
        dims: list[Size] = []
        for d in facts[value].dims:
            if not _told_by(d, shown):
                d = fresh.setdefault(d, name(f"size{len(fresh)}_"))
            dims.append(d)
        assumed[mine] = with_elements(mine, Abstract(facts[value].dtype, tuple(dims)))
    for value, mine in zip(region.inputs, body.inputs):
        if mine in assumed and (read := assumed[mine].elements) and (known := facts[value].elements):
            elements = tuple(map(told, known, read))
            assumed[mine] = dataclasses.replace(assumed[mine], elements=elements)
    return assumed


def _told_by(size: Size, names: Container[str]) -> bool:
    return size.value is not None or all(isinstance(a, Name) and a.name in names for a in size.atoms())
