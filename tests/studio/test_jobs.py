"""Jobs: order, place in the queue, cancelling, failing, expiry, watchers."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from PIL import Image

from opsmith.errors import OpsmithError
from opsmith.studio.jobs import LONGEST_QUEUE, Job, Jobs, QueueFull


def wait(job: Job, *states: str) -> None:
    until = time.monotonic() + 20
    while job.state not in states:
        assert time.monotonic() < until, f"{job.state} instead of {states}"
        time.sleep(0.002)


def ended(job: Job) -> None:
    wait(job, "done", "failed", "cancelled")


class Gate:
    """Work that goes on, step by step, until it is let through or cancelled."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self, job: Job) -> dict[str, Any]:
        step = 0
        while not self.open.wait(0.002):
            step += 1
            job.tell(step=step, total=step + 10)
        return {"answer": 42}


def test_one_at_a_time_per_worker_in_order_with_places_in_the_queue() -> None:
    jobs, gate, order = Jobs({"a": 1, "b": 1}), Gate(), []
    first = jobs.submit("a", "k", "o", gate)
    wait(first, "running")
    later = [jobs.submit("a", "k", "o", lambda job, i=i: order.append(i) or {}) for i in range(3)]  # type: ignore[misc]
    assert [jobs.position(j) for j in (first, *later)] == [None, 1, 2, 3]
    other = jobs.submit("b", "k", "o", lambda job: {})  # another model does not wait
    ended(other)
    assert [j.state for j in later] == ["queued"] * 3
    assert jobs.busy() == {"a": 4, "b": 0}
    gate.open.set()
    ended(later[-1])
    assert order == [0, 1, 2]
    assert first.result == {"answer": 42}
    jobs.close()


def test_a_waiting_job_is_cancelled_at_once_and_the_others_move_up() -> None:
    jobs, gate = Jobs({"a": 1}), Gate()
    first = jobs.submit("a", "k", "o", gate)
    wait(first, "running")
    second, third = (jobs.submit("a", "k", "o", lambda job: {}) for _ in range(2))
    jobs.cancel(second)
    assert second.state == "cancelled"
    assert jobs.position(third) == 1
    gate.open.set()
    ended(third)
    assert third.state == "done"
    jobs.close()


def test_a_running_job_ends_at_its_next_step_and_frees_the_worker() -> None:
    jobs, gate = Jobs({"a": 1}), Gate()
    job = jobs.submit("a", "k", "o", gate)
    wait(job, "running")
    jobs.cancel(job)
    ended(job)
    assert job.state == "cancelled"
    after = jobs.submit("a", "k", "o", lambda job: {"fine": True})
    ended(after)
    assert after.result == {"fine": True}
    jobs.close()


def test_failures_have_a_clear_message_and_the_next_job_works(capsys: pytest.CaptureFixture[str]) -> None:
    def users(job: Job) -> dict[str, Any]:
        raise OpsmithError("the prompt is empty", "say something")

    def ours(job: Job) -> dict[str, Any]:
        raise ZeroDivisionError("oh")

    jobs = Jobs({"a": 1})
    for work, words in (
        (users, "the prompt is empty (say something)"),
        (ours, "internal error: ZeroDivisionError: oh"),
    ):
        job = jobs.submit("a", "k", "o", work)
        ended(job)
        assert (job.state, job.error) == ("failed", words)
    assert "ZeroDivisionError" in capsys.readouterr().err  # the server's log has the trace
    good = jobs.submit("a", "k", "o", lambda job: {})
    ended(good)
    assert good.state == "done"
    jobs.close()


def test_a_background_job_gives_way() -> None:
    jobs, gate = Jobs({"a": 1}), Gate()
    background = jobs.submit("a", "warm-up", "", gate, background=True)
    wait(background, "running")
    real = jobs.submit("a", "k", "o", lambda job: {})
    ended(real)
    assert (real.state, background.state) == ("done", "cancelled")
    jobs.close()


def test_old_jobs_expire_by_number_and_by_age() -> None:
    jobs = Jobs({"a": 1}, kept=3, kept_seconds=1000)
    made = [jobs.submit("a", "k", "o", lambda job: {}) for _ in range(6)]
    ended(made[-1])
    assert jobs.of("o") == made[3:]
    made[3].finished -= 2000
    assert jobs.of("o") == made[4:]
    assert jobs.get(made[0].id) is None
    jobs.close()


def test_the_queue_has_an_end() -> None:
    jobs, gate = Jobs({"a": 1}), Gate()
    first = jobs.submit("a", "k", "o", gate)
    wait(first, "running")
    for _ in range(LONGEST_QUEUE):
        jobs.submit("a", "k", "o", lambda job: {})
    with pytest.raises(QueueFull, match="jobs are waiting already"):
        jobs.submit("a", "k", "o", lambda job: {})
    gate.open.set()
    jobs.close()


def test_a_watcher_sees_the_present_state_of_its_own_jobs_only() -> None:
    async def watch() -> tuple[list[str], dict[str, Any]]:
        jobs = Jobs({"a": 1})
        async with jobs.watch(lambda job: job.owner == "me") as watcher:
            theirs = jobs.submit("a", "k", "them", lambda job: {})
            mine = jobs.submit("a", "k", "me", lambda job: job.say(0, "hel") or job.say(0, "lo") or {})
            seen: list[str] = []
            while mine.state != "done" or not seen:
                seen += await watcher.next(5)
            assert theirs.id not in seen
            assert await watcher.next(0.05) in ({}, {mine.id: mine})  # the last change may come behind the state
        shown = jobs.snapshot(mine)
        jobs.close()
        return seen, shown

    seen, shown = asyncio.run(watch())
    assert len(set(seen)) == 1
    assert (shown["texts"], shown["state"], shown["position"]) == (["hello"], "done", None)


def test_previews_cost_at_most_a_fifth_of_the_time() -> None:
    job = Job("a", "k", "o", lambda job: {})
    made = 0

    def slow() -> Image.Image:
        nonlocal made
        made += 1
        time.sleep(0.1)
        return Image.new("RGB", (8, 8), "red")

    started = time.time()
    for step in range(1, 200):
        time.sleep(0.005)
        assert job.on_step(step, 200, slow)
    spent = time.time() - started
    assert made >= 2
    assert made * 0.1 < 0.3 * spent
    assert job.preview is not None
    assert job.preview.startswith(b"\xff\xd8")
    job.stop.set()
    assert job.on_step(200, 200, slow) is False
