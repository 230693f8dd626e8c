"""Who else used the CPU: was a sample taken while other processes ran?

Three readings of the kernel, taken before and after a sample:

- run delay: how long this process's threads were runnable but waited for a core (/proc/self/task/*/schedstat, ns).
  The sharpest of the three: it counts exactly what was taken away from this sample.
- steal: time that the hypervisor gave to other machines (/proc/stat, ticks of 10 ms).
- other CPU time: busy time of all cores less this process's own (/proc/stat, ticks of 10 ms). It sees neighbours
  that share memory bandwidth or clock even when they do not take a core away.

Where the kernel offers none of them (not Linux), nothing is marked and `available()` says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from pathlib import Path

DELAY_LIMIT = 0.03  # share of wall time, per thread in use
STEAL_LIMIT = 0.03  # share of the cores' time
OTHERS_LIMIT = 0.10  # share of the cores' time
_TICK = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


@dataclasses.dataclass(frozen=True)
class Reading:
    wall: float
    own: float  # CPU seconds of this process
    delay: float  # seconds spent runnable but waiting
    busy: float  # CPU seconds of everyone on the cores this process may use
    steal: float


@dataclasses.dataclass(frozen=True)
class Use:
    """What happened between two readings, in seconds."""

    wall: float = 0.0
    own: float = 0.0
    delay: float = 0.0
    others: float = 0.0  # may be a tick or two below zero, so that sums stay right
    steal: float = 0.0

    def __add__(self, more: Use) -> Use:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(more))
        return Use(*(a + b for a, b in pairs))

    def contaminated(self, threads: int, cores: int) -> bool:
        # One tick more or less is the resolution of /proc/stat, not a neighbour.
        return (
            self.delay > DELAY_LIMIT * self.wall * threads
            or self.steal - _TICK > STEAL_LIMIT * self.wall * cores
            or self.others - _TICK > OTHERS_LIMIT * self.wall * cores
        )


def available() -> bool:
    return Path("/proc/stat").exists()


def read() -> Reading:
    busy, steal = _machine_times()
    return Reading(time.perf_counter(), time.process_time(), _run_delay(), busy, steal)


def between(before: Reading, after: Reading) -> Use:
    own = after.own - before.own
    return Use(
        wall=after.wall - before.wall,
        own=own,
        delay=after.delay - before.delay,
        others=after.busy - before.busy - own if after.busy else 0.0,
        steal=after.steal - before.steal,
    )


class Neighbours:
    """How many cores other programs kept busy since this was made; processes that this one started are not others."""

    def __init__(self) -> None:
        self._before = read()
        self._children = self._of_children()

    @property
    def cores(self) -> float:
        use = between(self._before, read())
        return max(0.0, use.others + use.steal - (self._of_children() - self._children)) / max(use.wall, _TICK)

    @staticmethod
    def _of_children() -> float:
        times = os.times()
        return times.children_user + times.children_system


def _run_delay() -> float:
    total = 0
    with contextlib.suppress(OSError):
        for task in os.scandir("/proc/self/task"):
            with contextlib.suppress(OSError, IndexError, ValueError):  # a thread may end while we look
                total += int(Path(task.path, "schedstat").read_text().split()[1])
    return total * 1e-9


def _machine_times() -> tuple[float, float]:
    """(busy, stolen) seconds of the cores that this process may use."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    busy = steal = 0
    for line in lines:
        name, *fields = line.split()
        if name in mine:
            user, nice, system, _idle, _iowait, irq, softirq, stolen = (int(f) for f in fields[:8])
            busy += user + nice + system + irq + softirq
            steal += stolen
    return busy * _TICK, steal * _TICK
