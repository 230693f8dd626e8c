"""Progress of long steps: a bar with elapsed time and an estimate of what is left on a terminal, a line that renews itself in a notebook,
nothing at all elsewhere, unless `watch` is told whom to call.

with progress.task("compiling", total=12) as step:
    step("kernel 1 of 12")

with opsmith.progress.watch(lambda title, message, done, total: print(title, done, total)):
    opsmith.compile("model.onnx", "fast.onnx")
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

Watcher: TypeAlias = "Callable[[str, str, int, int | None], object]"  # title, message, steps done, steps in all

_enabled: bool | None = None  # None: where a person is looking
_verbose = False
_watcher: Watcher | None = None


def configure(*, enabled: bool | None, verbose: bool) -> None:
    """Set by the command line."""
    global _enabled, _verbose
    _enabled, _verbose = enabled, verbose


@contextlib.contextmanager
def watch(watcher: Watcher) -> Iterator[None]:
    """Call WATCHER(title, message, done, total) at every step instead of drawing a bar."""
    global _watcher
    before, _watcher = _watcher, watcher
    try:
        yield
    finally:
        _watcher = before


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules and not sys.stderr.isatty()


def _looked_at() -> bool:
    """A terminal where Python runs interactively, or a notebook."""
    return hasattr(sys, "ps1") and (sys.stderr.isatty() or _in_notebook())


def _watched(watcher: Watcher, title: str, total: int | None) -> Callable[..., None]:
    done = 0

    def step(message: str = "", advance: int = 1) -> None:
        nonlocal done
        done += advance
        watcher(title, message, done, total)

    return step


CELLS = 24  # of the bar in a notebook


@contextlib.contextmanager
def _line(title: str, total: int | None) -> Iterator[Callable[..., None]]:
    """One line of plain text, written over itself and empty at the end: notebooks show it without any extension."""
    began = drawn = time.monotonic()
    done = width = 0

    def draw(text: str) -> None:
        nonlocal width
        print(f"\r{text:<{width}}", end="", file=sys.stderr, flush=True)
        width = len(text)

    def step(message: str = "", advance: int = 1) -> None:
        nonlocal done, drawn
        done += advance
        now = time.monotonic()
        if done != total and now - drawn < 0.1:
            return
        drawn, parts = now, [f"{title}: {message}" if message else title]
        if total is not None and total > 1:
            full = min(CELLS, CELLS * done // total)
            parts.append(f"[{'#' * full}{'.' * (CELLS - full)}] {done}/{total}")
        draw("  ".join([*parts, f"{now - began:.0f} s"])[:160])

    try:
        draw(title)
        yield step
    finally:
        draw("")
        print("\r", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def task(title: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Yields `step(message="", advance=1)`, to be called as the work goes on."""
    if _watcher is not None:
        yield _watched(_watcher, title, total)
        return
    if not (_looked_at() if _enabled is None else _enabled):

        def step(message: str = "", advance: int = 1) -> None:
            if _verbose and message:
                print(f"{title}: {message}", file=sys.stderr)

        yield step
        return
    if _in_notebook():
        with _line(title, total) as step:
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
