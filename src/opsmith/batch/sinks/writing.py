"""What the forms of output share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opsmith.batch.rows import Answer, Chunk, Failed


def answered(answers: Sequence[Answer]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(offset in the chunk, what the model said) of the rows that did not fail."""
    for i, answer in enumerate(answers):
        if not isinstance(answer, Failed):
            yield i, answer


def failures(chunk: Chunk, answers: Sequence[Answer]) -> tuple[tuple[int, str], ...]:
    return tuple((chunk.first + i, a.reason) for i, a in enumerate(answers) if isinstance(a, Failed))


def kept(chunk: Chunk, offset: int, keep: Sequence[str]) -> dict[str, Any]:
    """Columns of the input that go along."""
    return {name: chunk.columns[name][offset] for name in keep}
