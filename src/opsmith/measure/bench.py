"""bench: variants side by side, interleaved round by round in separate warm processes.

    for each of a few sets of processes (one process per variant, started anew):
        load, first run, warm up
        for each round: every variant takes one turn of as many runs as fill 0.1 s, one at least,
            cut into slices that alternate in a random order, so that a hiccup of the machine meets all alike

All variants get the same threads and the same inputs. Turns during which other processes used the CPU are left out
and counted; such a round is taken again, up to a limit, and when too few clean ones remain all of them are used and
the result says so. The outputs of every variant are compared with the first one's.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import math
import os
import random
import statistics as plain_statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opsmith import machine, progress, provider, session, settings, store
from opsmith.check.differences import BOUNDS, OutputCheck, Tolerance, compare_arrays
from opsmith.check.feed import Given, judged_feed
from opsmith.check.flops import flops
from opsmith.check.verify import verify
from opsmith.errors import OpsmithError
from opsmith.measure import peak
from opsmith.plain import Shown
from opsmith.timing import contention, peers
from opsmith.timing.statistics import Ratio, Summary, paired_ratio, summarize
from opsmith.timing.worker import Worker

TURN_SECONDS = 0.1  # shorter turns would drown in the 10 ms ticks of /proc/stat
SLICES = 5  # of a turn
RERUN_LIMIT = 3  # at most this many times the wanted rounds are tried to get clean ones
LEAST_CLEAN = 0.5  # with fewer clean rounds than this share of the wanted ones, all rounds are used, and it is said

_COLUMNS = """
    variant runtime median_s p5_s p95_s speedup speedup_low speedup_high load_s first_s peak_rss size gflops
    share_of_peak samples disturbed left_out verified
""".split()


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One line of the table: a model file and the runtime that runs it."""

    label: str
    path: Path
    runtime: str = "ort"
    provider: Path | None = None  # the library of the execution provider, if it runs through that


@dataclasses.dataclass
class Entry:
    """What was measured of one candidate. Times in seconds, sizes in bytes."""

    label: str
    path: str
    runtime: str
    run: Summary
    speedup: Ratio  # time of the first over its own: above 1 is faster
    load: float
    first: float
    peak_rss: int
    base_rss: int  # before the model was loaded: Python and the runtime
    size: int
    samples: int  # turns taken
    disturbed: int  # of them, while other processes used the CPU
    left_out: int  # disturbed ones that do not count: all of them, unless too few clean ones remained
    flops: int | None
    share_of_peak: float | None
    errors: list[OutputCheck]  # its outputs compared with the first variant's
    rounds: list[float]  # seconds of one run in each round that counted

    @property
    def verified(self) -> bool:
        return all(error.ok for error in self.errors)

    @property
    def gflops(self) -> float | None:
        return None if self.flops is None else self.flops / self.run.median / 1e9


@dataclasses.dataclass(repr=False)
class BenchResult(Shown):
    entries: list[Entry]
    threads: int
    cpu: str
    processes: int
    inputs: dict[str, str]
    inputs_from: str
    clean: bool  # False: too few undisturbed rounds, all were used
    notes: list[str]
    seconds: float
    taken: list[_Round] = dataclasses.field(default_factory=list, repr=False)  # not in the JSON

    @property
    def verified(self) -> bool:
        return all(entry.verified for entry in self.entries)

    def ratio(self, label: str, over: str) -> Ratio:
        """Time of one variant over that of any other, with its interval: rounds pair them all."""
        names = [entry.label for entry in self.entries]
        return _ratio(self.taken, self.clean, names.index(label), names.index(over))

    def __getitem__(self, label: str) -> Entry:
        return next(entry for entry in self.entries if entry.label == label)

    def to_dict(self) -> dict[str, Any]:
        data = dataclasses.asdict(dataclasses.replace(self, taken=[]))
        del data["taken"]
        for entry, row in zip(self.entries, data["entries"]):
            row["verified"] = entry.verified
            row["gflops"] = entry.gflops
        return data

    def to_csv(self) -> str:
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for e in self.entries:
            gain = [e.speedup.value, e.speedup.low, e.speedup.high]
            row = [e.label, e.runtime, e.run.median, e.run.p5, e.run.p95, *gain, e.load, e.first, e.peak_rss, e.size]
            writer.writerow([*row, e.gflops, e.share_of_peak, e.samples, e.disturbed, e.left_out, e.verified])
        return lines.getvalue()


# --- what to bench ----------------------------------------------------------------------------------------


def find_candidates(
    paths: Sequence[store.PathLike | store.Variant], peer_names: Sequence[str] = (), via: str | None = None
) -> list[Candidate]:
    """A model folder stands for all its variants, anything else for itself; peers run the first plain model, and so does the
    execution provider."""
    if not paths:
        raise OpsmithError("nothing to bench", "give model files, variant folders or a model folder")
    found: list[Path] = []
    for where in paths:
        found += expand(where)
    for name in peer_names:
        peers.check(name)
    candidates = [Candidate(label, path) for label, path in zip(labels(found), found)]
    plain = [c for c in candidates if not store.libraries(c.path)]
    if peer_names and not plain:
        raise OpsmithError("peers cannot run a compiled variant", "give the variant it was compiled from as well")
    candidates += [Candidate(name, plain[0].path, name) for name in peer_names]
    if via is not None:
        if via != "ep":
            raise OpsmithError(f"via {via}: there is only ep, the execution provider")
        if not plain:
            raise OpsmithError("the execution provider runs models as they are", "give the one it was compiled from")
        candidates.append(Candidate(f"{plain[0].label} via ep", plain[0].path, provider=provider.ready(plain[0].path)))
    return candidates


def expand(where: store.PathLike | store.Variant) -> list[Path]:
    """The model files that a path means; a model folder means all its variants that can run."""
    if not isinstance(where, store.Variant):
        path = Path(where)
        if path.is_dir() and not list(path.glob("*.onnx")) and (inside := store.variants(path)):
            return [variant.path for variant in inside if store.is_built(variant.path)]
    return [store.find_model(where)]


def _unbuilt(paths: Sequence[store.PathLike | store.Variant]) -> list[str]:
    folders = [Path(p) for p in paths if not isinstance(p, store.Variant) and Path(p).is_dir()]
    return [
        v.name for f in folders if not list(f.glob("*.onnx")) for v in store.variants(f) if not store.is_built(v.path)
    ]


def labels(paths: Sequence[Path]) -> list[str]:
    """Short names that tell the models apart: the variant's, with as much of the path as is needed, or a number."""
    folders = [path.absolute().parent for path in paths]
    single = [len(list(folder.glob("*.onnx"))) == 1 for folder in folders]
    names = [folder.name if alone else path.stem for folder, path, alone in zip(folders, paths, single)]
    if len(set(names)) < len(names):
        names = [f"{f.parent.name}/{n}" if alone else f"{f.name}/{n}" for f, n, alone in zip(folders, names, single)]
    return [n if names.count(n) == 1 else f"{n} #{names[: i + 1].count(n)}" for i, n in enumerate(names)]


def choose_inputs(
    path: Path, shapes: Mapping[str, int | Sequence[int]] | None, seed: int, inputs: Given | None = None
) -> tuple[dict[str, np.ndarray[Any, Any]], str]:
    """The stored test data where there is some and no shape is asked for, else seeded random numbers."""
    judged = judged_feed(path, shapes, inputs, seed=seed)
    if judged.origin == "test data":
        check_fresh(path, store.open_model(path), judged.required())
    return judged.required(), judged.origin if judged.origin == "test data" else f"{judged.origin}, seed {seed}"


def check_fresh(path: Path, model: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Refuse test data that was made for another version of the model."""
    where = f"{path.parent / 'test_data_set_0'} is stale"
    hint = "export again, or delete it to use random inputs"
    values = {v.name: v for v in model.graph.inputs if v.name not in model.graph.initializers}
    if missing := sorted(set(values) - set(arrays)):
        raise OpsmithError(f"{where}: the model's input {missing[0]!r} is not in it", hint)
    if unknown := sorted(set(arrays) - {v.name for v in model.graph.inputs}):
        raise OpsmithError(f"{where}: the model has no input {unknown[0]!r}", hint)
    for name, value in values.items():
        shape, array = value.shape, arrays[name]
        if value.dtype is not None and value.dtype.numpy() != array.dtype:
            raise OpsmithError(f"{where}: input {name!r} is {array.dtype}, the model wants {value.dtype.name}", hint)
        if shape is None:
            continue
        fits = len(shape) == array.ndim and all(not isinstance(d, int) or d == n for d, n in zip(shape, array.shape))
        if not fits:
            raise OpsmithError(f"{where}: input {name!r} is {list(array.shape)}, the model wants {shape}", hint)


def check_same_inputs(candidates: Sequence[Candidate]) -> None:
    """All candidates must be fed alike; a wrong one is named before anything is started."""

    def signature(path: Path) -> dict[str, Any]:
        graph = store.open_model(path).graph
        return {v.name or "": v.dtype for v in graph.inputs if v.name not in graph.initializers}

    first = signature(candidates[0].path)
    for candidate in candidates[1:]:
        if (other := signature(candidate.path)) != first:
            odd = sorted(set(first.items()) ^ set(other.items()), key=str)[0][0]
            raise OpsmithError(
                f"{candidate.label} and {candidates[0].label} differ in input {odd!r}",
                "bench variants of one model, or name the models one run each",
            )


# --- measuring --------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Track:
    """What one candidate collects over all sets of processes."""

    candidate: Candidate
    load: list[float] = dataclasses.field(default_factory=list)
    first: list[float] = dataclasses.field(default_factory=list)
    peak_rss: list[int] = dataclasses.field(default_factory=list)
    base_rss: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Round:
    group: int  # which set of processes
    turns: dict[int, list[float]]  # candidate -> seconds of each run
    dirty: frozenset[int]  # candidates whose turn was disturbed


def bench(
    models: store.PathLike | store.Variant | Sequence[store.PathLike | store.Variant],
    *,
    peer: Sequence[str] = (),
    threads: int | None = None,
    rounds: int | None = None,
    processes: int | None = None,
    seconds: float = 30.0,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    inputs: Given | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    via: str | None = None,
) -> BenchResult:
    """Measure variants against the first one.

    ROUNDS and PROCESSES are chosen from the time one round takes and SECONDS, the time to spend on measuring. VIA "ep" adds the
    first plain model once more, through Opsmith's execution provider.
    """
    paths = [models] if isinstance(models, (str, os.PathLike, store.Variant)) else list(models)
    candidates = find_candidates(paths, peer, via)
    _check_numbers(threads=threads, rounds=rounds, processes=processes)
    check_same_inputs(candidates)
    threads = settings.get(threads=threads).threads or machine.cores()
    feed, origin = choose_inputs(candidates[0].path, shapes, seed, inputs)
    started = time.monotonic()
    notes = [f"{name} was left out: it is not built yet" for name in _unbuilt(paths)]
    with tempfile.TemporaryDirectory(prefix="opsmith-bench-") as folder:
        store.write_test_data(Path(folder) / "inputs", feed, {})
        tracks = [_Track(candidate) for candidate in candidates]
        taken, groups = _measure(tracks, Path(folder), threads, rounds, processes, seconds, seed, notes)
        errors = _compare_outputs(candidates, Path(folder), rtol, atol)
        errors = [
            _settled(checks, candidates[0], c, feed, Tolerance(rtol, atol), threads)
            for checks, c in zip(errors, candidates)
        ]
    clean = _enough_clean(taken, len(candidates))
    if not contention.available():
        notes.append("this system does not tell who else used the CPU: no sample could be left out")
    elif not clean:
        notes.append("other processes used the CPU nearly all the time: disturbed samples had to be used")
    work = _flops(candidates, feed, notes)
    limits = peak.cached()
    if limits is None:
        notes.append("share of peak unknown: run `opsmith bench --machine` once")
    entries = [
        _entry(i, track, taken, clean, work, limits.at(threads) if limits else None, errors[i], seed)
        for i, track in enumerate(tracks)
    ]
    return BenchResult(
        entries=entries,
        threads=threads,
        cpu=machine.cpu_name(),
        processes=groups,
        inputs={name: f"{a.dtype}[{', '.join(map(str, a.shape))}]" for name, a in feed.items()},
        inputs_from=origin,
        clean=clean,
        notes=notes,
        seconds=round(time.monotonic() - started, 3),
        taken=taken,
    )


def _check_numbers(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise OpsmithError(f"--{name} must be at least 1, not {value}")


def _measure(
    tracks: list[_Track],
    folder: Path,
    threads: int,
    rounds: int | None,
    processes: int | None,
    seconds: float,
    seed: int,
    notes: list[str],
) -> tuple[list[_Round], int]:
    taken: list[_Round] = []
    order = random.Random(seed)
    groups = processes or 0
    turn = 0.0
    per_group = cut = None
    group = 0
    with progress.task("bench") as step:
        while group == 0 or group < groups:
            with contextlib.ExitStack() as stack:
                # Python and the runtimes are imported side by side; models are loaded one after the other, on idle cores.
                workers = [
                    stack.enter_context(Worker(track.candidate.label, threads, runtime=track.candidate.runtime))
                    for track in tracks
                ]
                for worker in workers:
                    worker.ask("ready")
                # Who loads first lies elsewhere in memory, and may be a percent slower for it: take turns.
                places = range(len(tracks)) if group % 2 == 0 else range(len(tracks) - 1, -1, -1)
                for loaded, i in enumerate(places):
                    track = tracks[i]
                    step(f"loading {track.candidate.label}", advance=0)
                    _check_memory(track.candidate, loaded)
                    _start(workers[i], track, folder, i if group == 0 else None, threads)
                if cut is None or per_group is None:
                    cut, turn = _size_turns(workers)
                    loading = sum(track.load[0] + track.first[0] for track in tracks)
                    groups, per_group = _plan(rounds, processes, seconds, turn, loading, notes)
                wanted, tried, began = per_group, 0, time.monotonic()
                # Disturbed rounds are taken again, but a machine that is never quiet must not keep us for ever.
                patience = max(2 * seconds / groups, 2 * turn * per_group)
                while wanted and (
                    tried < per_group or (tried < per_group * RERUN_LIMIT and time.monotonic() - began < patience)
                ):
                    step(
                        f"process set {group + 1} of {groups}, round {per_group - wanted + 1} of {per_group}", advance=0
                    )
                    taken.append(_round(workers, cut, group, order, threads))
                    tried += 1
                    wanted -= not taken[-1].dirty
                for worker, track in zip(workers, tracks):
                    track.peak_rss.append(worker.ask("quit")["peak_rss"])
            group += 1
    return taken, groups


def _check_memory(candidate: Candidate, running: int) -> None:
    """A machine that swaps measures nothing: say so before it happens. Weights are held once, or twice if packed."""
    needed = 2 * session.size_on_disk(candidate.path)
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
        if needed > free:
            raise OpsmithError(
                f"{candidate.label} may need {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free",
                f"bench fewer variants at once; {running} are loaded" if running else "use a machine with more memory",
            )


def _start(worker: Worker, track: _Track, folder: Path, save: int | None, threads: int) -> None:
    candidate = track.candidate
    answer = worker.ask(
        "load",
        model=str(candidate.path.absolute()),
        runtime=candidate.runtime,
        threads=threads,
        inputs=str(folder / "inputs"),
        settings={"provider": str(candidate.provider)} if candidate.provider else {},
    )
    track.load.append(answer["load"])
    track.base_rss.append(answer["base_rss"])
    outputs = None if save is None else str(folder / f"outputs_{save}")
    track.first.append(worker.ask("first", outputs=outputs)["first"])


def _size_turns(workers: Sequence[Worker]) -> tuple[list[list[int]], float]:
    """The slices of a turn of each worker, in runs, and how long one round will take."""
    once = [min(worker.ask("turn", runs=2, warm=0)["seconds"]) for worker in workers]
    runs = [min(2000, max(1, math.ceil(TURN_SECONDS / max(seconds, 1e-6)))) for seconds in once]
    slices = min(SLICES, *runs)
    cut = [[math.ceil(count / slices)] * slices for count in runs]
    return cut, sum(seconds * (part + _warm(part)) for seconds, parts in zip(once, cut) for part in parts)


def _warm(runs: int) -> int:
    """Runs before a slice, not timed: the other variants' slices emptied the caches."""
    return 0 if runs == 1 else max(1, runs // 10)


def _plan(
    rounds: int | None, processes: int | None, seconds: float, turn: float, loading: float, notes: list[str]
) -> tuple[int, int]:
    """(sets of processes, rounds in each)."""
    total = rounds or max(10, min(40, int(seconds / max(turn, 1e-9))))
    if processes is None:
        # Starting anew must not take longer than measuring. Student's t needs three sets or more.
        processes = 6 if loading * 6 <= max(seconds, 10.0) else 3 if loading * 3 <= 2 * seconds else 1
        processes = min(processes, total)
    if processes < 3:
        notes.append("one or two sets of processes: the interval leaves out the luck of their memory layout")
    return processes, max(1, math.ceil(total / processes))


def _round(
    workers: Sequence[Worker], cut: Sequence[Sequence[int]], group: int, order: random.Random, threads: int
) -> _Round:
    turns: dict[int, list[float]] = {i: [] for i in range(len(workers))}
    use = {i: contention.Use() for i in turns}
    for part in range(len(cut[0])):
        for i in order.sample(range(len(workers)), len(workers)):
            answer = workers[i].ask("turn", runs=cut[i][part], warm=_warm(cut[i][part]))
            turns[i] += answer["seconds"]
            use[i] += contention.Use(**answer["use"])
    return _Round(group, turns, frozenset(i for i in turns if use[i].contaminated(threads, machine.cores())))


# --- results ----------------------------------------------------------------------------------------------


def _enough_clean(taken: Sequence[_Round], count: int) -> bool:
    """Every candidate needs a few clean rounds together with the first one, in every set of processes."""
    for group in {r.group for r in taken}:
        inside = [r for r in taken if r.group == group]
        least = max(1, math.ceil(LEAST_CLEAN * len(inside) / RERUN_LIMIT))
        if any(sum(not r.dirty & {0, i} for r in inside) < least for i in range(count)):
            return False
    return True


def _entry(
    i: int,
    track: _Track,
    taken: Sequence[_Round],
    clean: bool,
    work: int | None,
    limits: peak.Limits | None,
    errors: list[OutputCheck],
    seed: int,
) -> Entry:
    single = [r for r in taken if not clean or i not in r.dirty]
    run = summarize([s for r in single for s in r.turns[i]])
    candidate = track.candidate
    arithmetic = limits.arithmetic(store.precision_of(candidate.path)) if limits else None
    share = work / run.median / arithmetic if work is not None and arithmetic else None
    return Entry(
        label=candidate.label,
        path=candidate.path.name,
        runtime=candidate.runtime,
        run=run,
        speedup=_ratio(taken, clean, 0, i, seed),
        load=plain_statistics.median(track.load),
        first=plain_statistics.median(track.first),
        peak_rss=max(track.peak_rss),
        base_rss=int(plain_statistics.median(track.base_rss)),
        size=session.size_on_disk(candidate.path),
        samples=len(taken),
        disturbed=sum(i in r.dirty for r in taken),
        left_out=len(taken) - len(single),
        flops=work,
        share_of_peak=share,
        errors=errors,
        rounds=[plain_statistics.median(r.turns[i]) for r in single],
    )


def _ratio(taken: Sequence[_Round], clean: bool, i: int, over: int, seed: int = 0) -> Ratio:
    paired = [r for r in taken if not clean or not r.dirty & {over, i}]
    groups = [
        (
            [plain_statistics.median(r.turns[i]) for r in paired if r.group == group],
            [plain_statistics.median(r.turns[over]) for r in paired if r.group == group],
        )
        for group in sorted({r.group for r in paired})
    ]
    return paired_ratio(groups, seed)


def _flops(candidates: Sequence[Candidate], feed: Mapping[str, np.ndarray[Any, Any]], notes: list[str]) -> int | None:
    """Operations of one run, counted on the first model whose graph can be read; the task is the same for all."""
    plain = next((c for c in candidates if not store.libraries(c.path)), None)
    if plain is None:
        notes.append("FLOPs unknown: only compiled variants here, whose graph is inside the library")
        return None
    try:
        cost = flops(plain.path, {name: array.shape for name, array in feed.items()})
    except OpsmithError as error:
        notes.append(f"FLOPs unknown: {error}")
        return None
    if cost.unknown:
        notes.append(f"FLOPs leave out {len(cost.unknown)} nodes of unknown cost, {cost.unknown[0].op} for one")
    return cost.total or None


def _compare_outputs(
    candidates: Sequence[Candidate], folder: Path, rtol: float | None, atol: float | None
) -> list[list[OutputCheck]]:
    """Each candidate's outputs against the first one's, on the inputs that were timed."""
    answers = [store.read_test_data(folder / f"outputs_{i}" / "model.onnx")[0].outputs for i in range(len(candidates))]
    checks = []
    first = BOUNDS.get(store.precision_of(candidates[0].path))
    for candidate, outputs in zip(candidates, answers):
        # A compiled variant in less than fp32 passes as it did when it was compiled.
        bound = BOUNDS.get(store.precision_of(candidate.path), first) if candidate.runtime == "ort" else None
        if missing := sorted(set(answers[0]) - set(outputs)):
            raise OpsmithError(f"{candidate.label} has no output {missing[0]!r}, which {candidates[0].label} has")
        # Some peers know only one integer type; that alone is no difference in what was computed.
        cast = {
            n: outputs[n] if candidate.runtime == "ort" else outputs[n].astype(a.dtype) for n, a in answers[0].items()
        }
        checks.append(
            [compare_arrays(a, cast[n], rtol=rtol, atol=atol, bound=bound, name=n) for n, a in answers[0].items()]
        )
    return checks


def _settled(
    checks: list[OutputCheck],
    first: Candidate,
    candidate: Candidate,
    feed: Mapping[str, Any],
    tolerance: Tolerance,
    threads: int,
) -> list[OutputCheck]:
    """Checks that fail, as `verify` judges them: a model that amplifies rounding differs from itself as much."""
    if all(c.ok for c in checks) or {first.runtime, candidate.runtime} != {"ort"}:
        return checks
    try:
        result = verify(
            first.path,
            candidate.path,
            rtol=tolerance.rtol,
            atol=tolerance.atol,
            shapes={name: list(np.shape(array)) for name, array in feed.items()},
            inputs=feed,
            threads=threads,
            provider=candidate.provider,
            precision=store.precision_of(candidate.path),
        )
    except OpsmithError:  # it cannot judge these two: they differ, as far as can be told
        return checks
    if not result.ok:
        return checks
    own = {o.name: o.spread for o in result.worst}
    return [dataclasses.replace(c, problem=None, spread=own.get(c.name)) for c in checks]
