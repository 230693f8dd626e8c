"""`--regions`: auto, all, whole, or names and globs of nodes and functions."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable

import onnx_ir as ir

from opsmith.errors import OpsmithError

EVERYTHING = ("auto", "all", "whole")


def chooser(wanted: str, model: ir.Model) -> Callable[[ir.Node], bool]:
    """Whether the user wants a node compiled."""
    if wanted in EVERYTHING:
        return lambda node: True
    patterns = [p.strip() for p in wanted.split(",") if p.strip()]
    if not patterns:
        raise OpsmithError("--regions is empty", "use auto, all, whole, or names of nodes or functions")
    for pattern in patterns:
        if not any(matches(node, pattern) for node in model.graph):
            raise OpsmithError(
                f"no node or function matches {pattern!r}", "`opsmith compile --dry-run` lists the names"
            )
    return lambda node: any(matches(node, p) for p in patterns)


def matches(node: ir.Node, pattern: str) -> bool:
    names = (node.name or "", node.op_type, f"{node.domain}::{node.op_type}")
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)
