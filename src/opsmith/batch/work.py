"""What a worker does with a chunk, whoever started it: rows for the model, its answers, the part's bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opsmith.batch.rows import Answer, Chunk, Failed, PartData, Runner, Sink
from opsmith.batch.runners import open_runner
from opsmith.batch.runners.values import option_of
from opsmith.batch.sinks import open_sink
from opsmith.errors import OpsmithError


@dataclasses.dataclass(frozen=True)
class Task:
    """What to do with every row."""

    model: Path
    variant: str | None
    output: str  # its name says the form
    mapping: Mapping[str, str]  # input or option of the model -> column
    constants: Mapping[str, Any]  # option -> value for every row that states none
    keep: tuple[str, ...]  # columns that go along


class Worker:
    """A loaded model, and the form that its answers are written in."""

    def __init__(self, task: Task, threads: int | None, runner: Runner | None = None) -> None:
        self.task = task
        self.runner = runner or open_runner(task.model, task.variant, threads)
        traits = self.runner.traits
        self.sink: Sink = open_sink(Path(task.output), traits.kind, traits.columns)

    def work(self, chunk: Chunk, batch: int) -> PartData:
        rows = [self._row(chunk, i) for i in range(chunk.count)]
        there = [row for row in rows if not isinstance(row, Failed)]
        found = iter(answers(self.runner, there, batch))
        return self.sink.part(chunk, [row if isinstance(row, Failed) else next(found) for row in rows], self.task.keep)

    def _row(self, chunk: Chunk, i: int) -> dict[str, Any] | Failed:
        if i in chunk.failed:
            return Failed(chunk.failed[i])
        traits, mapping = self.runner.traits, self.task.mapping
        row: dict[str, Any] = {"row": chunk.first + i}
        row |= {name: chunk.value(mapping[name], i) for name in traits.inputs}
        try:
            for name, option in traits.options.items():
                stated = chunk.columns[mapping[name]][i] if name in mapping else None
                row[name] = option_of(self.task.constants.get(name) if stated is None else stated, name, option)
        except OpsmithError as error:
            return Failed(str(error))
        return row


def answers(runner: Runner, rows: Sequence[Mapping[str, Any]], batch: int) -> list[Answer]:
    """What the model says to each row. A row that it cannot run fails alone: the others are run without it."""
    if not rows:
        return []
    try:
        return runner.run(rows, batch)
    except (OpsmithError, MemoryError) as error:
        if len(rows) == 1:
            return [Failed(str(error) or "not enough memory")]
        half = len(rows) // 2
        return answers(runner, rows[:half], batch) + answers(runner, rows[half:], batch)
