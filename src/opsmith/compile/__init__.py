"""`opsmith compile`: any ONNX model in, the same model with native custom ops out. `compile` is the list of its steps."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from opsmith import machine, progress, settings, store
from opsmith.compile import keep, tune
from opsmith.compile.build import Compiler, build, find_compiler
from opsmith.compile.cache import IN_PLACE, grow_in_place, restore_declared
from opsmith.compile.choose import EVERYTHING, chooser, original_names, structure
from opsmith.compile.convert import Blob, replace_regions, save_converted, write_weights
from opsmith.compile.emit import Source, emit_instances, emit_region, emit_registration
from opsmith.compile.expand import expand
from opsmith.compile.lower import Program, Target, lower_region
from opsmith.compile.partition import Analysis, Region, analyse, make_regions, plain_symbol, region_facts
from opsmith.compile.plan import plan_memory
from opsmith.compile.simplify import fix_dims, name_nodes, simplify
from opsmith.compile.tune import Tuning
from opsmith.compile.values import Unsupported
from opsmith.errors import NotTheSame, OpsmithError
from opsmith.store import ModelLike, PathLike, Variant


@dataclasses.dataclass
class RegionResult:
    """One line of the table that `compile` prints."""

    name: str
    nodes: list[str]
    calls: int
    kept: bool = True
    why: str = ""
    before_ms: float | None = None
    after_ms: float | None = None


@dataclasses.dataclass
class CompileResult:
    variant: Variant | None
    regions: list[RegionResult]
    left: list[tuple[str, str, str]]  # op type, node, reason: what stayed with ORT
    nodes: int
    sources: list[Source] = dataclasses.field(default_factory=list)
    verified: Any = None  # VerifyResult
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # where compile's own time went
    tuning: Tuning | None = None  # what was measured and chosen, with search 1 and 2


@dataclasses.dataclass
class Cut:
    """A model cut into regions, each lowered to a program."""

    model: ir.Model
    analysis: Analysis
    regions: list[Region]
    programs: list[Program]


def compile(
    src: ModelLike,
    dest: PathLike,
    *,
    regions: str = "auto",
    search: int | None = None,
    strict: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
    verify: bool = True,
    compiler: str | None = None,
    emit_only: bool = False,
    dry_run: bool = False,
) -> CompileResult:
    """Compile SRC into the variant folder DEST. docs/compile.md says what the options mean."""
    search = settings.get(search=search).search
    options = {"regions": regions, "search": search, "strict": strict, **({"shapes": dict(shapes)} if shapes else {})}
    tool = None if emit_only or dry_run else find_compiler(compiler)
    slow: dict[str, str] = {}  # nodes of regions that were measured slower -> why; they stay with ORT in the next cut
    dropped: list[RegionResult] = []
    while True:
        clock = Clock()
        model = load(src, shapes)
        name_nodes(model.graph)
        total = len(list(model.graph))
        source = structure(model)
        rewrite(model)
        clock.lap("rewrite")
        cut = partition(model, regions, Target(lanes(), strict), slow, source)
        clock.lap("lower")
        tuning = None
        if search and tool:
            cut, tuning = tuned(cut, src, Target(lanes(), strict), search, tool, regions, slow, source)
            clock.lap("tune")
        result = summarize(cut, total, dropped, clock, tuning)
        if dry_run:
            return result
        try:
            with store.new_variant(dest, verb="compile", parent=_parent(src), options=options) as draft:
                write(cut, src, draft, tool, result, clock, measure=regions == "auto", verify=verify, slow=slow)
        except _Again as again:
            dropped += again.losers
            continue
        result.variant = Variant(store.find_model(dest))
        return result


def write(
    cut: Cut,
    src: ModelLike,
    draft: store.Draft,
    tool: Compiler | None,
    result: CompileResult,
    clock: Clock,
    *,
    measure: bool,
    verify: bool,
    slow: dict[str, str],
) -> None:
    """Pack, emit, build, convert, verify, measure. The variant appears only when all of it worked."""
    data = draft.path.with_name(f"{draft.path.name}.data")
    blobs = pack_weights(cut, data)
    store.release(cut.model)  # the source's pages, which packing read, would count on top of what verifying needs
    clock.lap("pack")
    result.sources, domain = emit(cut, blobs)
    library = make_library(result.sources, domain, draft, tool) if cut.regions else None
    clock.lap("build")
    record(draft, cut, result, domain, library, tool)
    parts = time_parts(cut, blobs, domain, data, src) if measure and tool and not whole(cut) else None
    replace_regions(cut.model, cut.regions, blobs, domain, data)
    restore_declared(cut.model)
    save_converted(cut.model, draft.path, data)
    _copy_test_data(src, draft)
    if verify and tool:
        result.verified = check(src, draft)
        clock.lap("verify")
    if measure and tool and cut.regions:
        timings = parts if parts is not None else time_whole(src, draft)
        clock.lap("measure")
        if losers := apply_timings(result, timings, cut, slow):
            raise _Again(losers)
    record(draft, cut, result, domain, library, tool)


class _Again(Exception):
    """Some regions were slower than what they replace: cut the model again without them."""

    def __init__(self, losers: list[RegionResult]) -> None:
        super().__init__()
        self.losers = losers


class Clock:
    """Seconds per step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = round(now - self._last, 3)
        self._last = now


# --- the steps ---


def load(src: ModelLike, shapes: Mapping[str, Sequence[int]] | None = None) -> ir.Model:
    if isinstance(src, ir.Model):
        src = ir.to_proto(src)  # work on a copy: the caller's model stays as it is
    model = store.open_model(src)
    if shapes:
        fix_dims(model, shapes)
    return model


def rewrite(model: ir.Model) -> None:
    """Simplify, then find the structure that exporters tore apart."""
    from opsmith.rewrite import COMPILER_RULES, rewrite_model

    simplify(model)
    rewrite_model(model, level=2, only=COMPILER_RULES)
    grow_in_place(model)
    simplify(model)


def partition(
    model: ir.Model,
    wanted: str,
    target: Target,
    slow: Mapping[str, str] | None = None,
    source: onnx.ModelProto | None = None,
) -> Cut:
    """Cut the graph and lower each region. A node that does not lower after all goes back to ORT, and the cut is made again."""
    opset = model.opset_imports.get("", 1)
    analysis = analyse(model.graph, opset)
    if expand(model, analysis, slow or ()):
        rewrite(model)
        analysis = analyse(model.graph, opset)
    for node in model.graph:
        if slow and (node.name or "") in slow:
            analysis.reasons[node] = slow[node.name or ""]
    choose = chooser(wanted, model, None if source is None or wanted in EVERYTHING else original_names(source, model))
    while True:
        found = [r for r in make_regions(model.graph, analysis, choose) if _worthwhile(r, analysis, wanted)]
        programs: list[Program] = []
        for i, region in enumerate(found):
            region.name = f"region{i}"
            facts = region_facts(region, analysis)
            try:
                programs.append(
                    lower_region(region.name, region.nodes, region.inputs, region.outputs, facts, opset, target)
                )
            except Unsupported as reason:
                node = getattr(reason, "node", None) or region.nodes[-1]
                analysis.reasons[node] = str(reason)
                break
        else:
            break
    if wanted == "whole":
        _require_whole(found, analysis)
    return Cut(model, analysis, found, programs)


def tuned(
    cut: Cut,
    src: ModelLike,
    target: Target,
    level: int,
    tool: Compiler,
    wanted: str,
    slow: Mapping[str, str],
    source: onnx.ModelProto,
) -> tuple[Cut, Tuning]:
    """Measure what the kernels of this cut could do better, and lower it again with what was found."""
    with store.on_disk(src) as path:
        sizes = typical_sizes(cut, keep.feed_for(path))
    tuning = tune.tune(cut.programs, sizes, level=level, lanes=target.lanes, compiler=tool)
    again = partition(cut.model, wanted, dataclasses.replace(target, tuned=tuning.outcomes), slow, source)
    tune.record(tuning, cut.programs, again.programs)
    return again, tuning


def typical_sizes(cut: Cut, feed: keep.Feed) -> dict[str, int]:
    """The dynamic dims as the model's test data has them."""
    sizes: dict[str, int] = {}
    for value in cut.model.graph.inputs:
        array, facts = feed.get(value.name or ""), cut.analysis.facts.get(value)
        if array is None or facts is None:
            continue
        for d, size in zip(facts.dims, array.shape):
            if (name := plain_symbol(d)) is not None:
                sizes.setdefault(name, size)
    return sizes


def _worthwhile(region: Region, analysis: Analysis, wanted: str) -> bool:
    """A region that only does shape arithmetic has nothing to run: it is compiled only if everything is."""
    if wanted in ("all", "whole"):
        return bool(region.outputs)
    return any(analysis.facts[v].elements is None and analysis.facts[v].constant is None for v in region.outputs)


def _require_whole(regions: list[Region], analysis: Analysis) -> None:
    if not analysis.reasons and len(regions) == 1:
        return
    reasons = [f"{n.op_type} {n.name}: {why}" for n, why in analysis.reasons.items()]
    if not reasons:
        reasons = [f"the graph falls into {len(regions)} unconnected parts"]
    more = f" and {len(reasons) - 8} more" if len(reasons) > 8 else ""
    raise OpsmithError(f"the whole graph cannot be one op: {'; '.join(reasons[:8])}{more}", "use --regions auto")


def whole(cut: Cut) -> bool:
    return len(cut.regions) == 1 and not cut.analysis.reasons


def pack_weights(cut: Cut, data: Path) -> list[Blob]:
    with progress.task("packing weights", sum(len(p.weights) for p in cut.programs)) as step:
        return write_weights(cut.programs, data, lambda _: step())


def emit(cut: Cut, blobs: list[Blob]) -> tuple[list[Source], str]:
    """All C++ of the library, and its custom-op domain: a hash of its content, so that two models can meet in one process."""
    instances = {i.name: i for p in cut.programs for i in p.instances.values()}
    headers = {h for p in cut.programs for h in p.instance_headers}
    sources = emit_instances(list(instances.values()), headers)
    sources += [emit_region(p, plan_memory(p)) for p in cut.programs]
    digest = hashlib.sha256("".join(s.text for s in sources).encode() + str(blobs).encode()).hexdigest()[:12]
    domain = f"opsmith.{digest}"
    sources.append(emit_registration(domain, cut.programs, [b.checksum for b in blobs], [b.bytes for b in blobs]))
    return sources, domain


def make_library(sources: list[Source], domain: str, draft: store.Draft, tool: Compiler | None) -> Path:
    library = draft.folder / f"lib{draft.path.stem}_{domain.rsplit('.', 1)[1]}.so"
    folder = draft.folder / "src"
    if tool is None:
        folder.mkdir()
        for source in sources:
            (folder / source.name).write_text(source.text, encoding="utf-8")
        return library
    with progress.task("compiling kernels", sum(s.compiled for s in sources)) as step:
        return build(sources, folder, library, compiler=tool, on_step=lambda _: step())


def check(src: ModelLike, draft: store.Draft) -> Any:
    """Against the unchanged model, on its test data and on fresh random inputs."""
    from opsmith.measure.verify import verify as verify_models

    outcome = verify_models(src, Variant(draft.path))
    if not outcome.ok:
        raise NotTheSame(f"the compiled model differs from its source: {'; '.join(outcome.problems[:3])}")
    return outcome


# --- measuring ---


def time_whole(src: ModelLike, draft: store.Draft) -> list[keep.Timing]:
    with store.on_disk(src) as path, progress.task("measuring"):
        return [keep.time_whole(path, draft.path)]


def time_parts(cut: Cut, blobs: list[Blob], domain: str, data: Path, src: ModelLike) -> list[keep.Timing]:
    with store.on_disk(src) as path, progress.task("measuring regions"):
        return keep.time_parts(cut.model, cut.regions, blobs, domain, data, path)


def apply_timings(
    result: CompileResult, timings: Sequence[keep.Timing], cut: Cut, slow: dict[str, str]
) -> list[RegionResult]:
    """Write the times into the table; the regions that lost come back, and their nodes are marked for the next cut."""
    losers = []
    rows = [r for r in result.regions if r.kept]
    for row, timing, region in zip(rows, timings, cut.regions):
        row.before_ms, row.after_ms = timing.before * 1e3, timing.after * 1e3
        if timing.slower:
            row.kept, row.why = False, "slower than ONNX Runtime"
            slow.update(
                {n.name or "": f"measured slower ({row.after_ms:.2f} ms for {row.before_ms:.2f})" for n in region.nodes}
            )
            losers.append(row)
    return losers


# --- what is told about it ---


def summarize(
    cut: Cut, total: int, dropped: list[RegionResult], clock: Clock, tuning: Tuning | None = None
) -> CompileResult:
    rows = [
        RegionResult(r.name, [n.name or n.op_type for n in r.nodes], len(p.calls))
        for r, p in zip(cut.regions, cut.programs)
    ]
    inside = {n for r in cut.regions for n in r.nodes}
    reasons = cut.analysis.reasons
    left = [(n.op_type, n.name or "", reasons.get(n, "not chosen")) for n in cut.model.graph if n not in inside]
    return CompileResult(None, [*rows, *dropped], left, total, seconds=clock.seconds, tuning=tuning)


def record(
    draft: store.Draft, cut: Cut, result: CompileResult, domain: str, library: Path | None, tool: Compiler | None
) -> None:
    """Provenance: what was compiled, for which CPU, with which algorithms, and how exact it was measured to be.

    It is written at once, because sessions on the draft find their library through it.
    """
    counts: dict[str, int] = {}
    for op, _, reason in result.left:
        counts[f"{op}: {reason}"] = counts.get(f"{op}: {reason}", 0) + 1
    notes = [n for p in cut.programs for c in p.calls for n in c.notes]
    draft.record["compiled"] = {
        "library": library.name if library else None,
        "domain": domain,
        "cpu_features": sorted(machine.cpu_features()),
        "compiler": f"{tool.name} {tool.version}" if tool else None,
        "regions": [{**dataclasses.asdict(r), "nodes": len(r.nodes)} for r in result.regions],
        "left_to_ort": counts,
        "cache": "in place" if cut.model.meta.get(IN_PLACE) else None,
        "algorithms": {n: notes.count(n) for n in sorted(set(notes))},
        "seconds": result.seconds,
        **({"tuned": result.tuning.to_dict()} if result.tuning else {}),
    }
    if result.verified is not None:
        worst = result.verified.worst
        draft.record["verified"] = {o.name: {"max_abs": o.max_abs, "max_rel": o.max_rel} for o in worst}
    draft.write_record()


def lanes() -> int:
    features = machine.cpu_features()
    return 16 if "avx512f" in features else 8 if "avx" in features else 4


def _parent(src: ModelLike) -> ModelLike | None:
    return None if isinstance(src, ir.Model) else src


def _copy_test_data(src: ModelLike, draft: store.Draft) -> None:
    if isinstance(src, (str, Path, Variant)):
        store.copy_test_data(store.find_model(src), draft.folder)
