"""`opsmith optimize`: find the structure that exporters tore apart, and write it back as portable ONNX.

simplify    inline, fold, follow sizes, merge duplicates, dead code     (passes/)
rewrite     the rules, in their order                                   (rules/)
attach      the functions that the rewritten model calls                (functions.py)
tidy        constants that the rules made become shared initializers
"""

from __future__ import annotations

import collections.abc
from typing import Literal, TypeAlias

import onnx_ir as ir

from opsmith.errors import OpsmithError
from opsmith.rewrite import engine, functions, passes, rules
from opsmith.rewrite.engine import NearMiss, RuleResult
from opsmith.rewrite.rule import Rule

__all__ = ["COMPILER_RULES", "NearMiss", "RuleResult", "rewrite_model"]

Target: TypeAlias = Literal["portable", "ort-cpu", "ort-cuda"]
TARGETS: tuple[str, ...] = ("portable", "ort-cpu", "ort-cuda")
LEVELS = (0, 1, 2, 3)

# What the compiler wants found before it partitions the graph. It fuses bias, activation, residual and upsampling into
# its kernels by itself, so the rules that hide those in functions are left out.
COMPILER_RULES: tuple[str, ...] = (
    "view_chain",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "silu",
    "geglu",
    "layer_norm",
    "rms_norm",
    "group_norm",
    "group_norm_silu",
    "rotary",
    "rotary_interleaved",
    "attention",
    "batch_norm",
    "parallel_matmul",
    "transpose_sink",
    "reshape_sink",
)


def rewrite_model(
    model: ir.Model,
    *,
    level: int = 2,
    target: str = "portable",
    only: collections.abc.Collection[str] | None = None,
) -> list[RuleResult]:
    """Simplify and rewrite MODEL in place; `only` names the rules to use. One result per rule that was tried."""
    if level not in LEVELS:
        raise OpsmithError(f"there is no level {level}", "levels are 0, 1, 2 and 3")
    if target not in TARGETS:
        raise OpsmithError(f"unknown target {target!r}", f"choose one of {', '.join(TARGETS)}")
    if level == 0:
        return []
    passes.simplify(model)
    chosen = choose(level, target, only)
    results = engine.apply_all(chosen, model)
    if any(r.matches for r in results):
        functions.attach(model)
        passes.tidy(model)
    return results


def choose(level: int, target: str, only: collections.abc.Collection[str] | None = None) -> list[Rule]:
    """The rules of a level for a target, or those named; an unknown name is an error."""
    names = {r.name for r in rules.ALL}
    if only is not None and (unknown := sorted(set(only) - names)):
        raise OpsmithError(f"unknown rule {unknown[0]!r}", f"rules are {', '.join(sorted(names))}")
    active = [r for r in rules.ALL if r.level <= level and target in r.targets]
    return active if only is None else [r for r in active if r.name in only]
