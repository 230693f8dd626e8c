"""opsmith inspect MODEL"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console
from opsmith.measure import units

if TYPE_CHECKING:
    from opsmith.measure.inspect import FolderInfo, ModelInfo, ValueInfo

PANEL = "Road"
ORDER = 11
JSON = {
    "path": "of the model",
    "size": "bytes on disk, with its external data",
    "nodes": "how many",
    "parameters": "numbers in its weights",
    "opsets": "domain -> version",
    "ir_version": "of the file",
    "producer": "who made it",
    "inputs": "name, type, shape",
    "outputs": "likewise",
    "dynamic_dims": "symbol -> where it stands",
    "ops": "per operator: count, FLOPs, share",
    "flops": "of one run at `flops_dims`; null if they were not counted",
    "flops_dims": "symbol -> size",
    "flops_measured": "whether a run told the shapes",
    "flops_note": "why some were not counted",
    "not_counted": "operators without a count",
    "functions": "model-local ones",
    "external": "files of external data",
    "record": "opsmith.json of a variant",
    "kind": "`model`; of a model or pipeline folder what it is, with `path`, `variants` and `other` instead of the rest",
}
EXAMPLES = (
    "opsmith inspect model.onnx",
    "opsmith inspect models/bert/dynamo --shape sequence=128 --json",
)


def command(
    model: Annotated[Path, typer.Argument(help="A .onnx file, or a variant, model or pipeline folder.")],
    shape: Annotated[
        list[str] | None, typer.Option(help="Count FLOPs at this shape: NAME=1x4x64x64 or SYMBOL=2; repeatable.")
    ] = None,
    flops: Annotated[bool, typer.Option(help="Count FLOPs; may run the model once to learn its shapes.")] = True,
) -> None:
    """Show what is in a model: inputs, outputs, size, operators, FLOPs, dynamic dims."""
    from opsmith.check import inputs
    from opsmith.measure.inspect import FolderInfo, inspect

    info = inspect(model, dims=inputs.parse_fixed(shape or []), count_flops=flops)
    console.answer(info, lambda: show_folder(info) if isinstance(info, FolderInfo) else show_model(info))


def show_model(info: ModelInfo) -> None:
    _show_facts(info)
    values = console.table("", "name", "type", "shape", title="\ninputs and outputs")
    for kind, group in (("in", info.inputs), ("out", info.outputs)):
        for name, value in _families(group):
            values.add_row(kind, console.escape(name), value.dtype, console.escape(_shape(value)))
    console.show(values)
    if info.dynamic_dims:
        dims = console.table("symbol", "where", title="\ndynamic dims")
        for symbol, places in info.dynamic_dims.items():
            dims.add_row(console.escape(symbol), console.escape(", ".join(_places(places))))
        console.show(dims)
    _show_operators(info)


def _show_facts(info: ModelInfo) -> None:
    facts = console.table("", "")
    facts.show_header = False
    facts.add_row("model", console.escape(info.path or "in memory"))
    facts.add_row("opset", ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in info.opsets.items()))
    facts.add_row("parameters", "packed for the library" if info.parameters is None else f"{info.parameters:,}")
    if info.size is not None:
        external = f" with {', '.join(info.external)}" if info.external else ""
        facts.add_row("on disk", units.size(info.size) + external)
    if info.flops is not None:
        at = ", ".join(f"{symbol}={value}" for symbol, value in info.flops_dims.items())
        facts.add_row("FLOPs", console.count_text(info.flops) + (f" at {at}" if at else ""))
    if info.producer:
        facts.add_row("made by", info.producer)
    if info.record:
        parent = f" from {info.record['parent']}" if info.record.get("parent") else ""
        facts.add_row("variant", f"{info.record.get('verb', '?')}{parent}, {info.record.get('created', '')}")
    if info.functions:
        facts.add_row("functions", ", ".join(info.functions))
    console.show(facts)


def _show_operators(info: ModelInfo) -> None:
    ops = console.table("op", ">count", ">FLOPs", ">share", title=f"\noperators ({info.nodes} nodes)")
    for op in info.ops:
        counted = info.flops is not None and op.op not in info.not_counted
        share = f"{op.share:.1%}" if counted and op.flops else ""
        ops.add_row(op.op, str(op.count), console.count_text(op.flops) if counted else "?", share)
    console.show(ops)
    if info.not_counted:
        console.say(f"\nno FLOPs counted for {', '.join(info.not_counted)}")
        if info.flops_note:
            console.say(console.escape(info.flops_note))
    elif info.flops_measured:
        console.say("\nshapes were measured by one run")


def show_folder(info: FolderInfo) -> None:
    what = info.pipeline_class or info.kind
    parts = info.kind != "model folder"
    columns = ("variant", "made by", "from", ">on disk", ">test sets")
    table = console.table(
        *(("component", *columns) if parts else columns), title=f"{console.escape(info.path)}: {console.escape(what)}"
    )
    for component, variants in info.variants.items():
        for index, v in enumerate(variants):
            cells = (v.name, v.verb, v.parent, units.size(v.size), str(v.test_sets))
            first = (component if index == 0 else "",) if parts else ()
            table.add_row(*map(console.escape, (*first, *cells)))
    console.show(table)
    if info.other:
        console.say(f"also: {', '.join(info.other)}")


def _families(values: tuple[ValueInfo, ...]) -> list[tuple[str, ValueInfo]]:
    """Layers of a cache and the like, alike but for a number, in one row."""
    groups: dict[tuple[object, ...], list[ValueInfo]] = {}
    for value in values:
        groups.setdefault((console.family(value.name), value.dtype, value.shape), []).append(value)
    rows = []
    for (name, *_), members in groups.items():
        few = len(members) <= 2
        rows += [(m.name, m) for m in members] if few else [(f"{name} ({len(members)})", members[0])]
    return rows


def _places(places: tuple[str, ...]) -> list[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for place in places:
        name, _, axis = place.rpartition("[")
        groups.setdefault((console.family(name), axis), []).append(place)
    return [p for (n, a), members in groups.items() for p in (members if len(members) <= 2 else [f"{n}[{a}"])]


def _shape(value: ValueInfo) -> str:
    if value.shape is None:
        return "any rank"
    return "[" + ", ".join(map(str, value.shape)) + "]" if value.shape else "scalar"
