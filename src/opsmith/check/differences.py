"""How far two arrays are apart, and whether that is within tolerance.

An element of B passes when |b - a| <= atol + rtol * |a|, with A the reference; where a bound is given, when |b - a| is within
that many times the largest |a|. NaN equals NaN. Integers, booleans and strings must be equal.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from opsmith.check.inputs import Array
from opsmith.errors import OpsmithError

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

    @property
    def spread_of_scale(self) -> float | None:
        return None if self.spread is None else self.spread / self.scale if self.scale else self.spread


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """The tolerances asked for; None is the type's own."""

    rtol: float | None = None
    atol: float | None = None
    bound: float | None = None  # in units of the output's scale; it decides alone where it is given


def worst_first(checks: Sequence[OutputCheck]) -> list[OutputCheck]:
    """Those that fail before those that pass, then by the tolerance needed, or by the distance in units of the scale."""

    def far(c: OutputCheck) -> float:
        return c.needed_rtol + c.needed_atol if c.bound is None else c.of_scale

    return sorted(checks, key=lambda c: (not c.ok, far(c), c.max_abs), reverse=True)


def compare_all(
    expected: Mapping[str, Any], actual: Mapping[str, Any], tolerance: Tolerance, relative: bool = False
) -> tuple[OutputCheck, ...]:
    """Every output of B against that of A. RELATIVE: as `Case` says."""
    checks: list[OutputCheck] = []
    for name, reference in expected.items():
        if name not in actual:
            raise OpsmithError(f"the test data has an output {name!r}, which the model lacks")
        used = scaled(tolerance, reference) if relative and isinstance(reference, np.ndarray) else tolerance
        checks += compare_any(name, reference, actual[name], used)
    return tuple(checks)


def scaled(tolerance: Tolerance, reference: Array) -> Tolerance:
    if reference.dtype.name not in TOLERANCES or not reference.size or tolerance.bound is not None:
        return tolerance
    atol = TOLERANCES[reference.dtype.name][1] if tolerance.atol is None else tolerance.atol
    largest = float(np.abs(reference[np.isfinite(reference)]).max(initial=0.0))
    return Tolerance(tolerance.rtol, atol * max(1.0, largest))


def compare_any(name: str, a: Any, b: Any, tolerance: Tolerance) -> Iterator[OutputCheck]:
    if isinstance(a, list) and isinstance(b, list):  # an ONNX sequence
        if len(a) != len(b):
            yield _failed(name, "sequence", (len(b),), f"sequence of {len(b)} instead of {len(a)}")
            return
        for index, (left, right) in enumerate(zip(a, b)):
            yield from compare_any(f"{name}[{index}]", left, right, tolerance)
    elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():  # an ONNX map: classes and their scores
        left, right = ([_narrow(x[key]) for key in a] for x in (a, b))
        yield from compare_any(name, np.asarray(left), np.asarray(right), tolerance)
    elif isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        yield compare_arrays(a, b, rtol=tolerance.rtol, atol=tolerance.atol, bound=tolerance.bound, name=name)
    else:
        same = type(a) is type(b) and a == b
        yield _failed(name, type(b).__name__, (), None if same else "differs")


def _narrow(value: Any) -> Any:
    """ONNX Runtime gives the floats of a map, which are of single precision, as Python's."""
    return np.float32(value) if isinstance(value, float) else value


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
    differences = _Differences()
    for block in _finite_blocks(a, b):
        differences.take(*block, used_rtol, used_atol)
    problem = None
    if differences.special:
        where = np.unravel_index(differences.first_special, a.shape)
        was, got = a[where], b[where]
        problem = f"{got} instead of {was} at {[int(i) for i in where]} ({differences.special} such elements)"
    elif differences.wrong:
        by = (
            f"rtol {used_rtol:g}, atol {used_atol:g}"
            if bound is None
            else f"{bound:g} of the output's scale, {scale:.3g}"
        )
        problem = f"{differences.wrong} of {a.size} elements differ by more than {by}"
    needed_rtol, needed_atol = differences.needed(used_rtol, used_atol)
    return OutputCheck(
        name,
        dtype,
        b.shape,
        differences.max_abs,
        differences.max_rel,
        differences.cosine,
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
    """What the blocks so far have shown."""

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
