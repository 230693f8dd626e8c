"""Inputs of a map: `open_source` finds out what INPUT is.

words.txt   lines: one column, text          table.csv   its header names the columns
-           lines of standard input          rows.jsonl  one object per line
folder/     pictures or texts, sorted        table.parquet (needs pyarrow)
"""

from __future__ import annotations

from pathlib import Path

from opsmith.batch.rows import Source
from opsmith.errors import OpsmithError

LINES = (".txt", ".text", ".lst")
KINDS = "a folder, .txt, .csv, .tsv, .jsonl, .parquet, or - for lines on standard input"


def open_source(path: Path) -> Source:
    """PATH is a file or a folder; lines of standard input were copied to a file before (spool.py)."""
    if path.is_dir():
        from opsmith.batch.sources.folder import Folder

        return Folder(path)
    if not path.exists():
        raise OpsmithError(f"{path} does not exist")
    kind = path.suffix.lower()
    if kind in LINES:
        from opsmith.batch.sources.lines import Lines

        return Lines(path)
    if kind in (".csv", ".tsv"):
        from opsmith.batch.sources.table import Csv

        return Csv(path, "\t" if kind == ".tsv" else ",")
    if kind in (".jsonl", ".ndjson"):
        from opsmith.batch.sources.jsonl import JsonLines

        return JsonLines(path)
    if kind in (".parquet", ".pq"):
        from opsmith.batch.sources.parquet import Parquet

        return Parquet(path)
    raise OpsmithError(f"{path} is not an input that map reads", KINDS)
