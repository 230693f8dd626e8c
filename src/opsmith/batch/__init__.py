"""`opsmith.map`: a model over many rows, resumable, on all cores of this machine or on a cluster.

opsmith.map("models/all-MiniLM-L6-v2", "texts.txt", "vectors.parquet")

open_source    what INPUT is, its columns, its rows
Journal        what of the job is done already; a finished one ends here
open_runner    what MODEL needs and answers, told by the first worker
bind           which column is which input
choose         processes x threads x batch, measured
engine.run     chunks in, parts out, in any order
Journal        parts written and entered; in the end the whole output
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from opsmith import plain, progress, store
from opsmith.batch.columns import bind
from opsmith.batch.journal import Journal
from opsmith.batch.plan import Plan, Wishes, choose, first_layout
from opsmith.batch.rows import Chunk, Engine, Source, Traits
from opsmith.batch.runners import files_of
from opsmith.batch.runners.values import option_of
from opsmith.batch.sinks import open_sink, target_of
from opsmith.batch.sources import open_source
from opsmith.batch.sources.spool import spool
from opsmith.batch.work import Task
from opsmith.batch.worker import Process
from opsmith.errors import OpsmithError, no_such

ENGINES = ("local", "ray")


@dataclasses.dataclass(repr=False)
class Mapped(plain.Shown):
    """What a map did."""

    output: Path
    rows: int  # with a result
    failed: int  # rows without one
    errors: Path | None  # where they are listed
    kind: str  # of the model
    engine: str
    plan: Plan
    seconds: float  # of this run
    computed: int  # rows of this run; the others were done before
    rate: float  # rows/s of this run


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """A call, checked as far as possible without its input."""

    model: Path
    variant: str | None
    columns: Mapping[str, str]
    keep: tuple[str, ...]
    constants: Mapping[str, Any]
    part: int | None
    wishes: Wishes
    stop_on_error: bool
    engine: str
    address: str | None


def map(
    model: store.PathLike,
    input: store.PathLike,
    output: store.PathLike,
    *,
    variant: str | None = None,
    columns: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    constants: Mapping[str, object] | None = None,
    engine: str = "local",
    address: str | None = None,
    processes: int | None = None,
    threads: int | None = None,
    batch: int | None = None,
    part: int | None = None,
    stop_on_error: bool = False,
) -> Mapped:
    """Run MODEL over every row of INPUT and write OUTPUT; the same call goes on where it was ended.

    INPUT is .parquet, .csv, .jsonl, .txt, a folder of pictures or texts, or "-" for lines of standard input. OUTPUT is .parquet, .jsonl,
    or a folder for pictures. COLUMNS maps inputs of the model to columns, KEEP names columns that go along, CONSTANTS are options of
    the model for all rows. PROCESSES, THREADS of each and BATCH are measured unless given. PART rows are the unit of work. STOP_ON_ERROR
    ends at the first row that fails. ENGINE "ray" works on the cluster at ADDRESS, or on one of its own on this machine.
    """
    for name, number in (("processes", processes), ("threads", threads), ("batch", batch), ("part", part)):
        if number is not None and number < 1:
            raise OpsmithError(f"{name} {number} is not possible", "1 or more")
    if engine not in ENGINES:
        raise no_such("engine", engine, ENGINES)
    if address is not None and engine != "ray":
        raise OpsmithError("an address is for the ray engine", "--engine ray")
    wishes = Wishes(processes, threads, batch)
    wanted = _Wanted(
        Path(model), variant, columns or {}, tuple(keep), constants or {}, part, wishes, stop_on_error, engine, address
    )
    files = files_of(wanted.model, variant)
    journal = Journal(Path(output))
    with journal.locked():
        source = spool(sys.stdin.buffer, journal.folder) if str(input) == "-" else open_source(Path(input))
        return _map(wanted, files, source, journal)


def _map(wanted: _Wanted, files: Sequence[Path], source: Source, journal: Journal) -> Mapped:
    began = time.perf_counter()
    identity = _identity(wanted, files, source)
    record = journal.read()
    if record and record.get("job") != identity:
        raise OpsmithError(
            f"{journal.output} is from another job: {_difference(record.get('job'), identity)}",
            f"choose another name, or delete it and {journal.folder.name}",
        )
    if record.get("finished") and _stands(record, journal):
        journal.sweep()
        return _finished_before(record, wanted, journal)
    with contextlib.ExitStack() as stack:
        warm = Process(wanted.model, wanted.variant, first_layout(wanted.wishes).threads, ())
        stack.callback(warm.end)
        traits = warm.traits()
        task = _task(wanted, traits, source, journal.output)
        part = _part(wanted, traits, record, journal)
        sink = open_sink(journal.output, traits.kind, traits.columns)
        journal.resume(sink.suffix)
        before = sum(_counted(journal.done.values()))
        if before < source.rows:
            todo = _Todo(source, task, part, journal)
            plan, engine = _start(wanted, traits, todo, warm, record)
            stack.callback(engine.end)
            if not record:
                journal.begin({"job": identity, "part": part, "plan": dataclasses.asdict(plan), "kind": traits.kind})
            _drive(engine, todo, plan, sink.suffix, wanted.stop_on_error)
        else:
            plan = Plan(**record["plan"])
        rows, failed = _counted(journal.done.values())
        journal.finish(sink, target_of(journal.output), {"rows": rows, "failed": failed})
    seconds = time.perf_counter() - began
    computed = rows + failed - before
    errors = journal.errors if failed else None
    return Mapped(
        journal.output, rows, failed, errors, traits.kind, wanted.engine, plan, seconds, computed, computed / seconds
    )


def _counted(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Rows with a result, rows without."""
    pairs = list(counts)
    return sum(rows for rows, _ in pairs), sum(failed for _, failed in pairs)


def _task(wanted: _Wanted, traits: Traits, source: Source, output: Path) -> Task:
    for name, value in wanted.constants.items():
        if name not in traits.options:
            there = f"it has: {', '.join(traits.options)}" if traits.options else "it has none"
            raise OpsmithError(f"the model has no option {name!r}", there)
        option_of(value, name, traits.options[name])
    mapping = bind(traits, source, wanted.columns, wanted.keep)
    return Task(wanted.model, wanted.variant, output.name, mapping, dict(wanted.constants), wanted.keep)


def _part(wanted: _Wanted, traits: Traits, record: Mapping[str, Any], journal: Journal) -> int:
    """Rows of a part: those that the job began with."""
    begun = record.get("part")
    if begun and wanted.part and begun != wanted.part:
        raise OpsmithError(f"{journal.output} was begun in parts of {begun} rows", f"--part {begun}")
    return int(begun or wanted.part or traits.part)


@dataclasses.dataclass(frozen=True)
class _Todo:
    """The rows that have no part yet."""

    source: Source
    task: Task
    part: int
    journal: Journal

    def chunks(self) -> Iterator[Chunk]:
        wanted = list(dict.fromkeys((*self.task.mapping.values(), *self.task.keep)))
        return (c for c in self.source.chunks(wanted, self.part) if c.part not in self.journal.done)

    @property
    def rows(self) -> int:
        return self.source.rows - sum(_counted(self.journal.done.values()))


def _start(
    wanted: _Wanted, traits: Traits, todo: _Todo, warm: Process, record: Mapping[str, Any]
) -> tuple[Plan, Engine]:
    """The engine, and how it works: as the job began, unless the user says otherwise."""
    wishes = wanted.wishes
    if record:
        begun = Plan(**record["plan"])
        wishes = Wishes(
            wishes.processes or (begun.processes if wishes.threads is None else None),
            wishes.threads or (begun.threads if wishes.processes is None else None),
            wishes.batch or begun.batch,
        )
    if wanted.engine == "ray":
        from opsmith.batch.cluster import Cluster

        warm.end()
        plan = Plan(wishes.processes or 0, wishes.threads or 1, wishes.batch or traits.batches[0])
        pictures = frozenset(todo.task.mapping[name] for name in traits.pictures)
        cluster = Cluster(todo.task, wanted.address, wishes.processes, plan.threads, pictures)
        return dataclasses.replace(plan, processes=len(cluster.actors)), cluster
    sample = next(todo.chunks())
    with progress.task("measuring") as step:
        return choose(todo.task, traits, warm, sample, todo.rows, wishes, lambda line: step(line))


def _drive(engine: Engine, todo: _Todo, plan: Plan, suffix: str, stop_on_error: bool) -> None:
    """Every part computed, written and entered."""
    rows, done, began = todo.rows, 0, time.perf_counter()
    parts = engine.run(todo.chunks(), plan.batch)
    with contextlib.closing(parts), progress.task("map", total=rows) as step:  # type: ignore[type-var]
        for data in parts:
            if stop_on_error and data.failed:
                row, reason = data.failed[0]
                raise OpsmithError(
                    f"row {row} failed: {reason}", "what is done is kept; without --stop-on-error the rest goes on"
                )
            todo.journal.write(data, suffix)
            done += (count := data.rows + len(data.failed))
            step(f"{done / (time.perf_counter() - began):.0f} rows/s", count)


def _identity(wanted: _Wanted, files: Sequence[Path], source: Source) -> dict[str, Any]:
    """What makes it this job and no other. How fast it is done is no part of it."""
    stats = {str(f.resolve()): [f.stat().st_size, f.stat().st_mtime_ns] for f in files}
    job = {
        "input": dict(source.identity),
        "model": stats,
        "columns": dict(wanted.columns),
        "keep": list(wanted.keep),
        "options": {name: str(value) for name, value in wanted.constants.items()},
    }
    return cast("dict[str, Any]", json.loads(json.dumps(job)))


def _difference(before: Any, now: Mapping[str, Any]) -> str:
    known = before if isinstance(before, dict) else {}
    return ", ".join(f"another {key}" for key in now if known.get(key) != now[key]) or "its record is damaged"


def _stands(record: Mapping[str, Any], journal: Journal) -> bool:
    target = target_of(journal.output)
    return target.is_file() and target.stat().st_size == record.get("bytes")


def _finished_before(record: Mapping[str, Any], wanted: _Wanted, journal: Journal) -> Mapped:
    done, plan = record["finished"], Plan(**record["plan"])
    errors = journal.errors if done["failed"] else None
    return Mapped(
        journal.output, done["rows"], done["failed"], errors, record["kind"], wanted.engine, plan, 0.0, 0, 0.0
    )
