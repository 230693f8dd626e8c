"""A UNet cut into pieces that need not all run in every step, found from the graph alone.

    text          what depends on the prompt only: keys and values of cross-attention. Once per prompt
    time          what depends on the timestep only. Once per timestep
    *_shared      what depends on sample and timestep: the same for both halves of guidance. Once for both
    first, last   what the outermost skip connection needs, before and behind it
    deep          all within that skip connection: changes slowly from step to step, so approximate presets reuse its result

Every node of the graph is in one piece; only constants, shape arithmetic and what costs next to nothing are repeated where they
are needed. A piece therefore computes what the whole graph computes, and all weights are there once.

The cut looks at the operators' inputs and at skip connections (a Concat of a value with one that it was made from), not at names.
Only the inputs of a UNet have names: those of the exporter, which are those of diffusers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import onnx

from opsmith.errors import OpsmithError
from opsmith.nodes import ONNX, subgraphs

SAMPLE, TIMESTEP = "sample", "timestep"
ONCE = ("encoder_hidden_states", "text_embeds", "time_ids", "timestep_cond")  # do not change from step to step
STAGES = ("first", "deep", "last")
# In the order in which they run.
NAMES = ("text", "time", *(f"{stage}{whose}" for stage in STAGES for whose in ("_shared", "")))
# What a piece is worth its border for. Operators of other domains, and functions, are taken to be as expensive.
_EXPENSIVE = {
    "MatMul",
    "Gemm",
    "Conv",
    "ConvTranspose",
    "Einsum",
    "Attention",
    "MatMulInteger",
    "ConvInteger",
    "QLinearMatMul",
}
_ANYWHERE = ""  # constants, shape arithmetic, cheap ends: wherever they are needed


@dataclasses.dataclass(frozen=True)
class Piece:
    """Nodes of the graph, and the values that come in and go out."""

    name: str
    nodes: tuple[int, ...]  # by their place in the graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def is_shared(self) -> bool:
        """Whether both halves of guidance have the same values in it."""
        return self.name == "time" or self.name.endswith("_shared")


@dataclasses.dataclass(frozen=True)
class Cut:
    pieces: tuple[Piece, ...]  # in the order in which they run
    hidden: str | None  # what `deep` hands on, if the graph has skip connections

    @property
    def saves(self) -> bool:
        """Whether anything can be computed once. A UNet that was compiled whole is one operator, with nothing to cut."""
        return any(piece.name == "text" or piece.is_shared for piece in self.pieces)


class Graph:
    """Who makes and who reads each value."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        self.nodes = list(proto.graph.node)
        weights = {t.name for t in proto.graph.initializer} | {t.values.name for t in proto.graph.sparse_initializer}
        self.inputs = [i.name for i in proto.graph.input if i.name not in weights]
        self.outputs = [o.name for o in proto.graph.output]
        self.reads = [tuple(dict.fromkeys(_read(node))) for node in self.nodes]
        self.maker = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.readers: dict[str, list[int]] = {}
        for i, names in enumerate(self.reads):
            for name in names:
                if self.maker.get(name, -1) >= i:
                    raise OpsmithError("the graph's nodes are not in the order in which they run")
                self.readers.setdefault(name, []).append(i)

    def data(self, node: int) -> tuple[str, ...]:
        """What the node reads the numbers of. Of what Shape reads only the sizes matter, which are the same in all steps."""
        return () if self.nodes[node].op_type in ("Shape", "Size") and not self.nodes[node].domain else self.reads[node]

    def needs(self) -> list[frozenset[str]]:
        """The graph's inputs whose numbers each node depends on."""
        by_value = {name: frozenset([name]) for name in self.inputs}
        found = []
        for i, node in enumerate(self.nodes):
            needed = frozenset[str]().union(*(by_value.get(name, frozenset()) for name in self.data(i)))
            found.append(needed)
            by_value |= dict.fromkeys(node.output, needed)
        return found

    def ancestors(self) -> list[int]:
        """Bit j of number i: node i depends on node j, or is it."""
        found: list[int] = []
        for i in range(len(self.nodes)):
            bits = 1 << i
            for name in self.data(i):
                if name in self.maker:
                    bits |= found[self.maker[name]]
            found.append(bits)
        return found


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a node and the graphs within it read."""
    yield from (name for name in node.input if name)
    for inner in subgraphs(node):
        own = {name for n in inner.node for name in n.output} | {i.name for i in inner.input}
        own |= {t.name for t in inner.initializer}
        yield from (name for n in inner.node for name in _read(n) if name not in own)
        yield from (o.name for o in inner.output if o.name not in own)


def plan(proto: onnx.ModelProto, skip: int = 0) -> Cut:
    """Where to cut PROTO (its weights are not looked at). SKIP connections further in than the outermost one count as its border."""
    graph = Graph(proto)
    needs = graph.needs()
    hidden = _hidden(graph, needs, skip)
    homes = [_home(kind, stage) for kind, stage in zip(_kinds(graph, needs), _stages(graph, hidden))]
    members: dict[str, set[int]] = {}
    for i, home in enumerate(homes):
        members.setdefault(home, set()).add(i)
    pieces = _pieces(graph, homes, members)
    _check_order(graph, pieces)
    return Cut(tuple(pieces), hidden)


def _home(kind: str, stage: str) -> str:
    """The piece that a node belongs to."""
    if kind in ("text", "time", _ANYWHERE):
        return kind
    return f"{stage}_shared" if kind == "shared" else stage


def _pieces(graph: Graph, homes: Sequence[str], members: Mapping[str, set[int]]) -> list[Piece]:
    """The pieces that have nodes, with what comes in and goes out."""
    whole = {name: _with_what_is_anywhere(graph, homes, members[name]) for name in NAMES if name in members}
    read_by = {name: {v for i in nodes for v in graph.reads[i]} for name, nodes in whole.items()}
    pieces = []
    for name, nodes in whole.items():
        made = [v for i in sorted(members[name]) for v in graph.nodes[i].output]
        elsewhere = set(graph.outputs).union(*(read for other, read in read_by.items() if other != name))
        inside = {v for i in nodes for v in graph.nodes[i].output}
        coming = [v for v in (*graph.inputs, *graph.maker) if v in read_by[name] and v not in inside]
        pieces.append(Piece(name, tuple(sorted(nodes)), tuple(coming), tuple(v for v in made if v in elsewhere)))
    return pieces


def _hidden(graph: Graph, needs: Sequence[frozenset[str]], skip: int) -> str | None:
    """The value that comes from within the outermost skip connection, or one that is SKIP further in."""
    ancestors = graph.ancestors()
    found = []
    for node in graph.nodes:
        if node.op_type != "Concat" or len(node.input) != 2 or not {*node.input} <= graph.maker.keys():
            continue
        one, other = (graph.maker[name] for name in node.input)
        if SAMPLE not in needs[one] & needs[other] or next(a.i for a in node.attribute if a.name == "axis") != 1:
            continue
        if ancestors[one] >> other & 1:
            found.append(node.input[0])
        elif ancestors[other] >> one & 1:
            found.append(node.input[1])
    return found[-1 - skip] if skip < len(found) else None


def _kinds(graph: Graph, needs: Sequence[frozenset[str]]) -> list[str]:
    """text, time, shared, own (to each half of guidance), or anywhere."""
    once, both = set(ONCE) & set(graph.inputs), {SAMPLE, TIMESTEP}
    kinds = []
    for needed in needs:
        if not needed:
            kinds.append(_ANYWHERE)
        elif needed <= once:
            kinds.append("text")
        elif needed == {TIMESTEP}:
            kinds.append("time")
        else:
            kinds.append("shared" if once and needed <= both else "own")
    # What follows the last expensive operator of a piece goes with its readers: less to hand over, and fusions stay whole.
    for i in reversed(range(len(kinds))):
        if kinds[i] in ("text", "time", "shared") and not _is_expensive(graph.nodes[i]):
            readers = (j for name in graph.nodes[i].output for j in graph.readers.get(name, ()))
            if not any(kinds[j] == kinds[i] for j in readers):
                kinds[i] = "own" if kinds[i] == "shared" else _ANYWHERE
    return kinds


def _is_expensive(node: onnx.NodeProto) -> bool:
    return node.op_type in _EXPENSIVE or node.domain not in ONNX


def _stages(graph: Graph, hidden: str | None) -> list[str]:
    """first, deep or last, as if every node were in one of them. Without a skip connection all are first."""
    if hidden is None:
        return ["first"] * len(graph.nodes)
    around = set[int]()  # what the graph's outputs need beside the hidden value
    waiting = list(graph.outputs)
    while waiting:
        name = waiting.pop()
        node = graph.maker.get(name, -1)
        if name != hidden and node >= 0 and node not in around:
            around.add(node)
            waiting.extend(graph.data(node))
    behind = {hidden}
    stages = []
    for i, node in enumerate(graph.nodes):
        if not behind.isdisjoint(graph.data(i)):
            behind.update(node.output)
            stages.append("last")
        else:
            stages.append("first" if i in around else "deep")
    return stages


def _with_what_is_anywhere(graph: Graph, homes: Sequence[str], nodes: set[int]) -> set[int]:
    """NODES and the constants and shape arithmetic that they need."""
    found, waiting = set(nodes), list(nodes)
    while waiting:
        for name in graph.reads[waiting.pop()]:
            node = graph.maker.get(name, -1)
            if node >= 0 and homes[node] == _ANYWHERE and node not in found:
                found.add(node)
                waiting.append(node)
    return found


def _check_order(graph: Graph, pieces: Sequence[Piece]) -> None:
    there = set(graph.inputs)
    for piece in pieces:
        if late := [name for name in piece.inputs if name not in there]:
            raise OpsmithError(f"the UNet cannot be cut: its piece {piece.name} reads {late[0]!r}, which comes later")
        there.update(piece.outputs)
    if lost := [name for name in graph.outputs if name not in there]:
        raise OpsmithError(f"the UNet cannot be cut: no piece gives {lost[0]!r}")


def extract(proto: onnx.ModelProto, piece: Piece) -> None:
    """Leave of PROTO what PART is."""
    types = _types(proto, (*piece.inputs, *piece.outputs))
    graph = proto.graph
    nodes = [graph.node[i] for i in piece.nodes]
    used = {name for node in nodes for name in (*_read(node), *node.output)}
    del graph.node[:]
    graph.node.extend(nodes)
    weights = [t for t in graph.initializer if t.name in used]
    sparse = [t for t in graph.sparse_initializer if t.values.name in used]
    inner = [v for v in graph.value_info if v.name in used and v.name not in {*piece.inputs, *piece.outputs}]
    for kept, field in ((weights, graph.initializer), (sparse, graph.sparse_initializer), (inner, graph.value_info)):
        del field[:]
        field.extend(kept)
    for names, ends in ((piece.inputs, graph.input), (piece.outputs, graph.output)):
        del ends[:]
        ends.extend(types[name] for name in names)


def _types(proto: onnx.ModelProto, names: Sequence[str]) -> dict[str, onnx.ValueInfoProto]:
    """Type and sizes of values, inferred where the file does not say."""

    def known(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
        values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
        found = {v.name: onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in values}
        return {name: value for name, value in found.items() if value.type.tensor_type.elem_type}

    found = known(proto)
    if not set(names) <= found.keys():
        found = known(onnx.shape_inference.infer_shapes(proto)) | found
    if unknown := [name for name in names if name not in found]:
        raise OpsmithError(f"the UNet cannot be cut: the type of {unknown[0]!r} is not known")
    return found
