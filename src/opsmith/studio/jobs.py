"""Jobs: one worker thread per model, a queue before each, and snapshots for whoever watches.

    job = jobs.submit("pictures", "picture", owner, work)      work(job) runs on the worker's thread
    async with jobs.watch(lambda j: j.owner == owner) as watcher:
        changed = await watcher.next()

A job belongs to the server, not to the page that asked for it. Watchers are told which jobs changed and look at their
present state; there is no history to replay, so a page that was closed comes back to the same sight.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import secrets
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from PIL import Image

from opsmith.errors import OpsmithError
from opsmith.pipelines.diffusion import Cancelled, Preview

LONGEST_QUEUE = 32  # waiting jobs per model
KEPT = 200  # finished jobs
KEPT_SECONDS = 24 * 3600.0
EVERYONE = "*"  # the owner of jobs that all browsers see
FINISHED = ("done", "failed", "cancelled")


class QueueFull(OpsmithError):
    """Too many jobs wait for a model."""


@dataclasses.dataclass(eq=False)
class Job:
    worker: str
    kind: str
    owner: str
    work: Callable[[Job], dict[str, Any]]
    title: str = ""
    background: bool = False  # gives way to any other job of its worker
    changed: Callable[[Job], None] = lambda job: None
    id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))
    state: str = "queued"  # running, done, failed, cancelled
    created: float = dataclasses.field(default_factory=time.time)
    started: float = 0.0
    finished: float = 0.0
    step: int = 0
    total: int = 0
    note: str = ""
    left: float | None = None  # seconds, where the work knows it itself
    texts: list[str] = dataclasses.field(default_factory=list)
    preview: bytes | None = None
    preview_number: int = 0
    result: dict[str, Any] | None = None
    partials: list[Image.Image] = dataclasses.field(default_factory=list)  # of the API's jobs, as is
    output: Any = None  # what is handed over once; such jobs are forgotten after it
    error: str = ""
    our_fault: bool = False
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
    _first_step: float = 0.0
    _last_preview: float = 0.0

    def tell(self, *, step: int | None = None, total: int | None = None, note: str | None = None) -> None:
        """Report progress; raises Cancelled if the job was cancelled."""
        if step is not None:
            self.step = step
            if step == 1:
                self._first_step = time.time()
        self.total = total if total is not None else self.total
        self.note = note if note is not None else self.note
        self.changed(self)
        if self.stop.is_set():
            raise Cancelled("cancelled")

    def shown_to(self, owner: str) -> bool:
        return self.owner in (owner, EVERYONE)

    def say(self, index: int, piece: str) -> None:
        """More of text number INDEX."""
        while len(self.texts) <= index:
            self.texts.append("")
        self.texts[index] += piece
        self.tell()

    def on_step(self, step: int, total: int, preview: Preview) -> bool:
        """The callback of the picture pipeline. A preview is made when it costs less than a fifth of the time."""
        self.step, self.total = step, total
        now = time.time()
        if step == 1:
            self._first_step = now
        if not self.stop.is_set() and now >= self._last_preview and step < total:
            self.show(preview())
            self._last_preview = time.time() + max(0.25, 4 * (time.time() - now))
        self.changed(self)
        return not self.stop.is_set()

    def show(self, image: Image.Image) -> None:
        self.preview = jpeg(image)
        self.preview_number += 1

    @property
    def seconds_left(self) -> float | None:
        if self.state == "running" and self.left is not None:
            return self.left
        if self.state != "running" or self.step < 2 or not self._first_step:
            return None
        return max(0.0, (time.time() - self._first_step) / (self.step - 1) * (self.total - self.step))

    def snapshot(self, position: int | None) -> dict[str, Any]:
        ended = self.finished or time.time()
        return {
            "id": self.id,
            "kind": self.kind,
            "title": self.title,
            "state": self.state,
            "stopping": self.state not in FINISHED and self.stop.is_set(),
            "position": position,
            "step": self.step,
            "total": self.total,
            "note": self.note,
            "texts": self.texts,
            "preview": f"api/jobs/{self.id}/preview?{self.preview_number}" if self.preview else None,
            "seconds": round(ended - self.started, 2) if self.started else 0,
            "seconds_left": self.seconds_left,
            "created": self.created,
            "result": self.result,
            "error": self.error,
        }


class Watcher:
    """Collects which jobs changed; many changes of one job are one. Lives on the event loop."""

    def __init__(self, wanted: Callable[[Job], bool]) -> None:
        self.wanted = wanted
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._changed: dict[str, Job | None] = {}

    def mark(self, key: str, job: Job | None) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody watches any more
            self._loop.call_soon_threadsafe(self._mark, key, job)

    def _mark(self, key: str, job: Job | None) -> None:
        self._changed[key] = job
        self._event.set()

    async def next(self, timeout: float | None = None) -> dict[str, Job | None]:
        """Changed jobs by id, news under their own key (without a job); empty after TIMEOUT seconds."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout)
        except TimeoutError:
            return {}
        self._event.clear()
        changed, self._changed = self._changed, {}
        return changed


class Jobs:
    def __init__(self, workers: Mapping[str, int], *, kept: int = KEPT, kept_seconds: float = KEPT_SECONDS) -> None:
        """WORKERS: how many jobs each of them does at a time."""
        self.kept, self.kept_seconds = kept, kept_seconds
        self._all: dict[str, Job] = {}
        self._queues: dict[str, list[Job]] = {name: [] for name in workers}
        self._running: dict[str, list[Job]] = {name: [] for name in workers}
        self._turn = threading.Condition()
        self._watchers: set[Watcher] = set()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(name,), name=f"opsmith-{name}", daemon=True)
            for name, count in workers.items()
            for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    # --- asking ------------------------------------------------------------------------------------------

    def submit(
        self,
        worker: str,
        kind: str,
        owner: str,
        work: Callable[[Job], dict[str, Any]],
        *,
        title: str = "",
        background: bool = False,
    ) -> Job:
        job = Job(worker, kind, owner, work, title, background, self._changed)
        with self._turn:
            self._expire()
            queue = self._queues[worker]
            if len(queue) >= LONGEST_QUEUE:
                raise QueueFull(f"{len(queue)} jobs are waiting already", "try again in a while")
            for running in self._running[worker]:
                if running.background and not background:
                    running.stop.set()
            self._all[job.id] = job
            queue.append(job)
            self._turn.notify_all()
        self._changed(job)
        return job

    def cancel(self, job: Job) -> None:
        """A waiting job leaves the queue at once, a running one ends within a step."""
        with self._turn:
            job.stop.set()
            queue = self._queues[job.worker]
            if job in queue:
                queue.remove(job)
                job.state, job.finished = "cancelled", time.time()
            waiting = list(queue)
        for other in (job, *waiting):
            self._changed(other)

    def forget(self, job: Job) -> None:
        """A job that has ended leaves the list; watchers hear of it as `gone ID`."""
        with self._turn:
            if job.state not in FINISHED or self._all.pop(job.id, None) is None:
                return
        for watcher in tuple(self._watchers):
            if watcher.wanted(job):
                watcher.mark(f"gone {job.id}", None)

    def get(self, identity: str) -> Job | None:
        return self._all.get(identity)

    def of(self, owner: str) -> list[Job]:
        with self._turn:
            self._expire()
            return [job for job in self._all.values() if job.shown_to(owner)]

    def position(self, job: Job) -> int | None:
        """How many jobs are before it; None once it runs."""
        with self._turn:
            queue = self._queues[job.worker]
            if job not in queue:
                return None
            return queue.index(job) + any(not running.background for running in self._running[job.worker])

    def snapshot(self, job: Job) -> dict[str, Any]:
        return job.snapshot(self.position(job))

    def busy(self) -> dict[str, int]:
        """Jobs that run or wait, per worker."""
        with self._turn:
            return {
                name: len(queue) + sum(not running.background for running in self._running[name])
                for name, queue in self._queues.items()
            }

    def close(self) -> None:
        """Cancel everything; the workers end with their next step, watchers are told."""
        with self._turn:
            self._closed = True
            waiting = [job for queue in self._queues.values() for job in queue]
            for job in self._all.values():
                job.stop.set()
            for queue in self._queues.values():
                queue.clear()
            for job in waiting:
                job.state, job.finished = "cancelled", time.time()
            self._turn.notify_all()
        for job in waiting:
            self._changed(job)
        self.news("closed")

    @property
    def closed(self) -> bool:
        return self._closed

    def join(self, seconds: float) -> bool:
        """After `close`: wait for the workers. False if one is still busy, say with loading a large model."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    # --- watching ----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def watch(self, wanted: Callable[[Job], bool]) -> AsyncIterator[Watcher]:
        watcher = Watcher(wanted)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def news(self, key: str) -> None:
        """Tell all watchers of something that is no job."""
        for watcher in tuple(self._watchers):
            watcher.mark(key, None)

    def _changed(self, job: Job) -> None:
        for watcher in tuple(self._watchers):
            if watcher.wanted(job):
                watcher.mark(job.id, job)

    # --- working -----------------------------------------------------------------------------------------

    def _serve(self, name: str) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._closed or self._queues[name])
                if self._closed:
                    return
                job = self._queues[name].pop(0)
                self._running[name].append(job)
                waiting = list(self._queues[name])
                job.state, job.started = "running", time.time()
            for other in (job, *waiting):
                self._changed(other)
            self._work(job)
            with self._turn:
                self._running[name].remove(job)
                waiting = list(self._queues[name])
            for other in (job, *waiting):
                self._changed(other)

    @staticmethod
    def _work(job: Job) -> None:
        try:
            job.result = job.work(job)
            state = "done"
        except Cancelled:
            state = "cancelled"
        except OpsmithError as error:
            state, job.error = "failed", str(error)
        except MemoryError:
            state, job.error = "failed", "not enough memory (choose a smaller size or fewer pictures)"
        except Exception as error:  # a mistake of ours must not end the worker; the next job runs
            traceback.print_exc(file=sys.stderr)
            state, job.error, job.our_fault = "failed", f"internal error: {type(error).__name__}: {error}", True
        del job.work  # what it holds (uploaded pictures, masks) is no longer needed
        job.finished = time.time()
        job.state = state

    def _expire(self) -> None:
        old = [job for job in self._all.values() if job.state in FINISHED]
        limit = time.time() - self.kept_seconds
        for i, job in enumerate(old):
            if job.finished < limit or i < len(old) - self.kept:
                del self._all[job.id]


def jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=90)
    return file.getvalue()
