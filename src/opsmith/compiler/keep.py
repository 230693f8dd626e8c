"""Keep: what was compiled stays only where it was measured to be faster than what it replaces.

Source and compiled model run in processes of their own, in turns, on the inputs that the model is judged with. Both are then
profiled, and each kernel is laid beside the nodes of ONNX Runtime that do the same work: those that lose clearly are handed
back, the model is cut again without them, and the fastest of the cuts is kept. What is measured beside other programs is
measured again, a few times; if they stay, the timing says so.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opsmith import machine, settings, store
from opsmith.check.origins import read_graph
from opsmith.timing import contention
from opsmith.timing.rows import LONG, GroupDifference, Row, side_by_side, time_rows
from opsmith.timing.worker import Worker

SLACK = 1.02  # timing noise that is not held against the compiled model
SECONDS, LONGEST = 1.5, 10.0  # of measuring: five turns of each side at least, or three if five take longest
TURN = 0.02  # seconds; shorter runs are repeated
# A kernel is handed back if it loses this much: a share of the whole run, a share of its own time, microseconds.
LOSS_OF_RUN, LOSS_OF_KERNEL, LOSS_US = 0.02, 0.2, 10.0
AGAIN, WAIT = 2, 2.0  # times that a timing beside other programs is taken again, and seconds before each
LEAST_GAIN = 0.03  # of a run: what handing back must promise for another cut to be worth its time


@dataclasses.dataclass(frozen=True)
class Timing:
    """Medians in seconds; `ratio` is the median over pairs of turns, above 1 where the compiled model is faster."""

    before: float
    after: float
    ratio: float
    busy: bool  # other processes used the CPU meanwhile
    threads: int = 0
    taken: int = 1  # how often it was measured, until no other process was in the way or AGAIN was used up

    @property
    def slower(self) -> bool:
        return self.ratio * SLACK < 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "before": self.before,
            "after": self.after,
            "speedup": self.ratio,
            "busy": self.busy,
            "threads": self.threads,
            "taken": self.taken,
        }


class Judge:
    """Measures compiled models against their source, always on the same inputs."""

    def __init__(self, source: Path, feed: dict[str, Any], scratch: Path) -> None:
        self.source = source
        self.threads = settings.get().threads or machine.cores()
        self._inputs = scratch / "judged"
        self._shapes = {name: array.shape for name, array in feed.items()}
        store.write_test_data(self._inputs, feed, {})
        self._reference = read_graph(source)
        self._rows_of_source: list[Row] | None = None

    def time(self, compiled: Path) -> Timing:
        with Worker("source", self.threads) as before, Worker("compiled", self.threads) as after:
            for worker, path in ((before, self.source), (after, compiled)):
                worker.ask("load", **self._order(path))
                worker.ask("first")
            runs = [_runs(w) for w in (before, after)]
            pairs: list[tuple[float, float]] = []
            use = contention.Use()
            started = time.monotonic()
            while not _enough(len(pairs), time.monotonic() - started):
                order = (before, after) if len(pairs) % 2 == 0 else (after, before)
                answers = {
                    w: w.ask("turn", runs=runs[w is after], warm=1 if runs[w is after] > 1 else 0) for w in order
                }
                pairs.append(tuple(statistics.median(answers[w]["seconds"]) for w in (before, after)))
                for answer in answers.values():
                    use += contention.Use(**answer["use"])
        medians = [statistics.median(side) for side in zip(*pairs)]
        busy = use.contaminated(self.threads, machine.cores())
        return Timing(medians[0], medians[1], statistics.median(b / a for b, a in pairs), busy, self.threads)

    def losers(self, compiled: Path) -> list[GroupDifference]:
        """Groups of nodes that run slower compiled than in ONNX Runtime, clearly; the largest loss first."""
        if self._rows_of_source is None:
            self._rows_of_source = self._rows(self.source)
        mine = self._rows(compiled)
        whole = sum(row.us for row in self._rows_of_source)
        names = [node.name for node in self._reference.nodes]
        return [
            group
            for group in side_by_side(self._rows_of_source, mine, names)
            if group.nodes
            and group.a
            and group.difference > max(LOSS_OF_RUN * whole, LOSS_OF_KERNEL * group.a_us, LOSS_US)
        ]

    def promises(self, losers: Sequence[GroupDifference]) -> bool:
        """Whether another cut without them can be expected to pay."""
        assert self._rows_of_source is not None
        return sum(g.difference for g in losers) > LEAST_GAIN * sum(row.us for row in self._rows_of_source)

    def _rows(self, path: Path) -> list[Row]:
        with tempfile.TemporaryDirectory(prefix="opsmith-") as work:
            order = self._order(path)
            return time_rows(order, path.stem, Path(work), self._reference, self._shapes, seconds=SECONDS).rows

    def _order(self, path: Path) -> dict[str, Any]:
        return {
            "model": str(path.absolute()),
            "runtime": "ort",
            "threads": self.threads,
            "inputs": str(self._inputs.absolute()),
        }


def time_when_quiet(judge: Judge, compiled: Path, wait: Callable[[float], None] = time.sleep) -> Timing:
    """The first timing that other programs did not disturb; the last one, marked busy, if there is none."""
    timing = judge.time(compiled)
    while timing.busy and timing.taken <= AGAIN:
        wait(WAIT)
        timing = dataclasses.replace(judge.time(compiled), taken=timing.taken + 1)
    return timing


def remark(timing: Timing) -> str | None:
    """What is to be said of a timing that was taken more than once."""
    if timing.taken == 1:
        return None
    if timing.busy:
        return f"measured {timing.taken} times, and other programs were in the way each time: opsmith.json says so"
    return f"measured {timing.taken} times, until other programs were out of the way"


def _enough(turns: int, seconds: float) -> bool:
    return turns >= 60 or (turns >= 5 and seconds >= SECONDS) or (turns >= 3 and seconds >= LONGEST)


def _runs(worker: Worker) -> int:
    """How many runs make a turn."""
    once: float = min(worker.ask("turn", runs=1, warm=0)["seconds"])
    if once < LONG:
        once = min(worker.ask("turn", runs=2, warm=1)["seconds"])
    return max(1, min(500, round(TURN / max(once, 1e-6))))


def why(group: GroupDifference) -> str:
    """The reason that a node which was handed back shows."""
    return f"faster in ONNX Runtime ({group.a_us / 1e3:.2f} ms, compiled {group.b_us / 1e3:.2f})"
