"""opsmith report FOLDER"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from opsmith.cli import console

PANEL = "Workbench"
ORDER = 63
JSON = {"written": "the page and, beside it, all its figures as JSON"}
EXAMPLES = (
    "opsmith report models/bert",
    "opsmith report models/bert --out bert.html --seconds 60",
)


def command(
    folder: Annotated[Path, typer.Argument(help="A model folder, or one variant.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file to write; default FOLDER/report.html.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads for every variant; default all cores.")] = None,
    seconds: Annotated[float, typer.Option(help="Time to spend on measuring, about.")] = 30.0,
    processes: Annotated[int | None, typer.Option(help="Times each process is started anew; default up to 5.")] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Random inputs of this shape: NAME=1x4x64x64 or SYMBOL=2; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of random inputs.")] = 0,
    rtol: Annotated[float | None, typer.Option(help="Relative tolerance of outputs; default 1e-3 for fp32.")] = None,
    atol: Annotated[float | None, typer.Option(help="Absolute tolerance of outputs; default 1e-4 for fp32.")] = None,
) -> None:
    """Bench and profile all variants and write one HTML page about them, with the figures as JSON beside it."""
    from opsmith.check import inputs
    from opsmith.measure.report import report

    fixed = inputs.parse_fixed(shape or [])
    path = report(
        folder,
        out,
        threads=threads,
        seconds=seconds,
        processes=processes,
        shapes=fixed,
        seed=seed,
        rtol=rtol,
        atol=atol,
    )
    written = [path, path.with_suffix(".json")]
    console.answer(
        {"written": written},
        lambda: console.say(f"wrote {escape(str(written[0]))} and {escape(written[1].name)}"),
        written=written,
    )
