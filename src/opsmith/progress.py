"""Progress of long steps: a bar with elapsed time and an estimate of what is left on a terminal, nothing at all elsewhere.

with progress.task("compiling", total=12) as step:
    step("kernel 1 of 12")
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

_enabled = False
_verbose = False


def configure(*, enabled: bool, verbose: bool) -> None:
    """Set by the command line; as a library Opsmith is silent."""
    global _enabled, _verbose
    _enabled, _verbose = enabled, verbose


@contextlib.contextmanager
def task(title: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Yields `step(message="", advance=1)`, to be called as the work goes on."""
    if not _enabled:

        def step(message: str = "", advance: int = 1) -> None:
            if _verbose and message:
                print(f"{title}: {message}", file=sys.stderr)

        yield step
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
    if total is not None and total > 1:
        columns += [TextColumn("left"), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        identity = bar.add_task(title, total=total)

        def step(message: str = "", advance: int = 1) -> None:
            bar.update(identity, advance=advance, description=f"{title}: {message}" if message else title)

        yield step
