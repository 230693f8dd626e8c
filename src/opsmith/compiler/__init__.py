"""`opsmith compile`: any ONNX model in, the same model with native custom ops out. `compile` is the list of its steps."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from opsmith import machine, settings, store
from opsmith.check.feed import Given, judged_feed
from opsmith.check.inputs import Fixed
from opsmith.compiler import auto, cache_type, geometry, keep
from opsmith.compiler.attempt import Attempt, better, build_attempt
from opsmith.compiler.build import find_compiler
from opsmith.compiler.cut import Cut, HandedBack
from opsmith.compiler.faults import cannot_compile, find_fault
from opsmith.compiler.finish import finish, give_test_data
from opsmith.compiler.forms import cut_forms, main_cut, tuned
from opsmith.compiler.lower import Target
from opsmith.compiler.mixed import choose_precisions
from opsmith.compiler.precision import AUTO, cheapest
from opsmith.compiler.request import Request
from opsmith.compiler.result import Clock, CompileResult, summarize
from opsmith.compiler.source import Source, load, prepare
from opsmith.compiler.system import find_system
from opsmith.compiler.tune import Tuning
from opsmith.errors import DoesNotCompile, OpsmithError
from opsmith.store import Draft, ModelLike, PathLike, Variant
from opsmith.timing.rows import GroupDifference

__all__ = ["CompileResult", "compile"]

MOST_CUTS = 4  # that are measured; each handed back what lost in the one before


def compile(
    src: ModelLike,
    dest: PathLike,
    *,
    regions: str = "auto",
    search: int | None = None,
    strict: bool = False,
    precision: str | None = None,
    max_error: float | None = None,
    cache: str = cache_type.FULL,
    shapes: Fixed | None = None,
    inputs: Given | None = None,
    verify: bool = True,
    compiler: str | None = None,
    emit_only: bool = False,
    dry_run: bool = False,
    overwrite: bool = False,
    cpu: str = geometry.NATIVE,
    os: str | None = None,
    glibc: str | None = None,
) -> CompileResult:
    """Compile SRC into the variant folder DEST. docs/compile.md says what the options mean."""
    chosen = settings.get(search=search, precision=precision)
    system = find_system(os, glibc, set(map(geometry.architecture, geometry.best_first(cpu))))
    tool = None if emit_only or dry_run else find_compiler(compiler, system)
    bound, precise = _max_error(chosen.precision, max_error), cheapest(chosen.precision)
    _check_not_compiled(src)
    with cache_type.with_cache_type(src, cache) as cached:
        request = Request(
            src=cached,
            dest=dest,
            regions=regions,
            search=chosen.search,
            strict=strict,
            shapes=shapes,
            inputs=inputs,
            verify=verify,
            tool=tool,
            precision=precise,
            cpu=cpu,
            system=system,
            max_error=bound,
            cache=cache,
        )
        for name, target in request.targets.items():
            if chosen.search and not request.runs(target):
                raise OpsmithError(
                    f"kernels for {name} cannot be measured on this CPU", "compile for it with --search 0"
                )
        return _compile(request, _parent(src), dry_run, overwrite)


def _compile(request: Request, parent: ModelLike | None, dry_run: bool, overwrite: bool) -> CompileResult:
    clock, dest = Clock(), request.dest
    source = prepare(load(request.src, request.shapes))
    clock.lap("rewrite")
    if dry_run:
        return summarize(main_cut(cut_forms(source, request.regions, request.targets, {})), clock)
    with store.new_variant(dest, verb="compile", parent=parent, options=request.options, overwrite=overwrite) as draft:
        best: Attempt | None = None
        for attempt in attempts(source, request, draft, clock):
            best = better(best, attempt)
        result = finish(best, request, draft)
    result.variant = Variant(store.find_model(dest))
    return result


def _check_not_compiled(src: ModelLike) -> None:
    if isinstance(src, (ir.Model, onnx.ModelProto)):
        return
    path = store.find_model(src)
    if store.is_packed(path):
        parent = store.read_record(path).get("parent")
        hint = f"compile what it was made from: {parent}" if parent else "compile the model it was made from"
        raise OpsmithError(f"{path} is compiled already: its nodes are inside its library", hint)


def _max_error(precision: str, given: float | None) -> float | None:
    if precision != AUTO:
        if given is not None:
            raise OpsmithError("--max-error chooses precisions: it needs --precision auto")
        return None
    bound = auto.MAX_ERROR if given is None else given
    if not 0 < bound < 1:
        raise OpsmithError(f"--max-error is a share of each output's scale, between 0 and 1, not {bound:g}")
    return bound


def attempts(source: Source, request: Request, draft: Draft, clock: Clock) -> Iterator[Attempt]:
    """Cut, build, verify, measure; then again without the nodes that were wrong or slow, as long as another cut is likely to pay.

    Only attempts that verified are yielded.
    """
    handed_back: HandedBack = {}
    remarks: list[str] = []
    judged = judged_feed(request.src, request.shapes, request.inputs) if request.tool is not None else None
    feed = judged.feed if judged is not None else None
    sizes = source.sizes_of(feed or {})
    targets = {cpu: dataclasses.replace(t, sizes=sizes) for cpu, t in request.targets.items()}
    with store.on_disk(request.src) as path, tempfile.TemporaryDirectory(prefix="opsmith-judge-") as scratch:
        judge = keep.Judge(path, feed, Path(scratch)) if request.measured and feed is not None else None
        targets, choices = choose_precisions(source, path, request, targets, judged, draft, clock)
        measured = wrong = 0
        for number in itertools.count():
            machine.release_memory()  # the graphs of the last attempt refer to themselves, and hold the weights that they read
            cuts, tuning = cut_and_tune(source, request, targets, handed_back, clock)
            name = f"attempt{number}"
            try:
                attempt = build_attempt(cuts, request, draft, name, clock)
                give_test_data(path, request, attempt.draft, judged)
                attempt.result.tuning, attempt.result.judged, attempt.result.choices = tuning, judged, choices
                attempt.result.remarks += remarks
                fault = find_fault(path, attempt, request, wrong, clock)
            except DoesNotCompile as error:
                fault = cannot_compile(error, cuts, request, wrong)
            if fault is not None:
                wrong += 1
                handed_back |= fault.nodes
                remarks.append(fault.remark)
                shutil.rmtree(draft.folder / name)
                continue
            if judge is None or not attempt.cut.regions:
                yield attempt
                return
            measured += 1
            losers = measure(attempt, judge, clock, profile=measured < MOST_CUTS)
            yield attempt  # which may be deleted by now, if another one is faster
            slow = worth_handing_back(losers, judge, handed_back)
            if not slow:
                return
            handed_back |= slow


def cut_and_tune(
    source: Source, request: Request, targets: Mapping[str, Target], handed_back: HandedBack, clock: Clock
) -> tuple[dict[str, Cut], Tuning | None]:
    """A tuned cut for each CPU, and how the first one was tuned."""
    cuts = cut_forms(source, request.regions, targets, handed_back)
    clock.lap("lower")
    outcomes = {cpu: tuned(pieces, request, targets[cpu], handed_back) for cpu, pieces in cuts.items()}
    clock.lap("tune")
    _, tuning = next(iter(outcomes.values()))
    return {cpu: pieces for cpu, (pieces, _) in outcomes.items()}, tuning


def measure(attempt: Attempt, judge: keep.Judge, clock: Clock, profile: bool) -> list[GroupDifference]:
    """Time an attempt beside its source; with PROFILE, also what of it is slower than there."""
    attempt.result.timing = keep.time_when_quiet(judge, attempt.draft.path)
    if remark := keep.remark(attempt.result.timing):
        attempt.result.remarks.append(remark)
    clock.lap("measure")
    # what is measured beside other work says nothing about single kernels
    quiet = not attempt.result.timing.busy
    losers = judge.losers(attempt.draft.path) if quiet and profile else []
    clock.lap("profile")
    return losers


def worth_handing_back(losers: list[GroupDifference], judge: keep.Judge, handed_back: HandedBack) -> HandedBack:
    """The nodes that lost and are not handed back yet; none if a cut without them is unlikely to be faster."""
    slow = {name: keep.why(group) for group in losers for name in group.nodes if name not in handed_back}
    return slow if slow and judge.promises(losers) else {}


def _parent(src: ModelLike) -> ModelLike | None:
    return None if isinstance(src, ir.Model) else src
