"""Do two models compute the same thing?

Both run on the stored test data, on fresh seeded inputs of several shapes, and on degenerate ones: constant rows, zeros,
large and tiny numbers. An element of B passes when |b - a| <= atol + rtol * |a|, with A the reference. Where A amplifies
rounding, because it holds quantizers or because its inputs are degenerate, B also passes within A's own spread (spread.py).
A model that computes in less than fp32 is held to another rule: |b - a| within a bound, in units of the output's scale.
One model is in memory at a time: what A answered waits on disk.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from opsmith import progress, session, store
from opsmith.check import inputs as generate
from opsmith.check import match_values, spread
from opsmith.check.feed import Given, bound_by, fitted, judged_feed
from opsmith.check.inputs import Array, Dims, Fixed
from opsmith.check.values import free_floats, random_inputs
from opsmith.errors import OpsmithError
from opsmith.plain import Shown

# Beside random ones, on the smallest of their shapes: float inputs that norms, quantizers and exponentials find hard.
DEGENERATE: dict[str, Callable[[Array], Array]] = {
    "constant rows": lambda x: x[..., :1] + np.zeros_like(x) if x.ndim else x,
    "zeros": np.zeros_like,
    "large": lambda x: x * x.dtype.type(1e3),
    "tiny": lambda x: x * x.dtype.type(1e-6),
}
PATIENCE = 5.0  # seconds of the reference: after that no further degenerate case is begun
STORED = ", stored outputs"  # ends the name of a case that is compared with them, and not with A

# dtype -> (rtol, atol). Everything that is not listed (integers, booleans, strings) must be equal.
TOLERANCES = {
    "float64": (1e-6, 1e-8),
    "float32": (1e-3, 1e-4),
    "float16": (1e-2, 1e-3),
    "bfloat16": (5e-2, 1e-2),
    "complex64": (1e-3, 1e-4),
    "complex128": (1e-6, 1e-8),
}
# How far a model that was asked to compute in less than fp32 may be, in units of the largest element of each output. Chosen from
# models (docs/verify.md): they stay below 2e-2.
BOUNDS = {"bf16": 5e-2, "int8": 1e-1}
ULPS = {"bf16": 2.0**-8, "int8": 2.0**-8}  # the last bit of a number near 1: what is stored in bf16


@dataclasses.dataclass(frozen=True)
class OutputCheck:
    """How far one output of B is from A's. `needed_*` is the tolerance pair, in the given ratio, that would pass."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_abs: float
    max_rel: float  # over the elements with |a| > atol; smaller ones are a matter of atol
    cosine: float
    rtol: float
    atol: float
    needed_rtol: float
    needed_atol: float
    problem: str | None = None  # why it fails; None if it passes
    scale: float = 0.0  # the largest |a|; 0 where nothing was compared as real numbers
    spread: float | None = None  # how far A is from itself, where this was asked
    bound: float | None = None  # of the difference in units of the scale, where that is what decides

    @property
    def ok(self) -> bool:
        return self.problem is None

    @property
    def of_scale(self) -> float:
        """The largest difference in units of the output's scale."""
        return self.max_abs / self.scale if self.scale else self.max_abs


@dataclasses.dataclass(frozen=True)
class Case:
    """One set of inputs, and how B's outputs compare with the reference on it."""

    name: str
    dims: Dims
    outputs: tuple[OutputCheck, ...] = ()
    problem: str | None = None  # B did not run at all
    inputs: Mapping[str, Array] | None = dataclasses.field(default=None, repr=False)  # unless all is within tolerance
    relative: bool = False  # atol counts in units of the reference's largest element, as for large inputs

    @property
    def ok(self) -> bool:
        return self.problem is None and all(output.ok for output in self.outputs)


@dataclasses.dataclass(frozen=True)
class Parting:
    """The first value, in A's order, that both models name and that differs."""

    value: str
    node_a: str
    node_b: str
    check: OutputCheck
    compared: int  # values that both models name, or that hold the same in both where no name is shared


@dataclasses.dataclass(frozen=True, repr=False)
class VerifyResult(Shown):
    cases: tuple[Case, ...]
    dropped: tuple[str, ...] = ()  # inputs that the reference refuses or B was not made for, and why
    parting: Parting | None = None
    note: str | None = None  # what bisect could not do
    unchecked: str | None = None  # why nothing was compared: no inputs were found that A runs on

    @property
    def ok(self) -> bool:
        return bool(self.cases) and all(case.ok for case in self.cases)

    def __bool__(self) -> bool:
        return self.ok

    def to_dict(self) -> dict[str, Any]:
        """For JSON: without the arrays that failed cases were fed with."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        cases = [{"name": c.name, "dims": c.dims, "outputs": c.outputs, "problem": c.problem} for c in self.cases]
        return {"ok": self.ok, **fields, "cases": cases}

    @property
    def problems(self) -> list[str]:
        problems = []
        for case in self.cases:
            if case.problem:
                problems.append(f"{case.name}: {case.problem}")
            problems += [f"{case.name}: {output.name}: {output.problem}" for output in case.outputs if not output.ok]
        return problems

    @property
    def worst(self) -> list[OutputCheck]:
        """Per output its worst case."""
        by_name: dict[str, list[OutputCheck]] = {}
        for output in itertools.chain.from_iterable(case.outputs for case in self.cases):
            by_name.setdefault(output.name, []).append(output)
        return [worst_first(checks)[0] for checks in by_name.values()]


def worst_first(checks: Sequence[OutputCheck]) -> list[OutputCheck]:
    """Those that fail before those that pass, then by the tolerance needed, or by the distance in units of the scale."""

    def far(c: OutputCheck) -> float:
        return c.needed_rtol + c.needed_atol if c.bound is None else c.of_scale

    return sorted(checks, key=lambda c: (not c.ok, far(c), c.max_abs), reverse=True)


def verify(
    a: store.ModelLike,
    b: store.ModelLike | None = None,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    shapes: int | Fixed | Sequence[Fixed] = 3,
    inputs: Given | None = None,
    bisect: bool = False,
    threads: int | None = None,
    provider: Path | None = None,
    precision: str = "fp32",
    bound: float | None = None,
) -> VerifyResult:
    """Compare B with A; without B, compare A with the outputs stored in its own test data.

    SHAPES is the number of random shapes, or the dims to use: {symbol: value} or {input: shape}, one or several. INPUTS are
    values to use: {input: array or number}. PROVIDER is the library of Opsmith's execution provider: B, or A itself if there is
    no B, runs through it. PRECISION is what B was asked to compute in: below fp32 its outputs pass within the bound of that
    precision, or within BOUND if it is given.
    """
    if provider is not None and b is None:
        b = a
    _refuse_bad_options(rtol, atol, precision, bisect=bisect, provider=provider)
    stored, tolerance = _stored_cases(a, b), _Tolerance(rtol, atol, BOUNDS.get(precision) if bound is None else bound)
    with store.on_disk(a) as path_a:
        if b is None:
            if not any(data.outputs for data in stored):
                raise OpsmithError(f"{a} has no stored test data", "give a second model to compare it with")
            return VerifyResult(tuple(_against_stored(path_a, stored, tolerance, threads)))
        with store.on_disk(b) as path_b, tempfile.TemporaryDirectory(prefix="opsmith-verify-") as kept:
            model_a, model_b = store.open_model(path_a), store.open_model(path_b)
            _same_interface(model_a, model_b)
            feeds, dropped = _feeds(path_a, model_a, model_b, stored, shapes, seed, inputs or {})
            degenerate = functools.partial(_degenerate_feeds, model_a, given=inputs or {})
            answers, refused = _answers(path_a, feeds, Path(kept), threads, degenerate)
            dropped += refused
            if not answers:
                judged = judged_feed(path_a, shapes if isinstance(shapes, Mapping) else None, inputs, seed=seed)
                if judged.feed is None:
                    return VerifyResult((), tuple(dropped), unchecked=judged.problem)
                answers, _ = _answers(path_a, [_Feed(judged.origin, judged.dims, judged.feed)], Path(kept), threads)
            outputs = [value.name or "" for value in model_a.graph.outputs]
            compared = _cases(path_b, answers, outputs, tolerance, threads, Path(kept), provider)
            cases = _settled(path_a, model_a, compared, outputs, threads, ULPS.get(precision))
            result = VerifyResult(tuple(cases), tuple(dropped))
            if result.ok or not bisect:
                return result
            fed = _fed_to_first_failure(cases, answers)
            parting, note = _bisect(path_a, path_b, model_a, model_b, fed, tolerance, threads)
            return dataclasses.replace(result, parting=parting, note=note)


def _refuse_bad_options(
    rtol: float | None, atol: float | None, precision: str, *, bisect: bool, provider: Path | None
) -> None:
    if bisect and provider is not None:
        raise OpsmithError("bisect needs the values inside the model, which the execution provider does not show")
    if precision != "fp32" and precision not in BOUNDS:
        raise OpsmithError(f"unknown precision {precision!r}", f"known: {', '.join(('fp32', *BOUNDS))}")
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not value >= 0:
            raise OpsmithError(f"{name} must be zero or more, not {value}")


def _fed_to_first_failure(cases: Sequence[Case], answers: Sequence[_Answer]) -> dict[str, Array]:
    """The inputs of the first case that fails; one compared with stored outputs was fed as the case it is named after."""
    failing = next(case for case in cases if not case.ok)
    names = (failing.name, failing.name.removesuffix(STORED))
    return next(answer.feed.inputs for answer in answers if answer.feed.name in names)


@dataclasses.dataclass(frozen=True)
class _Tolerance:
    """The tolerances asked for; None is the type's own."""

    rtol: float | None = None
    atol: float | None = None
    bound: float | None = None  # in units of the output's scale; it decides alone where it is given


@dataclasses.dataclass(frozen=True)
class _Feed:
    name: str
    dims: Dims
    inputs: dict[str, Array]
    stored: store.TestData | None = None
    degenerate: str | None = None
    usual: Mapping[str, float] = dataclasses.field(default_factory=dict)  # of degenerate inputs: their size otherwise


@dataclasses.dataclass(frozen=True)
class _Answer:
    feed: _Feed
    outputs: list[Any]  # A's
    seconds: float  # that A took


@dataclasses.dataclass(frozen=True)
class _Compared:
    """A case, and what it came from where it may yet be A's own rounding."""

    case: Case
    answer: _Answer
    actual: dict[str, Any] | None = None  # B's outputs, of a case that fails


def _feeds(
    path: Path,
    a: ir.Model,
    b: ir.Model,
    stored: list[store.TestData],
    shapes: int | Fixed | Sequence[Fixed],
    seed: int,
    inputs: Given,
) -> tuple[list[_Feed], list[str]]:
    """The stored inputs that B takes, then random ones; and what was left out and why."""
    feeds = [_Feed(data.folder.name, {}, data.inputs, data) for data in stored]
    misfits = {feed.name: why for feed in feeds if (why := _misfit(feed, b))}
    feeds = [feed for feed in feeds if feed.name not in misfits]
    dropped = [f"{name}: {why}" for name, why in misfits.items()]
    try:
        wanted = generate.specs(a, path.stem)
    except OpsmithError as error:
        return feeds, [*dropped, f"random inputs: {error}"]
    return feeds + _random_feeds(path, wanted, a, b, shapes, seed, inputs), dropped


def _misfit(feed: _Feed, b: ir.Model) -> str | None:
    """Why B, which was made for one shape, cannot take a feed; None if it can."""
    for value in b.graph.inputs:
        shape, given = value.shape, np.shape(feed.inputs.get(value.name or "", ()))
        fixed = shape is not None and len(shape) == len(given)
        if fixed and any(isinstance(d, int) and d != n for d, n in zip(shape or (), given)):
            return f"{value.name} is {list(given)}, B is made for {shape}"
    return None


def _degenerate_feeds(a: ir.Model, answers: Sequence[_Answer], given: Given) -> list[_Feed]:
    """Of the smallest random shape that A runs on."""
    bases = [answer.feed for answer in answers if answer.feed.stored is None]
    if not bases:
        return []
    base = min(bases, key=lambda feed: sum(np.size(array) for array in feed.inputs.values()))
    seconds = next(answer.seconds for answer in answers if answer.feed is base)
    names = [n for n in free_floats(a, base.inputs, base.dims) if n not in given]
    # A sum that overflows in half precision overflows or not by where it is rounded.
    has_halves = any(ir.DataType.FLOAT16 in (v.dtype for v in (*n.inputs, *n.outputs) if v) for n in a.graph)
    feeds: list[_Feed] = []
    for kind, change in DEGENERATE.items():
        if len(feeds) * seconds > PATIENCE:
            break
        if names and not (kind == "large" and has_halves):
            changed = {n: np.asarray(change(base.inputs[n])) for n in names}
            name = base.name.replace("random", kind, 1)
            usual = {n: spread.size_of(base.inputs[n]) for n in names}
            feeds.append(_Feed(name, base.dims, {**base.inputs, **changed}, degenerate=kind, usual=usual))
    return feeds


def _answers(
    path: Path,
    feeds: list[_Feed],
    kept: Path,
    threads: int | None,
    more: Callable[[Sequence[_Answer]], list[_Feed]] | None = None,
) -> tuple[list[_Answer], list[str]]:
    """What A answers to FEEDS, and to MORE that are made of those it accepts.

    A random shape that A itself refuses says nothing about B, and is left out with its reason.
    """
    answers: list[_Answer] = []
    refused: list[str] = []
    with progress.task("verify: reference", len(feeds)) as step:
        running = session.load(path, threads=threads, lean=True)
        todo = list(feeds)
        while todo:
            feed = todo.pop(0)
            step(feed.name)
            started = time.perf_counter()
            try:
                outputs = session.run(running, feed.inputs)
            except OpsmithError as error:
                if feed.stored is not None:
                    raise OpsmithError(f"{path} does not run on its {feed.name}: {error}") from error
                refused.append(f"{feed.degenerate or ''} {_dims_text(feed.dims)}: {_reason(error)}".lstrip())
            else:
                held = [_keep(kept, len(answers), i, o) for i, o in enumerate(outputs)]
                answers.append(_Answer(feed, held, time.perf_counter() - started))
            if not todo and more is not None:
                todo, more = more(answers), None
    return answers, refused


def _cases(
    path: Path,
    answers: list[_Answer],
    outputs: Sequence[str],
    tolerance: _Tolerance,
    threads: int | None,
    kept: Path,
    provider: Path | None = None,
) -> list[_Compared]:
    """B against the answers of A, whose OUTPUTS have these names, and against stored outputs."""
    found: list[_Compared] = []
    with progress.task("verify: variant", len(answers)) as step:
        running = session.load(path, threads=threads, provider=provider, lean=True)
        order = [o.name for o in running.get_outputs()]
        for index, answer in enumerate(answers):
            feed = answer.feed
            step(feed.name)
            try:
                actual = dict(zip(order, session.run(running, feed.inputs)))
            except OpsmithError as error:
                found.append(
                    _Compared(
                        Case(feed.name, feed.dims, problem=f"does not run: {_reason(error)}", inputs=feed.inputs),
                        answer,
                    )
                )
                continue
            case = _case(feed, feed.name, dict(zip(outputs, answer.outputs)), actual, tolerance)
            held = None if case.ok else _keep_all(kept, len(answers) + index, actual)
            found.append(_Compared(case, answer, held))
            if feed.stored is not None and feed.stored.outputs:
                against = _case(feed, f"{feed.name}{STORED}", feed.stored.outputs, actual, tolerance)
                again = None if against.ok else held or _keep_all(kept, len(answers) + index, actual)
                found.append(_Compared(against, answer, again))
    return found


_Statistics: TypeAlias = "dict[str, dict[str, float]]"  # output -> statistic -> its largest value


def _settled(
    path: Path, a: ir.Model, compared: list[_Compared], outputs: Sequence[str], threads: int | None, ulp: float | None
) -> list[Case]:
    """The cases, where those that fail pass after all if A is as far from itself: asked only where A amplifies rounding."""
    steps = spread.has_steps(a)
    failing = [c for c in compared if c.actual is not None and (steps or c.answer.feed.degenerate)]
    if not failing:
        return [c.case for c in compared]
    # Steps flip now and then: all shapes together show more of them than one does.
    asked = {id(c.answer): c.answer for c in compared if steps and c.answer.feed.degenerate is None}
    asked |= {id(c.answer): c.answer for c in failing}
    own = _own_spread(path, list(asked.values()), outputs, steps, threads, ulp)
    settled = {}
    for c in failing:
        mine = {name: dict(sizes) for name, sizes in own.get(id(c.answer), {}).items()}
        for name, sizes in own[None].items():
            _widen(mine.setdefault(name, {}), sizes)
        settled[id(c)] = _within_spread(c, outputs, mine)
    return [settled.get(id(c), c.case) for c in compared]


def _own_spread(
    path: Path, answers: Sequence[_Answer], outputs: Sequence[str], steps: bool, threads: int | None, ulp: float | None
) -> dict[int | None, _Statistics]:
    """How far A is from its own answers: by the id of an answer, and under None of all that are not degenerate."""
    own: dict[int | None, _Statistics] = {None: {}}
    with progress.task("verify: the reference's own spread"):
        feeds = [(a.feed.inputs, a.feed.usual) for a in answers]
        for index, values in spread.answers(path, feeds, steps, threads, ulp):
            answer = answers[index]
            found = _statistics(answer, outputs, values)
            del values  # the memory of their session goes with them, before the next session runs
            for key in [id(answer)] if answer.feed.degenerate else [id(answer), None]:
                for name, sizes in found.items():
                    _widen(own.setdefault(key, {}).setdefault(name, {}), sizes)
    return own


def _statistics(answer: _Answer, outputs: Sequence[str], values: Sequence[Any]) -> _Statistics:
    """How far VALUES are from an answer; nothing of what cannot be compared."""
    triples = zip(outputs, answer.outputs, values)
    return {n: spread.statistics(a, b) or {} if isinstance(b, np.ndarray) else {} for n, a, b in triples}


def _widen(sizes: dict[str, float], others: Mapping[str, float]) -> None:
    for statistic, size in others.items():
        sizes[statistic] = max(size, sizes.get(statistic, 0.0))


def _within_spread(compared: _Compared, outputs: Sequence[str], own: Mapping[str, Mapping[str, float]]) -> Case:
    checks = []
    references: dict[str, Any] = dict(zip(outputs, compared.answer.outputs))
    if compared.case.name.endswith(STORED) and compared.answer.feed.stored is not None:
        references = dict(compared.answer.feed.stored.outputs)
    for check in compared.case.outputs:
        reference, actual = references.get(check.name), (compared.actual or {}).get(check.name)
        if check.ok or not isinstance(reference, np.ndarray) or not isinstance(actual, np.ndarray):
            checks.append(check)
            continue
        apart, mine = spread.statistics(reference, actual), own.get(check.name, {})
        beyond = (
            "" if apart is None else spread.exceeds(apart, mine, check.atol + check.rtol * spread.size_of(reference))
        )
        told = check.problem if not beyond else f"{check.problem}; beyond the reference's own spread: {beyond}"
        checks.append(
            dataclasses.replace(check, problem=None if beyond is None else told, spread=mine.get("largest", 0.0))
        )
    return dataclasses.replace(compared.case, outputs=tuple(checks))


def _case(
    feed: _Feed, name: str, expected: Mapping[str, Any], actual: Mapping[str, Any], tolerance: _Tolerance
) -> Case:
    relative = feed.degenerate == "large"
    checks = _compare_all(expected, actual, tolerance, relative)
    return Case(name, feed.dims, checks, inputs=None if all(c.ok for c in checks) else feed.inputs, relative=relative)


def _stored_cases(a: store.ModelLike, b: store.ModelLike | None) -> list[store.TestData]:
    """The test data of A, or B's if A has none."""
    for model in (a, b):
        if model is None or isinstance(model, (ir.Model, onnx.ModelProto)):
            continue
        path = store.find_model(model)
        opened = store.open_model(path).graph
        names = [value.name or "" for value in opened.inputs], [value.name or "" for value in opened.outputs]
        if found := store.read_test_data(path, names):
            return found
    return []


def _against_stored(
    path: Path, stored: list[store.TestData], tolerance: _Tolerance, threads: int | None
) -> Iterator[Case]:
    running = session.load(path, threads=threads)
    order = [o.name for o in running.get_outputs()]
    for data in stored:
        actual = dict(zip(order, session.run(running, data.inputs)))
        yield Case(f"{data.folder.name}{STORED}", {}, _compare_all(data.outputs, actual, tolerance))


def _same_interface(a: ir.Model, b: ir.Model) -> None:
    """Different input or output names make a comparison meaningless: that is a user's mistake, not a difference."""
    for kind in ("inputs", "outputs"):
        left, right = ({v.name for v in getattr(m.graph, kind)} for m in (a, b))
        if kind == "inputs":  # one with a default value may be left out
            left, right = left - set(a.graph.initializers), right - set(b.graph.initializers)
        if left != right:
            only = ", ".join(sorted(str(n) for n in left ^ right)[:6])
            raise OpsmithError(f"the two models have different {kind}: {only} in only one of them")


def _random_feeds(
    path: Path,
    wanted: Sequence[generate.Input],
    a: ir.Model,
    b: ir.Model,
    shapes: int | Fixed | Sequence[Fixed],
    seed: int,
    given: Given,
) -> list[_Feed]:
    known = store.read_record(path).get("inputs") or {}
    static = {**_static_dims(wanted, b), **bound_by(given, wanted)}
    if isinstance(shapes, int):
        all_dims = generate.cases(wanted, shapes, static)
    else:
        fixed = [shapes] if isinstance(shapes, Mapping) else shapes
        all_dims = [generate.default_dims(wanted, {**static, **f}) for f in fixed]
    feeds = []
    for index, dims in enumerate(all_dims, 1):
        made = random_inputs(a, dims, [seed, index], known=known.get("ranges"))
        feeds.append(_Feed(f"random {_dims_text(dims)}".rstrip(), dims, {**made, **fitted(given, a, made)}))
    return feeds


def _static_dims(wanted: Sequence[generate.Input], b: ir.Model) -> dict[str, int]:
    """Symbols of A that B, made for one shape, holds fixed."""
    free = set(generate.symbols(wanted))
    fixed: dict[str, int] = {}
    by_name = {value.name: value for value in b.graph.inputs}
    for spec in wanted:
        shape = by_name[spec.name].shape
        if shape is not None:
            fixed |= {d: n for d, n in zip(spec.dims, shape) if isinstance(d, str) and d in free and isinstance(n, int)}
    return fixed


def _dims_text(dims: Mapping[str, int]) -> str:
    return " ".join(f"{symbol}={value}" for symbol, value in dims.items())


def _reason(error: OpsmithError) -> str:
    return str(error).removeprefix("ONNX Runtime failed to run the model: ")


def _keep(folder: Path, case: int, index: int, output: Any) -> Any:
    """Large arrays go to disk and come back memory-mapped, so that they do not crowd out the second model."""
    if not isinstance(output, np.ndarray) or output.nbytes < 1 << 20 or output.dtype.kind not in "fiubc":
        return session.detached(output)
    path = folder / f"{case}_{index}.npy"
    np.save(path, output)
    return np.load(path, mmap_mode="r")


def _keep_all(folder: Path, case: int, outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _keep(folder, case, i, output) for i, (name, output) in enumerate(outputs.items())}


# --- comparing arrays -------------------------------------------------------------------------------------


def _compare_all(
    expected: Mapping[str, Any], actual: Mapping[str, Any], tolerance: _Tolerance, relative: bool = False
) -> tuple[OutputCheck, ...]:
    """RELATIVE: as `Case` says."""
    checks: list[OutputCheck] = []
    for name, reference in expected.items():
        if name not in actual:
            raise OpsmithError(f"the test data has an output {name!r}, which the model lacks")
        used = _scaled(tolerance, reference) if relative and isinstance(reference, np.ndarray) else tolerance
        checks += _compare_any(name, reference, actual[name], used)
    return tuple(checks)


def compare_value(case: Case, reference: Array, actual: Array, *, bound: float | None, name: str) -> OutputCheck:
    """A value inside a model, held to what the outputs of CASE are held to."""
    used = _scaled(_Tolerance(bound=bound), reference) if case.relative else _Tolerance(bound=bound)
    return compare_arrays(reference, actual, rtol=used.rtol, atol=used.atol, bound=used.bound, name=name)


def _scaled(tolerance: _Tolerance, reference: Array) -> _Tolerance:
    if reference.dtype.name not in TOLERANCES or not reference.size or tolerance.bound is not None:
        return tolerance
    atol = TOLERANCES[reference.dtype.name][1] if tolerance.atol is None else tolerance.atol
    largest = float(np.abs(reference[np.isfinite(reference)]).max(initial=0.0))
    return _Tolerance(tolerance.rtol, atol * max(1.0, largest))


def _compare_any(name: str, a: Any, b: Any, tolerance: _Tolerance) -> Iterator[OutputCheck]:
    if isinstance(a, list) and isinstance(b, list):  # an ONNX sequence
        if len(a) != len(b):
            yield _failed(name, "sequence", (len(b),), f"sequence of {len(b)} instead of {len(a)}")
            return
        for index, (left, right) in enumerate(zip(a, b)):
            yield from _compare_any(f"{name}[{index}]", left, right, tolerance)
    elif isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        yield compare_arrays(a, b, rtol=tolerance.rtol, atol=tolerance.atol, bound=tolerance.bound, name=name)
    else:
        same = type(a) is type(b) and a == b
        yield _failed(name, type(b).__name__, (), None if same else "differs")


def _failed(name: str, dtype: str, shape: tuple[int, ...], problem: str | None) -> OutputCheck:
    far = 0.0 if problem is None else float("inf")
    return OutputCheck(name, dtype, shape, far, far, 1.0 if problem is None else 0.0, 0.0, 0.0, far, far, problem)


def compare_arrays(
    a: Array,
    b: Array,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    bound: float | None = None,
    name: str = "",
) -> OutputCheck:
    """Compare B with the reference A, element by element; within BOUND times the largest element of A if that is given.

    NaN equals NaN and an infinity equals itself; either of them where the other array has something else fails.
    """
    dtype = b.dtype.name
    if a.dtype != b.dtype:
        return _failed(name, dtype, b.shape, f"type {dtype} instead of {a.dtype.name}")
    if a.shape != b.shape:
        return _failed(name, dtype, b.shape, f"shape {list(b.shape)} instead of {list(a.shape)}")
    if dtype not in TOLERANCES:
        return _compare_exact(a, b, name, 0.0 if atol is None else atol)
    used_rtol, used_atol = TOLERANCES[dtype]
    used_rtol, used_atol = used_rtol if rtol is None else rtol, used_atol if atol is None else atol
    scale = max((float(np.abs(x).max(initial=0.0)) for x, _, _ in _finite_blocks(a, b)), default=0.0)
    if bound is not None:
        used_rtol, used_atol = 0.0, bound * scale
    found = _Differences()
    for block in _finite_blocks(a, b):
        found.take(*block, used_rtol, used_atol)
    problem = None
    if found.special:
        where = np.unravel_index(found.first_special, a.shape)
        was, got = a[where], b[where]
        problem = f"{got} instead of {was} at {[int(i) for i in where]} ({found.special} such elements)"
    elif found.wrong:
        by = (
            f"rtol {used_rtol:g}, atol {used_atol:g}"
            if bound is None
            else f"{bound:g} of the output's scale, {scale:.3g}"
        )
        problem = f"{found.wrong} of {a.size} elements differ by more than {by}"
    needed_rtol, needed_atol = found.needed(used_rtol, used_atol)
    return OutputCheck(
        name,
        dtype,
        b.shape,
        found.max_abs,
        found.max_rel,
        found.cosine,
        used_rtol,
        used_atol,
        needed_rtol,
        needed_atol,
        problem,
        scale,
        bound=bound,
    )


BLOCK = 1 << 20  # elements that are compared at once: several copies in double are made of them


def _finite_blocks(a: Array, b: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Elements that are finite in both, in double, and the places of those that are special in one only; block by block."""
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    for start in range(0, a.size, BLOCK):
        left, right = (flat[start : start + BLOCK].astype(wide) for flat in (flat_a, flat_b))
        finite = np.isfinite(left) & np.isfinite(right)
        special = ~finite & ~((left == right) | (np.isnan(left) & np.isnan(right)))
        yield left[finite], right[finite], start + np.flatnonzero(special)


@dataclasses.dataclass
class _Differences:
    """What is known after some blocks."""

    max_abs: float = 0.0
    max_rel: float = 0.0
    factor: float = 0.0  # by which the tolerances must grow for every element to pass
    wrong: int = 0
    special: int = 0
    first_special: int = 0
    product: complex = 0.0
    squares_a: float = 0.0
    squares_b: float = 0.0

    def take(self, left: Array, right: Array, special: Array, rtol: float, atol: float) -> None:
        distance, size = np.abs(right - left), np.abs(left)
        self.max_abs = max(self.max_abs, float(distance.max(initial=0.0)))
        matters = size > atol
        self.max_rel = max(self.max_rel, float((distance[matters] / size[matters]).max(initial=0.0)))
        allowed = atol + rtol * size
        self.wrong += int((distance > allowed).sum())
        apart = distance > 0
        with np.errstate(divide="ignore", over="ignore"):
            self.factor = max(self.factor, float((distance[apart] / allowed[apart]).max(initial=0.0)))
        if special.size and not self.special:
            self.first_special = int(special[0])
        self.special += special.size
        with np.errstate(over="ignore"):
            self.product += complex(np.vdot(left, right))
            self.squares_a += float(np.vdot(left, left).real)
            self.squares_b += float(np.vdot(right, right).real)

    def needed(self, rtol: float, atol: float) -> tuple[float, float]:
        """The given tolerances scaled by the smallest factor that lets every element pass."""
        if rtol == 0 and atol == 0:
            return 0.0, self.max_abs
        return self.factor * rtol if rtol else 0.0, self.factor * atol if atol else 0.0

    @property
    def cosine(self) -> float:
        lengths = math.sqrt(self.squares_a) * math.sqrt(self.squares_b)
        if lengths == 0:
            return 1.0 if self.squares_a == self.squares_b == 0 else 0.0
        return (abs(self.product) if self.product.imag else self.product.real) / lengths


def _cosine(left: Array, right: Array) -> float:
    lengths = float(np.linalg.norm(left) * np.linalg.norm(right))
    if lengths == 0:
        return 1.0 if not left.size or np.array_equal(left, right) else 0.0
    return float(np.abs(np.vdot(left, right)) / lengths) if left.dtype.kind == "c" else float(left @ right) / lengths


def _compare_exact(a: Array, b: Array, name: str, atol: float) -> OutputCheck:
    """Integers, booleans and strings: equal, or, for numbers, within an ATOL of one or more if asked for."""
    dtype = b.dtype.name
    if a.dtype.kind not in "iub":
        wrong = int((a != b).sum())
        return _failed(name, dtype, b.shape, f"{wrong} of {a.size} elements differ" if wrong else None)
    # int64 differences can overflow; Python's integers cannot, and only unequal elements are looked at
    unequal = a != b
    far = max((abs(int(x) - int(y)) for x, y in zip(a[unequal].ravel(), b[unequal].ravel())), default=0)
    size = np.abs(a[unequal].astype(np.float64))
    gaps = np.abs(a[unequal].astype(np.float64) - b[unequal].astype(np.float64))
    max_rel = float((gaps[size > 0] / size[size > 0]).max(initial=0.0))
    cosine = _cosine(a.astype(np.float64).ravel(), b.astype(np.float64).ravel())
    wrong = int(unequal.sum())
    problem = f"{wrong} of {a.size} elements differ" if far > atol else None
    return OutputCheck(name, dtype, b.shape, float(far), max_rel, cosine, 0.0, atol, 0.0, float(far), problem)


# --- bisect: where do they part? --------------------------------------------------------------------------

PROBES = 64  # values fetched in one run: few enough to hold, many enough to need few runs


def _bisect(
    path_a: Path,
    path_b: Path,
    model_a: ir.Model,
    model_b: ir.Model,
    feed: Mapping[str, Array],
    tolerance: _Tolerance,
    threads: int | None,
) -> tuple[Parting | None, str | None]:
    """Fetch the values that both graphs name, spread over the graph, and close in on the first that differs."""
    made_a, made_b = _producers(model_a), _producers(model_b)
    shared = [name for name in made_a if name in made_b]
    outputs = {value.name for value in model_a.graph.outputs}
    if not set(shared) - outputs:
        return _part_by_values(path_a, path_b, model_a, model_b, feed, tolerance, threads)
    low, high = 0, len(shared)  # the first differing value lies in shared[low:high]
    differing: OutputCheck | None = None
    while True:
        step = max(1, -(-(high - low) // PROBES))
        probes = shared[low:high][step - 1 :: step]
        if shared[high - 1] not in probes:
            probes.append(shared[high - 1])
        with tempfile.TemporaryDirectory(prefix="opsmith-verify-") as kept:
            expected = _fetch(path_a, feed, probes, threads, Path(kept))
            actual = _fetch(path_b, feed, probes, threads, None)
            checks = {p: next(iter(_compare_any(p, expected[p], actual[p], tolerance))) for p in probes}
        first = next((p for p in probes if not checks[p].ok), None)
        if first is None:
            return None, "every value that both models name agrees without ORT's optimizations; the outputs do not"
        differing = checks[first]
        position = shared.index(first)
        good = [shared.index(p) for p in probes if shared.index(p) < position]
        low, high = (max(good) + 1 if good else low), position + 1
        if high - low <= 1 or step == 1:
            break
    return Parting(differing.name, made_a[differing.name], made_b[differing.name], differing, len(shared)), None


def _part_by_values(
    path_a: Path,
    path_b: Path,
    model_a: ir.Model,
    model_b: ir.Model,
    feed: Mapping[str, Array],
    tolerance: _Tolerance,
    threads: int | None,
) -> tuple[Parting | None, str | None]:
    """Graphs of two exporters share no names: what holds the same numbers is the same value."""
    made_a, made_b = _producers(model_a), _producers(model_b)

    def check(name: str, expected: Any, actual: Any) -> OutputCheck:
        return next(iter(_compare_any(name, expected, actual, tolerance)))

    with tempfile.TemporaryDirectory(prefix="opsmith-verify-") as kept:
        values_a = _fetch_all(path_a, feed, list(made_a), threads, Path(kept) / "a")
        values_b = _fetch_all(path_b, feed, list(made_b), threads, Path(kept) / "b")
        found = match_values.match(model_a, model_b, values_a, values_b, lambda name, x, y: check(name, x, y).ok)
        if found.parting is not None:
            a, b = found.parting
            differing = check(a, values_a[a], values_b[b])
            return Parting(
                a, made_a[a], made_b[b], differing, len(found.equals)
            ), "matched by values: no names are shared"
    if found.last is None:
        return None, "the two models share no names of intermediate values, and none holds the same numbers in both"
    a, b = found.last
    return None, (
        f"no names are shared; {len(found.equals)} values are the same in both, the last of them {a} ({made_a[a]}) as {b} "
        f"({made_b[b]}); behind it the graphs differ in structure"
    )


def _fetch_all(
    path: Path, feed: Mapping[str, Array], names: Sequence[str], threads: int | None, kept: Path
) -> dict[str, Any]:
    """All values, a few at a time, kept in files."""
    values: dict[str, Any] = {}
    for begin in range(0, len(names), PROBES):
        folder = kept / str(begin)
        folder.mkdir(parents=True)
        values |= _fetch(path, feed, names[begin : begin + PROBES], threads, folder)
    return values


def _producers(model: ir.Model) -> dict[str, str]:
    """value name -> "Op node_name", in the graph's order."""
    return {
        value.name: f"{node.domain}.{node.op_type} {node.name or ''}".strip(". ")
        for node in model.graph
        for value in node.outputs
        if value.name
    }


def _fetch(
    path: Path, feed: Mapping[str, Array], names: Sequence[str], threads: int | None, kept: Path | None
) -> dict[str, Any]:
    def add_outputs(proto: onnx.ModelProto) -> None:
        present = {value.name for value in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)

    running = session.load(path, threads=threads, optimize=False, edit=add_outputs)
    values = session.run(running, feed, names)
    del running
    return {n: _keep(kept, 0, i, v) if kept is not None else v for i, (n, v) in enumerate(zip(names, values))}
