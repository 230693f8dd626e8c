"""Simplify: the same graph with less in it, before anything is matched or cut.

Order: functions are inlined first, since nothing else sees into them (high-level `opsmith` functions are kept: the compiler knows
them); constants become initializers, so that folding sees them; folding comes before CSE, which then merges what became equal;
dead code goes last.
"""

from __future__ import annotations

import logging

import onnx_ir as ir
import onnx_ir.passes.common as passes
import onnxscript.optimizer

from opsmith.compile.lower.registry import INFER
from opsmith.errors import OpsmithError

FOLD_LIMIT = 1 << 16  # elements; larger results would copy weights into memory


def simplify(model: ir.Model) -> None:
    known = {key for key in INFER if key[0] == "opsmith"}
    try:
        ir.passes.Sequential(
            passes.InlinePass(criteria=lambda f: (f.domain, f.name) not in known),
            passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        )(model)
        logging.getLogger("onnxscript").setLevel(logging.ERROR)
        onnxscript.optimizer.fold_constants(model, input_size_limit=FOLD_LIMIT, output_size_limit=FOLD_LIMIT)
        ir.passes.Sequential(
            passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            passes.CommonSubexpressionEliminationPass(),
            passes.RemoveUnusedNodesPass(),
            passes.RemoveUnusedFunctionsPass(),
        )(model)
    except Exception as error:
        raise OpsmithError(f"the graph could not be simplified: {' '.join(str(error).split())[:300]}") from error
    name_nodes(model.graph)


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
