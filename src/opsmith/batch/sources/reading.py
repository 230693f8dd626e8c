"""What the readers share: rows one by one become chunks, files have an identity, faults have a line."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opsmith.batch.rows import Chunk, Failed
from opsmith.errors import OpsmithError


def identity(path: Path) -> dict[str, Any]:
    stat = path.stat()
    return {"input": str(path.resolve()), "bytes": stat.st_size, "modified": stat.st_mtime_ns}


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """What goes wrong while PATH is read, in one line."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise OpsmithError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise OpsmithError(f"{path} cannot be read: {error.strerror or error}") from error


def no_rows(path: Path) -> OpsmithError:
    return OpsmithError(f"{path} holds no rows", "there is nothing to map")


def in_chunks(rows: Iterator[Mapping[str, Any] | Failed], wanted: Sequence[str], size: int) -> Iterator[Chunk]:
    """Rows of a table in chunks of SIZE; a row that could not be read keeps its place and its number."""
    for part in itertools.count():
        block = list(itertools.islice(rows, size))
        if not block:
            return
        failed = {i: row.reason for i, row in enumerate(block) if isinstance(row, Failed)}
        columns = {name: [None if isinstance(row, Failed) else row.get(name) for row in block] for name in wanted}
        yield Chunk(part, part * size, len(block), columns, failed)
