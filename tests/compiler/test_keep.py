"""Timings beside other programs: taken again, a bounded number of times, and marked if that did not help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_models import mlp, save

import opsmith
from opsmith.compiler import keep


class Fake:
    """A judge whose machine is busy for the first timings."""

    def __init__(self, busy: int) -> None:
        self.busy, self.asked = busy, 0

    def time(self, compiled: Path) -> keep.Timing:
        self.asked += 1
        return keep.Timing(2.0, 1.0, float(self.asked), self.asked <= self.busy, 1)


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "AGAIN", 2)
    monkeypatch.setattr(keep, "WAIT", 0.0)


@pytest.mark.parametrize(("busy", "asked", "marked"), [(0, 1, False), (1, 2, False), (2, 3, False), (99, 3, True)])
def test_a_busy_timing_is_taken_again_a_bounded_number_of_times(busy: int, asked: int, marked: bool) -> None:
    judge, waits = Fake(busy), []
    timing = keep.time_when_quiet(judge, Path("model.onnx"), waits.append)  # type: ignore[arg-type]
    assert (judge.asked, timing.taken, timing.busy) == (asked, asked, marked)
    assert timing.ratio == asked  # that of the last timing, not of the disturbed ones
    assert waits == [keep.WAIT] * (asked - 1)


def test_a_remark_says_how_often_and_how_it_ended() -> None:
    assert keep.remark(keep.Timing(1, 1, 1, busy=False)) is None
    ended = "measured 2 times, until other programs were out of the way"
    assert ended in (keep.remark(keep.Timing(1, 1, 1, busy=False, taken=2)) or "")
    assert "3 times, and other programs were in the way each time" in (
        keep.remark(keep.Timing(1, 1, 1, busy=True, taken=3)) or ""
    )


def test_a_decision_that_stayed_busy_is_marked_in_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Fake(99)
    monkeypatch.setattr(keep.Judge, "time", lambda _, compiled: judge.time(compiled))
    source = save(mlp(16, 1), tmp_path / "net" / "plain")
    result = opsmith.compile(source, tmp_path / "net" / "compiled")
    assert judge.asked == 3 and result.timing is not None and result.timing.busy
    record = json.loads((tmp_path / "net" / "compiled" / "opsmith.json").read_text())
    assert record["compiled"]["measured"]["busy"] and record["compiled"]["measured"]["taken"] == 3
    assert [r for r in record["compiled"]["remarks"] if "measured 3 times" in r]


def test_runs_of_seconds_take_fewer_turns() -> None:
    turns = {once: next(n for n in range(100) if keep._enough(n, n * once)) for once in (0.001, 0.1, 1.0, 20.0)}
    assert turns == {0.001: 60, 0.1: 15, 1.0: 5, 20.0: 3}
