"""Parquet, read row group by row group, only the columns that are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opsmith.batch.arrow import arrow
from opsmith.batch.rows import Chunk
from opsmith.batch.sources.reading import identity, in_chunks, no_rows, readable
from opsmith.errors import OpsmithError

AT_ONCE = 256  # rows that are Python values at a time


class Parquet:
    natural: str | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path), self._file() as file:
            self.columns: tuple[str, ...] = tuple(file.schema_arrow.names)
            self.rows = int(file.metadata.num_rows)
        self.identity: Mapping[str, Any] = identity(path)
        if not self.rows:
            raise no_rows(path)

    def _file(self) -> Any:
        arrow()
        import pyarrow.parquet

        try:
            return pyarrow.parquet.ParquetFile(self.path, memory_map=True)
        except pyarrow.lib.ArrowException as error:
            raise _corrupt(self.path, error) from error

    def chunks(self, wanted: Sequence[str], size: int) -> Iterator[Chunk]:
        with readable(self.path):
            yield from in_chunks(self._rows(list(wanted)), wanted, size)

    def _rows(self, wanted: list[str]) -> Iterator[Mapping[str, Any]]:
        pa = arrow()
        with self._file() as file:
            blocks = file.iter_batches(batch_size=AT_ONCE, columns=wanted)
            while True:
                try:
                    block = next(blocks, None)
                except (pa.lib.ArrowException, OSError) as error:
                    raise _corrupt(self.path, error) from error
                if block is None:
                    return
                yield from block.to_pylist()


def _corrupt(path: Path, error: Exception) -> OpsmithError:
    return OpsmithError(f"{path} is not a readable Parquet file: {' '.join(str(error).split())[:200]}")
