"""`opsmith compile`: any ONNX model in, the same model with native custom ops out. `compile` is the list of its steps."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from opsmith import machine, session, settings, store
from opsmith.check.feed import Given, Judged, judged_feed
from opsmith.check.inputs import Fixed
from opsmith.compiler import auto, cache_type, geometry, keep
from opsmith.compiler.attempt import Attempt, better, build_attempt, facts
from opsmith.compiler.build import BUILD_SCRIPT, find_compiler
from opsmith.compiler.cut import Cut, HandedBack
from opsmith.compiler.faults import cannot_compile, find_fault
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
            cached,
            dest,
            regions,
            chosen.search,
            strict,
            shapes,
            inputs,
            verify,
            tool,
            precise,
            cpu,
            system,
            bound,
            cache,
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
    """Cut, build, verify, measure; again without the nodes that were wrong or slow, as long as that promises something.

    Only attempts that verified come out.
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
                _give_test_data(path, request, attempt.draft, judged)
                attempt.result.tuning, attempt.result.judged, attempt.result.choices = tuning, judged, choices
                attempt.result.remarks += remarks
                found = find_fault(path, attempt, request, wrong, clock)
            except DoesNotCompile as error:
                found = cannot_compile(error, cuts, request, wrong)
            if found is not None:
                wrong += 1
                handed_back |= found.nodes
                remarks.append(found.remark)
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
    tunings = {cpu: tuned(pieces, request, targets[cpu], handed_back) for cpu, pieces in cuts.items()}
    clock.lap("tune")
    return {cpu: found[0] for cpu, found in tunings.items()}, next(iter(tunings.values()))[1]


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
    """The nodes that lost and are not handed back yet; none where a cut without them promises nothing."""
    slow = {name: keep.why(group) for group in losers for name in group.nodes if name not in handed_back}
    return slow if slow and judge.promises(losers) else {}


def finish(best: Attempt | None, request: Request, draft: Draft) -> CompileResult:
    """The best attempt becomes the variant; where none is faster than the source, the source itself does."""
    assert best is not None
    result = best.result
    if not best.cut.regions or (result.timing is not None and result.timing.slower):
        return keep_source(best, request, draft)
    for file in best.draft.folder.iterdir():
        shutil.move(str(file), draft.folder / file.name)
    best.draft.folder.rmdir()
    record(draft, best, request)
    return result


def record(draft: Draft, best: Attempt, request: Request) -> None:
    """Provenance: what was compiled, for which CPU, with which algorithms, how exact and how fast it was measured to be."""
    result = best.result
    name = (best.draft.record["compiled"] or {}).get("library")
    library = draft.folder / name if name else None
    if request.tool is None:
        result.remarks.append(f"not built: {draft.source_folder.name}/{BUILD_SCRIPT} beside it does that")
    draft.record["compiled"] = facts(best.cuts, result, best.domain, library, request.tool)
    if result.verified is not None:
        worst = result.verified.worst
        draft.record["verified"] = {
            o.name: {
                "max_abs": o.max_abs,
                "max_rel": o.max_rel,
                **({} if o.bound is None else {"of_scale": o.of_scale, "cosine": o.cosine, "bound": o.bound}),
                **({} if o.spread is None else {"own_spread": o.spread}),
            }
            for o in worst
        }
        if (expected := result.verified.next_token) is not None:
            draft.record["next_token"] = dataclasses.asdict(expected)
    if result.judged is not None:
        draft.record["inputs"] = result.judged.record


def keep_source(best: Attempt, request: Request, draft: Draft) -> CompileResult:
    """Nothing is worth compiling: the variant is the source, byte for byte, with no error to speak of."""
    result = best.result
    slow = result.timing
    why = "nothing in it can be compiled" if slow is None else f"compiled it would run at {slow.ratio:.2g}x its speed"
    result.remarks.append(f"the model stays as it is, all with ONNX Runtime: {why}")
    shutil.rmtree(best.draft.folder)
    reasons = {name: why for _, name, why in result.left}
    stay = best.cut.source.nodes()
    result.left = [(n.op_type, n.name or "", reasons.get(n.name or "", "faster in ONNX Runtime")) for n in stay]
    result.regions, result.sources, result.verified = [], [], None
    store.copy_model(request.src, draft.path)
    _copy_test_data(request.src, draft)
    draft.record["compiled"] = facts(best.cuts, result, None, None, request.tool) | {"regions": []}
    return result


def _parent(src: ModelLike) -> ModelLike | None:
    return None if isinstance(src, ir.Model) else src


def _give_test_data(source: Path, request: Request, draft: Draft, judged: Judged | None) -> None:
    """The source's test data; fresh data where --shape asks for another size than it has."""
    sizes = [{n: np.shape(a) for n, a in data.inputs.items()} for data in store.read_test_data(source)]
    if not request.shapes or not sizes:
        _copy_test_data(request.src, draft)
    elif judged is not None and judged.feed is not None:
        if all(size == {n: np.shape(a) for n, a in judged.feed.items()} for size in sizes):
            _copy_test_data(request.src, draft)
            return
        running = session.load(source, optimize=False)
        names = [o.name for o in running.get_outputs()]
        store.write_test_data(draft.folder, judged.feed, dict(zip(names, session.run(running, judged.feed))))


def _copy_test_data(src: ModelLike, draft: Draft) -> None:
    if isinstance(src, (str, Path, Variant)):
        store.copy_test_data(store.find_model(src), draft.folder)
