"""`opsmith compile`: any ONNX model in, the same model with native custom ops out. `compile` reads as the list of its steps."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir

from opsmith import machine, progress, store
from opsmith.compile.build import Compiler, build, find_compiler
from opsmith.compile.convert import Blob, replace_regions, save_converted, write_weights
from opsmith.compile.emit import Source, emit_instances, emit_region, emit_registration
from opsmith.compile.lower import Program, Target, lower_region
from opsmith.compile.partition import Analysis, Region, analyse, make_regions, region_facts
from opsmith.compile.plan import plan_memory
from opsmith.compile.simplify import simplify
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
    error: float | None = None


@dataclasses.dataclass
class CompileResult:
    variant: Variant | None
    regions: list[RegionResult]
    left: list[tuple[str, str, str]]  # op type, node, reason: what stayed with ORT
    nodes: int
    seconds: dict[str, float]
    sources: list[Source] = dataclasses.field(default_factory=list)
    verified: Any = None


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
    search: int = 0,
    strict: bool = False,
    verify: bool = True,
    compiler: str | None = None,
    emit_only: bool = False,
    dry_run: bool = False,
) -> CompileResult:
    """Compile SRC into the variant folder DEST. See docs/compile.md for what the options mean."""
    tool = None if emit_only or dry_run else find_compiler(compiler)
    model = load(src)
    total = len(list(model.graph))
    rewrite(model)
    cut = partition(model, regions, Target(lanes(), strict))
    result = summarize(cut, total)
    if dry_run:
        return result
    return write(
        cut, src, dest, tool, result, verify=verify, options={"regions": regions, "search": search, "strict": strict}
    )


def load(src: ModelLike) -> ir.Model:
    if isinstance(src, ir.Model):
        src = ir.to_proto(src)  # work on a copy: the caller's model stays as it is
    return store.open_model(src)


def rewrite(model: ir.Model) -> None:
    """Simplify, then find the structure that exporters tore apart."""
    simplify(model)
    try:
        from opsmith.rewrite import COMPILER_RULES, rewrite_model
    except ImportError:
        return
    rewrite_model(model, level=2, only=COMPILER_RULES)
    simplify(model)


def partition(model: ir.Model, wanted: str, target: Target) -> Cut:
    """Cut the graph and lower each region. A node that turns out not to lower goes back to ORT, and the cut is made again."""
    opset = model.opset_imports.get("", 1)
    analysis = analyse(model.graph, opset)
    choose = _chooser(wanted, model)
    while True:
        found = [r for r in make_regions(model.graph, analysis, choose) if _worthwhile(r, analysis)]
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
        _require_whole(found, analysis, model)
    return Cut(model, analysis, found, programs)


def _chooser(wanted: str, model: ir.Model) -> Callable[[ir.Node], bool]:
    if wanted in ("auto", "all", "whole"):
        return lambda node: True
    patterns = [p.strip() for p in wanted.split(",") if p.strip()]
    if not patterns:
        raise OpsmithError("--regions is empty", "use auto, all, whole, or names of nodes or functions")

    def choose(node: ir.Node) -> bool:
        names = (node.name or "", node.op_type, f"{node.domain}::{node.op_type}")
        return any(fnmatch.fnmatchcase(name, p) for name in names for p in patterns)

    unknown = [p for p in patterns if not any(choose_one(n, p) for n in model.graph)]
    if unknown:
        raise OpsmithError(f"no node or function matches {unknown[0]!r}", "see `opsmith inspect` for the names")
    return choose


def choose_one(node: ir.Node, pattern: str) -> bool:
    names = (node.name or "", node.op_type, f"{node.domain}::{node.op_type}")
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def _worthwhile(region: Region, analysis: Analysis) -> bool:
    """A region that only does shape arithmetic has nothing to run."""
    return bool(region.outputs) and any(
        analysis.facts[v].elements is None and analysis.facts[v].constant is None for v in region.outputs
    )


def _require_whole(regions: list[Region], analysis: Analysis, model: ir.Model) -> None:
    if not analysis.reasons and len(regions) == 1:
        return
    reasons = [f"{n.op_type} {n.name}: {why}" for n, why in analysis.reasons.items()]
    if not reasons:
        reasons = [f"the graph falls into {len(regions)} unconnected parts"]
    more = f" and {len(reasons) - 8} more" if len(reasons) > 8 else ""
    raise OpsmithError(f"the whole graph cannot be one op: {'; '.join(reasons[:8])}{more}", "use --regions auto")


def summarize(cut: Cut, total: int) -> CompileResult:
    rows = [
        RegionResult(r.name, [n.name or n.op_type for n in r.nodes], len(p.calls))
        for r, p in zip(cut.regions, cut.programs)
    ]
    inside = {n for r in cut.regions for n in r.nodes}
    left = [
        (n.op_type, n.name or "", cut.analysis.reasons.get(n, "not chosen")) for n in cut.model.graph if n not in inside
    ]
    return CompileResult(None, rows, left, total, {})


def write(
    cut: Cut,
    src: ModelLike,
    dest: PathLike,
    tool: Compiler | None,
    result: CompileResult,
    *,
    verify: bool,
    options: dict[str, Any],
) -> CompileResult:
    """Pack weights, emit, build, convert, verify; the variant appears only when all of it worked."""
    parent = None if isinstance(src, ir.Model) else src
    with store.new_variant(dest, verb="compile", parent=parent, options=options) as draft:
        data = draft.path.with_name(f"{draft.path.name}.data")
        with progress.task("packing weights", sum(len(p.weights) for p in cut.programs)) as step:
            blobs = write_weights(cut.programs, data, step)
        sources, domain = emit(cut, blobs)
        result.sources = sources
        digest = domain.rsplit(".", 1)[1]
        library = draft.folder / f"lib{draft.path.stem}_{digest}.so"
        folder = draft.folder / "src"
        if tool is None:
            folder.mkdir()
            for source in sources:
                (folder / source.name).write_text(source.text, encoding="utf-8")
        else:
            with progress.task("compiling kernels", sum(s.compiled for s in sources)) as step:
                build(sources, folder, library, compiler=tool, on_step=step)
        replace_regions(cut.model, cut.regions, blobs, domain, data)
        save_converted(cut.model, draft.path, data)
        draft.record["compiled"] = {
            "library": library.name,
            "domain": domain,
            "cpu_features": sorted(machine.cpu_features()),
            "compiler": tool.version if tool else None,
            "regions": [dataclasses.asdict(r) for r in result.regions],
            "left_to_ort": _count_reasons(result),
            "algorithms": sorted({n for p in cut.programs for c in p.calls for n in c.notes}),
        }
        if parent is not None and isinstance(parent, (str, Path, Variant)):
            store.copy_test_data(store.find_model(parent), draft.folder)
        if verify and tool is not None:
            result.verified = check(src, draft, result)
    result.variant = Variant(store.find_model(dest))
    return result


def emit(cut: Cut, blobs: list[Blob]) -> tuple[list[Source], str]:
    instances = {i.name: i for p in cut.programs for i in p.instances.values()}
    headers = {h for p in cut.programs for h in p.instance_headers}
    sources = emit_instances(list(instances.values()), headers)
    sources += [emit_region(p, plan_memory(p)) for p in cut.programs]
    digest = hashlib.sha256("".join(s.text for s in sources).encode() + str(blobs).encode()).hexdigest()[:12]
    domain = f"opsmith.{digest}"
    sources.append(emit_registration(domain, cut.programs, [b.checksum for b in blobs], [b.bytes for b in blobs]))
    return sources, domain


def check(src: ModelLike, draft: store.Draft, result: CompileResult) -> Any:
    """Against the unchanged model, on its test data and on fresh random inputs."""
    from opsmith.measure.verify import verify as verify_models

    draft.write_record()
    outcome = verify_models(src, Variant(draft.path))
    if not outcome.ok:
        raise NotTheSame(f"the compiled model differs from its source: {'; '.join(outcome.problems[:3])}")
    return outcome


def _count_reasons(result: CompileResult) -> dict[str, int]:
    counts: dict[str, int] = {}
    for op, _, reason in result.left:
        counts[f"{op}: {reason}"] = counts.get(f"{op}: {reason}", 0) + 1
    return counts


def lanes() -> int:
    features = machine.cpu_features()
    return 16 if "avx512f" in features else 8 if "avx" in features else 4
