"""Random values that a model accepts: guessed from what its graph does with an input, and from the input's name.

    ids -> Gather(table [1000, 64])       0 .. 999
    k -> TopK(x [2, 10])                  as many as the declared output has
    input_lengths, sr, attention_mask     the length of the sequence, 16000, ones with some padding

The walk from an input to its uses passes operators that keep values, subgraphs and functions. What an operator asks of
its operands is a rule in operands.py.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.check import operands
from opsmith.check.inputs import Array, Input, evaluate, shape_of, specs, usual_sizes
from opsmith.check.operands import Bounds, Use

SAFER = ("random", "small", "zeros", "ones")  # values to try in turn


def random_inputs(
    model: ir.Model,
    dims: Mapping[str, int],
    seed: int | Sequence[int] = 0,
    examples: Mapping[str, Array] | None = None,
    *,
    known: Mapping[str, Any] | None = None,
    safer: str = "random",
) -> dict[str, Array]:
    """Inputs of the shapes that DIMS give; the same seed gives the same numbers on every machine.

    A compiled graph does not show which inputs are indices, and into what: EXAMPLES that are known to be right, or what
    was KNOWN of its source (see `ranges`), bound them.
    """
    rng = np.random.default_rng(seed)
    wanted = specs(model)
    shapes = {s.name: shape_of(s, dims) for s in wanted}
    about = _About(shapes, max((dims[s] for s, u in usual_sizes(wanted).items() if u.kind == "past"), default=0), dims)
    feed = {}
    for spec in wanted:
        value = next(v for v in model.graph.inputs if v.name == spec.name)
        guess = _guess(model, value, shapes[spec.name], about, rng)
        if guess is None:
            guess = _recalled((known or {}).get(spec.name), shapes[spec.name], (examples or {}).get(spec.name))
        feed[spec.name] = np.asarray(_values(spec, shapes[spec.name], guess, about, rng, safer))
    return feed


def ranges(model: ir.Model, feed: Mapping[str, Array], dims: Mapping[str, int]) -> dict[str, Any]:
    """What is known of the values of each input, as JSON: for the record of a variant whose graph no longer shows it."""
    limits: dict[str, Any] = {}
    shapes = {name: array.shape for name, array in feed.items() if isinstance(array, np.ndarray)}
    about = _About(shapes, 0, dims)
    for value in model.graph.inputs:
        array = feed.get(value.name or "")
        if not isinstance(array, np.ndarray):
            continue
        guess = _guess(model, value, array.shape, about, np.random.default_rng(0))
        if isinstance(guess, Bounds):
            limits[value.name or ""] = {"low": guess.low, "high": guess.high}
        elif guess is not None and array.size <= 64 and array.dtype.kind in "fiub":
            limits[value.name or ""] = {"value": array.tolist()}
    return limits


def free_floats(model: ir.Model, feed: Mapping[str, Any], dims: Mapping[str, int]) -> list[str]:
    """The inputs that hold any numbers: floats of which neither graph nor name asks something."""
    shapes = {name: array.shape for name, array in feed.items() if isinstance(array, np.ndarray)}
    about = _About(shapes, 0, dims)
    free = []
    for value in model.graph.inputs:
        array, name = feed.get(value.name or ""), value.name or ""
        if not isinstance(array, np.ndarray) or value.dtype is None or not value.dtype.is_floating_point():
            continue
        if not array.size or _named(name, value.dtype, array.shape, about, np.random.default_rng(0)) is not None:
            continue
        if _guess(model, value, array.shape, about, np.random.default_rng(0)) is None:
            free.append(name)
    return free


@dataclasses.dataclass(frozen=True)
class _About:
    """What values depend on besides their own input."""

    shapes: Mapping[str, tuple[int, ...]]
    past: int
    dims: Mapping[str, int]


def _values(
    spec: Input,
    shape: tuple[int, ...],
    guess: Bounds | Array | None,
    about: _About,
    rng: np.random.Generator,
    safer: str,
) -> Array:
    dtype = spec.dtype
    if dtype == ir.DataType.STRING:
        return np.asarray(rng.choice(np.array(["a", "b", "one two", "1.5"], object), shape), object)
    kind = dtype.numpy()
    if guess is not None and not isinstance(guess, Bounds):
        return guess.reshape(shape).astype(kind)
    named = _named(spec.name, dtype, shape, about, rng)
    if named is not None:
        return (named if guess is None else np.clip(named, guess.low, guess.high)).astype(kind)
    if safer in ("zeros", "ones") and (guess is None or guess.low <= (safer == "ones") <= guess.high):
        return np.full(shape, safer == "ones").astype(kind)
    if guess is not None:
        return _between(guess if safer == "random" else guess.narrow(), dtype, shape, rng).astype(kind)
    if dtype.is_floating_point():
        numbers = rng.standard_normal(shape) if safer == "random" else rng.uniform(0.1, 0.9, shape)
        return numbers.astype(kind)
    if dtype == ir.DataType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if not dtype.is_integer():
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(kind)
    if dtype.bitwidth <= 8 and safer == "random":  # no index: all that the type holds
        low = -(2 ** (dtype.bitwidth - 1)) if dtype.is_signed() else 0
        return rng.integers(low, low + 2**dtype.bitwidth, shape).astype(kind)
    return rng.integers(0, 10 if safer == "random" else 2, shape).astype(kind)


def _between(bounds: Bounds, dtype: ir.DataType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if dtype.is_floating_point() and not bounds.whole:
        return rng.uniform(bounds.low, bounds.high, shape)
    return rng.integers(int(bounds.low), int(bounds.high) + 1, shape)


def _recalled(record: Any, shape: tuple[int, ...], example: Array | None) -> Bounds | Array | None:
    """What the source of a compiled variant was known to accept, or else the range of integers that ran."""
    if isinstance(record, Mapping):
        if "value" in record:
            array = np.asarray(record["value"])
            return array if array.shape == shape else None
        if "low" in record and "high" in record:
            return Bounds(float(record["low"]), float(record["high"]), whole=True)
    if example is not None and example.size and example.dtype.kind in "iu" and example.min() >= 0:
        return Bounds(0, int(example.max()), whole=True)
    return None


# --- by name ----------------------------------------------------------------------------------------------


def _named(
    name: str, dtype: ir.DataType, shape: tuple[int, ...], about: _About, rng: np.random.Generator
) -> Array | None:
    """Values for inputs whose name says what they hold."""
    for pattern, rule in _NAMES:
        if re.search(pattern, name.lower()) and (values := rule(name, dtype, shape, about, rng)) is not None:
            return np.asarray(np.broadcast_to(values, shape))
    return None


_Named = Callable[[str, ir.DataType, tuple[int, ...], _About, np.random.Generator], Any]


def _cached(name: str, dtype: ir.DataType, shape: tuple[int, ...], about: _About, rng: np.random.Generator) -> Any:
    return about.past > 0


def _mask(name: str, dtype: ir.DataType, shape: tuple[int, ...], about: _About, rng: np.random.Generator) -> Any:
    """Ones; in every row but the first about a third is zero. Of a picture, its middle is zero.

    Padding lies on the left, inside the past, where a decoder has one, else on the right: so no query is left
    without any key, which would make its result meaningless.
    """
    if not shape or "mask_token" in name:
        return None
    mask = np.ones(shape, np.int64)
    length = shape[-1]
    if len(shape) == 2:
        for row in range(1, shape[0]):
            if about.past > 1:
                mask[row, : min(about.past - 1, 1 + (row * length // 3) % about.past)] = 0
            elif length > 1:
                mask[row, max(1, length - row * length // 3 - 1) :] = 0
    elif len(shape) == 4 and shape[1] == 1 and not any(n.startswith("past") for n in about.shapes):
        height, width = shape[2:]
        mask[:, :, height // 3 : height // 2 + 1, width // 3 : width // 2 + 1] = 0
    return mask * 255 if dtype == ir.DataType.UINT8 and len(shape) >= 3 else mask


def _positions(name: str, dtype: ir.DataType, shape: tuple[int, ...], about: _About, rng: np.random.Generator) -> Any:
    return about.past + np.arange(shape[-1]) if shape and dtype.is_integer() else None


def _length(name: str, dtype: ir.DataType, shape: tuple[int, ...], about: _About, rng: np.random.Generator) -> Any:
    """The length of what the name begins with, or of the first input: its first axis behind the batch that is no channel."""
    if len(shape) > 1 or "scale" in name:
        return None
    others = {n: s for n, s in about.shapes.items() if n != name and len(s) > 1}
    stem = re.split(r"[_.]?len", name.lower())[0]
    best = next((s for n, s in others.items() if n.lower().startswith(stem)), next(iter(others.values()), None))
    if best is None:
        return None
    return best[-1] if len(best) == 3 and best[-1] > best[1] else best[1]


def _of_picture(name: str, dtype: ir.DataType, shape: tuple[int, ...], about: _About, rng: np.random.Generator) -> Any:
    """Height and width of the picture among the inputs."""
    pictures = [s for s in about.shapes.values() if len(s) == 4]
    return np.array(pictures[0][2:]) if pictures and shape[-1:] == (2,) else None


def _constant(value: float) -> _Named:
    return lambda name, dtype, shape, about, rng: value if not dtype.is_integer() or float(value).is_integer() else None


def _row_scales(name: str, dtype: ir.DataType, shape: tuple[int, ...], about: _About, rng: np.random.Generator) -> Any:
    """One for each row of the bytes that have the name without "_scale": such that random bytes stand for numbers around 1."""
    rows = about.shapes.get(name.removesuffix("_scale"))
    if rows is None or shape != (*rows[:-1], 1) or not dtype.is_floating_point():
        return None
    return rng.uniform(0.5, 1.5, shape) / 74


def _timesteps(name: str, dtype: ir.DataType, shape: tuple[int, ...], about: _About, rng: np.random.Generator) -> Any:
    return rng.integers(0, 1000, shape)


def _sigma(name: str, dtype: ir.DataType, shape: tuple[int, ...], about: _About, rng: np.random.Generator) -> Any:
    return np.exp(rng.uniform(-2, 2, shape)) if dtype.is_floating_point() else None


def _probability(name: str, dtype: ir.DataType, shape: tuple[int, ...], about: _About, rng: np.random.Generator) -> Any:
    return rng.uniform(0, 1, shape) if dtype.is_floating_point() else None


def _bytes(name: str, dtype: ir.DataType, shape: tuple[int, ...], about: _About, rng: np.random.Generator) -> Any:
    return rng.integers(0, 256, shape) if dtype.is_integer() and dtype.bitwidth > 8 else None


_NAMES: tuple[tuple[str, _Named], ...] = (
    (r"use_cache", _cached),
    (r"mask", _mask),
    (r"position", _positions),
    (r"^(sr|rate)$|sampl(e|ing)_?rate", _constant(16000)),
    (r"^f(req)?_?min$", _constant(50)),
    (r"^f(req)?_?max$", _constant(2000)),
    (r"(^|_)(lens?|lengths?|seq_?lens?|sequence_lens)$|_len(gth)?s?(_|$)", _length),
    (r"(im|image|img|orig\w*|target)_?(shape|sizes?)$", _of_picture),
    (r"timestep", _timesteps),
    (r"sigma", _sigma),
    (r"iou|nms_?thr|threshold", _constant(0.5)),
    (r"(score|conf)\w*thr", _constant(0.1)),
    (r"max_?(output|det|boxes)|num_?(det|boxes)|^top_?k$", _constant(10)),
    (r"_scale$", _row_scales),
    (r"scale|temperature|^speed$", _constant(1)),
    (r"prob|^top_?p$", _probability),
    (r"^bytes$", _bytes),
)


# --- by use -----------------------------------------------------------------------------------------------

_KEEPS_VALUES = {
    "Cast", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Slice", "Tile", "Split", "Clip",
    "Pad", "Gather", "GatherND", "GatherElements", "DepthToSpace", "SpaceToDepth", "Trilu", "ReverseSequence", "Dropout",
}  # fmt: skip
_KEEPS_ANY = {"Concat", "Max", "Min", "SequenceConstruct"}  # the values of every input


def _guess(
    model: ir.Model, value: ir.Value, shape: tuple[int, ...], about: _About, rng: np.random.Generator
) -> Bounds | Array | None:
    """What the uses of an input ask of its values: exact ones of the first that says so, else the narrowest bounds."""
    bounds: Bounds | None = None
    for use, shift in _uses(model, value, shape, about, rng):
        guess = operands.guess(use)
        if isinstance(guess, Bounds):
            moved = dataclasses.replace(guess, low=guess.low - shift, high=guess.high - shift)
            bounds = moved if bounds is None else bounds.meet(moved)
        elif guess is not None and guess.size == int(np.prod(shape)):
            return guess - shift if shift else guess
    return bounds


def _uses(
    model: ir.Model, value: ir.Value, shape: tuple[int, ...], about: _About, rng: np.random.Generator
) -> Iterator[tuple[Use, float]]:
    """Every use of the input's values, and what was added to them on the way there."""

    def size_of(inner: ir.Value | None, outer: Mapping[ir.Value, ir.Value | None]) -> tuple[int, ...] | None:
        while inner is not None and inner in outer:
            inner = outer[inner]
        if inner is None:
            return None
        if inner.is_graph_input() and (inner.name or "") in about.shapes:
            return about.shapes[inner.name or ""]
        if inner.shape is None:
            return None
        sizes = [
            d if isinstance(d, int) else evaluate(str(d.value), about.dims) if d.value else None for d in inner.shape
        ]
        return None if any(s is None for s in sizes) else tuple(int(s) for s in sizes if s is not None)

    seen: set[tuple[ir.Node, int]] = set()
    todo: list[tuple[ir.Value, dict[ir.Value, ir.Value | None], float]] = [(value, {}, 0.0)]
    while todo:
        at, outer, shift = todo.pop(0)
        for node, position in at.uses():
            if (node, position) in seen:
                continue
            seen.add((node, position))
            yield Use(node, position, value.dtype, shape, lambda v, o=outer: size_of(v, o), rng), shift  # type: ignore[misc]
            for onward in _onward(node, position):
                todo.append((onward, outer, shift))
            if (moved := _moved(node, position)) is not None:
                todo.append((node.outputs[0], outer, shift + moved))
            if (function := model.functions.get(node.op_identifier())) is not None:
                inside = dict(zip(function.inputs, node.inputs))
                if position < len(function.inputs):
                    todo.append((function.inputs[position], {**outer, **inside}, shift))


def _onward(node: ir.Node, position: int) -> Iterator[ir.Value]:
    """The values that hold the same numbers as the input of NODE at POSITION."""
    op = node.op_type
    if (op in _KEEPS_VALUES and position == 0) or op in _KEEPS_ANY or (op == "Where" and position in (1, 2)):
        yield from node.outputs
    body = node.attributes.get("body")
    if body is not None and op in ("Loop", "Scan"):
        graph = body.as_graph()
        if position < len(graph.inputs) and (op == "Scan" or position >= 2):
            yield graph.inputs[position]


def _moved(node: ir.Node, position: int) -> float | None:
    """What Add or Sub adds to the input at POSITION, if that is one constant number."""
    if node.op_type not in ("Add", "Sub") or len(node.inputs) != 2 or (node.op_type == "Sub" and position == 1):
        return None
    other = node.inputs[1 - position]
    tensor = ir.convenience.get_const_tensor(other) if other is not None else None
    if tensor is None or tensor.size != 1:
        return None
    number = float(tensor.numpy().ravel()[0])
    return number if node.op_type == "Add" else -number
