"""`opsmith compile`: any ONNX model in, the same model with native custom ops out. `compile` is the list of its steps."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from opsmith import machine, progress, session, settings, store
from opsmith.check.feed import Given, Judged, judged_feed
from opsmith.check.inputs import Fixed
from opsmith.check.verify import VerifyResult
from opsmith.compiler import auto, geometry, keep, tune
from opsmith.compiler.build import BUILD_SCRIPT, Compiler, build, find_compiler, write_buildable
from opsmith.compiler.convert import Blob, replace_regions, save_converted, seal_weights, write_weights
from opsmith.compiler.cut import Cut, HandedBack, cut
from opsmith.compiler.emit import NAMESPACE, Form, emit_instances, emit_region, emit_registration, instances
from opsmith.compiler.emit import Source as SourceFile
from opsmith.compiler.find_wrong import Found, all_values, find_wrong
from opsmith.compiler.lower import Target
from opsmith.compiler.lower.builder import identifier
from opsmith.compiler.plan import plan_memory
from opsmith.compiler.precision import AUTO, FP32, PRECISIONS, Precision, cheapest
from opsmith.compiler.program import show
from opsmith.compiler.source import Source, load, prepare
from opsmith.compiler.step_by_step import find_hidden, passed_by_spread
from opsmith.compiler.system import System, find_system, here
from opsmith.compiler.tune import Tuning
from opsmith.errors import NotTheSame, OpsmithError
from opsmith.plain import Shown
from opsmith.store import Draft, ModelLike, PathLike, Variant
from opsmith.timing.rows import GroupDifference

MOST_CUTS = 4  # that are measured; each handed back what lost in the one before
MOST_WRONG = 8  # nodes that may be found wrong, one by one, before their whole region goes back


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asked for. docs/compile.md says what the options mean."""

    src: ModelLike
    dest: PathLike
    regions: str = "auto"
    search: int = 0
    strict: bool = False
    shapes: Fixed | None = None
    inputs: Given | None = None
    verify: bool = True
    tool: Compiler | None = None  # None: only the source is wanted
    precision: Precision = FP32
    cpu: str = geometry.NATIVE  # several are separated by commas
    system: System = dataclasses.field(default_factory=here)
    max_error: float | None = None  # of each output's scale; given where precisions are chosen (auto)

    @property
    def targets(self) -> dict[str, Target]:
        """What to compile for, by CPU; the library takes the first that it can run."""
        names = geometry.best_first(self.cpu)
        return {n: Target(geometry.for_cpu(n), self.strict, precision=self.precision) for n in names}

    @property
    def runs_here(self) -> bool:
        """Whether something of what is compiled can be verified and measured on this machine."""
        return any(map(self.runs, self.targets.values()))

    def runs(self, target: Target) -> bool:
        return self.system.runs_here and runs_here(target)

    @property
    def measured(self) -> bool:
        return self.regions == "auto" and self.tool is not None and self.runs_here

    @property
    def options(self) -> dict[str, Any]:
        shapes = {"shapes": dict(self.shapes)} if self.shapes else {}
        precision: dict[str, Any] = {} if self.precision is FP32 else {"precision": self.precision.name}
        if self.max_error is not None:
            precision = {"precision": AUTO, "max_error": self.max_error}
        cpu = {} if self.cpu == geometry.NATIVE else {"cpu": self.cpu}
        system = {} if self.system == here() else {"system": dataclasses.asdict(self.system)}
        return {
            "regions": self.regions,
            "search": self.search,
            "strict": self.strict,
            **cpu,
            **system,
            **precision,
            **shapes,
        }


def runs_here(target: Target) -> bool:
    return geometry.needed(target.isa) <= machine.cpu_features()


@dataclasses.dataclass
class RegionResult:
    """One line of the table that `compile` prints."""

    name: str
    nodes: list[str]
    calls: int


@dataclasses.dataclass(repr=False)
class CompileResult(Shown):
    variant: Variant | None
    regions: list[RegionResult]
    left: list[tuple[str, str, str]]  # op type, node, reason: what stayed with ORT
    nodes: int  # of the source
    sources: list[SourceFile] = dataclasses.field(default_factory=list)
    verified: VerifyResult | None = None
    judged: Judged | None = None  # the inputs it was measured with
    timing: keep.Timing | None = None  # source and compiled model; None where nothing was measured
    remarks: list[str] = dataclasses.field(default_factory=list)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # where compile's own time went
    tuning: Tuning | None = None  # what was measured and chosen, with search 1 and 2
    choices: list[auto.Choice] = dataclasses.field(default_factory=list)  # of precision auto

    @property
    def native(self) -> int:
        """Nodes of the source that no longer run in ONNX Runtime."""
        return self.nodes - len(self.left)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; docs/json.md says what the keys mean."""
        return {
            "written": self.variant,
            "nodes": self.nodes,
            "native": self.native,
            "regions": self.regions,
            "left": [{"op": op, "node": node, "why": why} for op, node, why in self.left],
            "judged": None if self.judged is None else self.judged.to_dict(),
            "timing": None if self.timing is None else self.timing.to_dict(),
            "verified": self.verified,
            "tuning": None if self.tuning is None else self.tuning.to_dict(),
            "remarks": self.remarks,
            "seconds": self.seconds,
        }


def compile(
    src: ModelLike,
    dest: PathLike,
    *,
    regions: str = "auto",
    search: int | None = None,
    strict: bool = False,
    precision: str | None = None,
    max_error: float | None = None,
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
    request = Request(
        src, dest, regions, chosen.search, strict, shapes, inputs, verify, tool, precise, cpu, system, bound
    )
    for name, target in request.targets.items():
        if chosen.search and not request.runs(target):
            raise OpsmithError(f"kernels for {name} cannot be measured on this CPU", "compile for it with --search 0")
    _check_not_compiled(src)
    clock = Clock()
    source = prepare(load(src, shapes))
    clock.lap("rewrite")
    if dry_run:
        return summarize(main_cut(cut_forms(source, regions, request.targets, {})), clock)
    parent = _parent(src)
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


# --- one attempt after the other ---


@dataclasses.dataclass
class Attempt:
    """One cut, built into a folder of its own."""

    draft: Draft
    cuts: dict[str, Cut]  # for each CPU
    result: CompileResult
    domain: str

    @property
    def cut(self) -> Cut:
        return main_cut(self.cuts)

    @property
    def speed(self) -> float:
        return self.result.timing.ratio if self.result.timing is not None else 1.0


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
            cuts, tuning = cut_and_tune(source, request, targets, handed_back, clock)
            attempt = build_attempt(cuts, request, draft, f"attempt{number}", clock)
            _give_test_data(path, request, attempt.draft, judged)
            attempt.result.tuning, attempt.result.judged, attempt.result.choices = tuning, judged, choices
            attempt.result.remarks += remarks
            if (found := find_fault(path, attempt, request, wrong, clock)) is not None:
                wrong += 1
                handed_back |= found.nodes
                remarks.append(found.remark)
                shutil.rmtree(attempt.draft.folder)
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


def find_fault(source: Path, attempt: Attempt, request: Request, wrong: int, clock: Clock) -> Found | None:
    """What verifying an attempt hands back, WRONG such findings before; None if it holds, or is not to be verified."""
    if not request.verify:
        return None
    if not attempt.cut.regions:
        session.load(source, optimize=False)  # a copy of what does not even load is no result
        return None
    if request.tool is None:
        return None
    found = examine(source, attempt, request, wrong)
    clock.lap("verify")
    return found


def measure(attempt: Attempt, judge: keep.Judge, clock: Clock, profile: bool) -> list[GroupDifference]:
    """Time an attempt beside its source; with PROFILE, also what of it is slower than there."""
    attempt.result.timing = judge.time(attempt.draft.path)
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


def choose_precisions(
    source: Source,
    path: Path,
    request: Request,
    targets: dict[str, Target],
    judged: Judged | None,
    draft: Draft,
    clock: Clock,
) -> tuple[dict[str, Target], list[auto.Choice]]:
    """The target with a precision for every product, found by building and verifying (auto.py), if that was asked for."""
    if request.max_error is None:
        return targets, []
    if judged is None or not request.runs_here:
        raise OpsmithError("--precision auto builds and measures: it needs a compiler and the CPU that it compiles for")
    if len(targets) > 1:
        raise OpsmithError(
            "--precision auto chooses for one CPU", "name one with --cpu, or a precision for all of them"
        )
    ((cpu, target),) = targets.items()
    pieces = cut(source, request.regions, target)
    products = auto.layers(pieces, all_values(pieces, judged.required()))
    number = itertools.count()
    closer = dataclasses.replace(request, max_error=auto.MARGIN * request.max_error)

    def within(chosen: dict[str, Precision]) -> bool:
        trial = cut(source, request.regions, dataclasses.replace(target, precisions=chosen))
        attempt = build_attempt({cpu: trial}, request, draft, f"plan{next(number)}", clock)
        verified = check(path, attempt, closer)
        shutil.rmtree(attempt.draft.folder)
        return verified.ok or verified.unchecked is not None

    chosen = auto.search(products, within) if products else {}
    clock.lap("choose")
    return {cpu: dataclasses.replace(target, precisions=chosen)}, auto.table(products, chosen)


def examine(source: Path, attempt: Attempt, request: Request, wrong: int) -> Found | None:
    """Verify what of an attempt this CPU can run; what has to go back to ONNX Runtime, WRONG such findings before."""
    result = attempt.result
    for cpu, pieces in attempt.cuts.items():
        assert pieces.target is not None
        if not request.runs(pieces.target):
            what = "this CPU" if request.system.runs_here else "this machine"
            where = cpu if request.system.runs_here else f"{cpu}, {request.system}"
            result.remarks.append(f"not verified: {what} cannot run what was compiled for {where}")
            continue
        forced = cpu if len(attempt.cuts) > 1 else None
        with session.forced_cpu(forced):
            verified = check(source, attempt, request)
        if result.verified is None:  # what a session here runs; of the others a line says that they are as exact
            result.verified = verified
        if (why := verified.unchecked) is not None:
            result.remarks.append(f"not verified, no inputs were found that the source runs on: {why}")
            return None
        with session.forced_cpu(forced):
            if (found := what_differs(attempt, pieces, verified, request, wrong)) is not None:
                return found
        if forced:
            worst = max((o.max_abs for o in verified.worst), default=0.0)
            result.remarks.append(f"verified for {cpu}: largest absolute error {worst:.1e}")
    return None


def what_differs(attempt: Attempt, pieces: Cut, verified: VerifyResult, request: Request, wrong: int) -> Found | None:
    """What of a verified attempt has to go back to ONNX Runtime, WRONG such findings before; None if nothing has to."""
    target, hidden = pieces.target, None
    assert target is not None
    if verified.ok:
        if not passed_by_spread(verified) or wrong >= MOST_WRONG or request.precision is not FP32:
            return None
        try:
            hidden = find_hidden(pieces, verified, target)
        except OpsmithError as error:
            attempt.result.remarks.append(f"it passed by its own spread, and its parts could not be compared: {error}")
        if hidden is None:
            return None
    problems = "; ".join(verified.problems[:3]) or (hidden.remark if hidden else "")
    if request.precision is not FP32 and not any(c.problem for c in verified.cases):
        raise NotTheSame(
            f"in {request.options['precision']} the model is too far from its source: {problems}",
            "allow more with --max-error"
            if request.max_error is not None
            else f"compile it with --precision {' or '.join(_more_exact(request.precision))}",
        )
    if request.regions == "whole":
        raise NotTheSame(f"the compiled model differs from its source: {problems}")
    return hidden or find_wrong(pieces, verified, target, give_up=wrong >= MOST_WRONG)


def _more_exact(precision: Precision) -> list[str]:
    names = list(PRECISIONS)
    return names[names.index(precision.name) - 1 :: -1]


def better(best: Attempt | None, attempt: Attempt) -> Attempt:
    """The faster of two; the other one is deleted."""
    if best is None:
        return attempt
    loser, winner = sorted((best, attempt), key=lambda a: a.speed)
    shutil.rmtree(loser.draft.folder)
    return winner


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
    draft.record["compiled"] = _facts(best.cuts, result, best.domain, library, request.tool)
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
    if result.judged is not None:
        draft.record["inputs"] = result.judged.record


def keep_source(best: Attempt, request: Request, draft: Draft) -> CompileResult:
    """Nothing is worth compiling: the variant is the source, byte for byte."""
    result = best.result
    slow = result.timing
    why = "nothing in it can be compiled" if slow is None else f"compiled it would run at {slow.ratio:.2f}x its speed"
    result.remarks.append(f"the model stays as it is, all with ONNX Runtime: {why}")
    shutil.rmtree(best.draft.folder)
    reasons = {name: why for _, name, why in result.left}
    stay = best.cut.source.nodes()
    result.left = [(n.op_type, n.name or "", reasons.get(n.name or "", "faster in ONNX Runtime")) for n in stay]
    result.regions, result.sources = [], []
    store.copy_model(request.src, draft.path)
    _copy_test_data(request.src, draft)
    draft.record["compiled"] = _facts(best.cuts, result, None, None, request.tool) | {"regions": []}
    return result


def cut_forms(source: Source, regions: str, targets: Mapping[str, Target], handed_back: HandedBack) -> dict[str, Cut]:
    """One cut for each CPU, all with the same regions: what one of them cannot have is HANDED_BACK in all."""
    while True:
        cuts = {cpu: cut(source, regions, target, handed_back) for cpu, target in targets.items()}
        kept = [{n.name or "" for r in pieces.regions for n in r.nodes} for pieces in cuts.values()]
        lost = kept[0].union(*kept) - kept[0].intersection(*kept)
        if not lost:
            return cuts
        for pieces in cuts.values():
            reasons = {n.name or "": why for n, why in pieces.reasons.items()}
            handed_back |= {name: reasons.get(name, "not native on every CPU") for name in lost if name in reasons}


def main_cut(cuts: Mapping[str, Cut]) -> Cut:
    """The one that a session on this machine runs; the first if it can run none."""
    here = [c for c in cuts.values() if c.target is not None and runs_here(c.target)]
    return (here or list(cuts.values()))[0]


def build_attempt(cuts: dict[str, Cut], request: Request, draft: Draft, name: str, clock: Clock) -> Attempt:
    """Pack, emit, build, convert."""
    folder = draft.folder / name
    folder.mkdir()
    own = dataclasses.replace(draft, folder=folder, path=folder / draft.path.name, record=dict(draft.record))
    data = own.path.with_name(f"{own.path.name}.data")
    pieces = main_cut(cuts)
    forms = pack_weights(cuts, data)
    # the source's pages, which packing read, would count on top of what verifying needs
    store.release(pieces.source.model)
    clock.lap("pack")
    result = summarize(pieces, clock)
    result.sources, domain = emit(cuts, forms)
    blobs = [form.blobs for form in forms]
    seal_weights(data, [b for of_form in blobs for b in of_form], domain)
    library = make_library(result.sources, domain, own, request, pieces.isa) if pieces.regions else None
    write_programs(cuts, own)
    clock.lap("build")
    save_converted(replace_regions(pieces.source, pieces.regions, blobs, domain, data), own.path, data)
    attempt = Attempt(own, cuts, result, domain)
    own.record["compiled"] = _facts(cuts, result, domain, library, request.tool)
    own.write_record()  # sessions find the library through it
    return attempt


def write_programs(cuts: Mapping[str, Cut], draft: Draft) -> None:
    """The programs as a person reads them, and which nodes of the source their calls compute, beside their C++."""
    for cpu, pieces in cuts.items():
        folder = draft.source_folder / form_folder(cpu, cuts)
        for program in pieces.programs:
            (folder / f"{program.name}.txt").write_text(show(program), encoding="utf-8")
        if pieces.programs:
            store.write_origins(folder, {p.name: [list(c.origins) for c in p.calls] for p in pieces.programs})


def form_folder(cpu: str, cuts: Mapping[str, Cut]) -> str:
    """Where the source for a CPU lies: in a folder of its own if there are several."""
    return cpu if len(cuts) > 1 else ""


def tuned(pieces: Cut, request: Request, target: Target, handed_back: HandedBack) -> tuple[Cut, Tuning | None]:
    """Measure what the kernels of this cut could do better, and lower it again with what was found."""
    if not request.search or request.tool is None:
        return pieces, None
    tuning = tune.tune(pieces.programs, target.sizes, level=request.search, isa=target.isa, compiler=request.tool)
    again = cut(pieces.source, request.regions, dataclasses.replace(target, tuned=tuning.outcomes), handed_back)
    tune.record(tuning, pieces.programs, again.programs)
    return again, tuning


class Clock:
    """Seconds per step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = round(self.seconds.get(name, 0.0) + now - self._last, 3)
        self._last = now


# --- the steps ---


def pack_weights(cuts: Mapping[str, Cut], data: Path) -> list[Form]:
    """The weights of all forms in one file; forms that pack alike share them."""
    programs = [p for pieces in cuts.values() for p in pieces.programs]
    with progress.task("packing weights", sum(len(p.weights) for p in programs)) as step:
        blobs = iter(write_weights(programs, data, lambda _: step()))
    return [make_form(cpu, cuts, [next(blobs) for _ in pieces.programs]) for cpu, pieces in cuts.items()]


def make_form(cpu: str, cuts: Mapping[str, Cut], blobs: Sequence[Blob]) -> Form:
    space = f"{NAMESPACE}_{identifier(cpu)}" if len(cuts) > 1 else NAMESPACE
    return Form(cuts[cpu].programs, blobs, cpu, sorted(geometry.needed(cuts[cpu].isa)), space)


def emit(cuts: Mapping[str, Cut], forms: Sequence[Form]) -> tuple[list[SourceFile], str]:
    """All C++ of the library, and its custom-op domain: a hash of its content, so that two models can meet in one process.

    What the weights are is not part of it: one library serves all that have the same shapes."""
    sources: list[SourceFile] = []
    content = ""
    for form in forms:
        own = emit_instances(instances(form.programs))
        own += [emit_region(p, plan_memory(p)) for p in form.programs]
        isa, folder = cuts[form.cpu].isa, form_folder(form.cpu, cuts)
        content += "".join(s.text for s in own) + str(form.blobs) + isa.name  # which says how weights are packed
        sources += [SourceFile(f"{folder}/{s.name}" if folder else s.name, s.text, isa, form.namespace) for s in own]
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    domain = f"opsmith.{digest}"
    sources.append(emit_registration(domain, next(iter(cuts.values())).regions, forms))
    return sources, domain


def make_library(
    sources: list[SourceFile], domain: str, draft: Draft, request: Request, isa: geometry.InstructionSet
) -> Path:
    system, tool = request.system, request.tool
    library = draft.folder / system.library(f"{draft.path.stem}_{domain.rsplit('.', 1)[1]}")
    folder = draft.source_folder
    if tool is None:
        write_buildable(sources, folder, library, isa)
        return library
    with progress.task("compiling kernels", sum(s.compiled for s in sources)) as step:
        return build(sources, folder, library, compiler=tool, isa=isa, on_step=lambda _: step())


def check(source: Path, attempt: Attempt, request: Request) -> VerifyResult:
    """Against the unchanged model, on its test data and on fresh random inputs."""
    from opsmith.check.verify import verify as verify_models

    options: dict[str, Any] = {"precision": request.precision.name, "bound": request.max_error}
    return verify_models(source, Variant(attempt.draft.path), inputs=request.inputs, **options)


# --- what is told about it ---


def summarize(pieces: Cut, clock: Clock) -> CompileResult:
    rows = [
        RegionResult(r.name, [n.name or n.op_type for n in r.nodes], len(p.calls))
        for r, p in zip(pieces.regions, pieces.programs)
    ]
    reasons = {n.name: why for n, why in pieces.reasons.items()}
    left = [(n.op_type, n.name or "", reasons.get(n.name, AROUND)) for n in pieces.left]
    return CompileResult(None, rows, left, len(pieces.source.nodes()), seconds=clock.seconds)


AROUND = "feeds nodes that stay"


def _facts(
    cuts: Mapping[str, Cut], result: CompileResult, domain: str | None, library: Path | None, tool: Compiler | None
) -> dict[str, Any]:
    pieces = main_cut(cuts)
    return {
        "library": library.name if library else None,
        **({"sha256": store.checksum(library)} if library and library.exists() else {}),
        "domain": domain,
        **_needed_features(cuts),
        "compiler": f"{tool.name} {tool.version}" if tool else None,
        "regions": [{**dataclasses.asdict(r), "nodes": len(r.nodes)} for r in result.regions],
        "nodes": {"all": result.nodes, "native": result.native},
        "left_to_ort": dict(collections.Counter(f"{op}: {reason}" for op, _, reason in result.left)),
        "handed_back": sorted(pieces.handed_back),
        "sizes": dict(pieces.target.sizes) if pieces.target is not None else {},
        "cache": "in place" if pieces.in_place else None,
        **_chosen_kernels(pieces),
        "seconds": result.seconds,
        "measured": None if result.timing is None else _measured(result),
        "remarks": result.remarks,
        **({"tuned": result.tuning.to_dict()} if result.tuning else {}),
        **({"chosen": [dataclasses.asdict(c) for c in result.choices]} if result.choices else {}),
    }


def _needed_features(cuts: Mapping[str, Cut]) -> dict[str, Any]:
    """What every CPU has to have, and what each form needs if there are several."""
    needed = {cpu: geometry.needed(pieces.isa) for cpu, pieces in cuts.items()}
    forms = {"forms": {cpu: sorted(features) for cpu, features in needed.items()}} if len(cuts) > 1 else {}
    return {"cpu_features": sorted(frozenset.intersection(*needed.values())), **forms}


def _chosen_kernels(pieces: Cut) -> dict[str, Any]:
    """How many calls run by which algorithm, and in which precision."""
    calls = [c for p in pieces.programs for c in p.calls]
    return {
        "algorithms": dict(collections.Counter(sorted(n for c in calls for n in c.notes))),
        "precision": dict(collections.Counter(c.precision.name for c in calls if c.precision)),
    }


def _measured(result: CompileResult) -> dict[str, Any]:
    assert result.timing is not None and result.judged is not None
    shapes = {name: list(a.shape) for name, a in (result.judged.feed or {}).items()}
    return {**dataclasses.asdict(result.timing), "inputs": shapes, "inputs_from": result.judged.origin}


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
