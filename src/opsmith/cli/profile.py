"""opsmith profile PATHS..."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from opsmith.cli import console, options
from opsmith.measure.units import counted, duration, size

if TYPE_CHECKING:
    from opsmith.measure.profile import Profile, TypeDifference
    from opsmith.timing.rows import GroupDifference

PANEL = "Workbench"
ORDER = 61
JSON = {
    "profiles": "one per model: latency, threads, inputs, `ops` per operator type and `nodes` one by one, in microseconds",
    "comparisons": "of each further model with the first: `types` and `nodes`, which stand for the same nodes of the original",
}
EXAMPLES = (
    "opsmith profile model.onnx",
    "opsmith profile models/bert/dynamo models/bert/dynamo_compiled --threads 1 --nodes 20",
)


def command(
    paths: Annotated[list[Path], typer.Argument(help="Variants, .onnx files, or a model folder for all its variants.")],
    nodes: Annotated[int, typer.Option(min=0, help="How many single nodes to show; 0 for none.")] = 10,
    iterations: Annotated[int | None, typer.Option(help="Runs to average; default about two seconds' worth.")] = None,
    threads: options.Threads = None,
    shape: options.Shape = None,
    given: options.Inputs = None,
    seed: options.Seed = 0,
    device: Annotated[str, typer.Option(help="cpu, or cuda on a machine that has it.")] = "cpu",
    traces: Annotated[Path | None, typer.Option(help="Folder for the Chrome traces; default in the cache.")] = None,
) -> None:
    """Show where the time goes, per op type and per node; with several models, what changed between them."""
    from opsmith.check import inputs
    from opsmith.check.feed import parse_given
    from opsmith.measure.profile import profile, to_dict

    fixed = inputs.parse_fixed(shape or [])
    profiles = profile(
        paths,
        threads=threads,
        iterations=iterations,
        shapes=fixed,
        inputs=parse_given(given or []),
        seed=seed,
        device=device,
        keep=traces,
    )
    console.answer(to_dict(profiles), lambda: _print(profiles, nodes))


def _print(profiles: Sequence[Profile], nodes: int) -> None:
    for one in profiles:
        print_profile(one, nodes)
    for other in profiles[1:]:
        print_comparison(profiles[0], other, nodes)


def print_profile(measured: Profile, nodes: int) -> None:
    table = console.table(
        "op", ">count", ">time", ">share", ">GFLOP/s", ">bytes", ">of roofline", title=escape(measured.label)
    )
    for row in measured.by_op():
        work = (_number(row.gflops), "-" if row.bytes is None else size(row.bytes), _percent(row.roofline))
        table.add_row(escape(row.op), str(row.count), duration(row.us * 1e-6), f"{row.share:.1%}", *work)
    between = measured.between_us
    between_name = _between(between)
    table.add_row(between_name, "", duration(between * 1e-6), f"{between / measured.whole_us:.1%}", "", "", "")
    table.add_row("latency", "", duration(measured.latency_us * 1e-6), "", "", "", "")
    console.show(table)
    if nodes:
        single = console.table("node", "op", ">time", ">share", ">GFLOP/s", ">of roofline", "stands for")
        for one in sorted(measured.rows, key=lambda r: -r.us)[:nodes]:
            times = (duration(one.us * 1e-6), f"{one.us / measured.whole_us:.1%}", _number(one.gflops))
            roofline = _percent(measured.roofline(one.us, one.flops, one.bytes))
            single.add_row(escape(one.name), escape(one.op), *times, roofline, escape(_few(one.origin)))
        console.show(single)
    if measured.gpu:
        gpu = console.table("NVTX range", "GPU kernel", ">count", ">time")
        for kernel in measured.gpu[: nodes or 10]:
            gpu.add_row(escape(kernel.range), escape(kernel.kernel), str(kernel.count), duration(kernel.us * 1e-6))
        console.show(gpu)
    kept = f"{measured.runs - measured.left_out} of {measured.runs} runs, {counted(measured.threads, 'thread')}"
    fed = ", ".join(f"{name} {kind}" for name, kind in measured.inputs.items())
    console.say(f"[dim]{kept}; {escape(fed)} ({measured.inputs_from}); trace: {escape(str(measured.trace))}[/]")
    for note in measured.notes:
        console.say(f"[yellow]note:[/] {escape(note)}")
    console.say("")


def print_comparison(a: Profile, b: Profile, nodes: int) -> None:
    from opsmith.measure.profile import TypeDifference, compare_nodes, compare_types

    title = f"{escape(a.label)} -> {escape(b.label)}"
    table = console.table("op", ">A count", ">A time", ">B count", ">B time", ">difference", ">%", title=title)
    for change in compare_types(a, b):
        was = (str(change.a_count), duration(change.a_us * 1e-6))
        table.add_row(escape(change.op), *was, str(change.b_count), duration(change.b_us * 1e-6), *_change(change))
    whole = TypeDifference("latency", 1, a.latency_us, 1, b.latency_us)
    table.add_row("latency", "", duration(a.latency_us * 1e-6), "", duration(b.latency_us * 1e-6), *_change(whole))
    console.show(table)
    if nodes:
        found = compare_nodes(a, b)
        groups = console.table("original nodes", "A", ">A time", "B", ">B time", ">difference", ">%")
        for group in found[:nodes]:
            was = (escape(_few(group.a)), duration(group.a_us * 1e-6))
            now = (escape(_few(group.b)), duration(group.b_us * 1e-6))
            groups.add_row(escape(_few(group.nodes) or "(no counterpart)"), *was, *now, *_change(group))
        rest = found[nodes:]
        sums = {f"({len(rest)} more groups)": (sum(g.a_us for g in rest), sum(g.b_us for g in rest))} if rest else {}
        sums |= {
            _between(a.between_us, b.between_us): (a.between_us, b.between_us),
            "latency": (a.latency_us, b.latency_us),
        }
        for title, (x, y) in sums.items():
            times = duration(x * 1e-6), "", duration(y * 1e-6)
            groups.add_row(title, "", *times, *_change(TypeDifference(title, 1, x, 1, y)))
        console.show(groups)
    console.say("")


def _between(*us: float) -> str:
    """What the latency holds beyond the nodes; it is less than they are where profiling costs more than that."""
    return "(between nodes)" if min(us) >= 0 else "(profiler's own cost)"


def _change(change: TypeDifference | GroupDifference) -> tuple[str, str]:
    colour = "green" if change.difference < 0 else "red" if change.difference > 0 else "default"
    sign = "-" if change.difference < 0 else "+"
    text = f"[{colour}]{sign}{duration(abs(change.difference) * 1e-6)}[/]"
    return text, "" if change.percent is None else f"{change.percent:+.0f}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} ... {names[-1]} ({len(names)})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
