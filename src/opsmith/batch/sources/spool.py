"""Standard input: copied to the job's folder first, so that its rows are counted, and a run that is ended can go on with the same lines."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

from opsmith.batch.sources.lines import BLOCK, Lines
from opsmith.errors import OpsmithError


def spool(stream: BinaryIO, folder: Path) -> Lines:
    """A run that goes on is given the same lines again: they are told by their content, not by their file."""
    digest, size, file = hashlib.sha256(), 0, folder / "input.txt"
    try:
        with file.open("wb") as copy:
            while block := stream.read(BLOCK):
                copy.write(block)
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise OpsmithError(f"standard input cannot be kept in {file}: {error.strerror or error}") from error
    if not size:
        raise OpsmithError("standard input is empty", "there is nothing to map")
    lines = Lines(file)
    lines.identity = {"input": "-", "bytes": size, "sha256": digest.hexdigest()}
    return lines
