"""Lines of a text file: each is a row with the one column `text`. Empty lines are rows, too: numbers of rows are numbers of lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opsmith.batch.rows import Chunk
from opsmith.batch.sources.reading import identity, in_chunks, no_rows, readable

BLOCK = 1 << 20


class Lines:
    columns: tuple[str, ...] = ("text",)
    natural: str | None = "text"

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path):
            self.rows = count_lines(path)
            self.identity: Mapping[str, Any] = identity(path)
        if not self.rows:
            raise no_rows(path)

    def chunks(self, wanted: Sequence[str], size: int) -> Iterator[Chunk]:
        with readable(self.path), self.path.open(encoding="utf-8", newline="\n") as file:
            yield from in_chunks(({"text": line.rstrip("\r\n")} for line in file), wanted, size)


def count_lines(path: Path) -> int:
    lines, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")
