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

import contextlib
import logging
from collections.abc import Iterator

import onnx_ir as ir
import onnx_ir.passes.common as common
from onnxscript import optimizer, version_converter

from opsmith.rewrite.passes import shapes, small_rules, weights
from opsmith.rewrite.rule import DOMAIN

FOLD_LIMIT = 64 * 1024  # elements; a larger result would copy weights into memory
OLDEST_OPSET = 17  # LayerNormalization, and CastLike for the bodies of our functions
NEW_OPSET = 18  # what an older model is raised to
_FOLD_ROUNDS = 16  # far more than are ever needed: each makes a constant out of one more layer of nodes


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
    """Convert an old model. A model that cannot be converted stays as it is: rules that need a newer opset say so."""
    converted = model.clone()  # the converter stops half-way when it fails
    try:
        with _quiet():
            version_converter.convert_version(converted, target_version=NEW_OPSET, fallback=True)
    except Exception as error:  # the converter has no common error type
        logging.getLogger(__name__).info("the opset stays as it is: %s", error)
        return
    model.graph = converted.graph
    model.functions.clear()
    model.functions.update(converted.functions)


def fold(model: ir.Model) -> None:
    """Constant folding and onnxscript's small rules, until nothing changes."""
    cannot: set[ir.Node] = set()  # nodes at which the folder gave up: it lacks an implementation of their op
    last: list[ir.Node] = []

    def should_fold(node: ir.Node) -> bool | None:
        last[:] = [node]
        return False if node in cannot else _should_fold(node)

    folding = optimizer._constant_folding.FoldConstantsPass(
        shape_inference=True, input_size_limit=FOLD_LIMIT, output_size_limit=FOLD_LIMIT, should_fold=should_fold
    )
    with _quiet():
        for _ in range(_FOLD_ROUNDS):
            try:
                changed = bool(folding(model).modified)
            except (RuntimeError, ir.passes.PassError) as error:
                logging.getLogger(__name__).debug("constant folding goes on without a node: %s", error)
                if not last or last[0] in cannot:
                    return
                cannot.add(last[0])
                continue
            common.RemoveUnusedNodesPass()(model)
            if not small_rules.apply(model) and not changed:
                break


@contextlib.contextmanager
def defaults_hidden(model: ir.Model) -> Iterator[None]:
    """Inputs with a default value are no constants: a caller may override them. onnxscript takes them for constants."""
    defaults = {v.name: v.const_value for v in model.graph.inputs if v.const_value is not None}
    for value in model.graph.inputs:
        value.const_value = None
    try:
        yield
    finally:
        for value in model.graph.inputs:  # by name: raising the opset replaces the graph
            value.const_value = defaults.get(value.name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The passes warn about every node and every constant that they leave alone."""
    loggers = [logging.getLogger(name) for name in ("onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


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
        with _quiet():
            one(model)


def _should_fold(node: ir.Node) -> bool | None:
    """Leave weights alone: onnxscript would transpose a 50 MB matrix in memory, and later write it out again."""
    sizes = [v.const_value.size for v in node.inputs if v is not None and v.const_value is not None]
    return False if any(s > FOLD_LIMIT for s in sizes) else None
