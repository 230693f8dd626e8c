"""From cuts to the code of a library. A form is the code for one kind of CPU; a library holds one or several.

cut_forms       one cut for each CPU, all with the same regions
tuned           again, with what the tuner measured
pack_weights    their weights, in one file
write_code      their C++, and the domain of their custom ops
make_library    the shared library
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from opsmith import progress, store
from opsmith.compiler import geometry, tune
from opsmith.compiler.build import build, write_buildable
from opsmith.compiler.convert import Blob, write_weights
from opsmith.compiler.cut import Cut, HandedBack, cut
from opsmith.compiler.emit import NAMESPACE, Form, emit_instances, emit_region, emit_registration, instances
from opsmith.compiler.emit import Source as SourceFile
from opsmith.compiler.lower import Target
from opsmith.compiler.lower.builder import identifier
from opsmith.compiler.plan import plan_memory
from opsmith.compiler.program import show
from opsmith.compiler.request import Request, runs_here
from opsmith.compiler.source import Source
from opsmith.compiler.tune import Tuning
from opsmith.store import Draft


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


def tuned(pieces: Cut, request: Request, target: Target, handed_back: HandedBack) -> tuple[Cut, Tuning | None]:
    """Measure what the kernels of this cut could do better, and lower it again with what was found."""
    if not request.search or request.tool is None:
        return pieces, None
    tuning = tune.tune(pieces.programs, target.sizes, level=request.search, isa=target.isa, compiler=request.tool)
    again = cut(pieces.source, request.regions, dataclasses.replace(target, tuned=tuning.outcomes), handed_back)
    tune.record(tuning, pieces.programs, again.programs)
    return again, tuning


def main_cut(cuts: Mapping[str, Cut]) -> Cut:
    """The cut that a session on this machine runs; the first if it can run none."""
    here = [c for c in cuts.values() if c.target is not None and runs_here(c.target)]
    return (here or list(cuts.values()))[0]


def form_folder(cpu: str, cuts: Mapping[str, Cut]) -> str:
    """Where the source for a CPU lies: in a folder of its own if there are several."""
    return cpu if len(cuts) > 1 else ""


def pack_weights(cuts: Mapping[str, Cut], data: Path) -> list[Form]:
    """The weights of all forms in one file; forms that pack alike share them."""
    programs = [p for pieces in cuts.values() for p in pieces.programs]
    with progress.task("packing weights", sum(len(p.weights) for p in programs)) as step:
        blobs = iter(write_weights(programs, data, lambda _: step()))
    return [make_form(cpu, cuts, [next(blobs) for _ in pieces.programs]) for cpu, pieces in cuts.items()]


def make_form(cpu: str, cuts: Mapping[str, Cut], blobs: Sequence[Blob]) -> Form:
    space = f"{NAMESPACE}_{identifier(cpu)}" if len(cuts) > 1 else NAMESPACE
    return Form(cuts[cpu].programs, blobs, cpu, sorted(geometry.needed(cuts[cpu].isa)), space)


def write_code(cuts: Mapping[str, Cut], forms: Sequence[Form]) -> tuple[list[SourceFile], str]:
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
    first = next(iter(cuts.values()))
    sources.append(emit_registration(domain, first.regions, forms, first.source.renamed))
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


def write_programs(cuts: Mapping[str, Cut], draft: Draft) -> None:
    """The programs as a person reads them, and which nodes of the source their calls compute, beside their C++."""
    for cpu, pieces in cuts.items():
        folder = draft.source_folder / form_folder(cpu, cuts)
        for program in pieces.programs:
            (folder / f"{program.name}.txt").write_text(show(program), encoding="utf-8")
        if pieces.programs:
            store.write_origins(folder, {p.name: [p.origins_of(c.nodes) for c in p.calls] for p in pieces.programs})
