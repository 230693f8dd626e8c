"""opsmith profile PATHS..."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from opsmith.cli import console
from opsmith.measure import inputs
from opsmith.measure.profile import (
    GroupDifference,
    Profile,
    TypeDifference,
    compare_nodes,
    compare_types,
    profile,
    to_json,
)
from opsmith.measure.units import duration, size

PANEL = "Workbench"
ORDER = 61


def command(
    paths: Annotated[list[Path], typer.Argument(help="Variants, .onnx files, or a model folder for all its variants.")],
    nodes: Annotated[int, typer.Option(help="How many single nodes to show; 0 for none.")] = 10,
    iterations: Annotated[int | None, typer.Option(help="Runs to average; default about two seconds' worth.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; default all cores.")] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Random inputs of this shape: NAME=1x4x64x64 or SYMBOL=2; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of random inputs.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, or cuda on a machine that has it.")] = "cpu",
    traces: Annotated[Path | None, typer.Option(help="Folder for the Chrome traces; default in the cache.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show where the time goes, per op type and per node; with several models, what changed between them."""
    fixed = inputs.parse_fixed(shape or [])
    found = profile(
        paths, threads=threads, iterations=iterations, shapes=fixed, seed=seed, device=device, keep=traces
    )  # fmt: skip
    if as_json:
        print(to_json(found))
        return
    for one in found:
        print_profile(one, nodes)
    for other in found[1:]:
        print_comparison(found[0], other, nodes)


def print_profile(found: Profile, nodes: int) -> None:
    table = console.table(
        "op", ">count", ">time", ">share", ">GFLOP/s", ">bytes", ">of roofline", title=escape(found.label)
    )
    for row in found.by_op():
        table.add_row(
            escape(row.op), str(row.count), duration(row.us * 1e-6), f"{row.share:.1%}", _number(row.gflops),
            "-" if row.bytes is None else size(row.bytes), _percent(row.roofline),
        )  # fmt: skip
    between = found.between_us
    between_name = "(between nodes)" if between >= 0 else "(profiler's own cost)"
    table.add_row(between_name, "", duration(between * 1e-6), f"{between / found.latency_us:.1%}", "", "", "")
    table.add_row("latency", "", duration(found.latency_us * 1e-6), "", "", "", "")
    console.show(table)
    if nodes:
        single = console.table("node", "op", ">time", ">share", ">GFLOP/s", ">of roofline", "stands for")
        for one in sorted(found.rows, key=lambda r: -r.us)[:nodes]:
            single.add_row(
                escape(one.name), escape(one.op), duration(one.us * 1e-6), f"{one.us / found.latency_us:.1%}",
                _number(one.gflops), _percent(found.roofline(one.us, one.flops, one.bytes)), escape(_few(one.origin)),
            )  # fmt: skip
        console.show(single)
    if found.gpu:
        gpu = console.table("NVTX range", "GPU kernel", ">count", ">time")
        for kernel in found.gpu[: nodes or 10]:
            gpu.add_row(escape(kernel.range), escape(kernel.kernel), str(kernel.count), duration(kernel.us * 1e-6))
        console.show(gpu)
    kept = f"{found.runs - found.left_out} of {found.runs} runs, {found.threads} threads"
    console.say(f"[dim]{kept}; trace: {escape(str(found.trace))}[/]")
    for note in found.notes:
        console.say(f"[yellow]note:[/] {escape(note)}")
    console.say("")


def print_comparison(a: Profile, b: Profile, nodes: int) -> None:
    title = f"{escape(a.label)} -> {escape(b.label)}"
    table = console.table("op", ">A count", ">A time", ">B count", ">B time", ">difference", ">%", title=title)
    for change in compare_types(a, b):
        table.add_row(escape(change.op), str(change.a_count), duration(change.a_us * 1e-6), str(change.b_count),
                      duration(change.b_us * 1e-6), *_change(change))  # fmt: skip
    whole = TypeDifference("latency", 1, a.latency_us, 1, b.latency_us)
    table.add_row("latency", "", duration(a.latency_us * 1e-6), "", duration(b.latency_us * 1e-6), *_change(whole))
    console.show(table)
    if nodes:
        groups = console.table("original nodes", "A", ">A time", "B", ">B time", ">difference", ">%")
        for group in compare_nodes(a, b)[:nodes]:
            groups.add_row(
                escape(_few(group.nodes) or "(no counterpart)"), escape(_few(group.a)), duration(group.a_us * 1e-6),
                escape(_few(group.b)), duration(group.b_us * 1e-6), *_change(group),
            )  # fmt: skip
        console.show(groups)
    console.say("")


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
