"""opsmith doctor"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console

if TYPE_CHECKING:
    from opsmith.doctor import Finding

PANEL = "Machine"
ORDER = 80
JSON = {"findings": "topic, name, value, `ok` (null: absent and not needed), and advice where something is missing"}
JSON_WITH = {"--clean": {"removed": "`path` of the cache, `files`, and their `size` in bytes"}}
EXAMPLES = (
    "opsmith doctor",
    "opsmith doctor --clean kernels",
)


def command(
    clean: Annotated[
        str | None,
        typer.Option(
            "--clean", metavar="KIND", help="Remove from the cache: kernels, tuning, pipelines, figures or all."
        ),
    ] = None,
) -> None:
    """Show what this machine has and lacks: CPU, compilers, runtime, caches, extras."""
    from opsmith.doctor import clean_cache, doctor

    if clean is not None:
        info = clean_cache(clean)
        told = f"removed {info} ({clean}), from {info.path}"
        console.answer({"removed": info}, lambda: console.say(told), written=info.files)
        return
    findings = doctor()
    console.answer({"findings": findings}, lambda: _print(findings))


def _print(findings: list[Finding]) -> None:
    table = console.table("", "")
    table.show_header = False
    for topic, group in groupby(findings, key=lambda finding: finding.topic):
        table.add_row(f"[bold]{topic}[/]", "")
        for finding in group:
            mark = {True: "[green]✓[/]", False: "[yellow]![/]", None: "[dim]-[/]"}[finding.ok]
            advice = f"\n[yellow]{console.escape(finding.advice)}[/]" if finding.advice else ""
            table.add_row(f" {mark} {finding.name}", console.escape(finding.value) + advice)
    console.show(table)
