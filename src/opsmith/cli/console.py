"""What every command prints with: results on stdout, progress and errors on stderr. `answer` ends a command, in one of three
forms: tables for people, JSON for programs (--json), or only the name of what was written (--quiet)."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from opsmith import progress
from opsmith.errors import OpsmithError


class _Console(Console):
    """Names from a model may hold control characters: they never reach the terminal as such."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def printable(text: str) -> str:
    """The text with control characters other than line ends written out: ESC becomes \\x1b."""
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


out = _Console(highlight=False, soft_wrap=False)
quiet = False
verbose = False
as_json = False


_CHATTY = (
    "onnx_ir",
    "onnxscript",
)  # their warnings repeat what our one line says, with names from the model as they are


def configure(*, quiet: bool = False, verbose: bool = False, as_json: bool = False) -> None:
    globals().update(quiet=quiet, verbose=verbose, as_json=as_json)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    progress.configure(enabled=not quiet and sys.stderr.isatty(), verbose=verbose and not quiet)


def answer(result: object, show: Callable[[], None], *, written: object = None) -> None:
    """The end of a command: RESULT as JSON, the path WRITTEN (a list: one per line) alone, or what SHOW prints."""
    if as_json:
        from opsmith.plain import to_json

        print(to_json(result))
    elif quiet and written is not None:
        for path in written if isinstance(written, (list, tuple)) else [written]:
            print(path)
    else:
        show()


SCREEN = Path("-")


def check_table(file: Path | None, suffix: str) -> None:
    """Refuse, before anything is measured, a FILE for a table that cannot be written, or whose name says that it is none."""
    if file is None or file == SCREEN:
        if file == SCREEN and as_json:
            raise OpsmithError(f"--json and --{suffix} - exclude each other: both would print")
        return
    if file.suffix.lower() != f".{suffix}":
        raise OpsmithError(f"{file} does not end in .{suffix}")
    if not file.absolute().parent.is_dir():
        raise OpsmithError(f"the folder of {file} does not exist")


def write_table(text: str, file: Path | None) -> None:
    """A table for other programs, into its FILE; what goes to the screen was printed by `answer`."""
    if file is not None and file != SCREEN:
        file.write_text(text, encoding="utf-8")


def error(message: str) -> None:
    """One line, prefixed, on stderr; never wrapped, so that it stays one line in logs."""
    print(f"opsmith: error: {printable(' '.join(message.split()))}", file=sys.stderr)


def say(message: str) -> None:
    """A result or a remark for people; silenced by --quiet and --json."""
    if not quiet and not as_json:
        out.print(message, soft_wrap=True)


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the house style; columns starting with '>' are right-aligned."""
    t = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        t.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    return t


def show(t: RenderableType) -> None:
    out.print(t)


def remark(message: str) -> None:
    """A line beside the result, on stderr; silenced by --quiet."""
    if not quiet:
        print(printable(message), file=sys.stderr)


def indented(t: Table) -> Padding:
    """A table that belongs to the line above it."""
    return Padding(t, (0, 0, 0, 12))


def escape(text: str) -> str:
    """Names from a model, which must not be read as markup."""
    return text.replace("[", r"\[")


def family(name: str) -> str:
    """past_key_values.11.key -> past_key_values.*.key: values that differ in a number only are shown as one row."""
    return re.sub(r"\d+", "*", name)


def count_text(number: float) -> str:
    """1234567 -> 1.2 M"""
    for unit in ("", " k", " M", " G", " T"):
        if number < 1000 or unit == " T":
            return f"{number:.0f}" if not unit else f"{number:.1f}{unit}"
        number /= 1000
    raise AssertionError("unreachable")
