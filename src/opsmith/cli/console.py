"""What every command prints with: tables and results on stdout, progress and errors on stderr."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from opsmith import progress

out = Console(highlight=False, soft_wrap=False)
err = Console(stderr=True, highlight=False)
quiet = False
verbose = False


def configure(*, quiet: bool, verbose: bool) -> None:
    globals()["quiet"] = quiet
    globals()["verbose"] = verbose
    progress.configure(enabled=not quiet and sys.stderr.isatty(), verbose=verbose and not quiet)


def error(message: str) -> None:
    """One line, prefixed, on stderr; never wrapped, so that it stays one line in logs."""
    print(f"opsmith: error: {' '.join(message.split())}", file=sys.stderr)


def say(message: str) -> None:
    """A result or a remark for people; silenced by --quiet."""
    if not quiet:
        out.print(message, soft_wrap=True)


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the house style; columns starting with '>' are right-aligned."""
    t = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        t.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left")
    return t


def show(t: Table) -> None:
    out.print(t)
