"""Statistics of timings on machines that are not quiet.

One round times every variant once, in a random order, so each round gives one ratio  r = time(variant) / time(first)
in which slow drift of the machine cancels. Rounds are grouped by the processes that took them: two processes that
run the same model differ by the luck of their memory layout, and no number of rounds within one pair of processes
averages that away. The interval of the ratio is therefore the wider of

1. the percentile bootstrap of the median of all rounds (noise from round to round), and
2. Student's t over the medians of the groups (noise from process to process), with three groups or more.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

RESAMPLES = 4000
# Student's t, 97.5 %, by degrees of freedom 1, 2, ...; beyond the table the normal value is close enough.
_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A ratio of times and its 95 % confidence interval."""

    value: float
    low: float
    high: float
    rounds: int

    @property
    def differs(self) -> bool:
        """Whether the interval leaves 1.0 out."""
        return not self.low <= 1.0 <= self.high


@dataclasses.dataclass(frozen=True)
class Summary:
    """Seconds of one run."""

    median: float
    p5: float
    p95: float
    minimum: float
    count: int


def summarize(seconds: Sequence[float]) -> Summary:
    times = np.asarray(seconds, float)
    p5, median, p95 = np.percentile(times, [5, 50, 95])
    return Summary(float(median), float(p5), float(p95), float(times.min()), len(times))


def paired_ratio(groups: Sequence[tuple[Sequence[float], Sequence[float]]], seed: int = 0) -> Ratio:
    """The ratio of paired times. Each group is (times of the variant, times of the first), round by round."""
    logs = [np.log(np.asarray(a, float)) - np.log(np.asarray(b, float)) for a, b in groups if len(a)]
    if not logs:
        raise ValueError("no rounds")
    every = np.concatenate(logs)
    centre = float(np.median(every))
    low, high = _bootstrap(every, seed)
    if len(logs) >= 3:
        medians = np.array([np.median(group) for group in logs])
        # Round noise enters the spread of the medians too; it is only ever too wide, never too narrow.
        half = _t975(len(logs) - 1) * float(medians.std(ddof=1)) / math.sqrt(len(logs))
        low, high = min(low, float(medians.mean()) - half), max(high, float(medians.mean()) + half)
    return Ratio(math.exp(centre), math.exp(min(low, centre)), math.exp(max(high, centre)), len(every))


def _bootstrap(values: Array, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    drawn = values[rng.integers(0, len(values), (RESAMPLES, len(values)))]  # (resamples, rounds)
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(low), float(high)


def _t975(freedom: int) -> float:
    return _T975[freedom - 1] if freedom <= len(_T975) else 1.96 + 2.5 / freedom
