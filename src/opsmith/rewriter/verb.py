"""The verb: read a model, rewrite it, prove that nothing changed, say what was gained."""

from __future__ import annotations

import collections
import dataclasses
import os
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import onnx_ir as ir

from opsmith import machine, progress, session, settings, store
from opsmith.check import flops as counting
from opsmith.check.feed import judged_feed
from opsmith.check.inputs import Fixed
from opsmith.check.verify import VerifyResult, verify
from opsmith.errors import NotTheSame, OpsmithError
from opsmith.nodes import operator_name
from opsmith.plain import Shown
from opsmith.rewriter import engine, passes, trial, user_rules
from opsmith.rewriter.engine import RuleResult
from opsmith.rewriter.rule import Rule
from opsmith.rewriter.user_rules import UserRules

TOLERANCE = 1e-4  # absolute and relative, for float32: a rewritten model computes the same thing in another order


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a model is made of and what it costs."""

    nodes: dict[str, int]  # op type, with its domain if it is not ONNX's own -> how many
    size: int  # bytes on disk
    flops: int | None
    milliseconds: float | None = None

    @property
    def total(self) -> int:
        return sum(self.nodes.values())


@dataclasses.dataclass(frozen=True)
class Trial:
    """One rule under `measure`: what it gained, what it cost in accuracy, and whether it stayed."""

    rule: str
    matches: int
    gained: float  # milliseconds
    noise: float
    error: float  # added to the largest absolute difference
    kept: bool
    why: str


@dataclasses.dataclass(frozen=True, repr=False)
class OptimizeResult(Shown):
    variant: store.Variant
    rules: tuple[RuleResult, ...]
    before: Summary
    after: Summary
    error: float | None  # largest absolute difference to the source; None if it was not verified
    trials: tuple[Trial, ...] = ()
    drawn: tuple[str, ...] = ()  # outputs that were not compared: SRC draws random numbers for them
    timed_with: str | None = None  # inputs, where they come from, threads; None if nothing was timed


def optimize(
    src: store.ModelLike,
    dest: str | os.PathLike[str],
    level: int = 2,
    target: str = "portable",
    rules: str | os.PathLike[str] | None = None,
    measure: bool = False,
    *,
    only: Collection[str] | None = None,
    timing: bool = True,
    check: bool = True,
    shapes: int | Fixed = 3,
    threads: int | None = None,
    overwrite: bool = False,
) -> OptimizeResult:
    """Rewrite SRC at a level for a target and write it to DEST, a variant folder or .onnx file.

    `rules` is a file with rules of your own, `only` the names of those to use, `measure` keeps a rule only if it made
    the model faster here. The result is compared with SRC unless `check` is off, and not written if it differs. `shapes`
    is how many random shapes it is compared with, or the one to compare and time it with.
    """
    from opsmith.rewriter import choose, rewrite_model

    own = user_rules.load(rules) if rules is not None else UserRules()
    chosen = choose(level, target, only, own)
    options = {"level": level, "target": target, "measure": measure, "only": sorted(only) if only else None}
    with store.on_disk(src) as source:
        if check:
            _check_source(source, threads)
        model = store.open_model(source)
        trials: list[Trial] = []
        with progress.task("rewriting"):
            started = time.monotonic()
            if measure and level >= 1:
                judged = judged_feed(source, _fixed(shapes))
                results, trials, model = _measured(model, source, chosen, own, level, threads, judged.required())
            else:
                results = rewrite_model(model, level=level, target=target, only=only, own=own)
            seconds = time.monotonic() - started
        with store.new_variant(dest, verb="optimize", parent=src, options=options, overwrite=overwrite) as draft:
            store.save_model(model, draft.path)
            store.copy_test_data(source, draft.folder)
            compared = (
                verify(source, draft.path, rtol=TOLERANCE, atol=TOLERANCE, shapes=shapes, threads=threads)
                if check
                else None
            )
            if compared is not None and compared.unchecked is not None:
                raise OpsmithError(
                    f"{source.name} runs on none of the inputs tried, so the result cannot be compared with it: {compared.unchecked}",
                    "give it test data",
                )
            if compared is not None and not compared.ok:
                raise NotTheSame(
                    f"the rewritten model differs from {source.name}: {compared.problems[0]}; nothing was written",
                    "find the rule with --only, and report it",
                )
            before, after = summarize(source), summarize(draft.path)
            if timing:
                judged = judged_feed(source, _fixed(shapes))
                speed = trial.compare(source, draft.path, judged.required(), threads=threads)
                before = dataclasses.replace(before, milliseconds=speed.before)
                after = dataclasses.replace(after, milliseconds=speed.after)
            error = largest_error(compared) if compared is not None and compared.worst else None
            draft.record["rewrite"] = {
                "seconds": round(seconds, 3),
                "rules": {r.rule: r.matches for r in results if r.matches},
                "nodes": [before.total, after.total],
                "max_abs_error": error,
                "tolerance": TOLERANCE,
            }
    told = None
    if timing or trials:
        used = threads or settings.get().threads or machine.cores()
        told = f"{judged.sizes} ({judged.origin}), {used} threads"
    done = store.Variant(store.find_model(dest))
    drawn = compared.drawn if compared is not None else ()
    return OptimizeResult(done, tuple(results), before, after, error, tuple(trials), drawn, told)


def _fixed(shapes: int | Fixed) -> Fixed | None:
    return None if isinstance(shapes, int) else shapes


def explain(
    src: store.ModelLike,
    rule: str,
    level: int = 2,
    target: str = "portable",
    rules: str | os.PathLike[str] | None = None,
    *,
    only: Collection[str] | None = None,
) -> tuple[Rule, RuleResult]:
    """Apply the rules of a level (of them, those in ONLY and the one itself) in memory, and say of one how often it fired
    and where it came closest if not."""
    from opsmith.rewriter import choose, rewrite_model

    own = user_rules.load(rules) if rules is not None else UserRules()
    level = max(level, 3 if rule.startswith("ort_") else 2)
    target = "ort-cpu" if rule.startswith("ort_") and target == "portable" else target
    choose(3, target, [rule], own)  # an unknown name is an error before anything is read
    model = store.open_model(src)
    wanted = None if only is None else [*only, rule]
    results = rewrite_model(model, level=level, target=target, only=wanted, own=own)
    declared = next(r for r in choose(level, target, None, own) if r.name == rule)
    return declared, next(r for r in results if r.rule == rule)


def summarize(path: Path) -> Summary:
    """Count the nodes of a model file, as they stand: a function is one node."""
    model = store.open_model(path)
    counted = collections.Counter(operator_name(n) for n in model.graph.all_nodes())
    counted.pop("Constant", None)
    try:
        cost = counting.flops(path, run=False)
        bodies = any(node.op in ("If", "Loop", "Scan") for node in cost.unknown)  # most of the work may be there
        work = None if bodies or (cost.unknown and not cost.total) else cost.total
    except OpsmithError:
        work = None
    return Summary(dict(counted), session.size_on_disk(path), work)


def largest_error(compared: VerifyResult) -> float:
    return max((check.max_abs for check in compared.worst), default=0.0)


def _check_source(path: Path, threads: int | None) -> None:
    """A model that disagrees with its own test data is no reference for anything."""
    if not any(data.outputs for data in store.read_test_data(path)):
        session.load(path, threads=threads)  # an op that ONNX Runtime does not know is reported here
        return
    own = verify(path, threads=threads)
    if not own.ok:
        raise OpsmithError(
            f"{path} does not reproduce its own test data: {own.problems[0]}",
            "export it again, or remove the test data",
        )


# --- --measure -------------------------------------------------------------------------------------------


def _measured(
    model: ir.Model,
    source: Path,
    chosen: list[Rule],
    own: UserRules,
    level: int,
    threads: int | None,
    feeds: dict[str, Any],
) -> tuple[list[RuleResult], list[Trial], ir.Model]:
    """Apply rule after rule, each on top of those that stayed, and keep what made the model faster."""
    from opsmith.rewriter import finish

    with passes.defaults_hidden(model):
        passes.simplify(model, raise_opset=level >= 2)
    results, trials = [], []
    with tempfile.TemporaryDirectory(prefix="opsmith-measure-") as folder:
        current = _write(model, Path(folder) / "kept_0")
        error = largest_error(verify(source, current, rtol=TOLERANCE, atol=TOLERANCE, shapes=1, threads=threads))
        for index, rule in enumerate(chosen, 1):
            candidate = model.clone()
            with passes.defaults_hidden(candidate):
                result = engine.apply(rule, candidate)
                results.append(result)
                if not result.matches:
                    continue
                finish(candidate, own)
            path = _write(candidate, Path(folder) / f"kept_{index}")
            compared = verify(source, path, rtol=TOLERANCE, atol=TOLERANCE, shapes=1, threads=threads)
            speed = trial.compare(current, path, feeds, threads=threads)
            added = largest_error(compared) - error
            if not compared.ok:
                kept, why = False, f"wrong: {compared.unchecked or compared.problems[0]}"
            elif speed.faster:
                kept, why = True, "faster"
            else:
                kept, why = False, "slower" if speed.slower else "not measurably faster"
            trials.append(Trial(rule.name, result.matches, speed.gain, speed.noise, added, kept, why))
            if kept:
                model, current, error = candidate, path, largest_error(compared)
            else:
                result.matches = 0
    return results, trials, model


def _write(model: ir.Model, folder: Path) -> Path:
    folder.mkdir()
    path = folder / "model.onnx"
    store.save_model(model, path)
    return path
