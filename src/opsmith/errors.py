"""The errors that a user sees: one clear line, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OpsmithError(Exception):
    """A user's mistake or a limit of this machine. The CLI prints it as one line and exits with 2."""

    exit_code = 2

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} ({hint})")
        self.message = message
        self.hint = hint


def no_such(what: str, value: object, known: Iterable[object], purpose: str = "") -> OpsmithError:
    """A word that is none of those KNOWN: there is no rule 'gellu' (did you mean gelu? known: attention, gelu, linear)."""
    words = [str(word) for word in known]
    return OpsmithError(f"there is no {what} {value!r}{purpose}", f"{near(str(value), words)}known: {', '.join(words)}")


def near(word: str, known: list[str], cutoff: float = 0.6) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"did you mean {close[0]}? " if close else ""


class NotTheSame(OpsmithError):
    """Two models disagree beyond the tolerance. The CLI exits with 1."""

    exit_code = 1


class DoesNotCompile(OpsmithError):
    """The C++ compiler refuses some of the generated sources: a defect of ours. FILES: their names, without an ending."""

    def __init__(self, message: str, hint: str, files: frozenset[str]) -> None:
        super().__init__(message, hint)
        self.files = files
