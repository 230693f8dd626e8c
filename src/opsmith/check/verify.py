"""Do two models compute the same thing?

Both run on the stored test data, on fresh seeded inputs of several shapes, and on degenerate ones: constant rows, zeros,
large and tiny numbers. An element of B passes when |b - a| <= atol + rtol * |a|, with A the reference. Where A amplifies
rounding, because it holds quantizers or because its inputs are degenerate, B also passes within A's own spread (spread.py). Where B
agrees with A computed in double precision (exact.py), A is the one that is off, and B passes. An output for which A draws random
numbers, and answers otherwise each time (drawn.py), is not compared.
A model that computes in less than fp32 is held to another rule: |b - a| within a bound, in units of the output's scale.
One model is in memory at a time: what A answered waits on disk.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from opsmith import progress, session, store
from opsmith.check import exact, past, spread
from opsmith.check import inputs as generate
from opsmith.check.bisect import Parting, bisect_models
from opsmith.check.differences import BOUNDS, OutputCheck, Tolerance, compare_all, compare_arrays, scaled, worst_first
from opsmith.check.drawn import Edit, drawn, same_draws
from opsmith.check.feed import Given, bound_by, fitted, judged_feed
from opsmith.check.inputs import Array, Dims, Fixed
from opsmith.check.next_token import NextToken, compare_logits, together
from opsmith.check.spool import keep, keep_all
from opsmith.check.values import free_floats, random_inputs
from opsmith.errors import OpsmithError, no_such
from opsmith.plain import Shown

# Beside random ones, on the smallest of their shapes: float inputs that norms, quantizers and exponentials find hard.
DEGENERATE: dict[str, Callable[[Array], Array]] = {
    "constant rows": lambda x: x[..., :1] + np.zeros_like(x) if x.ndim else x,
    "zeros": np.zeros_like,
    "large": lambda x: x * x.dtype.type(1e3),
    "tiny": lambda x: x * x.dtype.type(1e-6),
}
PATIENCE = 5.0  # seconds of the reference: after that no further degenerate case is begun
OWN_PAST = ", its own past"  # ends the name of a case whose keys and values A made (past.py)
LOGITS = "logits"  # the output of a decoder, as exporters call it
STORED = ", stored outputs"  # ends the name of a case that is compared with them, and not with A
ULPS = {"bf16": 2.0**-8, "int8": 2.0**-8}  # the last bit of a number near 1: what is stored in bf16


@dataclasses.dataclass(frozen=True)
class Case:
    """One set of inputs, and how B's outputs compare with the reference on it."""

    name: str
    dims: Dims
    outputs: tuple[OutputCheck, ...] = ()
    problem: str | None = None  # B did not run at all
    inputs: Mapping[str, Array] | None = dataclasses.field(default=None, repr=False)  # unless all is within tolerance
    relative: bool = False  # atol counts in units of the reference's largest element, as for large inputs
    next_token: NextToken | None = None  # of a decoder's logits

    @property
    def ok(self) -> bool:
        return self.problem is None and all(output.ok for output in self.outputs)


@dataclasses.dataclass(frozen=True, repr=False)
class VerifyResult(Shown):
    cases: tuple[Case, ...]
    dropped: tuple[str, ...] = ()  # inputs that the reference refuses or B was not made for, and why
    drawn: tuple[str, ...] = ()  # outputs that were not compared: A answers them otherwise each time
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
        return {"ok": self.ok, **fields, "cases": cases, "next_token": self.next_token}

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

    @property
    def of_scale(self) -> float:
        """The largest error of all outputs and cases, in units of the output's scale there."""
        return max((o.of_scale for case in self.cases for o in case.outputs), default=0.0)

    @property
    def next_token(self) -> NextToken | None:
        """What a decoder expects next beside what the reference does, over all cases; None for other models."""
        return together(case.next_token for case in self.cases if case.next_token is not None)


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
    stored, tolerance = _stored_cases(a, b), Tolerance(rtol, atol, BOUNDS.get(precision) if bound is None else bound)
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
            settle = functools.partial(_settled_feed, path_a, model_a, given=inputs or {}, seed=seed)
            # Through the provider the file is run as it is: what it compiled belongs to that file.
            draws = (same_draws(model_a), same_draws(model_b)) if provider is None else (None, None)
            answers, refused = _answers(path_a, feeds, Path(kept), threads, degenerate, settle, draws[0])
            dropped += refused
            if not answers:
                judged = judged_feed(path_a, shapes if isinstance(shapes, Mapping) else None, inputs, seed=seed)
                if judged.feed is None:
                    return VerifyResult((), tuple(dropped), unchecked=judged.problem)
                only = _Feed(judged.origin, judged.dims, judged.feed)
                answers, _ = _answers(path_a, [only], Path(kept), threads, degenerate, settle, draws[0])
            outputs = [value.name or "" for value in model_a.graph.outputs]
            logits = LOGITS if LOGITS in outputs and past.caches(model_a) else None
            compared = _cases(path_b, answers, outputs, tolerance, threads, Path(kept), provider, logits, draws[1])
            compared, changing = _without_drawn(path_a, model_a, compared, outputs, tolerance, threads)
            cases = _settled(path_a, model_a, compared, outputs, threads, ULPS.get(precision))
            result = VerifyResult(tuple(cases), tuple(dropped), changing)
            if result.ok or not bisect:
                return result
            fed = _fed_to_first_failure(cases, answers)
            parting, note = bisect_models(path_a, path_b, model_a, model_b, fed, tolerance, threads)
            return dataclasses.replace(result, parting=parting, note=note)


def _refuse_bad_options(
    rtol: float | None, atol: float | None, precision: str, *, bisect: bool, provider: Path | None
) -> None:
    if bisect and provider is not None:
        raise OpsmithError("bisect needs the values inside the model, which the execution provider does not show")
    if precision != "fp32" and precision not in BOUNDS:
        raise no_such("precision", precision, ("fp32", *BOUNDS))
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not value >= 0:
            raise OpsmithError(f"{name} must be zero or more, not {value}")


def _fed_to_first_failure(cases: Sequence[Case], answers: Sequence[_Answer]) -> dict[str, Array]:
    """The inputs of the first case that fails; one compared with stored outputs was fed as the case it is named after."""
    failing = next(case for case in cases if not case.ok)
    names = (failing.name, failing.name.removesuffix(STORED))
    return next(answer.feed.inputs for answer in answers if answer.feed.name in names)


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
    """Of the smallest shape, not stored, that A runs on."""
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
            name = base.name.replace("random", kind, 1) if "random" in base.name else f"{kind}, {base.name}"
            usual = {n: spread.size_of(base.inputs[n]) for n in names}
            feeds.append(_Feed(name, base.dims, {**base.inputs, **changed}, degenerate=kind, usual=usual))
    return feeds


def _answers(
    path: Path,
    feeds: list[_Feed],
    kept: Path,
    threads: int | None,
    more: Callable[[Sequence[_Answer]], list[_Feed]],
    settle: Callable[[ort.InferenceSession, _Feed], _Feed],
    edit: Edit | None = None,
) -> tuple[list[_Answer], list[str]]:
    """What A answers to FEEDS, each SETTLEd first, and to MORE that are made of those it accepts.

    A random shape that A itself refuses says nothing about B, and is left out with its reason.
    """
    answers: list[_Answer] = []
    refused: list[str] = []
    with progress.task("verify: reference", len(feeds)) as step:
        running = session.load(path, threads=threads, edit=edit, lean=True)
        todo, asked_more = list(feeds), False
        while todo:
            feed = todo.pop(0)
            step(feed.name)
            feed = settle(running, feed)
            started = time.perf_counter()
            try:
                outputs = session.run(running, feed.inputs)
            except OpsmithError as error:
                if feed.stored is not None:
                    raise OpsmithError(f"{path} does not run on its {feed.name}: {error}") from error
                refused.append(f"{feed.degenerate or ''} {_dims_text(feed.dims)}: {_reason(error)}".lstrip())
            else:
                held = [keep(kept, len(answers), i, o) for i, o in enumerate(outputs)]
                answers.append(_Answer(feed, held, time.perf_counter() - started))
            if not todo and not asked_more:
                todo, asked_more = more(answers), True
    return answers, refused


def _settled_feed(
    path: Path, a: ir.Model, running: ort.InferenceSession, feed: _Feed, *, given: Given, seed: int
) -> _Feed:
    """A random case of a decoder with the tokens of a text, if a tokenizer lies beside A, and a past that A made; each as it is where
    there is none."""
    pairs = {name: present for name, present in past.caches(a).items() if name not in given}
    if feed.stored is not None or feed.degenerate or not pairs:
        return feed
    wanted = generate.specs(a, path.stem)
    if (size := past.lengths(wanted, feed.dims)) is None:
        return feed
    tokens = None if past.IDS in given else past.text(feed.inputs, size, store.home_of(path))
    if tokens is not None:
        told = {**feed.inputs, past.IDS: tokens[:, size.past :].astype(feed.inputs[past.IDS].dtype)}
        feed = dataclasses.replace(feed, name=feed.name.replace("random", "text", 1), inputs=told)
    if not size.past:
        return feed
    earlier = past.before(a, wanted, feed.inputs, feed.dims, size, [seed, len(feed.inputs)], tokens)
    try:
        presents = session.run(running, earlier, list(pairs.values()))
    except OpsmithError:
        return feed
    made = past.with_past(feed.inputs, pairs, dict(zip(pairs.values(), presents)))
    return feed if made is None else dataclasses.replace(feed, name=f"{feed.name}{OWN_PAST}", inputs=made)


def _cases(
    path: Path,
    answers: list[_Answer],
    outputs: Sequence[str],
    tolerance: Tolerance,
    threads: int | None,
    kept: Path,
    provider: Path | None = None,
    logits: str | None = None,
    edit: Edit | None = None,
) -> list[_Compared]:
    """B against the answers of A, whose OUTPUTS have these names, and against stored outputs; LOGITS is that of a decoder."""
    found: list[_Compared] = []
    with progress.task("verify: variant", len(answers)) as step:
        running = session.load(path, threads=threads, provider=provider, edit=edit, lean=True)
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
            expected = dict(zip(outputs, answer.outputs))
            case = _case(feed, feed.name, expected, actual, tolerance)
            if logits is not None:
                case = dataclasses.replace(case, next_token=compare_logits(expected[logits], actual[logits]))
            held = None if case.ok else keep_all(kept, len(answers) + index, actual)
            found.append(_Compared(case, answer, held))
            if feed.stored is not None and feed.stored.outputs:
                against = _case(feed, f"{feed.name}{STORED}", feed.stored.outputs, actual, tolerance)
                again = None if against.ok else held or keep_all(kept, len(answers) + index, actual)
                found.append(_Compared(against, answer, again))
    return found


def _without_drawn(
    path: Path,
    a: ir.Model,
    compared: list[_Compared],
    outputs: Sequence[str],
    tolerance: Tolerance,
    threads: int | None,
) -> tuple[list[_Compared], tuple[str, ...]]:
    """What was compared without the outputs that A draws and that differ, and which these are."""
    differing = [c for c in compared if c.actual is not None]
    if not differing:
        return compared, ()
    failing = {check.name for c in differing for check in c.case.outputs if not check.ok}
    names = failing & drawn(path, a, (c.answer.feed.inputs for c in differing), outputs, tolerance, threads)
    left = []
    for c in compared:
        checks = tuple(check for check in c.case.outputs if check.name not in names)
        case = dataclasses.replace(c.case, outputs=checks)
        left.append(dataclasses.replace(c, case=case, actual=None if case.ok else c.actual))
    return left, tuple(sorted(names))


_Statistics: TypeAlias = "dict[str, dict[str, float]]"  # output -> statistic -> its largest value


def _settled(
    path: Path, a: ir.Model, compared: list[_Compared], outputs: Sequence[str], threads: int | None, ulp: float | None
) -> list[Case]:
    """The cases, where those that fail pass after all if A is as far from itself: asked only where A amplifies rounding."""
    differing = [c for c in compared if c.actual is not None]
    if not differing:
        return [c.case for c in compared]
    settled, apart = _compared_in_double(path, differing, outputs, threads)
    steps = spread.has_steps(a)
    failing = [c for c in differing if not settled[id(c)].ok and (steps or c.answer.feed.degenerate)]
    if not failing:
        return [settled.get(id(c), c.case) for c in compared]
    # Steps flip now and then: all shapes together show more of them than one does.
    asked = {id(c.answer): c.answer for c in compared if steps and c.answer.feed.degenerate is None}
    asked |= {id(c.answer): c.answer for c in failing}
    caches = spread.bytes_of_caches(a)
    own = _own_spread(path, list(asked.values()), outputs, steps, threads, ulp)
    for c in failing:
        mine: _Statistics = {}
        for known in (own.get(id(c.answer), {}), own[None], apart.get(id(c.answer), {})):
            for name, sizes in known.items():
                _widen(mine.setdefault(name, {}), sizes)
        settled[id(c)] = _within_spread(dataclasses.replace(c, case=settled[id(c)]), outputs, mine, caches)
    return [settled.get(id(c), c.case) for c in compared]


def _compared_in_double(
    path: Path, differing: Sequence[_Compared], outputs: Sequence[str], threads: int | None
) -> tuple[dict[int, Case], dict[int, _Statistics]]:
    """The cases, by the id of what was compared, whose outputs pass if they agree with A in double; and how far A is from it,
    by the id of the answer."""
    settled = {id(c): c.case for c in differing}
    apart: dict[int, _Statistics] = {}
    with progress.task("verify: the reference in double"):
        feeds = [c.answer.feed.inputs for c in differing]
        for index, values in exact.answers(path, feeds, threads):
            c = differing[index]
            apart[id(c.answer)] = _statistics(c.answer, outputs, values)
            right, own = dict(zip(outputs, values)), apart[id(c.answer)]
            if _judged_by(c, outputs):
                checks = tuple(_in_double(check, right, c.actual or {}, own) for check in c.case.outputs)
                settled[id(c)] = dataclasses.replace(c.case, outputs=checks)
    return settled, apart


def _judged_by(compared: _Compared, outputs: Sequence[str]) -> bool:
    """Whether it is A's answer that a case is compared with: stored outputs count as such only if they are what A gives."""
    stored = compared.answer.feed.stored
    if stored is None or not compared.case.name.endswith(STORED):
        return True
    answers = dict(zip(outputs, compared.answer.outputs))
    return all(check.ok for check in compare_all(stored.outputs, answers, Tolerance()))


def _in_double(
    check: OutputCheck, right: Mapping[str, Any], actual: Mapping[str, Any], apart: Mapping[str, Mapping[str, float]]
) -> OutputCheck:
    """CHECK passes where ACTUAL is within its tolerance of the RIGHT answer, from which A is APART, or nearer to it than A."""
    a, b = right.get(check.name), actual.get(check.name)
    if check.ok or not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return check
    own = apart.get(check.name, {})
    if not compare_arrays(a, b, rtol=check.rtol, atol=check.atol, bound=check.bound).ok:
        floor = check.atol + check.rtol * spread.size_of(a)
        if not spread.is_nearer(spread.statistics(a, b), own, floor):
            return check
    return dataclasses.replace(check, problem=None, spread=own.get("largest", 0.0))


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


def _within_spread(
    compared: _Compared, outputs: Sequence[str], own: Mapping[str, Mapping[str, float]], caches: Collection[str]
) -> Case:
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
        if beyond and check.name in caches and spread.flipped(reference, actual, mine):
            beyond = None
        told = check.problem if not beyond else f"{check.problem}; beyond the reference's own spread: {beyond}"
        checks.append(
            dataclasses.replace(check, problem=None if beyond is None else told, spread=mine.get("largest", 0.0))
        )
    return dataclasses.replace(compared.case, outputs=tuple(checks))


def _case(feed: _Feed, name: str, expected: Mapping[str, Any], actual: Mapping[str, Any], tolerance: Tolerance) -> Case:
    relative = feed.degenerate == "large"
    checks = compare_all(expected, actual, tolerance, relative)
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
    path: Path, stored: list[store.TestData], tolerance: Tolerance, threads: int | None
) -> Iterator[Case]:
    running = session.load(path, threads=threads)
    order = [o.name for o in running.get_outputs()]
    for data in stored:
        actual = dict(zip(order, session.run(running, data.inputs)))
        yield Case(f"{data.folder.name}{STORED}", {}, compare_all(data.outputs, actual, tolerance))


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


def compare_value(case: Case, reference: Array, actual: Array, *, bound: float | None, name: str) -> OutputCheck:
    """A value inside a model, held to what the outputs of CASE are held to."""
    used = scaled(Tolerance(bound=bound), reference) if case.relative else Tolerance(bound=bound)
    return compare_arrays(reference, actual, rtol=used.rtol, atol=used.atol, bound=used.bound, name=name)
