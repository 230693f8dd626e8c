from __future__ import annotations

import pytest

from opsmith.measure import worker


class Clock:
    """A process whose pool spins on one core until it goes to sleep at ASLEEP."""

    def __init__(self, asleep: float) -> None:
        self.now, self.asleep = 0.0, asleep

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return min(self.now, self.asleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("asleep", "until"),
    [(0.0, 0.01), (0.03, 0.04), (9.0, 0.5)],
    ids=["sleeps at once", "spins for 30 ms", "never sleeps"],
)
def test_a_turn_ends_when_its_thread_pool_sleeps(monkeypatch, asleep, until):
    """A pool that still spins would run on the cores on which the next variant is timed."""
    clock = Clock(asleep)
    monkeypatch.setattr(worker, "time", clock)
    worker._settle(limit=0.5)
    assert clock.now == pytest.approx(until, abs=0.011)
