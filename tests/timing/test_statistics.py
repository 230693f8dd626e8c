"""The statistics of `bench`, on simulated machines whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from opsmith.timing.statistics import paired_ratio, summarize


def simulate(rng: np.random.Generator, ratio: float, *, groups: int = 5, rounds: int = 8, layout: float = 0.003):
    """Times of a variant that is RATIO times as slow: drift shared by a round, luck shared by a pair of processes,
    noise of each turn, and one turn in ten hit by a neighbour for up to half its length."""
    found = []
    for _ in range(groups):
        luck = rng.normal(0, layout, 2)
        drift = np.cumsum(rng.normal(0, 0.02, rounds))  # slow clock changes, the same for both
        noise = rng.normal(0, 0.01, (2, rounds)) + rng.exponential(0.2, (2, rounds)) * (rng.random((2, rounds)) < 0.1)
        variant, first = np.exp(drift + luck[:, None] + noise)
        found.append((variant * ratio * 1e-3, first * 1e-3))
    return found


def test_interval_of_identical_copies_contains_one_in_19_of_20_runs():
    rng = np.random.default_rng(7)
    runs = [paired_ratio(simulate(rng, 1.0)) for _ in range(600)]
    assert np.mean([not r.differs for r in runs]) >= 0.95


def test_a_five_percent_slow_down_is_found():
    rng = np.random.default_rng(8)
    runs = [paired_ratio(simulate(rng, 1.05)) for _ in range(100)]
    assert np.mean([r.low > 1.0 for r in runs]) >= 0.95
    assert np.mean([r.low <= 1.05 <= r.high for r in runs]) >= 0.95
    assert np.median([r.value for r in runs]) == pytest.approx(1.05, rel=0.005)


def test_luck_of_one_pair_of_processes_would_be_taken_for_a_difference():
    """Why processes are started anew: with one pair only, the interval is too narrow for what it does not see."""
    rng = np.random.default_rng(9)
    one = [paired_ratio(simulate(rng, 1.0, groups=1, rounds=40, layout=0.02)) for _ in range(200)]
    five = [paired_ratio(simulate(rng, 1.0, groups=5, rounds=8, layout=0.02)) for _ in range(200)]
    assert np.mean([not r.differs for r in one]) < 0.7
    assert np.mean([not r.differs for r in five]) >= 0.93


def test_drift_of_the_machine_cancels_in_paired_rounds():
    drift = np.linspace(1.0, 3.0, 30)
    result = paired_ratio([(1.1 * drift, drift)])
    assert (result.value, result.low, result.high) == pytest.approx((1.1, 1.1, 1.1))
    assert result.rounds == 30


def test_one_wild_round_does_not_move_the_ratio():
    times = np.full(21, 1.0)
    wild = times.copy()
    wild[3] = 50.0
    assert paired_ratio([(wild, times)]).value == pytest.approx(1.0)


def test_the_same_numbers_give_the_same_interval():
    groups = simulate(np.random.default_rng(1), 1.02)
    assert paired_ratio(groups, seed=3) == paired_ratio(groups, seed=3)


def test_percentiles_are_those_of_numpy():
    times = np.random.default_rng(0).random(101)
    found = summarize(times.tolist())
    assert (found.p5, found.median, found.p95) == pytest.approx(tuple(np.percentile(times, [5, 50, 95])))
    assert (found.minimum, found.count) == (times.min(), 101)
