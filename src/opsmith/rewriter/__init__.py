"""`opsmith optimize`: find the structure that exporters tore apart, and write it back as portable ONNX.

    simplify    inline, fold, follow sizes, merge duplicates, dead code     (passes/)
    rewrite     the rules, in their order                                   (rules/)
    attach      the functions that the rewritten model calls                (functions.py)
    tidy        constants that the rules made become shared initializers
    verify      against the source; a model that differs is not written     (verb.py)

Matching is a walk over onnx-ir from one telling node outward (rule.py), not onnxscript's pattern engine: an attention
has some thousand spellings (scale, mask, transpose, operand order), each of which would be a pattern of its own.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir
import onnx_ir.passes.common as onnx_ir_passes

from opsmith.errors import OpsmithError, no_such
from opsmith.rewriter import engine, functions, passes, rules, targets
from opsmith.rewriter.engine import RuleResult
from opsmith.rewriter.rule import Rule
from opsmith.rewriter.rule import Site as Site
from opsmith.rewriter.rule import rule as rule
from opsmith.rewriter.targets import TARGETS
from opsmith.rewriter.user_rules import UserRules

LEVELS = (0, 1, 2, 3)

# What the compiler wants found before it partitions the graph. It fuses bias, activation, residual and upsampling into
# its kernels by itself, so the rules that hide those in functions are left out.
COMPILER_RULES = tuple(
    """
    view_chain gelu gelu_tanh quick_gelu silu hard_swish hard_sigmoid geglu layer_norm layer_norm_affine rms_norm
    group_norm group_norm_silu rotary rotary_interleaved rotary_parts attention batch_norm parallel_matmul
    flat_linear transpose_sink reshape_sink
    """.split()
)
# What the pruner wants: products as the exporter left them, so that each has its own weights and shapes.
PRUNER_RULES = (*(r for r in COMPILER_RULES if r not in ("parallel_matmul", "flat_linear")), "kv_append")


def rewrite_model(
    model: ir.Model,
    *,
    level: int = 2,
    target: str = "portable",
    only: Collection[str] | None = None,
    own: UserRules | None = None,
) -> list[RuleResult]:
    """Simplify and rewrite MODEL in place; `only` names the rules to use. One result per rule that was tried."""
    chosen = choose(level, target, only, own)
    if level == 0:
        return []
    with passes.defaults_hidden(model):
        passes.simplify(model, raise_opset=level >= 2)
        results = [engine.apply(rule, model) for rule in chosen]
        finish(model, own)
    return results


def keep_integers(model: ir.Model) -> None:
    """Products of dequantized tensors become products of integers, in place: rules.QUANTIZED."""
    if not any(node.op_type == "DequantizeLinear" for node in model.graph.all_nodes()):
        return
    with passes.defaults_hidden(model), passes.quiet(), passes.without_maps(model):
        onnx_ir_passes.ShapeInferencePass()(model)  # the rules ask for ranks
        for rule in rules.QUANTIZED:
            engine.apply(rule, model)


def finish(model: ir.Model, own: UserRules | None = None) -> None:
    """Make a model whole again after rules were applied: its functions, shared constants, no dead nodes."""
    functions.attach(model, own.functions if own is not None else None)
    for domain in {n.domain for n in model.graph.all_nodes()} - set(model.opset_imports):
        model.opset_imports[domain] = 1
    passes.tidy(model)


def choose(level: int, target: str, only: Collection[str] | None = None, own: UserRules | None = None) -> list[Rule]:
    """The rules of a level for a target, or those named; an unknown name is an error."""
    if level not in LEVELS:
        raise OpsmithError(f"there is no level {level}", "levels are 0, 1, 2 and 3")
    if target not in TARGETS:
        raise no_such("target", target, TARGETS)
    everything = [*rules.ALL, *(own.rules if own is not None else ())]
    names = {r.name for r in everything}
    if only is not None and (unknown := sorted(set(only) - names)):
        raise no_such("rule", unknown[0], sorted(names))
    active = [r for r in everything if r.level <= level and target in r.targets]
    active = [r for r in active if all(targets.supports(target, op) for op in r.makes)]
    return active if only is None else [r for r in active if r.name in only]


from opsmith.rewriter.verb import optimize as optimize  # noqa: E402  (it needs the functions above)
