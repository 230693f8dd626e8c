"""Level 1: what needs no pattern. Everything here is exact and keeps weights where they are, memory-mapped.

The order, and why:
  1. inline        functions of the exporter hide nodes from everything that follows
  2. fold          onnxscript folds constants node by node and infers shapes on the way; its small rules (no-op Cast,
                   Expand, Transpose ..., Pad into Conv) feed on the constants and make new ones, so both take turns
  3. sizes         only now are most ranks known; it makes further constants (head sizes, scales), hence fold again
  4. lift, dedupe  constants become initializers, equal ones become one value ...
  5. CSE           ... so that equal computations have equal inputs when they are compared
  6. dead code     last: each step above leaves orphans
"""

from __future__ import annotations

import logging

import onnx_ir as ir
import onnx_ir.passes.common as common
from onnxscript import optimizer, version_converter

from opsmith.rewrite.passes import shapes, small_rules, weights
from opsmith.rewrite.rule import DOMAIN

FOLD_LIMIT = 64 * 1024  # elements; a larger result would copy weights into memory
OLDEST_OPSET = 17  # LayerNormalization, and CastLike for the bodies of our functions
NEW_OPSET = 18  # what an older model is raised to


def simplify(model: ir.Model, raise_opset: bool = False) -> None:
    """Inline, fold, infer sizes, merge duplicates, remove dead code; in place. The rules want opset 17 or later."""
    common.InlinePass(criteria=lambda f: f.domain != DOMAIN)(model)
    if raise_opset and model.opset_imports.get("", OLDEST_OPSET) < OLDEST_OPSET:
        _raise_opset(model)
    fold(model)
    weights.transpose_lazily(model)
    for _ in range(2):
        common.RemoveUnusedNodesPass()(model)
        if not shapes.infer(model):
            break
        fold(model)
    tidy(model)


def _raise_opset(model: ir.Model) -> None:
    """Convert an old model. A model that onnx cannot convert stays as it is: rules that need a newer opset say so."""
    before = dict(model.opset_imports)
    quiet = logging.getLogger("onnxscript")
    level = quiet.level
    quiet.setLevel(logging.ERROR)  # it tells which of its two converters it uses
    try:
        version_converter.convert_version(model, target_version=NEW_OPSET, fallback=True)
    except Exception:  # the converter has no common error type
        model.opset_imports.clear()
        model.opset_imports.update(before)
    finally:
        quiet.setLevel(level)


def fold(model: ir.Model) -> None:
    """Constant folding and onnxscript's small rules, until nothing changes."""
    folding = optimizer._constant_folding.FoldConstantsPass(
        shape_inference=True, input_size_limit=FOLD_LIMIT, output_size_limit=FOLD_LIMIT, should_fold=_should_fold
    )
    quiet = logging.getLogger("onnxscript")
    level = quiet.level
    quiet.setLevel(logging.ERROR)  # it warns about every node that it leaves alone
    try:
        for _ in range(3):
            changed = bool(folding(model).modified)
            common.RemoveUnusedNodesPass()(model)
            if not small_rules.apply(model) and not changed:
                break
    except (
        RuntimeError,
        ir.passes.PassError,
    ) as error:  # an operator that the folder cannot evaluate: what was folded so far stays
        logging.getLogger(__name__).debug("constant folding ended early: %s", error)
    finally:
        quiet.setLevel(level)


def tidy(model: ir.Model) -> None:
    """Merge equal constants and equal computations, drop what nobody reads, make names unique."""
    for one in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        common.RemoveUnusedOpsetsPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    ):
        one(model)


def _should_fold(node: ir.Node) -> bool | None:
    """Leave weights alone: onnxscript would transpose a 50 MB matrix in memory, and later write it out again."""
    sizes = [v.const_value.size for v in node.inputs if v is not None and v.const_value is not None]
    return False if any(s > FOLD_LIMIT for s in sizes) else None
