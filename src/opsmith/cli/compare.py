"""opsmith compare A B"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from opsmith.cli import bench as bench_command
from opsmith.cli import console, options
from opsmith.cli import profile as profile_command
from opsmith.measure.units import size

if TYPE_CHECKING:
    from opsmith.measure.compare import CompareResult

PANEL = "Workbench"
ORDER = 62
JSON = {
    "a": "the first model: its path, nodes, parameters, size, operators",
    "b": "the second, likewise",
    "verified": "whether the outputs agree",
    "outputs": "per output the worst case: errors, tolerances, `problem` if it fails",
    "bench": "as `opsmith bench --json`",
    "profiles": "as `opsmith profile --json`",
    "comparisons": "as `opsmith profile --json`",
}
EXAMPLES = (
    "opsmith compare models/bert/dynamo models/bert/dynamo_compiled",
    "opsmith compare a.onnx b.onnx --shape sequence=128 --json",
)


def command(
    a: Annotated[Path, typer.Argument(help="The variant to start from.")],
    b: Annotated[Path, typer.Argument(help="The variant to compare with it.")],
    nodes: Annotated[int, typer.Option(min=0, help="How many groups of nodes to show; 0 for none.")] = 10,
    threads: options.Threads = None,
    seconds: options.Seconds = 10.0,
    shape: options.Shape = None,
    given: options.Inputs = None,
    seed: options.Seed = 0,
    rtol: options.Rtol = None,
    atol: options.Atol = None,
) -> None:
    """What changed from A to B: operators, outputs, speed, and where the time went; exit code 1 if outputs differ."""
    from opsmith.check import inputs
    from opsmith.check.feed import parse_given
    from opsmith.measure.compare import compare

    result = compare(
        a,
        b,
        threads=threads,
        seconds=seconds,
        shapes=inputs.parse_fixed(shape or []),
        inputs=parse_given(given or []),
        seed=seed,
        rtol=rtol,
        atol=atol,
    )
    console.answer(result, lambda: _print(result, nodes))
    if not (result.verified.ok and result.bench.verified):
        raise typer.Exit(1)


def _print(result: CompareResult, nodes: int) -> None:
    labels = [escape(entry.label) for entry in result.bench.entries]
    table = console.table("graph", *(f">{label}" for label in labels), ">change")
    for name in ("nodes", "parameters"):
        x, y = getattr(result.a, name), getattr(result.b, name)
        texts = ["packed" if n is None else f"{n:,}" for n in (x, y)]
        table.add_row(name, *texts, "" if x is None or y is None else f"{y - x:+,}")
    table.add_row("size", size(result.a.size), size(result.b.size), "")
    for op, x, y in result.ops:
        table.add_row(escape(op), str(x), str(y), f"{y - x:+}")
    console.show(table)
    console.say("")
    outputs = console.table("output", ">max abs", ">max rel", ">cosine", "")
    for check in result.verified.worst:
        verdict = "[green]same[/]" if check.ok else f"[red]{escape(check.problem or '')}[/]"
        far = (f"{check.max_abs:.3g}", f"{check.max_rel:.3g}", f"{check.cosine:.6f}")
        outputs.add_row(escape(check.name), *far, verdict)
    console.show(outputs)
    console.say("")
    bench_command.print_result(result.bench)
    console.say("")
    profile_command.print_comparison(result.profiles[0], result.profiles[1], nodes)
