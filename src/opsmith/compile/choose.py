"""`--regions`: auto, all, whole, or names and globs of nodes and functions."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence

import onnx
import onnx_ir as ir

from opsmith.errors import OpsmithError
from opsmith.measure.origins import graph_of, origins

EVERYTHING = ("auto", "all", "whole")


def structure(model: ir.Model) -> onnx.ModelProto:
    """The graph as a proto without its weights, to find out later where a node came from."""
    proto = onnx.ModelProto()
    proto.graph.node.extend(ir.to_proto(node) for node in model.graph)
    proto.graph.input.extend(ir.to_proto(value) for value in model.graph.inputs)
    return proto


def original_names(before: onnx.ModelProto, model: ir.Model) -> dict[str, tuple[str, ...]]:
    """Node of the rewritten model -> the nodes of the source that it stands for."""
    after = graph_of(structure(model))
    return {node.name: names for node, names in zip(after.nodes, origins(graph_of(before), after))}


def chooser(
    wanted: str, model: ir.Model, came_from: Mapping[str, Sequence[str]] | None = None
) -> Callable[[ir.Node], bool]:
    """Whether the user wants a node compiled: by its own name, its operator, or a node of the source that it stands for."""
    if wanted in EVERYTHING:
        return lambda node: True
    patterns = [p.strip() for p in wanted.split(",") if p.strip()]
    if not patterns:
        raise OpsmithError("--regions is empty", "use auto, all, whole, or names of nodes or functions")
    names = {
        n: (n.name or "", n.op_type, f"{n.domain}::{n.op_type}", *(came_from or {}).get(n.name or "", ()))
        for n in model.graph
    }
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for found in names.values() for name in found):
            raise OpsmithError(f"no node or function matches {pattern!r}", "`opsmith inspect` shows the operators")
    return lambda node: any(fnmatch.fnmatchcase(name, p) for name in names[node] for p in patterns)
