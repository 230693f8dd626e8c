"""opsmith demo"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console

if TYPE_CHECKING:
    from opsmith.demo import Step

PANEL = "Applications"
ORDER = 75
EXAMPLES = (
    "opsmith demo",
    "opsmith demo somewhere/else",
)


def command(
    folder: Annotated[Path, typer.Argument(help="Where to put the models that the demo makes.")] = Path("opsmith_demo"),
) -> None:
    """Walk the whole road on a small built-in model: offline, without torch, in under two minutes."""
    from opsmith.demo import demo

    started = time.monotonic()
    good = True
    for step in demo(folder):
        _print(step)
        good = good and (step.outcome is None or step.outcome.ok)
    console.say(f"\n[dim]{time.monotonic() - started:.0f} s in all; next: opsmith inspect {folder}/tiny[/]")
    if not good:
        raise typer.Exit(1)


def _print(step: Step) -> None:
    mark = "[dim]-[/]" if step.outcome is None else "[green]✓[/]" if step.outcome.ok else "[red]✗[/]"
    text = f"[dim]{step.skipped}[/]" if step.outcome is None else console.escape(step.outcome.headline)
    console.say(f"{mark} [bold]{step.name:<9}[/] {text} [dim]({step.seconds:.1f} s)[/]")
    if step.outcome is None or not step.outcome.rows:
        return
    table = console.table(*step.outcome.columns)
    for row in step.outcome.rows:
        table.add_row(*(console.escape(cell) for cell in row))
    console.show(console.indented(table))
