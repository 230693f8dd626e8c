"""A folder of PNG, named by the row's number, and manifest.jsonl: row, file, the columns kept, and the settings that make it again."""

from __future__ import annotations

from collections.abc import Sequence

from opsmith.batch.rows import Answer, Chunk, PartData
from opsmith.batch.sinks.jsonl import JsonLinesSink, lines
from opsmith.batch.sinks.writing import answered, failures, kept


class PictureSink(JsonLinesSink):
    """The manifest is written as lines; the pictures go straight to their place, where the same row always makes the same file."""

    def part(self, chunk: Chunk, answers: Sequence[Answer], keep: Sequence[str]) -> PartData:
        rows, files = [], {}
        for i, answer in answered(answers):
            row = chunk.first + i
            name = f"{row:09d}.png"
            files[name] = answer["picture"]
            rows.append({"row": row, "file": name, **kept(chunk, i, keep), "settings": answer["settings"]})
        return PartData(chunk.part, len(rows), failures(chunk, answers), lines(rows), files)
