"""opsmith doctor"""

from __future__ import annotations

import dataclasses
import json
from itertools import groupby
from typing import Annotated

import typer

from opsmith.cli import console

PANEL = "Machine"
ORDER = 80
EXAMPLES = (
    "opsmith doctor",
    "opsmith doctor --clean",
)


def command(
    clean: Annotated[bool, typer.Option("--clean", help="Empty the cache of compiled kernels.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show what this machine has and lacks: CPU, compilers, runtime, caches, extras."""
    from opsmith.doctor import clean_cache, doctor

    if clean:
        info = clean_cache()
        console.say(f"removed {info.files} files, {console.bytes_text(info.size)}, from {info.path}")
        return
    findings = doctor()
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
        return
    table = console.table("", "")
    table.show_header = False
    for topic, group in groupby(findings, key=lambda finding: finding.topic):
        table.add_row(f"[bold]{topic}[/]", "")
        for finding in group:
            mark = {True: "[green]✓[/]", False: "[yellow]![/]", None: "[dim]-[/]"}[finding.ok]
            advice = f"\n[yellow]{console.escape(finding.advice)}[/]" if finding.advice else ""
            table.add_row(f" {mark} {finding.name}", console.escape(finding.value) + advice)
    console.show(table)
