"""How many processes, threads and rows at a time: chosen by measuring, a few seconds long, on the first rows of the input.

    quick look   one process, all threads, the usual batch    ->  rows/s; what takes less than WORTH_IT in all is left at that
    batches      the same process, every size of a batch
    layouts      processes x threads = cores, at the best batch and the usual one

The plan is entered in the job, so that a run that goes on goes on with it.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path

from opsmith import machine
from opsmith.batch.local import Layout, Local
from opsmith.batch.rows import Chunk, Traits
from opsmith.batch.work import Task
from opsmith.batch.worker import Process

WORTH_IT = 20.0  # seconds of work, below which nothing is measured
TURN = 0.7  # seconds of one measurement
SAMPLE = 512  # rows, at most


@dataclasses.dataclass(frozen=True)
class Plan:
    processes: int
    threads: int
    batch: int
    rate: float | None = None  # rows/s that were measured

    @property
    def layout(self) -> Layout:
        return Layout(self.processes, self.threads)


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What the user fixed."""

    processes: int | None = None
    threads: int | None = None
    batch: int | None = None


def layouts(cores: int, wishes: Wishes) -> list[Layout]:
    """Processes x threads that fill the cores; the first is one process."""
    if wishes.processes is not None:
        return [Layout(wishes.processes, wishes.threads or max(1, cores // wishes.processes))]
    if wishes.threads is not None:
        return [Layout(max(1, cores // wishes.threads), wishes.threads)]
    return [Layout(p, cores // p) for p in range(1, cores + 1) if cores % p == 0]


def first_layout(wishes: Wishes) -> Layout:
    """That of the process which says what kind of model it is."""
    return layouts(machine.cores(), wishes)[0]


def choose(
    task: Task, traits: Traits, warm: Process, sample: Chunk, rows: int, wishes: Wishes, say: Callable[[str], object]
) -> tuple[Plan, Local]:
    """The plan for ROWS like those of SAMPLE, and its processes, which are warm; WARM is one of `first_layout`."""
    ways = layouts(machine.cores(), wishes)
    batches = (wishes.batch,) if wishes.batch is not None else traits.batches
    sample = head(sample, SAMPLE)
    engine = Local(ways[0], task, warm)
    try:
        rate = measure(engine, sample, batches[0], seconds=0)
        best = Plan(ways[0].processes, ways[0].threads, batches[0], rate)
        if rows / rate < WORTH_IT or len(ways) * len(batches) == 1:
            return best, engine
        for batch in batches:
            best = _better(best, engine, sample, batch, say)
        fitting = [w for w in ways[1:] if _fits(task.model, w.processes)]
        for way in fitting:
            other = Local(way, task)
            try:
                tried = best
                for batch in dict.fromkeys((best.batch, batches[0])):
                    tried = _better(tried, other, sample, batch, say)
            except BaseException:
                other.end()
                raise
            if tried.layout == way:
                engine.end()
                best, engine = tried, other
            else:
                other.end()
    except BaseException:
        engine.end()
        raise
    return best, engine


def _better(best: Plan, engine: Local, sample: Chunk, batch: int, say: Callable[[str], object]) -> Plan:
    layout = engine.layout
    rate = measure(engine, sample, batch, TURN)
    say(f"{layout.processes} x {layout.threads} threads, batch {batch}: {rate:.0f} rows/s")
    return Plan(layout.processes, layout.threads, batch, rate) if rate > (best.rate or 0) else best


def measure(engine: Local, sample: Chunk, batch: int, seconds: float) -> float:
    """rows/s of all processes together, each with the whole sample, again and again for that long; once at least."""
    for process in engine.processes:
        process.work(head(sample, 8), batch)
    counts = [0] * len(engine.processes)
    began = time.perf_counter()

    def turn(i: int) -> None:
        while not counts[i] or time.perf_counter() - began < seconds:
            engine.processes[i].work(sample, batch)
            counts[i] += 1

    threads = [threading.Thread(target=turn, args=(i,)) for i in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(1e-9, sum(counts) * sample.count / (time.perf_counter() - began))


def head(chunk: Chunk, count: int) -> Chunk:
    """Its first rows."""
    columns = {name: values[:count] for name, values in chunk.columns.items()}
    failed = {i: reason for i, reason in chunk.failed.items() if i < count}
    return Chunk(chunk.part, chunk.first, min(count, chunk.count), columns, failed)


def _fits(model: Path, processes: int) -> bool:
    """Whether so many copies of the weights fit into half of the memory, in case that they cannot be shared."""
    files = [model] if model.is_file() else [f for f in model.rglob("*") if f.is_file()]
    size = sum(f.stat().st_size for f in files)
    return processes * size < machine.memory_bytes() / 2 or not machine.memory_bytes()
