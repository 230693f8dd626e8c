"""A studio on a free port, in a thread of this process, so that tests can look at its jobs."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import uvicorn

from opsmith.studio import server
from opsmith.studio.core import Studio
from opsmith.studio.jobs import Job


@dataclasses.dataclass
class Running:
    url: str
    studio: Studio
    stop: Callable[[], None]

    def visitor(self) -> httpx.Client:
        return visitor_of(self.url)

    def done(self, client: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
        return ended(client, answer)


def visitor_of(url: str) -> httpx.Client:
    """A browser without a page: it has the session cookie."""
    return httpx.Client(base_url=url, timeout=120, cookies=httpx.get(url).cookies)


def ended(client: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
    """The job that ANSWER started, once it has ended."""
    assert answer.status_code == 202, answer.text
    until = time.monotonic() + 240
    while time.monotonic() < until:
        job: dict[str, Any] = client.get(f"/api/jobs/{answer.json()['id']}").json()
        if job["state"] in ("done", "failed", "cancelled"):
            return job
        time.sleep(0.03)
    raise AssertionError("the job did not end")


def begin(studio: Studio, **options: Any) -> Running:
    config = uvicorn.Config(server.make_app(studio, **options), log_level="error", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    listening = server._listen("127.0.0.1", 0)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)

    def stop() -> None:
        running.should_exit = True
        thread.join(10)

    return Running(f"http://127.0.0.1:{listening.getsockname()[1]}", studio, stop)


class Hold:
    """Holds the picture model after a step, so that what is seen meanwhile needs no luck and no long picture."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._there = threading.Event()

    def at(self, step: int) -> None:
        """Wait after STEP until `release`, another `at`, or until the job is cancelled. What is held now goes on."""
        self._there.clear()
        self._step = step

    def reached(self) -> None:
        assert self._there.wait(180), "no picture came to that step"

    def release(self) -> None:
        self._step = None

    def look(self, job: Job, step: int) -> None:
        if step == self._step:
            self._there.set()
        while step == self._step and not job.stop.is_set():
            time.sleep(0.01)
        if job.stop.is_set():
            self._step = None
