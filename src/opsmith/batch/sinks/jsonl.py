"""JSON lines: row, the columns kept, the model's outputs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opsmith.batch.rows import Answer, Chunk, PartData
from opsmith.batch.sinks.writing import answered, failures, kept


class JsonLinesSink:
    suffix = ".jsonl"

    def part(self, chunk: Chunk, answers: Sequence[Answer], keep: Sequence[str]) -> PartData:
        rows = [{"row": chunk.first + i, **kept(chunk, i, keep), **answer} for i, answer in answered(answers)]
        return PartData(chunk.part, len(rows), failures(chunk, answers), lines(rows), {})

    def finish(self, parts: Sequence[Path], target: Path) -> None:
        with target.open("wb") as whole:
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, whole)


def lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False, default=_plain) + "\n" for row in rows).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
