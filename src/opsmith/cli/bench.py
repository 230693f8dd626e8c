"""opsmith bench PATHS..."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from opsmith.cli import console, options
from opsmith.measure.units import counted, duration, faster, size
from opsmith.timing import peers

if TYPE_CHECKING:
    from opsmith.measure import peak
    from opsmith.measure.bench import BenchResult, Entry

PANEL = "Workbench"
ORDER = 60
JSON = {
    "entries": "one per variant: times in seconds, `speedup` over the first with its 95 % interval, sizes in bytes, errors",
    "threads": "of every runtime",
    "cpu": "its name",
    "processes": "sets of processes",
    "inputs": "input -> type and shape",
    "inputs_from": "where the inputs come from: test data, --shape, typical sizes",
    "clean": "false: too few undisturbed rounds, all were used",
    "notes": "what a reader should know",
    "seconds": "that measuring took",
}
JSON_WITH = {
    "--machine without models": {
        "machine": "its CPU, the peaks of arithmetic and memory by threads, and cores that others kept busy"
    }
}
EXAMPLES = (
    "opsmith bench models/bert",
    "opsmith bench model.onnx model_compiled.onnx --shape sequence=128 --peer openvino",
)


def command(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Variants, .onnx files, or a model folder for all of its variants.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Another runtime on the first model: {', '.join(peers.NAMES)}; repeatable."),
    ] = None,
    threads: options.Threads = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds in all; default from --seconds, 10 to 40.")] = None,
    processes: options.Processes = None,
    seconds: options.Seconds = 30.0,
    shape: options.Shape = None,
    given: options.Inputs = None,
    seed: Annotated[int, typer.Option(help="Seed of random inputs and of the order of turns.")] = 0,
    rtol: options.Rtol = None,
    atol: options.Atol = None,
    via: Annotated[
        str | None, typer.Option(help="ep: the first plain model once more, through the execution provider.")
    ] = None,
    csv: options.Csv = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the result into this PNG file.")] = None,
    machine: Annotated[
        bool, typer.Option("--machine", help="Measure this machine's peak arithmetic and memory speed, and keep it.")
    ] = False,
) -> None:
    """Time variants side by side, interleaved in separate warm processes; exit code 1 if outputs differ."""
    from opsmith.check import inputs
    from opsmith.check.feed import parse_given
    from opsmith.measure import chart, peak
    from opsmith.measure.bench import bench

    console.check_table(csv, "csv")
    if plot is not None:
        chart.check_path(plot)
    if machine:
        measured = peak.measure()
        if not paths:
            console.answer({"machine": measured}, lambda: _print_machine(measured))
            return
        if not console.as_json:
            _print_machine(measured)
    fixed = inputs.parse_fixed(shape or [])
    result = bench(
        paths or [],
        peer=peer or (),
        threads=threads,
        rounds=rounds,
        processes=processes,
        seconds=seconds,
        shapes=fixed,
        inputs=parse_given(given or []),
        seed=seed,
        rtol=rtol,
        atol=atol,
        via=via,
    )
    on_screen = csv == console.SCREEN
    console.answer(result, lambda: print(result.to_csv(), end="") if on_screen else print_result(result))
    console.write_table(result.to_csv(), csv)
    if plot is not None:
        chart.plot(result, plot)
    if not result.verified:
        raise typer.Exit(1)


def print_result(result: BenchResult) -> None:
    speed = console.table("variant", ">median", ">p95", ">speed", ">95 %", ">GFLOP/s", ">of peak", "outputs")
    cost = console.table("variant", ">load", ">first run", ">peak RSS", ">size", ">turns", ">disturbed", ">left out")
    for i, entry in enumerate(result.entries):
        speed.add_row(*_speed(entry, i == 0))
        cost.add_row(*_cost(entry))
    console.show(speed)
    console.say("")
    console.show(cost)
    console.say("")
    inputs_text = ", ".join(f"{name} {kind}" for name, kind in result.inputs.items())
    about = f"{result.cpu}, {counted(result.threads, 'thread')}, {counted(result.processes, 'set')} of processes, {inputs_text}"
    busy = "" if result.clean else "; the machine was busy"
    console.say(f"[dim]{escape(f'{about} ({result.inputs_from}){busy}')}[/]")
    for note in result.notes:
        console.say(f"[yellow]note:[/] {note}")
    for entry in result.entries:
        for check in entry.errors:
            if not check.ok:
                console.say(f"[red]differs:[/] {escape(f'{entry.label}: {check.name}: {check.problem}')}")


def _speed(entry: Entry, first: bool) -> list[str]:
    gain = entry.speedup
    colour = "green" if gain.low > 1 else "red" if gain.high < 1 else "default"
    return [
        entry.label,
        *(duration(t) for t in (entry.run.median, entry.run.p95)),
        "1x" if first else f"[{colour}]{faster(gain.value)}[/]",
        "" if first else f"{gain.low:.2f}-{gain.high:.2f}",
        "-" if entry.gflops is None else f"{entry.gflops:.3g}",
        "-" if entry.share_of_peak is None else f"{entry.share_of_peak:.0%}",
        "[green]same[/]" if entry.verified else "[red]differ[/]",
    ]


def _cost(entry: Entry) -> list[str]:
    times = duration(entry.load), duration(entry.first)
    counts = str(entry.samples), str(entry.disturbed), str(entry.left_out)
    return [entry.label, *times, size(entry.peak_rss), size(entry.size), *counts]


def _print_machine(machine: peak.Peak) -> None:
    columns = (">fp32 GFLOP/s", ">bf16 GFLOP/s", ">int8 GOP/s", ">read GB/s", ">triad GB/s")
    table = console.table("threads", *columns, title=machine.cpu)
    for limits in machine.limits.values():
        figures = (limits.flops, limits.bf16, limits.int8, limits.read, limits.triad)
        table.add_row(str(limits.threads), *(f"{f / 1e9:.1f}" if f else "-" for f in figures))
    console.show(table)
    if machine.others > 0.1:
        console.say(
            f"[yellow]note:[/] other processes kept {machine.others:.1f} cores busy meanwhile: measure again when idle"
        )
