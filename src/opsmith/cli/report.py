"""opsmith report FOLDER"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from opsmith.cli import console, options

PANEL = "Workbench"
ORDER = 63
JSON = {"written": "the page and, beside it, all its figures as JSON"}
EXAMPLES = (
    "opsmith report models/bert",
    "opsmith report models/bert --out bert.html --seconds 60",
)


def command(
    folder: Annotated[Path, typer.Argument(help="A model folder, or one variant.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The HTML file to write; default FOLDER/report.html.")
    ] = None,
    threads: options.Threads = None,
    seconds: options.Seconds = 30.0,
    processes: options.Processes = None,
    shape: options.Shape = None,
    given: options.Inputs = None,
    seed: options.Seed = 0,
    rtol: options.Rtol = None,
    atol: options.Atol = None,
) -> None:
    """Bench and profile all variants and write one HTML page about them, with the figures as JSON beside it."""
    from opsmith.check import inputs
    from opsmith.check.feed import parse_given
    from opsmith.measure.report import report

    fixed = inputs.parse_fixed(shape or [])
    path = report(
        folder,
        out,
        threads=threads,
        seconds=seconds,
        processes=processes,
        shapes=fixed,
        inputs=parse_given(given or []),
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
