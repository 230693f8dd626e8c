"""JSON lines: one object per line; a line that is none fails alone. The first object names the columns that there may be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opsmith.batch.rows import Chunk, Failed
from opsmith.batch.sources.lines import count_lines
from opsmith.batch.sources.reading import identity, in_chunks, no_rows, readable
from opsmith.errors import OpsmithError


class JsonLines:
    natural: str | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path):
            self.rows = count_lines(path)
            self.identity: Mapping[str, Any] = identity(path)
            first = next((row for row in self._objects() if not isinstance(row, Failed)), None)
        if not self.rows:
            raise no_rows(path)
        if first is None:
            raise OpsmithError(f"no line of {path} is a JSON object", 'a line looks like {"text": "a frog"}')
        self.columns: tuple[str, ...] = tuple(first)

    def _objects(self) -> Iterator[Mapping[str, Any] | Failed]:
        with self.path.open(encoding="utf-8-sig", newline="\n") as file:
            yield from map(_row, file)

    def chunks(self, wanted: Sequence[str], size: int) -> Iterator[Chunk]:
        with readable(self.path):
            yield from in_chunks(self._objects(), wanted, size)


def _row(line: str) -> Mapping[str, Any] | Failed:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Failed(f"not JSON: {error}")
    return row if isinstance(row, dict) else Failed("not a JSON object")
