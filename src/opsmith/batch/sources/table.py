"""CSV and TSV: the first line names the columns; a row with another number of fields fails alone."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opsmith.batch.rows import Chunk, Failed
from opsmith.batch.sources.reading import identity, in_chunks, no_rows, readable
from opsmith.errors import OpsmithError


class Csv:
    natural: str | None = None

    def __init__(self, path: Path, delimiter: str) -> None:
        self.path, self.delimiter = path, delimiter
        csv.field_size_limit(min(sys.maxsize, (1 << 31) - 1))
        with readable(path):
            self.identity: Mapping[str, Any] = identity(path)
            records = self._records()
            self.columns: tuple[str, ...] = tuple(next(records, ()))
            self.rows = sum(1 for _ in records)
        if not self.rows:
            raise no_rows(path)
        if len(set(self.columns)) != len(self.columns):
            twice = next(c for c in self.columns if self.columns.count(c) > 1)
            raise OpsmithError(f"{path} has two columns {twice!r}", "its first line names the columns")

    def _records(self) -> Iterator[list[str]]:
        """Lines that are not empty. utf-8-sig: spreadsheets begin a file with a byte order mark."""
        with self.path.open(encoding="utf-8-sig", newline="") as file:
            try:
                yield from filter(None, csv.reader(file, delimiter=self.delimiter))
            except csv.Error as error:
                raise OpsmithError(f"{self.path} is not valid CSV: {error}") from error

    def chunks(self, wanted: Sequence[str], size: int) -> Iterator[Chunk]:
        with readable(self.path):
            records = self._records()
            next(records)
            yield from in_chunks(map(self._row, records), wanted, size)

    def _row(self, fields: list[str]) -> Mapping[str, Any] | Failed:
        if len(fields) != len(self.columns):
            return Failed(f"{len(fields)} fields in a table of {len(self.columns)} columns")
        return dict(zip(self.columns, fields))
