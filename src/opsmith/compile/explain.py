"""`opsmith compile --explain NODE`: the journey of one node, from the model's file to a line of C++."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
from collections.abc import Iterable

import onnx
import onnx_ir as ir

from opsmith.compile.choose import original_names, structure
from opsmith.compile.emit import emit_region
from opsmith.compile.lower import Program, Target
from opsmith.compile.plan import plan_memory
from opsmith.errors import OpsmithError
from opsmith.store import ModelLike


@dataclasses.dataclass(frozen=True)
class Stop:
    """One station of the journey."""

    station: str
    text: str


def explain(src: ModelLike, node: str, *, regions: str = "all", strict: bool = False) -> list[Stop]:
    from opsmith.compile import lanes, load, partition, rewrite
    from opsmith.compile.simplify import name_nodes

    model = load(src)
    name_nodes(model.graph)
    before = structure(model)
    name = _find(before, node)
    found = next(n for n in model.graph if n.name == name)
    stops = [Stop("model", f"{found.op_type} {name}: {_values(found.inputs)} -> {_values(found.outputs)}")]
    rewrite(model)
    owners = [new for new, old in original_names(before, model).items() if name in old]
    kept = {n.name: n for n in model.graph}
    rewritten = [kept[o] for o in owners if o in kept]
    if not rewritten:
        return [*stops, Stop("simplify", "folded into a constant or removed as dead: nothing of it runs")]
    for owner in rewritten:
        same = owner.op_type == found.op_type and owner.name == name
        title = f"{owner.domain}::{owner.op_type}" if owner.domain else owner.op_type
        stops.append(Stop("rewrite", "unchanged" if same else f"became part of {title} {owner.name}"))
    cut = partition(model, regions, Target(lanes(), strict))
    for owner in rewritten:
        if owner in cut.analysis.reasons:
            stops.append(Stop("region", f"none: stays with ONNX Runtime, {cut.analysis.reasons[owner]}"))
            continue
        for region, program in zip(cut.regions, cut.programs):
            if owner in region.nodes:
                stops.append(Stop("region", f"{region.name}, {len(region.nodes)} nodes, {len(program.calls)} calls"))
                stops += _calls(program, owner.name or "")
    return stops


def _find(proto: onnx.ModelProto, wanted: str) -> str:
    names: list[str] = [n.name for n in proto.graph.node]
    if wanted in names:
        return wanted
    found = [n for n in names if fnmatch.fnmatchcase(n, wanted)] or [n for n in names if wanted in n]
    if len(found) == 1:
        return found[0]
    near = found[:3] or difflib.get_close_matches(wanted, names, 3, 0.3)
    what = "matches several nodes" if found else "is not a node of the model"
    raise OpsmithError(f"{wanted!r} {what}", f"for example {', '.join(near)}" if near else None)


def _values(values: Iterable[ir.Value | None]) -> str:
    return ", ".join(f"{v.name} {v.shape if v.shape is not None else '[?]'}" for v in values if v is not None)


def _calls(program: Program, name: str) -> list[Stop]:
    lines = emit_region(program, plan_memory(program)).text.splitlines()
    stops = []
    for call in program.calls:
        if name not in call.nodes:
            continue
        others = [n for n in call.nodes if n != name]
        stops.append(Stop("kernel", call.kernel + (f", together with {', '.join(others)}" if others else "")))
        if call.notes:
            stops.append(Stop("algorithm", ", ".join(call.notes)))
        for buffer in call.writes:
            where = f"arena slot {buffer.slot}" if buffer.place == "arena" else f"the region's {buffer.place}"
            stops.append(Stop("buffer", f"{buffer.name}, {buffer.elements} elements of {buffer.dtype.name} in {where}"))
        at = next((i + 1 for i, line in enumerate(lines) if line.strip() == call.text), 0)
        stops.append(Stop("C++", f"{program.name}.cpp:{at}: {call.text}"))
    if not stops:
        stops.append(Stop("kernel", "none: a view or shape arithmetic, which costs nothing at run time"))
    return stops
