"""Which nodes of one graph a node of another graph stands for.

ONNX Runtime's optimizer, our rewriter and our compiler replace groups of nodes by one. They rarely keep the names of
nodes, but the values at the borders of what they replaced keep theirs:

    original    x -> MatMul -> m -> Add -> a -> Erf ... Mul -> y -> Add -> z
    derived     x -> Gemm   ------------> a -> Gelu -------> y -> Add -> z

1. A derived node is anchored at the original nodes that write its outputs; NCHWc copies, whose outputs are new, at the
   value in their name ("y_nchwc"), anything else at the original node of the same name.
2. In topological order, each anchored node takes its anchors and all their ancestors that nobody has taken yet.
3. A derived node without an anchor (the inside of an inlined function, a layout change) belongs to the first anchored
   node that consumes it.

Original nodes that depend on constants only were folded and belong to nobody.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx

from opsmith import store


@dataclasses.dataclass(frozen=True)
class Node:
    """A node by what matters here. `name` is made up from the first output where the file has none."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Graph:
    nodes: tuple[Node, ...]
    inputs: frozenset[str]


def read_graph(path: Path) -> Graph:
    """The nodes of a model file in order, weights left on disk."""
    return graph_of(store.read_proto(path))


def graph_of(proto: onnx.ModelProto) -> Graph:
    weights = {tensor.name for tensor in proto.graph.initializer}
    nodes = tuple(
        Node(
            node.name or next((o for o in node.output if o), f"node_{i}"),
            node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}",
            tuple(n for n in (*node.input, *_captured(node)) if n),
            tuple(o for o in node.output if o),
        )
        for i, node in enumerate(proto.graph.node)
    )
    return Graph(nodes, frozenset(v.name for v in proto.graph.input if v.name not in weights))


def _captured(node: onnx.NodeProto) -> list[str]:
    """Values of the outer graph that the node's subgraphs read."""
    found: list[str] = []
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            made = {o for inner in graph.node for o in inner.output} | {v.name for v in graph.input}
            made |= {tensor.name for tensor in graph.initializer}
            for inner in graph.node:
                found += [n for n in (*inner.input, *_captured(inner)) if n not in made]
    return found


def origins(original: Graph, derived: Graph) -> list[tuple[str, ...]]:
    """For each node of DERIVED the names of the nodes of ORIGINAL that it stands for, in the original's order."""
    made_by = {value: i for i, node in enumerate(original.nodes) for value in node.outputs}
    by_name = {node.name: i for i, node in enumerate(original.nodes)}
    live = _live(original)
    anchors = [_anchors(node, made_by, by_name) & live for node in derived.nodes]
    owned: list[set[int]] = [set() for _ in derived.nodes]
    taken: set[int] = set()
    every = set().union(*anchors) if anchors else set()
    for i, own in enumerate(anchors):
        pending = [a for a in own if a not in taken]
        while pending:
            node = pending.pop()
            if node in taken or (node in every and node not in own):
                continue  # an anchor of another derived node: that one will take it
            taken.add(node)
            owned[i].add(node)
            inputs = original.nodes[node].inputs
            pending += [made_by[v] for v in inputs if v in made_by and made_by[v] in live]
    owner = {node: i for i, group in enumerate(owned) for node in group}
    for i, own in enumerate(anchors):
        if not owned[i] and own:  # a second node for the same origin, such as a change of layout after it
            owned[i] = owned[owner[min(own)]] if min(own) in owner else set()
    _follow_consumers(derived, owned)
    return [tuple(original.nodes[n].name for n in sorted(group)) for group in owned]


def _anchors(node: Node, made_by: dict[str, int], by_name: dict[str, int]) -> set[int]:
    found = {made_by[o] for o in node.outputs if o in made_by}
    if not found and node.name.removesuffix("_nchwc") in made_by:
        found = {made_by[node.name.removesuffix("_nchwc")]}
    if not found and node.name in by_name:
        found = {by_name[node.name]}
    return found


def _live(graph: Graph) -> set[int]:
    """The nodes that depend on an input of the graph; those without any input (random numbers) count too."""
    reached: set[str] = set(graph.inputs)
    live = set()
    for i, node in enumerate(graph.nodes):
        if any(v in reached for v in node.inputs) or (not node.inputs and node.op != "Constant"):
            live.add(i)
            reached.update(node.outputs)
    return live


def _follow_consumers(derived: Graph, owned: list[set[int]]) -> None:
    """Give nodes without an origin that of their first consumer which has one; last nodes first."""
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(derived.nodes):
        for value in node.inputs:
            readers.setdefault(value, []).append(i)
    for i in reversed(range(len(derived.nodes))):
        if not owned[i]:
            consumers = sorted({r for o in derived.nodes[i].outputs for r in readers.get(o, [])})
            owned[i] = next((owned[c] for c in consumers if owned[c]), set())


def kernel_origins(
    reference: Graph, region: Sequence[str], calls: Iterable[tuple[int, str]]
) -> dict[int, tuple[str, ...]]:
    """For each kernel call of a compiled region the nodes of REFERENCE that it computes.

    CALLS are (number, name of the node it is built around) in order. What is fused into a kernel follows its main
    node, so any other node of the region belongs to the latest call that feeds it, or else to the first that reads it.
    """
    inside = set(region)
    nodes = [node for node in reference.nodes if node.name in inside]
    owner: dict[str, int] = {}
    for call, name in calls:
        while name and name not in inside:  # an inlined node is named after its call: linear_3/MatMul
            name = name.rpartition("/")[0]
        if name:
            owner.setdefault(name, call)
    made_by = {value: node.name for node in nodes for value in node.outputs}
    for node in nodes:
        feeding = [owner[made_by[v]] for v in node.inputs if v in made_by and made_by[v] in owner]
        if node.name not in owner and feeding:
            owner[node.name] = max(feeding)
    for node in reversed(nodes):
        for value in node.inputs:
            if node.name in owner and value in made_by:
                owner.setdefault(made_by[value], owner[node.name])
    found: dict[int, list[str]] = {}
    for node in nodes:
        if node.name in owner:
            found.setdefault(owner[node.name], []).append(node.name)
    return {call: tuple(names) for call, names in found.items()}
