"""`opsmith compile --explain NODE`: the journey of one node, from the model's file to a line of C++."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
from collections.abc import Iterable

import onnx_ir as ir

from opsmith import settings
from opsmith.compiler import geometry
from opsmith.compiler.choose import original_names
from opsmith.compiler.cpp import Scope
from opsmith.compiler.cut import body_of, cut
from opsmith.compiler.emit import call_text, emit_region, kernel_label
from opsmith.compiler.partition import Region
from opsmith.compiler.plan import plan_memory
from opsmith.compiler.precision import cheapest
from opsmith.compiler.program import Program, Target, buffer_of
from opsmith.compiler.source import Source, load, prepare, rewrite
from opsmith.errors import OpsmithError
from opsmith.store import ModelLike


@dataclasses.dataclass(frozen=True)
class Stop:
    """One station of the journey."""

    station: str
    text: str


def explain(
    src: ModelLike, node: str, *, regions: str = "all", strict: bool = False, precision: str | None = None
) -> list[Stop]:
    model = load(src)
    name = _find(model, node)
    asked = next(n for n in model.graph if n.name == name)
    stops = [Stop("model", f"{asked.op_type} {name}: {_values(asked.inputs)} -> {_values(asked.outputs)}")]
    source = prepare(model)
    owners = {new for new, old in original_names(model, source.working).items() if name in old}
    working = [n for n in source.working.graph if n.name in owners]
    if not working:
        return [*stops, Stop("simplify", "folded into a constant or removed as dead: nothing of it runs")]
    wanted = cheapest(settings.get(precision=precision).precision)
    pieces = cut(source, regions, Target(geometry.native(), strict, precision=wanted))
    for owner in working:
        if owner in pieces.reasons:
            stops.append(Stop("region", f"none: stays with ONNX Runtime, {pieces.reasons[owner]}"))
            continue
        for region, program in zip(pieces.regions, pieces.programs):
            if owner in region.nodes:
                stops.append(Stop("region", f"{region.name}, {len(region.nodes)} nodes, {len(program.calls)} calls"))
                stops += _rewritten(region, source, owner, program)
    return stops


def _rewritten(region: Region, source: Source, owner: ir.Node, program: Program) -> list[Stop]:
    """What the rules made of a node inside its region, and the kernels that run it."""
    before = body_of(region, source)
    after = before.clone()
    rewrite(after)
    heirs = {new for new, old in original_names(before, after).items() if owner.name in old}
    stops = []
    for heir in (n for n in after.graph if n.name in heirs):
        same = heir.op_type == owner.op_type and heir.name == owner.name
        title = f"{heir.domain}::{heir.op_type}" if heir.domain else heir.op_type
        stops.append(Stop("rewrite", "unchanged" if same else f"became part of {title} {heir.name}"))
        stops += _calls(program, heir.name or "")
    return stops


def _find(model: ir.Model, wanted: str) -> str:
    names = [n.name or "" for n in model.graph]
    if wanted in names:
        return wanted
    matches = [n for n in names if fnmatch.fnmatchcase(n, wanted)] or [n for n in names if wanted in n]
    if len(matches) == 1:
        return matches[0]
    near = matches[:3] or difflib.get_close_matches(wanted, names, 3, 0.3)
    what = "matches several nodes" if matches else "is not a node of the model"
    raise OpsmithError(f"{wanted!r} {what}", f"for example {', '.join(near)}" if near else None)


def _values(values: Iterable[ir.Value | None]) -> str:
    return ", ".join(f"{v.name} {v.shape if v.shape is not None else '[?]'}" for v in values if v is not None)


def _calls(program: Program, name: str) -> list[Stop]:
    lines = [line.strip() for line in emit_region(program, plan_memory(program)).text.splitlines()]
    scope = Scope(program)
    stops = []
    for call, text in [(call, call_text(call, scope)) for call in program.calls]:
        if name not in call.nodes:
            continue
        others = [n for n in call.nodes if n != name]
        stops.append(Stop("kernel", kernel_label(call) + (f", together with {', '.join(others)}" if others else "")))
        if call.notes:
            stops.append(Stop("algorithm", ", ".join(call.notes)))
        for buffer in map(buffer_of, call.writes()):
            where = f"arena slot {buffer.slot}" if buffer.place == "arena" else f"the region's {buffer.place}"
            stops.append(Stop("buffer", f"{buffer.name}, {buffer.elements} elements of {buffer.dtype.name} in {where}"))
        stops.append(Stop("C++", f"{program.name}.cpp:{lines.index(text) + 1}: {text}"))
    if not stops:
        stops.append(Stop("kernel", "none: a view or shape arithmetic, which costs nothing at run time"))
    return stops
