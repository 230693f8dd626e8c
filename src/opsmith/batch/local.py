"""The local engine: worker processes on cores of their own. They map the weights of a compiled model, so its pages are there once.

A thread per process takes the next chunk when its process is free, and waits until the part was written: nothing piles up, whatever
the input's size. A process that dies is replaced, and its chunk is given to the new one, TRIES times.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

from opsmith.batch.rows import Chunk, PartData
from opsmith.batch.work import Task
from opsmith.batch.worker import Died, Process
from opsmith.errors import OpsmithError

TRIES = 3


@dataclasses.dataclass(frozen=True)
class Layout:
    processes: int
    threads: int  # of each


class Local:
    def __init__(self, layout: Layout, task: Task, warm: Process | None = None) -> None:
        """WARM is a process that has loaded the model with that many threads, and takes part."""
        self.layout, self.task = layout, task
        self.groups = core_groups(layout.processes) if layout.processes > 1 else [()]
        self.processes = [warm] if warm is not None else []
        cold = [self._start(i) for i in range(len(self.processes), layout.processes)]
        self.processes += cold
        try:
            for process in cold:
                process.traits()
            for process in self.processes:
                process.bind(task)
        except BaseException:
            self.end()
            raise

    def _start(self, place: int) -> Process:
        return Process(self.task.model, self.task.variant, self.layout.threads, self.groups[place])

    def run(self, chunks: Iterator[Chunk], batch: int) -> Iterator[PartData]:
        """The parts, in the order in which they become ready."""
        feed = _Feed(chunks)
        ready: queue.Queue[PartData | BaseException | None] = queue.Queue(1)
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._serve, args=(i, feed, ready, batch, stop), daemon=True)
            for i in range(self.layout.processes)
        ]
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            while running:
                found = ready.get()
                if found is None:
                    running -= 1
                elif isinstance(found, BaseException):
                    raise found
                else:
                    yield found
        finally:
            stop.set()

    def _serve(
        self,
        place: int,
        feed: _Feed,
        ready: queue.Queue[PartData | BaseException | None],
        batch: int,
        stop: threading.Event,
    ) -> None:
        try:
            while not stop.is_set() and (chunk := feed.next()) is not None:
                _offer(ready, self._work(place, chunk, batch, stop), stop)
            _offer(ready, None, stop)
        except BaseException as error:
            _offer(ready, error, stop)

    def _work(self, place: int, chunk: Chunk, batch: int, stop: threading.Event) -> PartData:
        for left in reversed(range(TRIES)):
            try:
                return self.processes[place].work(chunk, batch)[0]
            except Died as error:
                if not left or stop.is_set():
                    last = chunk.first + chunk.count - 1
                    raise OpsmithError(
                        f"rows {chunk.first} to {last}: {error.message}, {TRIES} times",
                        "try a smaller --batch or --part",
                    ) from error
                self.processes[place].end()
                fresh = self._start(place)
                self.processes[place] = fresh
                fresh.traits()
                fresh.bind(self.task)
        raise AssertionError("unreachable")

    def end(self) -> None:
        for process in self.processes:
            process.end()


def _offer(
    ready: queue.Queue[PartData | BaseException | None], item: PartData | BaseException | None, stop: threading.Event
) -> None:
    """Wait for room, unless nobody takes anything any more."""
    while not stop.is_set():
        with contextlib.suppress(queue.Full):
            ready.put(item, timeout=0.1)
            return


class _Feed:
    """One iterator, several threads that take from it."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks, self._lock = chunks, threading.Lock()

    def next(self) -> Chunk | None:
        with self._lock:
            return next(self._chunks, None)


def core_groups(count: int) -> list[tuple[int, ...]]:
    """The cores that this process may use, in COUNT groups; hyper-threads of one core stay together."""
    if not hasattr(os, "sched_getaffinity"):
        return [()] * count
    cpus = sorted(os.sched_getaffinity(0), key=lambda cpu: (_siblings(cpu), cpu))
    if count > len(cpus):
        return [()] * count
    return [tuple(cpus[len(cpus) * i // count : len(cpus) * (i + 1) // count]) for i in range(count)]


def _siblings(cpu: int) -> int:
    """The first hyper-thread of the same core."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
        return int(text.replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return cpu
