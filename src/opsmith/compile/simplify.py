"""Simplify: the same graph with less in it, before anything is matched or cut.

Order: functions are inlined first, since nothing else sees into them (high-level `opsmith` functions are kept: the compiler knows
them); constants become initializers, so that folding sees them; folding comes before CSE, which then merges what became equal;
dead code goes last.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir
import onnx_ir.passes.common as passes
import onnxscript.optimizer

from opsmith.compile.lower.registry import INFER
from opsmith.errors import OpsmithError

FOLD_LIMIT = 1 << 16  # elements; larger results would copy weights into memory


def simplify(model: ir.Model) -> None:
    known = {key for key in INFER if key[0] == "opsmith"}
    try:
        calls = {
            v.name: n.name or v.name for n in model.graph for v in n.outputs if n.op_identifier() in model.functions
        }
        own = {node.name for node in model.graph}
        passes.InlinePass(criteria=lambda f: (f.domain, f.name) not in known)(model)
        name_after_calls(model.graph, calls, own)
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        fold(model)
        ir.passes.Sequential(
            passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            passes.CommonSubexpressionEliminationPass(),
            passes.RemoveUnusedNodesPass(),
            passes.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
            passes.ShapeInferencePass(),  # ranks and types behind nodes that stay with ORT
        )(model)
    except Exception as error:
        raise OpsmithError(f"the graph could not be simplified: {' '.join(str(error).split())[:300]}") from error
    name_nodes(model.graph)


def name_after_calls(graph: ir.Graph, calls: Mapping[str | None, str | None], own: Collection[str | None]) -> None:
    """Inlined nodes are named after the call they come from ("linear_3/MatMul"), so that counters lead back to it."""
    names: dict[ir.Node, str] = {}
    for node in reversed(graph):
        if node.name in own:
            continue
        call = next((calls[v.name] for v in node.outputs if v.name in calls), None)
        readers = (names[user] for v in node.outputs for user in v.consumers() if user in names)
        if call := call or next(readers, None):
            names[node] = call
            node.name = f"{call}/{node.op_type}"


def fold(model: ir.Model) -> None:
    """Fold constants. The folder evaluates nodes, and gives up on operators it does not know: then nothing more is folded."""
    log = logging.getLogger("onnxscript")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        onnxscript.optimizer.fold_constants(model, input_size_limit=FOLD_LIMIT, output_size_limit=FOLD_LIMIT)
    except Exception as error:
        logging.getLogger(__name__).debug("constant folding ended early: %s", error)
    finally:
        log.setLevel(level)


def name_nodes(graph: ir.Graph) -> None:
    """Every node gets a unique name: tables, counters and errors refer to it."""
    taken: set[str] = set()
    for node in graph:
        name = node.name or f"{node.op_type}_{node.outputs[0].name}"
        unique, k = name, 2
        while unique in taken:
            unique, k = f"{name}_{k}", k + 1
        taken.add(unique)
        node.name = unique


def fix_dims(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """`--shape name=1x4x64x64`: the input gets these dims, and their symbols these values wherever they occur."""
    values: dict[str, int] = {}
    by_name = {v.name: v for v in model.graph.inputs}
    for name, dims in shapes.items():
        if name not in by_name:
            raise OpsmithError(
                f"--shape names the input {name!r}, which the model does not have",
                f"it has {', '.join(map(str, by_name))}",
            )
        shape = by_name[name].shape
        if shape is None or len(shape) != len(dims):
            raise OpsmithError(f"--shape {name}: {len(dims)} dims given, the model has {shape}")
        for have, want in zip(shape, dims):
            if isinstance(have, int) and have != want:
                raise OpsmithError(f"--shape {name}: the model fixes a dim at {have}, not {want}")
            if (
                isinstance(have, ir.SymbolicDim)
                and have.value is not None
                and values.setdefault(str(have.value), want) != want
            ):
                raise OpsmithError(f"--shape gives {have.value} two values, {values[str(have.value)]} and {want}")
        by_name[name].shape = ir.Shape(dims)
    for value in model.graph.inputs:
        if value.shape is not None:
            known = [values.get(str(d.value), d) if isinstance(d, ir.SymbolicDim) else d for d in value.shape]
            value.shape = ir.Shape(known)
