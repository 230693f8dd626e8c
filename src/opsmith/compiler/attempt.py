"""One attempt of `compile`: a cut that is packed, emitted, built and put into its model, in a folder of its own."""

from __future__ import annotations

import collections
import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsmith import store
from opsmith.compiler import geometry
from opsmith.compiler.build import Compiler
from opsmith.compiler.convert import replace_regions, save_converted, seal_weights
from opsmith.compiler.cut import Cut
from opsmith.compiler.forms import main_cut, make_library, pack_weights, write_code, write_programs
from opsmith.compiler.precision import FP32, PRECISIONS
from opsmith.compiler.request import Request
from opsmith.compiler.result import Clock, CompileResult, summarize
from opsmith.store import Draft


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


def build_attempt(cuts: dict[str, Cut], request: Request, draft: Draft, name: str, clock: Clock) -> Attempt:
    """Pack, emit, build, convert."""
    folder = draft.folder / name
    folder.mkdir()
    own = dataclasses.replace(draft, folder=folder, path=folder / draft.path.name, record=dict(draft.record))
    data = own.path.with_name(f"{own.path.name}.data")
    pieces = main_cut(cuts)
    forms = pack_weights(cuts, data)
    # packing has read the source's pages, which would add to the memory that verifying needs
    store.release(pieces.source.model)
    clock.lap("pack")
    result = summarize(pieces, clock)
    result.remarks += _what_runs_in(pieces, request)
    result.sources, domain = write_code(cuts, forms)
    blobs = [form.blobs for form in forms]
    seal_weights(data, [b for of_form in blobs for b in of_form], domain)
    library = make_library(result.sources, domain, own, request, pieces.isa) if pieces.regions else None
    write_programs(cuts, own)
    clock.lap("build")
    save_converted(replace_regions(pieces.source, pieces.regions, blobs, domain, data), own.path, data)
    attempt = Attempt(own, cuts, result, domain)
    own.record["compiled"] = facts(cuts, result, domain, library, request.tool)
    own.write_record()  # sessions find the library through it
    return attempt


def better(best: Attempt | None, attempt: Attempt) -> Attempt:
    """The faster of two; the other one is deleted."""
    if best is None:
        return attempt
    loser, winner = sorted((best, attempt), key=lambda a: a.speed)
    shutil.rmtree(loser.draft.folder)
    return winner


# --- what opsmith.json says of it ---


def facts(
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


def _what_runs_in(pieces: Cut, request: Request) -> list[str]:
    """How many products got the precision asked for: some have no kernel in it, or are sensitive."""
    if request.precision is FP32 or request.max_error is not None or not pieces.regions:  # auto shows its choices
        return []
    used = _chosen_kernels(pieces)["precision"]
    counts = ", ".join(f"{used[p]} in {p}" for p in reversed(PRECISIONS) if p in used) or "it has none"
    asked = request.precision.name
    return [f"products: {counts}" if asked in used else f"no product of the model runs in {asked}: {counts}"]


def _measured(result: CompileResult) -> dict[str, Any]:
    assert result.timing is not None and result.judged is not None
    shapes = {name: list(a.shape) for name, a in (result.judged.feed or {}).items()}
    return {**dataclasses.asdict(result.timing), "inputs": shapes, "inputs_from": result.judged.origin}
