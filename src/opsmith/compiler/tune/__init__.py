"""tune: per distinct kernel call, find by measuring what the analytical choice may have missed.

    calls      every tunable call of the lowered programs, with the sizes of the model's test data put in: a task
    database   tasks that this CPU has measured before are taken from it (database.py)
    measure    the others: candidates checked, then timed in turns (families.py says which, runner.py how)

The programs are then lowered once more with what was found. Given the same database the result is the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from opsmith import machine, progress, settings
from opsmith.compiler.build import Compiler
from opsmith.compiler.geometry import InstructionSet
from opsmith.compiler.program import Call, Program, Tunable
from opsmith.compiler.task import Candidate, Measured, Outcome, Task
from opsmith.compiler.tune.database import Database
from opsmith.compiler.tune.families import FAMILIES
from opsmith.sizes import estimate


@dataclasses.dataclass
class Tuning:
    """What tuning knows of a model, and what it did about it."""

    level: int
    threads: int
    outcomes: dict[str, Outcome] = dataclasses.field(default_factory=dict)  # node -> what was measured
    tasks: dict[str, Task] = dataclasses.field(default_factory=dict)  # node -> its task
    measured: int = 0  # distinct calls measured now
    known: int = 0  # distinct calls that the database had
    disturbed: int = 0  # of them, twice while other programs used the CPU: not kept
    stopped: bool = False  # by Ctrl-C: the rest keeps the analytical choice
    lines: list[Line] = dataclasses.field(default_factory=list)

    @property
    def before(self) -> float:
        return sum(line.before * line.calls for line in self.lines)

    @property
    def after(self) -> float:
        return sum(line.after * line.calls for line in self.lines)

    @property
    def changed(self) -> int:
        return sum(line.calls for line in self.lines if line.was != line.now)

    def to_dict(self) -> dict[str, Any]:
        """For opsmith.json."""
        return {
            "search": self.level,
            "threads": self.threads,
            "cpu": machine.cpu_model(),
            "distinct_calls": len(self.lines),
            "measured_now": self.measured,
            "from_database": self.known,
            "disturbed": self.disturbed,
            "stopped": self.stopped,
            "calls_changed": self.changed,
            "ms_before": round(self.before * 1e3, 4),
            "ms_after": round(self.after * 1e3, 4),
            "choices": [line.to_dict() for line in self.lines],
        }


@dataclasses.dataclass(frozen=True)
class Line:
    """One distinct call: what search 0 chooses and what is used now, with their times."""

    task: Task
    calls: int
    was: Candidate
    now: Candidate
    before: float
    after: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.task.family,
            "sizes": str(self.task),
            "calls": self.calls,
            "analytical": str(self.was),
            "chosen": str(self.now),
            "us_before": round(self.before * 1e6, 1),
            "us_after": round(self.after * 1e6, 1),
        }


def tune(
    programs: Sequence[Program],
    sizes: Mapping[str, int],
    *,
    level: int,
    isa: InstructionSet,
    compiler: Compiler,
    database: Database | None = None,
    threads: int | None = None,
) -> Tuning:
    """Outcomes for every node whose kernel can be tuned. SIZES are those of the dynamic dims."""
    database = database or Database()
    threads = threads or settings.get().threads or machine.cores()
    tuning = Tuning(level, threads)
    todo: dict[Task, Outcome | None] = {}
    for call in tunable_calls(programs):
        assert call.tunable is not None
        task = task_of(call.tunable, sizes)
        if task is not None:
            tuning.tasks[call.node] = task
            todo[task] = database.get(task, threads, level)
    tuning.known = sum(outcome is not None for outcome in todo.values())
    missing = [task for task, outcome in todo.items() if outcome is None]
    with _interruptible(tuning), progress.task("tuning", len(missing)) as step:
        from opsmith.compiler.tune.runner import measure

        for task in missing:
            outcome = measure(task, level, threads, isa, compiler)
            if outcome.disturbed:
                outcome = measure(task, level, threads, isa, compiler)
            if outcome.disturbed:
                tuning.disturbed += 1  # used now, and measured anew next time
            else:
                database.put(task, threads, outcome)  # at once: what is known stays known
            todo[task] = outcome
            tuning.measured += 1
            step(f"{task.family} {describe(task)}")
    for node, task in tuning.tasks.items():
        if (measured := todo[task]) is not None:
            tuning.outcomes[node] = measured
    return tuning


@contextlib.contextmanager
def _interruptible(tuning: Tuning) -> Iterator[None]:
    """Ctrl-C ends tuning, not the compilation: what is known is used, and kept."""
    try:
        yield
    except KeyboardInterrupt:
        tuning.stopped = True


def record(tuning: Tuning, before: Sequence[Program], after: Sequence[Program]) -> None:
    """Fill in what was gained: BEFORE is the analytical choice of every call, AFTER the tuned one."""
    was = {c.node: c.tunable for c in tunable_calls(before)}
    counts: dict[tuple[Task, Candidate, Candidate], int] = {}
    for call in tunable_calls(after):
        outcome, old = tuning.outcomes.get(call.node), was.get(call.node)
        if outcome is None or old is None or call.tunable is None:
            continue
        key = tuning.tasks[call.node], Candidate(old.kernel), call.tunable.limits or Candidate(call.tunable.kernel)
        counts[key] = counts.get(key, 0) + 1
    for (task, old_choice, new_choice), count in counts.items():
        outcome = next(o for n, o in tuning.outcomes.items() if tuning.tasks[n] == task)
        times = {m.candidate: m.seconds for m in outcome.best.values()}
        own = outcome.analytical
        before_seconds = own.get(old_choice.kernel, 0.0)
        after_seconds = times.get(new_choice, own.get(new_choice.kernel, before_seconds))
        tuning.lines.append(Line(task, count, old_choice, new_choice, before_seconds, after_seconds))
    tuning.lines.sort(key=lambda line: -line.before * line.calls)


def tunable_calls(programs: Sequence[Program]) -> list[Call]:
    return [c for p in programs for c in p.calls if c.tunable is not None]


def task_of(tunable: Tunable, sizes: Mapping[str, int]) -> Task | None:
    """The call with numbers for its sizes; None where one of them is empty."""
    fields: dict[str, int | str] = {}
    for name, value in tunable.sizes.items():
        fields[name] = value if isinstance(value, str) else estimate(value, sizes)
    may_be_zero = ("pad_top", "pad_left", "causal", "strict")
    if any(isinstance(v, int) and v <= 0 and name not in may_be_zero for name, v in fields.items()):
        return None
    return Task.of(tunable.family, fields)


def describe(task: Task) -> str:
    """The sizes that matter, for the progress bar and the table."""
    get: Callable[[str], Any] = task.__getitem__
    if task.family in ("gemm", "quantized"):
        return f"({get('m')}, {get('k')}) @ {get('storage')} ({get('k')}, {get('n')})"
    if task.family == "conv":
        image = f"{get('batch')}x{get('out_height')}x{get('out_width')}"
        return f"{get('kernel_h')}x{get('kernel_w')} {image} {get('channels')} -> {get('out_channels')}"
    return f"{get('batch')}x{get('heads')} {get('queries')}x{get('keys')}x{get('head_size')}"


__all__ = ["FAMILIES", "Database", "Measured", "Tuning", "describe", "record", "tune"]
