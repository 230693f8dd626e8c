"""`--regions`: auto, all, whole, or names and globs of nodes and functions."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable

import onnx
import onnx_ir as ir

from opsmith.check.origins import graph_of, origins
from opsmith.compiler.source import Source, rewrite
from opsmith.errors import OpsmithError

EVERYTHING = ("auto", "all", "whole")


def structure(nodes: Iterable[ir.Node], inputs: Iterable[str | None]) -> onnx.ModelProto:
    """Nodes as a proto without their weights, to find out later where a node came from."""
    proto = onnx.ModelProto()
    proto.graph.node.extend(ir.to_proto(node) for node in nodes)
    proto.graph.input.extend(onnx.ValueInfoProto(name=name) for name in inputs)
    return proto


def original_names(before: ir.Model, after: ir.Model) -> dict[str, tuple[str, ...]]:
    """Node of the rewritten model -> the nodes of the source that it stands for."""
    inputs = [v.name for v in before.graph.inputs]
    old, new = (graph_of(structure(m.graph, inputs)) for m in (before, after))
    return {node.name: names for node, names in zip(new.nodes, origins(old, new))}


def chooser(wanted: str, source: Source) -> Callable[[ir.Node], bool]:
    """Whether the user wants a node compiled: by its name or operator, or those of the function that the rules make of it."""
    if wanted in EVERYTHING:
        return lambda node: True
    patterns = [p.strip() for p in wanted.split(",") if p.strip()]
    if not patterns:
        raise OpsmithError("--regions is empty", "use auto, all, whole, or names of nodes or functions")
    names: dict[str, set[str]] = {}  # node of the working copy -> everything it can be called by

    def call(node: ir.Node, members: Iterable[str]) -> None:
        for member in members:
            names.setdefault(member, set()).update((node.name or "", node.op_type, f"{node.domain}::{node.op_type}"))

    for came in (source.model, source.working):
        stands_for = original_names(came, source.working)
        for node in source.working.graph:
            call(node, [node.name or ""])
            names[node.name or ""].update(stands_for.get(node.name or "", ()))
    rewritten = source.working.clone()
    rewrite(rewritten)
    stands_for = original_names(source.working, rewritten)
    for node in rewritten.graph:
        call(node, stands_for.get(node.name or "", ()))
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for known in names.values() for name in known):
            raise OpsmithError(f"no node or function matches {pattern!r}", "`opsmith inspect` shows the operators")

    def chosen(node: ir.Node) -> bool:
        name = node.name or ""
        called = names.get(name, {name, node.op_type})  # inside a body: by its own name and operator
        return any(fnmatch.fnmatchcase(each, pattern) for each in called for pattern in patterns)

    return chosen
