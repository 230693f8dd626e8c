"""The model twice: as it came, and as a working copy in which everything that can be is simplified.

    source     what is written in the end: whatever stays with ONNX Runtime stays exactly as it was
    working    functions inlined, constants folded, opset raised, sizes inferred, KV caches that grow in place;
               regions are found in it and cut out of it

Both name the same values alike: what a region reads and writes is found in the source by its name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import onnx_ir as ir

from opsmith import model_file, store
from opsmith.analysis import Analysis, Facts
from opsmith.check.inputs import Fixed
from opsmith.compiler.cache import IN_PLACE, grow_in_place
from opsmith.compiler.expand import expand
from opsmith.compiler.partition import Step, analyse_for_compiling, bodies
from opsmith.compiler.simplify import fix_dims, inline, name_apart, name_nodes, simplify
from opsmith.rewriter import COMPILER_RULES, keep_integers, rewrite_model
from opsmith.store import ModelLike

Path = tuple[Step, ...]  # to a body, from the outside in


@dataclasses.dataclass
class Scope:
    """A graph of the source, the main one or a body of If, Loop or Scan, and its working copy."""

    graph: ir.Graph
    working: ir.Graph
    analysis: Analysis  # of the working copy
    around: frozenset[str]  # values of the source that a body may read beside its own
    path: Path = ()

    def __post_init__(self) -> None:
        self.producers = {v.name: n for n in self.graph for v in n.outputs if v.name}
        self._given = {v.name for v in self.graph.inputs}

    def holds(self, value: ir.Value) -> bool:
        """Whether a value of the working copy is one of the source, too."""
        return value.name in self.producers or value.name in self._given or value.name in self.around


@dataclasses.dataclass
class Source:
    model: ir.Model
    working: ir.Model
    scopes: list[Scope]  # the main graph first, a body after the graph that holds it
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)  # value of a body -> its name in the file

    @property
    def opset(self) -> int:
        return self.working.opset_imports.get("", 1)

    @property
    def in_place(self) -> bool:
        return bool(self.working.meta.get(IN_PLACE))

    def sizes_of(self, feed: Mapping[str, Any]) -> dict[str, int]:
        """The dynamic dims as these inputs have them."""
        sizes: dict[str, int] = {}
        for value in self.working.graph.inputs:
            array, facts = feed.get(value.name or ""), self.scopes[0].analysis.facts.get(value)
            if array is not None and facts is not None:
                named = ((d.name, size) for d, size in zip(facts.dims, array.shape) if d.name is not None)
                sizes = {**dict(named), **sizes}
        return sizes

    def nodes(self) -> list[ir.Node]:
        """All nodes of the source, those of bodies too; constants do not count."""
        return [n for n in ir.traversal.RecursiveGraphIterator(self.model.graph) if n.op_type != "Constant"]


def load(src: ModelLike, shapes: Fixed | None = None) -> ir.Model:
    # A model in memory is copied: the caller's stays as it is. Its weights may lie in files, which a proto would lose sight of.
    model = model_file.as_run(src.clone()) if isinstance(src, ir.Model) else store.open_model(src)
    if shapes:
        fix_dims(model, shapes)
    inline(model)
    name_nodes(model.graph)
    return model


def prepare(model: ir.Model, in_place: bool = True) -> Source:
    """The working copy of MODEL, and what is known of it. IN_PLACE: caches may grow in the caller's memory."""
    renamed = name_apart(model.graph)
    working = model.clone()
    keep_integers(working)
    # The one rule before the cut: `expand` would write these nodes out as arithmetic behind the convolution.
    rewrite_model(working, level=2, only=("batch_norm",))
    if in_place:
        grow_in_place(working)
    simplify(working)
    scopes = _scopes(model, working)
    expanded = [expand(s.working, s.analysis) for s in scopes]
    if any(expanded):
        simplify(working)
        scopes = _scopes(model, working)
    return Source(model, working, scopes, renamed)


def _scopes(model: ir.Model, working: ir.Model) -> list[Scope]:
    opset = working.opset_imports.get("", 1)
    main = Scope(model.graph, working.graph, analyse_for_compiling(working.graph, opset), frozenset())
    return [main, *_inner(main, opset)]


def _inner(outer: Scope, opset: int) -> Iterator[Scope]:
    """The bodies in a graph that its working copy still has, with the bodies in them."""
    kept = {n.name: n for n in outer.working}
    around = outer.around | set(outer.producers) | {v.name or "" for v in outer.graph.inputs}
    for node in outer.graph:
        copies = {(a, i): g for a, i, g in bodies(kept[node.name])} if node.name in kept else {}
        for attribute, i, graph in bodies(node):
            if (copy := copies.get((attribute, i))) is not None:
                gives = next((v.name for v in node.outputs if v.name), "")
                path = (*outer.path, Step(node.name or "", attribute, i, gives))
                prefix = "".join(f"{_word(s.node)}_{s.attribute}{s.place}_" for s in path)
                analysis = _analyse_body(kept[node.name], copy, opset, outer.analysis.facts, prefix)
                scope = Scope(graph, copy, analysis, around, path)
                yield scope
                yield from _inner(scope, opset)


def _analyse_body(node: ir.Node, body: ir.Graph, opset: int, outer: Facts, prefix: str) -> Analysis:
    """What a Loop carries from step to step may change its shape, whatever its body declares: where the rank that a value begins
    or ends a step with is another one, it is not known."""
    carried = list(zip(node.inputs[2:], body.inputs[2:], body.outputs[1:])) if node.op_type == "Loop" else []
    while True:
        analysis = analyse_for_compiling(body, opset, outer, prefix)
        wrong = []
        for start, value, end in carried:
            ends = (outer.get(start) if start is not None else None, analysis.facts.get(end))
            if value.shape is not None and any(f is not None and f.rank != len(value.shape) for f in ends):
                wrong.append(value)
        if not wrong:
            return analysis
        inferred = (o for n in ir.traversal.RecursiveGraphIterator(body) for o in n.outputs)
        for value in (*wrong, *inferred):
            value.shape = None  # a branch inside declares what follows from it, too


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name)


def rewrite(model: ir.Model) -> None:
    """Find the structure that exporters tore apart."""
    rewrite_model(model, level=2, only=COMPILER_RULES)
    simplify(model)
