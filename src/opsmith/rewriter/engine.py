"""Applies rules to a model and remembers, for each, how often it fired and where it came closest without firing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from opsmith.rewriter.rule import Miss, Rule, Site, is_op


@dataclasses.dataclass(frozen=True)
class NearMiss:
    """The attempt of a rule that got furthest: how many nodes it had matched, and what stopped it where."""

    root: str
    depth: int
    reason: str
    node: str
    op_type: str


@dataclasses.dataclass
class RuleResult:
    """What one rule did to a model."""

    rule: str
    matches: int = 0
    near_miss: NearMiss | None = None


def apply(rule: Rule, model: ir.Model) -> RuleResult:
    """Apply one rule wherever it fits, in the main graph and in the bodies of If, Loop and Scan."""
    result = RuleResult(rule.name)
    for graph in graphs_of(model):
        before = result.matches
        for node in list(graph):
            if node.graph is graph and is_op(node, *rule.roots):
                _try(rule, Site(model, graph, node), result)
        if result.matches > before:
            graph.sort()
    return result


def _try(rule: Rule, site: Site, result: RuleResult) -> None:
    root = site.root.name or site.root.op_type
    try:
        rule.apply(site)
        if not site.replacements:
            return
        site.check_taken()
    except Miss as miss:
        depth = len(site.taken)
        if result.near_miss is None or depth > result.near_miss.depth:
            node = miss.node or site.root
            result.near_miss = NearMiss(root, depth, miss.reason, node.name or "", node.op_type)
        _discard(site)
        return
    site.commit(rule.name)
    result.matches += 1


def _discard(site: Site) -> None:
    """Nodes that were built for a match that failed must not count as readers of their inputs."""
    for node in reversed(site.built):
        for i in range(len(node.inputs)):
            node.replace_input_with(i, None)


def graphs_of(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph and all subgraphs of its nodes; function bodies are left alone."""
    yield model.graph
    yield from (g for g in model.graph.subgraphs() if g is not model.graph)
