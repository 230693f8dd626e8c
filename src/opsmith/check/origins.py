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
from opsmith.nodes import operator_name, subgraphs


@dataclasses.dataclass(frozen=True)
class Node:
    """What is looked at of a node. `name` is made up where the file has none."""

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
            node.name or made_up_name(node.op_type, node.output),
            operator_name(node),
            tuple(n for n in (*node.input, *_captured(node)) if n),
            tuple(o for o in node.output if o),
        )
        for node in proto.graph.node
    )
    return Graph(nodes, frozenset(v.name for v in proto.graph.input if v.name not in weights))


def made_up_name(op: str, outputs: Iterable[str]) -> str:
    """What a node without a name is called."""
    return f"{op}_{next((o for o in outputs if o), '')}"


def _captured(node: onnx.NodeProto) -> list[str]:
    """Values of the outer graph that the node's subgraphs read."""
    captured: list[str] = []
    for graph in subgraphs(node):
        made = {o for inner in graph.node for o in inner.output} | {v.name for v in graph.input}
        made |= {tensor.name for tensor in graph.initializer}
        for inner in graph.node:
            captured += [n for n in (*inner.input, *_captured(inner)) if n not in made]
    return captured


def origins(original: Graph, derived: Graph) -> list[tuple[str, ...]]:
    """For each node of DERIVED the names of the nodes of ORIGINAL that it stands for, in the original's order."""
    made_by = {value: i for i, node in enumerate(original.nodes) for value in node.outputs}
    by_name = {node.name: i for i, node in enumerate(original.nodes)}
    live = _live(original)
    anchors = [_anchors(node, made_by, by_name) & live for node in derived.nodes]
    makers = [{made_by[v] for v in node.inputs if v in made_by} & live for node in original.nodes]
    owned = _take_ancestors(anchors, makers)
    owner = {node: i for i, group in enumerate(owned) for node in group}
    for i, own in enumerate(anchors):
        if not owned[i] and own:  # a second node for the same origin, such as a change of layout after it
            owned[i] = owned[owner[min(own)]] if min(own) in owner else set()
    _follow_consumers(derived, owned)
    return [tuple(original.nodes[n].name for n in sorted(group)) for group in owned]


def _take_ancestors(anchors: Sequence[set[int]], makers: Sequence[set[int]]) -> list[set[int]]:
    """For each derived node its anchors and all their ancestors that nobody has taken yet (2).

    MAKERS has for each original node those that make its inputs.
    """
    every = set().union(*anchors)
    taken: set[int] = set()
    owned = []
    for own in anchors:
        mine: set[int] = set()
        pending = list(own)
        while pending:
            node = pending.pop()
            if node in taken or (node in every and node not in own):
                continue  # an anchor of another derived node: that one will take it
            taken.add(node)
            mine.add(node)
            pending += makers[node]
        owned.append(mine)
    return owned


def _anchors(node: Node, made_by: dict[str, int], by_name: dict[str, int]) -> set[int]:
    writers = {made_by[o] for o in node.outputs if o in made_by}
    if not writers and node.name.removesuffix("_nchwc") in made_by:
        return {made_by[node.name.removesuffix("_nchwc")]}
    return writers or ({by_name[node.name]} if node.name in by_name else set())


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
