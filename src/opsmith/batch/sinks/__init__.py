"""Outputs of a map: `open_sink` goes by the name of OUTPUT.

vectors.parquet   Arrow types, vectors as fixed-size lists (needs pyarrow)
rows.jsonl        one object per line
pictures          a folder of PNG with manifest.jsonl, for a model that makes pictures
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opsmith.batch.rows import Column, Sink
from opsmith.errors import OpsmithError

FILES = (".parquet", ".pq", ".jsonl", ".ndjson")


def open_sink(output: Path, kind: str, columns: Mapping[str, Column]) -> Sink:
    """KIND is the model's, COLUMNS what it answers."""
    form = output.suffix.lower()
    if kind == "diffusion":
        from opsmith.batch.sinks.pictures import PictureSink

        if form in FILES:
            raise OpsmithError(f"{output} is a file, and the model makes pictures", "name a folder")
        return PictureSink()
    if form in (".parquet", ".pq"):
        from opsmith.batch.sinks.parquet import ParquetSink

        return ParquetSink(columns)
    if form in FILES:
        from opsmith.batch.sinks.jsonl import JsonLinesSink

        return JsonLinesSink()
    raise OpsmithError(f"{output} is not an output that map writes", "name it .parquet or .jsonl")


def target_of(output: Path) -> Path:
    """What is written last: the output itself, or the list of a folder's pictures."""
    return output if output.suffix.lower() in FILES else output / "manifest.jsonl"
