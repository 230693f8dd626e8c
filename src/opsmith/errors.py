"""The errors that a user sees: one clear line, and what to do next."""

from __future__ import annotations


class OpsmithError(Exception):
    """A user's mistake or a limit of this machine. The CLI prints it as one line and exits with 2."""

    exit_code = 2

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} ({hint})")
        self.message = message
        self.hint = hint


class NotTheSame(OpsmithError):
    """Two models disagree beyond the tolerance. The CLI exits with 1."""

    exit_code = 1


class DoesNotCompile(OpsmithError):
    """The C++ compiler refuses some of the generated sources: a defect of ours. FILES: their names, without an ending."""

    def __init__(self, message: str, hint: str, files: frozenset[str]) -> None:
        super().__init__(message, hint)
        self.files = files
