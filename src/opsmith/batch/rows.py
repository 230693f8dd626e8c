"""What travels through a map: rows on their way in, in chunks of a fixed size, and what became of each on its way out.

    Source -> Chunk (rows first .. first+n of the input) -> Runner -> Answers -> Sink -> PartData (bytes) -> journal

A chunk is also the unit of work, of the output and of the journal: its part. Which rows form a part depends on the input and the
part's size alone, so the result does not depend on who computes it, nor when.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True)
class Failed:
    """A row that has no result, and why; as a value of a column, one that could not be read."""

    reason: str


Answer = dict[str, Any] | Failed  # of one row: output column -> value


@dataclasses.dataclass(frozen=True)
class Chunk:
    part: int
    first: int  # its first row's number in the input
    count: int
    columns: Mapping[str, Sequence[Any]]  # name -> one value per row
    failed: Mapping[int, str] = dataclasses.field(default_factory=dict)  # offset -> why the row could not be read
    # What lies in the files that a column names, one per row, where the worker may not see them; None: it is to look itself.
    contents: Mapping[str, Sequence[bytes | None]] = dataclasses.field(default_factory=dict)

    def value(self, column: str, row: int) -> Any:
        content = self.contents[column][row] if column in self.contents else None
        return self.columns[column][row] if content is None else content


@dataclasses.dataclass(frozen=True)
class Column:
    """An output column: the element's type as numpy spells it ("str" for text) and the sizes of one row's value; None: any size."""

    dtype: str
    shape: tuple[int | None, ...] = ()


@dataclasses.dataclass(frozen=True)
class PartData:
    """One part, computed: what is written, and which of its rows failed."""

    part: int
    rows: int  # with a result
    failed: tuple[tuple[int, str], ...]  # (row number, reason)
    data: bytes
    files: Mapping[str, bytes]  # further files beside it: pictures


class Source(Protocol):
    """An input, read from its beginning as often as asked for, never held whole in memory."""

    columns: tuple[str, ...]
    natural: str | None  # the column that a model's only input reads unless told otherwise
    rows: int
    identity: Mapping[str, Any]  # what tells it from another input

    def chunks(self, wanted: Sequence[str], size: int) -> Iterator[Chunk]: ...


@dataclasses.dataclass(frozen=True)
class Option:
    """What a row may state in a column of its own; else `--set`, else the default holds."""

    kind: type
    default: Any = None


@dataclasses.dataclass(frozen=True)
class Traits:
    """What is to be known of a model to map it."""

    kind: str
    inputs: tuple[str, ...]  # what every row needs
    options: Mapping[str, Option]
    part: int  # rows of a part, unless told otherwise
    batches: tuple[int, ...]  # sizes worth measuring; the first is the default
    columns: Mapping[str, Column]  # of the output
    pictures: tuple[str, ...] = ()  # of the inputs those that read the file that a row names


class Runner(Protocol):
    """A model that answers rows."""

    traits: Traits

    def run(self, rows: Sequence[Mapping[str, Any]], batch: int) -> list[Answer]: ...


class Engine(Protocol):
    """Who does the work: chunks in, parts out, in any order."""

    def run(self, chunks: Iterator[Chunk], batch: int) -> Iterator[PartData]: ...

    def end(self) -> None: ...


class Sink(Protocol):
    """A form of output: parts as bytes, then all of them as one."""

    suffix: str  # of a part

    def part(self, chunk: Chunk, answers: Sequence[Answer], keep: Sequence[str]) -> PartData: ...

    def finish(self, parts: Sequence[Path], target: Path) -> None: ...
