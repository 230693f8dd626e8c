"""Runs candidates: each is checked against numbers computed in double precision, then timed in turns with the others."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from opsmith import machine
from opsmith.compiler.build import Compiler, build
from opsmith.compiler.emit import Source
from opsmith.compiler.geometry import InstructionSet
from opsmith.compiler.task import Candidate, Measured, Outcome, Task
from opsmith.compiler.tune.families import FAMILIES, Array, Family, Problem
from opsmith.errors import OpsmithError
from opsmith.timing import contention

TURN = 2e-3  # seconds of a turn, at least: short kernels run several times in it
ROUNDS = {1: 5, 2: 9}  # turns of a candidate that is never dropped
SECONDS = {1: 2.0, 2: 12.0}  # of timing per task, after which the round in progress is the last
DROP = (2.5, 1.3, 1.12, 1.06, 1.04)  # after this many rounds: slower than the leader by this factor is out
WORTH = 0.98  # a candidate must beat its kernel's own choice by this much to replace it
FAR = 48 << 20  # bytes of weights to walk through, so that they come from memory as in a whole model
TOLERANCE = 3e-5  # of the result's scale, over double precision; 15 times what plain fp32 sums of 10000 terms show
# Winograd rounds in its transforms as well: its error grows with the channels (1e-5 at 2560)
TOLERANCES = {"conv2d_winograd4": 3e-4, "conv2d_winograd2": 1e-4, "conv2d_winograd4_stride2": 1e-4}


class Library:
    """The kernels of one family, loaded."""

    def __init__(self, path: Path, family: Family) -> None:
        loaded = ctypes.CDLL(str(path))
        self._time = loaded.opsmith_tune_time
        self._time.restype = ctypes.c_double
        self._workspace = loaded.opsmith_tune_workspace
        self._workspace.restype = ctypes.c_int64
        loaded.opsmith_tune_name.restype = ctypes.c_char_p
        count = int(loaded.opsmith_tune_count())
        self.kernels = {loaded.opsmith_tune_name(i).decode(): i for i in range(count)}
        self.family = family

    def workspace(self, candidate: Candidate, shape: Array) -> int:
        limits = _limits(candidate)
        return int(self._workspace(self.kernels[candidate.kernel], _pointer(shape), _pointer(limits)))

    def run(
        self,
        candidate: Candidate,
        shape: Array,
        data: Sequence[Array],
        threads: int,
        repeats: int = 1,
        copies: int = 1,
        first: int = 0,
    ) -> float:
        """Seconds of one run, the mean of REPEATS. Copy FIRST of the weights comes first, then the next ones."""
        pointers = (ctypes.c_void_p * 4)(*(a.ctypes.data for a in data))
        limits = _limits(candidate)
        bytes_of_copy = data[1].nbytes // copies
        return float(
            self._time(
                self.kernels[candidate.kernel],
                threads,
                _pointer(shape),
                _pointer(limits),
                pointers,
                ctypes.c_int64(repeats),
                ctypes.c_int64(copies),
                ctypes.c_int64(bytes_of_copy),
                ctypes.c_int64(first),
            )
        )


def _limits(candidate: Candidate) -> Array:
    return np.array([candidate.rows, candidate.panels], np.int64)


def _pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def shape_of(task: Task) -> Array:
    """The numbers of a task, in the order in which the family's C++ reads them."""
    return np.array([v for name, v in task.fields if not isinstance(v, str) and name != "strict"], np.int64)


@functools.cache
def library(name: str, compiler: Compiler, isa: InstructionSet) -> Library:
    """Built once per process; the object file comes from the build cache where it can."""
    family = FAMILIES[name]
    header = Path(__file__).with_name("runner.hpp").read_text(encoding="utf-8")
    includes = "".join(f'#include "{h}"\n' for h in family.headers)
    text = (
        f'{includes}#include "runner.hpp"\n\nnamespace opsmith::tune {{\nnamespace {{\n{family.source}\n'
        "Threads threads;\n}  // namespace\n}  // namespace opsmith::tune\n\n"
        "using namespace opsmith;\nusing namespace opsmith::tune;\n"
        '#define EXPORT extern "C" __attribute__((visibility("default")))\n'
        "EXPORT int opsmith_tune_count() { return sizeof(entries) / sizeof(entries[0]); }\n"
        "EXPORT const char* opsmith_tune_name(int i) { return entries[i].name; }\n"
        "EXPORT int64_t opsmith_tune_workspace(int i, const int64_t* shape, const int64_t* limits) {\n"
        "  return entries[i].workspace(shape, limits);\n}\n"
        "EXPORT double opsmith_tune_time(int i, int count, const int64_t* shape, const int64_t* limits, void* const* data,\n"
        "                                int64_t repeats, int64_t copies, int64_t copy_bytes, int64_t first) {\n"
        "  for (; threads.count < count; ++threads.count) {\n"
        "    pthread_t thread;\n"
        "    if (threads.count > 0) pthread_create(&thread, nullptr, &Threads::work, &threads);\n  }\n"
        "  return time_entry(entries[i], &threads, count, shape, limits, data, repeats, copies, copy_bytes, first);\n}\n"
    )
    sources = [Source("runner.hpp", header), Source(f"tune_{name}.cpp", text)]
    with tempfile.TemporaryDirectory() as folder:
        path = build(sources, Path(folder), Path(folder) / f"libtune_{name}.so", compiler=compiler, isa=isa)
        return Library(path, family)


def measure(task: Task, level: int, threads: int, isa: InstructionSet, compiler: Compiler) -> Outcome:
    """Check and time the candidates of a task."""
    loaded = library(task.family, compiler, isa)
    family = FAMILIES[task.family]
    candidates = family.candidates(task, level, isa)
    problem = family.problem(task, isa)
    shape = shape_of(task)
    y = np.zeros(problem.y_floats + 16, np.float32)
    space = np.zeros(max(loaded.workspace(c, shape) for c in candidates) + 64, np.uint8)
    weights: dict[str, tuple[Array, int]] = {}
    for kernel, packed in problem.weights.items():
        copies = max(1, min(16, FAR // max(1, packed.nbytes)))
        weights[kernel] = np.tile(packed, copies), copies
    del packed
    turns = Turns(loaded, shape, problem, y, space, weights, threads)
    alive = [c for c in candidates if turns.correct(c)]
    if not alive:
        raise OpsmithError(
            f"no kernel computes {task.family} {task} right", "report this; --search 0 compiles without tuning"
        )
    before = contention.read()
    times = race(alive, turns.take, ROUNDS[level], SECONDS[level])
    disturbed = _disturbed(before, threads)
    return dataclasses.replace(decide(times, level, len(candidates)), disturbed=disturbed)


def _disturbed(before: contention.Reading, threads: int) -> bool:
    use = contention.between(before, contention.read())
    return contention.available() and use.contaminated(threads, machine.cores())


class Turns:
    """One run or several of a candidate on its data."""

    def __init__(
        self,
        loaded: Library,
        shape: Array,
        problem: Problem,
        y: Array,
        space: Array,
        weights: dict[str, tuple[Array, int]],
        threads: int,
    ) -> None:
        self.loaded, self.shape, self.problem, self.y, self.space = loaded, shape, problem, y, space
        self.weights, self.threads = weights, threads
        self.repeats: dict[Candidate, int] = {}
        self.next = 0

    def take(self, candidate: Candidate) -> float:
        packed, copies = self.weights[candidate.kernel]
        repeats = self.repeats.get(candidate, 1)
        self.next += repeats
        data = (self.problem.x, packed, self.y, self.space)
        return self.loaded.run(candidate, self.shape, data, self.threads, repeats, copies, self.next - repeats)

    def correct(self, candidate: Candidate) -> bool:
        """Its result is right; and as a first run it says how often to run it in a turn."""
        self.y.fill(np.nan)
        seconds = self.take(candidate)
        error = self.problem.error(self.y[: self.problem.y_floats])
        if not np.isfinite(self.y[: self.problem.y_floats]).all():
            error = math.inf  # something was not written
        self.repeats[candidate] = max(1, min(200, math.ceil(TURN / max(seconds, 1e-7))))
        return error <= TOLERANCES.get(candidate.kernel, TOLERANCE)


def race(
    candidates: Sequence[Candidate], take: Callable[[Candidate], float], rounds: int, seconds: float
) -> dict[Candidate, float]:
    """Best time of each candidate. They take turns; who falls behind is dropped, but never the leading kernel's own choice of
    limits, which the gain is measured against."""
    best = dict.fromkeys(candidates, math.inf)
    running = list(candidates)
    started = time.perf_counter()
    for number in range(rounds):
        for candidate in running:
            best[candidate] = min(best[candidate], take(candidate))
        leader = min(running, key=lambda c: best[c])
        limit = best[leader] * DROP[min(number, len(DROP) - 1)]
        running = [c for c in running if best[c] <= limit or (c.kernel == leader.kernel and not c.limited)]
        if len(running) <= 1 or time.perf_counter() - started > seconds:
            break
    return best


def decide(times: dict[Candidate, float], level: int, tried: int) -> Outcome:
    """Per kernel the fastest candidate, or its own choice unless something clearly beats that."""
    best: dict[str, Measured] = {}
    analytical: dict[str, float] = {}
    for candidate, seconds in times.items():
        if not candidate.limited:
            analytical[candidate.kernel] = seconds
    for candidate, seconds in sorted(times.items(), key=lambda t: (t[1], str(t[0]))):
        own = analytical.get(candidate.kernel, math.inf)
        if candidate.kernel not in best:
            better = candidate.limited and seconds < own * WORTH
            best[candidate.kernel] = (
                Measured(candidate, seconds)
                if better or math.isinf(own)
                else Measured(Candidate(candidate.kernel), own)
            )
    return Outcome(level, best, analytical, tried)
