"""The inputs that a model is judged with: what compile, tune, bench, profile and verify run it on.

    --input FILE.npz, --input sr=16000     values that the caller gives win
    test_data_set_0                        unless a shape is asked for
    --shape sequence=32                    else random values, at this size where it is given,
    typical sizes of the kind of input     at typical ones where not

Where ONNX Runtime does not run the model on random values of typical sizes, other sizes and safer values are tried.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import itertools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from opsmith import session, store
from opsmith.check import values
from opsmith.check.inputs import Dims, Fixed, Input, cases, specs, usual_sizes
from opsmith.errors import OpsmithError

Given: TypeAlias = "Mapping[str, object]"  # input name -> its value: an array, a number or nested lists of them
PATIENCE = 60.0  # seconds of trying before the reason is told
LARGE = 1 << 30  # bytes from which ONNX Runtime's own optimizations take longer than one slow run


@dataclasses.dataclass(frozen=True)
class Judged:
    """What to run the model on. Without a feed nothing could be found that it runs on, and `problem` says why."""

    feed: dict[str, Any] | None
    dims: Dims  # symbol -> size
    origin: str  # where the sizes come from: "test data", "--shape", "typical image 320x320"
    problem: str | None = None  # the input and the node where the last try ended
    ranges: dict[str, Any] = dataclasses.field(default_factory=dict)  # input -> what values it takes, as JSON

    def required(self) -> dict[str, Any]:
        """The feed, for a caller that cannot do without one."""
        if self.feed is None:
            hint = "give --input, --shape or test data"
            raise OpsmithError(f"the model runs on none of the inputs tried: {self.problem}", hint)
        return self.feed

    @property
    def sizes(self) -> str:
        """The feed in words: image 1x3x64x64, steps scalar."""
        return ", ".join(f"{n} {'x'.join(map(str, np.shape(a))) or 'scalar'}" for n, a in (self.feed or {}).items())

    def to_dict(self) -> dict[str, Any]:
        shapes = None if self.feed is None else {name: list(np.shape(array)) for name, array in self.feed.items()}
        return {"inputs": shapes, "dims": self.dims, "origin": self.origin, "problem": self.problem}

    @property
    def record(self) -> dict[str, Any]:
        """For opsmith.json of a variant whose graph no longer shows what its inputs are: judged_feed reads it."""
        return {"dims": self.dims, "origin": self.origin, "ranges": self.ranges}


def judged_feed(
    source: store.ModelLike, shapes: Fixed | None = None, inputs: Given | None = None, *, seed: int = 0
) -> Judged:
    """The stored test data, or seeded inputs of the given or else typical sizes on which ONNX Runtime runs SOURCE."""
    with store.on_disk(source) as path:
        model = store.open_model(path)
        _check_names(inputs or {}, model)
        stored = _stored(path, model)
        if stored is not None and not shapes:
            feed = {**stored, **fitted(inputs or {}, model, stored)}
            dims = dims_of(model, feed)
            return Judged(feed, dims, "test data", ranges=values.ranges(model, feed, dims))
        try:
            wanted = specs(model, path.stem)
        except OpsmithError as error:
            if inputs and {v.name for v in model.graph.inputs} - set(model.graph.initializers) <= set(inputs):
                return Judged(dict(inputs), {}, "--input")
            return Judged(None, {}, "none", str(error))
        return _made_up(Trial(path, model, wanted, inputs or {}, {}, stored, seed), shapes or {})


def _made_up(trial: Trial, shapes: Fixed) -> Judged:
    """Seeded inputs; a variant whose record tells what its source was judged with is judged with the same."""
    record = store.read_record(trial.path).get("inputs") or {}
    bound = bound_by(trial.given, trial.wanted)
    if record and not shapes:
        bound = {s: n for s, n in record.get("dims", {}).items() if s in usual_sizes(trial.wanted)} | bound
    trial = dataclasses.replace(trial, ranges=record.get("ranges", {}))
    judged = trial.first_that_runs(
        {**bound, **shapes}, "--shape" if shapes else "--input" if bound and trial.given else ""
    )
    if record.get("origin") and not shapes and not trial.given:
        judged = dataclasses.replace(judged, origin=record["origin"])
    return judged


def _stored(path: Path, model: ir.Model) -> dict[str, Any] | None:
    names = [v.name or "" for v in model.graph.inputs if v.name not in model.graph.initializers]
    cases = store.read_test_data(path, (names, [v.name or "" for v in model.graph.outputs]))
    return dict(cases[0].inputs) if cases and cases[0].inputs else None


def dims_of(model: ir.Model, feed: Mapping[str, Any]) -> Dims:
    """symbol -> size, as the arrays of a feed have them."""
    dims: Dims = {}
    for value in model.graph.inputs:
        array = feed.get(value.name or "")
        for dim, size in zip(value.shape or (), getattr(array, "shape", ())):
            if isinstance(dim, ir.SymbolicDim) and dim.value:
                dims.setdefault(str(dim.value), int(size))
    return dims


# --- trying -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Trial:
    """The search for inputs on which the model at PATH runs."""

    path: Path
    model: ir.Model
    wanted: Sequence[Input]
    given: Given
    ranges: Mapping[str, Any]
    examples: Mapping[str, Any] | None
    seed: int

    def make(self, dims: Dims, safer: str = "random") -> dict[str, Any]:
        feed = values.random_inputs(self.model, dims, self.seed, self.examples, known=self.ranges, safer=safer)
        return {**feed, **fitted(self.given, self.model, feed)}

    def first_that_runs(self, wishes: Fixed, asked: str) -> Judged:
        """Typical sizes with random values, then with safer ones, then other sizes."""
        started = time.monotonic()
        first = cases(self.wanted, 1, wishes)[0]
        try:
            running = session.load(self.path, optimize=session.size_on_disk(self.path) < LARGE)
        except OpsmithError as error:
            return Judged(None, first, "none", str(error))
        problem: str | None = None
        for dims, safer in self.attempts(first, wishes):
            if problem is not None and time.monotonic() - started > PATIENCE:
                break
            try:
                feed = self.make(dims, safer)
                session.run(running, feed)
            except OpsmithError as error:
                problem = problem or blame(self.model, str(error))
                continue
            told = asked or typical(self.wanted, dims)
            origin = told if safer == "random" else f"{told}, {safer}"
            return Judged(feed, dims, origin, ranges=values.ranges(self.model, feed, dims))
        return Judged(None, first, "none", problem)

    def attempts(self, first: Dims, wishes: Fixed) -> Iterator[tuple[Dims, str]]:
        yield first, "random"
        free = {s: u for s, u in usual_sizes(self.wanted).items() if s not in wishes}
        kinds: dict[str, list[str]] = collections.defaultdict(list)
        for symbol, usual in free.items():
            kinds[usual.kind].append(symbol)
        yield from ((first, safer) for safer in values.SAFER[1:])
        # almost every model runs on a batch of one
        likely_first = sorted(kinds.values(), key=lambda symbols: free[symbols[0]].kind == "batch")
        tries = [[dict.fromkeys(symbols, n) for n in free[symbols[0]].tries] for symbols in likely_first]
        seen = [first]
        alone = (one for each in tries for one in each)
        both = (a | b for one, other in itertools.combinations(tries, 2) for a, b in itertools.product(one, other))
        # Both, as a state has the batch for an axis, and the sound a length of its own.
        for sizes in itertools.chain(alone, both):
            fixed = {**{s: n for s, n in first.items() if s in free}, **sizes}
            dims = _assigned(self.wanted, wishes, fixed)
            if dims is not None and dims not in seen:
                seen.append(dims)
                yield dims, "random"


def _assigned(wanted: Sequence[Input], wishes: Fixed, sizes: Dims) -> Dims | None:
    """The dims with these sizes; None if they contradict the shapes asked for."""
    try:
        return cases(wanted, 1, {**sizes, **wishes})[0]
    except OpsmithError:
        return None


def typical(wanted: Sequence[Input], dims: Dims) -> str:
    """ "typical image 320x320", "typical 128 tokens": the sizes in words."""
    parts: dict[str, None] = {}
    by_kind: dict[str, list[int]] = collections.defaultdict(list)
    for symbol, usual in usual_sizes(wanted).items():
        by_kind[usual.kind].append(dims[symbol])
    for kind, found in by_kind.items():
        if kind in ("image", "latent", "map"):
            sides = found if len(found) == 2 else found * 2 if len(found) == 1 else found[:2]
            parts[f"{kind} {'x'.join(map(str, sides))}"] = None
        elif kind == "samples":
            parts[f"{found[0] / 16000:.3g} s of audio"] = None
        elif kind not in ("batch", "other", "fixed"):
            parts[
                f"{'text line of ' if kind == 'text line' else ''}{found[0]} {'pixels' if kind == 'text line' else kind}"
            ] = None
    return f"typical {', '.join(parts)}" if parts else "the model's own sizes"


_RUNNING = re.compile(r"running (\w+) node\. Name:'([^']*)'")


def blame(model: ir.Model, error: str) -> str:
    """The error with the inputs that reach the node where it happened."""
    match = _RUNNING.search(error)
    node = next((n for n in model.graph if match and n.name == match[2]), None)
    if node is None:
        return error
    names: dict[str, None] = {}
    todo, seen = [v for v in node.inputs if v is not None], set()
    while todo and len(names) < 3:
        value = todo.pop(0)
        if value in seen:
            continue
        seen.add(value)
        producer = value.producer()
        if producer is not None:
            todo += [v for v in producer.inputs if v is not None]
        elif value.is_graph_input() and value.name:
            names[value.name] = None
    if not names:
        return error
    fed = " and ".join(repr(n) for n in names)
    return (
        f"input {fed} at {node.op_type} {node.name!r}: {error.removeprefix('ONNX Runtime failed to run the model: ')}"
    )


# --- values that the caller gives ----------------------------------------------------------------------------


def parse_given(texts: Sequence[str]) -> dict[str, Any]:
    """`FILE.npz` gives the inputs that it names, `name=16000`, `name=1,2,3` and `name=FILE.npy` one."""
    given: dict[str, Any] = {}
    for option in texts:
        name, equals, text = option.partition("=")
        if option.endswith(".npz"):
            given |= _load(option)
        elif not equals or not name or not text:
            raise OpsmithError(f"{option!r} is not an input", "write FILE.npz, NAME=16000, NAME=1,2,3 or NAME=FILE.npy")
        elif text.endswith(".npy"):
            given[name] = _load(text)
        else:
            given[name] = _literal(option, text)
    return given


def _load(file: str) -> Any:
    try:
        found = np.load(file, allow_pickle=False)
        return found if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise OpsmithError(f"{file} does not exist") from None
    except (OSError, ValueError, EOFError) as error:
        raise OpsmithError(f"{file} is not a readable numpy file: {error}") from error


def _literal(option: str, text: str) -> Any:
    words = {"true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        value = ast.literal_eval(text)
        return np.asarray(list(value) if isinstance(value, tuple) else value)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise OpsmithError(f"{option!r}: {text!r} is no number or list of numbers") from error


def bound_by(given: Given, wanted: Sequence[Input]) -> dict[str, int]:
    """The symbols that arrays of the caller's fix: those with as many axes as the input."""
    bound: dict[str, int] = {}
    for spec in wanted:
        shape = np.asarray(given[spec.name]).shape if spec.name in given else ()
        if len(shape) == len(spec.dims):
            bound |= {d: n for d, n in zip(spec.dims, shape) if isinstance(d, str) and d in usual_sizes(wanted)}
    return bound


def _check_names(given: Given, model: ir.Model) -> None:
    known = [v.name or "" for v in model.graph.inputs]
    if unknown := sorted(set(given) - set(known)):
        raise OpsmithError(f"the model has no input {unknown[0]!r}", f"it has {', '.join(known) or 'none'}")


def fitted(given: Given, model: ir.Model, feed: Mapping[str, Any]) -> dict[str, Any]:
    """The array in the type and, for a number, the shape that the model asks for."""
    by_name = {v.name: v for v in model.graph.inputs}
    fitted = {}
    for name, value in given.items():
        dtype = by_name[name].dtype
        array = np.asarray(value)
        if dtype is not None and dtype != ir.DataType.STRING:
            array = array.astype(dtype.numpy())
        shape = np.shape(feed[name]) if name in feed else array.shape
        if array.shape != shape and array.size == int(np.prod(shape)):
            array = array.reshape(shape)
        elif array.ndim == 0:
            array = np.full(shape, array)
        fitted[name] = array
    return fitted
