"""opsmith demo"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console

if TYPE_CHECKING:
    from opsmith.demo import Step

PANEL = "Applications"
ORDER = 75
JSON = {
    "ok": "whether no station found a fault",
    "folder": "where the models are",
    "steps": "each station: its name, seconds, and its line and table, or why it was skipped",
    "seconds": "in all",
    "others": "cores that other programs kept busy meanwhile",
}
EXAMPLES = (
    "opsmith demo",
    "opsmith demo somewhere/else",
)


def command(
    folder: Annotated[Path, typer.Argument(help="Where to put the models that the demo makes.")] = Path("opsmith_demo"),
) -> None:
    """Walk the whole road on a small built-in model: offline, without torch."""
    from opsmith.demo import demo
    from opsmith.timing.contention import Neighbours

    started, others = time.monotonic(), Neighbours()
    steps = []
    for step in demo(folder):
        steps.append(step)
        if not console.as_json and not console.quiet:
            _print(step)
    seconds, busy = time.monotonic() - started, others.cores
    good = all(step.outcome is None or step.outcome.ok for step in steps)
    console.answer(
        {"ok": good, "folder": folder, "steps": steps, "seconds": seconds, "others": busy},
        lambda: console.say(f"\n[dim]{_time(steps, seconds, busy)}; next: opsmith inspect {folder}/tiny[/]"),
        written=folder,
    )
    if not good:
        raise typer.Exit(1)


def _time(steps: Sequence[Step], seconds: float, busy: float) -> str:
    slowest = sorted(steps, key=lambda step: -step.seconds)[:2]
    most = " and ".join(f"{step.name} {step.seconds:.0f} s" for step in slowest)
    noise = f"; other programs kept {busy:.1f} cores busy, alone it is quicker" if busy > 0.2 else ""
    return f"{seconds:.0f} s in all, most of it {most}{noise}"


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
