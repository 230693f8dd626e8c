"""Do two models compute the same thing?

Both run on the stored test data and on fresh seeded inputs of several shapes. An element of B passes when
|b - a| <= atol + rtol * |a|, with A the reference. One model is in memory at a time: what A answered waits on disk.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from opsmith import progress, session, store
from opsmith.errors import OpsmithError
from opsmith.measure import inputs as generate
from opsmith.measure.inputs import Array, Dims, Fixed

# dtype -> (rtol, atol). Everything that is not listed (integers, booleans, strings) must be equal.
TOLERANCES = {
    "float64": (1e-6, 1e-8),
    "float32": (1e-3, 1e-4),
    "float16": (1e-2, 1e-3),
    "bfloat16": (5e-2, 1e-2),
    "complex64": (1e-3, 1e-4),
    "complex128": (1e-6, 1e-8),
}


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

    @property
    def ok(self) -> bool:
        return self.problem is None


@dataclasses.dataclass(frozen=True)
class Case:
    """One set of inputs, and how B's outputs compare with the reference on it."""

    name: str
    dims: Dims
    outputs: tuple[OutputCheck, ...] = ()
    problem: str | None = None  # B did not run at all

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
    compared: int  # values that both models name


@dataclasses.dataclass(frozen=True)
class VerifyResult:
    cases: tuple[Case, ...]
    dropped: tuple[str, ...] = ()  # shapes that the reference itself refuses, and why
    parting: Parting | None = None
    note: str | None = None  # what bisect could not do

    @property
    def ok(self) -> bool:
        return bool(self.cases) and all(case.ok for case in self.cases)

    def __bool__(self) -> bool:
        return self.ok

    @property
    def problems(self) -> list[str]:
        found = []
        for case in self.cases:
            if case.problem:
                found.append(f"{case.name}: {case.problem}")
            found += [f"{case.name}: {output.name}: {output.problem}" for output in case.outputs if not output.ok]
        return found

    @property
    def worst(self) -> list[OutputCheck]:
        """Per output its worst case."""
        by_name: dict[str, list[OutputCheck]] = {}
        for output in itertools.chain.from_iterable(case.outputs for case in self.cases):
            by_name.setdefault(output.name, []).append(output)
        return [worst_first(checks)[0] for checks in by_name.values()]


def worst_first(checks: Sequence[OutputCheck]) -> list[OutputCheck]:
    """Those that fail before those that pass, then by the tolerance needed."""
    return sorted(checks, key=lambda c: (not c.ok, c.needed_rtol + c.needed_atol, c.max_abs), reverse=True)


def verify(
    a: store.ModelLike,
    b: store.ModelLike | None = None,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    shapes: int | Fixed | Sequence[Fixed] = 3,
    bisect: bool = False,
    threads: int | None = None,
) -> VerifyResult:
    """Compare B with A; without B, compare A with the outputs stored in its own test data.

    SHAPES is the number of random shapes, or the dims to use: {symbol: value} or {input: shape}, one or several.
    """
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not value >= 0:
            raise OpsmithError(f"{name} must be zero or more, not {value}")
    stored = _stored_cases(a, b)
    with store.on_disk(a) as path_a:
        if b is None:
            if not any(data.outputs for data in stored):
                raise OpsmithError(f"{a} has no stored test data", "give a second model to compare it with")
            return VerifyResult(tuple(_against_stored(path_a, stored, rtol, atol, threads)))
        with store.on_disk(b) as path_b, tempfile.TemporaryDirectory(prefix="opsmith-verify-") as kept:
            return _verify(path_a, path_b, Path(kept), stored, rtol, atol, seed, shapes, bisect, threads)


def _verify(
    path_a: Path,
    path_b: Path,
    kept: Path,
    stored: list[store.TestData],
    rtol: float | None,
    atol: float | None,
    seed: int,
    shapes: int | Fixed | Sequence[Fixed],
    bisect: bool,
    threads: int | None,
) -> VerifyResult:
    model_a, model_b = store.open_model(path_a), store.open_model(path_b)
    _same_interface(model_a, model_b)
    feeds: list[tuple[str, Dims, dict[str, Array]]] = [(data.folder.name, {}, data.inputs) for data in stored]
    dropped: list[str] = []
    try:
        wanted = generate.specs(model_a)
    except OpsmithError as error:
        if not stored:
            raise
        dropped.append(f"random inputs: {error}")
    else:
        feeds += _random_feeds(wanted, model_a, model_b, shapes, seed)
    names = [value.name or "" for value in model_a.graph.outputs]

    # A answers first; a random shape that A itself refuses says nothing about B.
    answers: list[tuple[str, Dims, dict[str, Array], list[Any]]] = []
    with progress.task("verify: reference", len(feeds)) as step:
        running = session.load(path_a, threads=threads)
        for index, (name, dims, feed) in enumerate(feeds):
            step(name)
            try:
                outputs = session.run(running, feed)
            except OpsmithError as error:
                if index < len(stored):
                    raise OpsmithError(f"{path_a} does not run on its {name}: {error}") from error
                dropped.append(f"{_dims_text(dims)}: {_reason(error)}")
                continue
            answers.append((name, dims, feed, [_keep(kept, index, i, o) for i, o in enumerate(outputs)]))
        del running
    if not answers:
        raise OpsmithError(f"{path_a} runs on none of the inputs tried: {dropped[0]}", "give --shape or test data")

    cases: list[Case] = []
    with progress.task("verify: variant", len(answers)) as step:
        running = session.load(path_b, threads=threads)
        order = [o.name for o in running.get_outputs()]
        by_folder = {data.folder.name: data for data in stored}
        for name, dims, feed, expected in answers:
            step(name)
            try:
                actual = dict(zip(order, session.run(running, feed)))
            except OpsmithError as error:
                cases.append(Case(name, dims, problem=f"does not run: {_reason(error)}"))
                continue
            cases.append(Case(name, dims, _compare_all(dict(zip(names, expected)), actual, rtol, atol)))
            if name in by_folder and by_folder[name].outputs:
                against = _compare_all(by_folder[name].outputs, actual, rtol, atol)
                cases.append(Case(f"{name}, stored outputs", dims, against))
        del running
    result = VerifyResult(tuple(cases), tuple(dropped))
    if result.ok or not bisect:
        return result
    failing = next(case for case in cases if not case.ok)
    feed = next(f for name, _, f, _ in answers if failing.name in (name, f"{name}, stored outputs"))
    parting, note = _bisect(path_a, path_b, model_a, model_b, feed, rtol, atol, threads)
    return dataclasses.replace(result, parting=parting, note=note)


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
    path: Path, stored: list[store.TestData], rtol: float | None, atol: float | None, threads: int | None
) -> Iterator[Case]:
    running = session.load(path, threads=threads)
    order = [o.name for o in running.get_outputs()]
    for data in stored:
        actual = dict(zip(order, session.run(running, data.inputs)))
        yield Case(f"{data.folder.name}, stored outputs", {}, _compare_all(data.outputs, actual, rtol, atol))


def _same_interface(a: ir.Model, b: ir.Model) -> None:
    """Different input or output names make a comparison meaningless: that is a user's mistake, not a difference."""
    for kind in ("inputs", "outputs"):
        left, right = ({v.name for v in getattr(m.graph, kind)} - set(m.graph.initializers) for m in (a, b))
        if left != right:
            only = ", ".join(sorted(str(n) for n in left ^ right)[:6])
            raise OpsmithError(f"the two models have different {kind}: {only} in only one of them")


def _random_feeds(
    wanted: Sequence[generate.Input], a: ir.Model, b: ir.Model, shapes: int | Fixed | Sequence[Fixed], seed: int
) -> list[tuple[str, Dims, dict[str, Array]]]:
    static = _static_dims(wanted, b)
    if isinstance(shapes, int):
        all_dims = generate.cases(wanted, shapes, static)
    else:
        fixed = [shapes] if isinstance(shapes, Mapping) else shapes
        all_dims = [generate.default_dims(wanted, {**static, **f}) for f in fixed]
    return [
        (f"random {_dims_text(dims)}".rstrip(), dims, generate.random_inputs(a, dims, [seed, index]))
        for index, dims in enumerate(all_dims, 1)
    ]


def _static_dims(wanted: Sequence[generate.Input], b: ir.Model) -> dict[str, int]:
    """Symbols of A that B, made for one shape, holds fixed."""
    free = set(generate.symbols(wanted))
    found: dict[str, int] = {}
    by_name = {value.name: value for value in b.graph.inputs}
    for spec in wanted:
        shape = by_name[spec.name].shape
        if shape is not None:
            found |= {d: n for d, n in zip(spec.dims, shape) if isinstance(d, str) and d in free and isinstance(n, int)}
    return found


def _dims_text(dims: Mapping[str, int]) -> str:
    return " ".join(f"{symbol}={value}" for symbol, value in dims.items())


def _reason(error: OpsmithError) -> str:
    return str(error).removeprefix("ONNX Runtime failed to run the model: ")


def _keep(folder: Path, case: int, index: int, output: Any) -> Any:
    """Large arrays go to disk and come back memory-mapped, so that they do not crowd out the second model."""
    if not isinstance(output, np.ndarray) or output.nbytes < 1 << 20 or output.dtype.kind not in "fiubc":
        return output
    path = folder / f"{case}_{index}.npy"
    np.save(path, output)
    return np.load(path, mmap_mode="r")


# --- comparing arrays -------------------------------------------------------------------------------------


def _compare_all(
    expected: Mapping[str, Any], actual: Mapping[str, Any], rtol: float | None, atol: float | None
) -> tuple[OutputCheck, ...]:
    checks: list[OutputCheck] = []
    for name, reference in expected.items():
        if name not in actual:
            raise OpsmithError(f"the test data has an output {name!r}, which the model lacks")
        checks += _compare_any(name, reference, actual[name], rtol, atol)
    return tuple(checks)


def _compare_any(name: str, a: Any, b: Any, rtol: float | None, atol: float | None) -> Iterator[OutputCheck]:
    if isinstance(a, list) and isinstance(b, list):  # an ONNX sequence
        if len(a) != len(b):
            yield _failed(name, "sequence", (len(b),), f"sequence of {len(b)} instead of {len(a)}")
            return
        for index, (left, right) in enumerate(zip(a, b)):
            yield from _compare_any(f"{name}[{index}]", left, right, rtol, atol)
    elif isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        yield compare_arrays(a, b, rtol=rtol, atol=atol, name=name)
    else:
        same = type(a) is type(b) and a == b
        yield _failed(name, type(b).__name__, (), None if same else "differs")


def _failed(name: str, dtype: str, shape: tuple[int, ...], problem: str | None) -> OutputCheck:
    far = 0.0 if problem is None else float("inf")
    return OutputCheck(name, dtype, shape, far, far, 1.0 if problem is None else 0.0, 0.0, 0.0, far, far, problem)


def compare_arrays(
    a: Array, b: Array, *, rtol: float | None = None, atol: float | None = None, name: str = ""
) -> OutputCheck:
    """Compare B with the reference A, element by element.

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
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    left, right = a.astype(wide).ravel(), b.astype(wide).ravel()
    finite = np.isfinite(left) & np.isfinite(right)
    special = ~finite & ~((left == right) | (np.isnan(left) & np.isnan(right)))
    left, right = left[finite], right[finite]
    distance, size = np.abs(right - left), np.abs(left)
    max_abs = float(distance.max(initial=0.0))
    matters = size > used_atol
    max_rel = float((distance[matters] / size[matters]).max(initial=0.0))
    allowed = used_atol + used_rtol * size
    needed_rtol, needed_atol = _needed(distance, allowed, used_rtol, used_atol)
    problem = None
    if special.any():
        where = np.unravel_index(int(np.argmax(special)), a.shape)
        was, got = a[where], b[where]
        problem = f"{got} instead of {was} at {[int(i) for i in where]} ({int(special.sum())} such elements)"
    elif (wrong := distance > allowed).any():
        problem = f"{int(wrong.sum())} of {a.size} elements differ by more than rtol {used_rtol:g}, atol {used_atol:g}"
    cosine = _cosine(left, right)
    return OutputCheck(
        name, dtype, b.shape, max_abs, max_rel, cosine, used_rtol, used_atol, needed_rtol, needed_atol, problem,
        float(np.abs(left[np.isfinite(left)]).max(initial=0.0)),
    )  # fmt: skip


def _needed(distance: Array, allowed: Array, rtol: float, atol: float) -> tuple[float, float]:
    """The given tolerances scaled by the smallest factor that lets every element pass."""
    if rtol == 0 and atol == 0:
        return 0.0, float(distance.max(initial=0.0))
    apart = distance > 0
    if not apart.any():
        return 0.0, 0.0
    with np.errstate(divide="ignore", over="ignore"):
        factor = float((distance[apart] / allowed[apart]).max())
    return factor * rtol if rtol else 0.0, factor * atol if atol else 0.0


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
    rtol: float | None,
    atol: float | None,
    threads: int | None,
) -> tuple[Parting | None, str | None]:
    """Fetch the values that both graphs name, spread over the graph, and close in on the first that differs."""
    made_a, made_b = _producers(model_a), _producers(model_b)
    shared = [name for name in made_a if name in made_b]
    outputs = {value.name for value in model_a.graph.outputs}
    if not set(shared) - outputs:
        return None, "the two models share no names of intermediate values, only outputs: nothing to walk along"
    low, high = 0, len(shared)  # the first differing value lies in shared[low:high]
    found: OutputCheck | None = None
    while True:
        step = max(1, -(-(high - low) // PROBES))
        probes = shared[low:high][step - 1 :: step]
        if shared[high - 1] not in probes:
            probes.append(shared[high - 1])
        with tempfile.TemporaryDirectory(prefix="opsmith-verify-") as kept:
            expected = _fetch(path_a, feed, probes, threads, Path(kept))
            actual = _fetch(path_b, feed, probes, threads, None)
            checks = {p: next(iter(_compare_any(p, expected[p], actual[p], rtol, atol))) for p in probes}
        first = next((p for p in probes if not checks[p].ok), None)
        if first is None:
            return None, "every value that both models name agrees without ORT's optimizations; the outputs do not"
        found = checks[first]
        position = shared.index(first)
        good = [shared.index(p) for p in probes if shared.index(p) < position]
        low, high = (max(good) + 1 if good else low), position + 1
        if high - low <= 1 or step == 1:
            break
    return Parting(found.name, made_a[found.name], made_b[found.name], found, len(shared)), None


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
