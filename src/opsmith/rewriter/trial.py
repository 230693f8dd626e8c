"""How fast is a model, and is a change a gain? Two sessions take turns, so that both see the same machine.

They take turns in going first, and their threads do not spin: a session that waits for work by spinning would slow down
the other one.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from pathlib import Path
from typing import Any

import onnxruntime as ort

from opsmith import session


@dataclasses.dataclass(frozen=True)
class Speed:
    """Median times of two models that took turns, in milliseconds, and how sure the difference is."""

    before: float
    after: float
    noise: float  # of the difference: its standard error, from the median deviation

    @property
    def gain(self) -> float:
        """Milliseconds saved."""
        return self.before - self.after

    @property
    def faster(self) -> bool:
        return self.gain > 2 * self.noise

    @property
    def slower(self) -> bool:
        return -self.gain > 2 * self.noise


def compare(
    before: Path, after: Path, feeds: dict[str, Any], *, seconds: float = 2.0, threads: int | None = None
) -> Speed:
    """Run both in turns for about SECONDS, at least five times each."""
    still = {"session.intra_op.allow_spinning": "0"}
    pair = [session.load(p, threads=threads, config=still) for p in (before, after)]
    for one in pair:
        session.run(one, feeds)
    times: tuple[list[float], list[float]] = ([], [])
    started = time.perf_counter()
    while len(times[0]) < 5 or (time.perf_counter() - started < seconds and len(times[0]) < 200):
        for turn in (0, 1) if len(times[0]) % 2 == 0 else (1, 0):
            times[turn].append(_once(pair[turn], feeds))
    differences = [a - b for a, b in zip(*times)]
    middle = statistics.median(differences)
    deviation = statistics.median(abs(d - middle) for d in differences)
    noise = 1.4826 * deviation / len(differences) ** 0.5
    before_ms = statistics.median(times[0])
    return Speed(before_ms, before_ms - middle, noise)


def _once(one: ort.InferenceSession, feeds: dict[str, Any]) -> float:
    started = time.perf_counter()
    one.run(None, feeds)
    return (time.perf_counter() - started) * 1000
