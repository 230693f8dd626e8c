"""What a model asks to be fed with, and shapes that its declared dims allow.

    input_ids int64 [batch, seq]           128 tokens, then other numbers of them
    attention_mask int64 [batch, past+seq] as long as both together
    past_key float [batch, 12, past, 64]   one token after a past, no past, some past

Dims that share a symbol get the same value in every input; a dim written as a sum or product of other symbols
follows from them. kinds.py says which sizes are usual, values.py which values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from opsmith import dim_names, machine, sizes
from opsmith.check import kinds
from opsmith.check.footprint import largest_value
from opsmith.check.kinds import Usual
from opsmith.errors import OpsmithError

Array: TypeAlias = "np.ndarray[Any, Any]"
Dims: TypeAlias = "dict[str, int]"
Fixed: TypeAlias = "Mapping[str, int | Sequence[int]]"  # symbol -> value, or input name -> shape


@dataclasses.dataclass(frozen=True)
class Input:
    """One input that a caller must feed. `dims` holds numbers and the names of symbols or expressions."""

    name: str
    dtype: ir.DataType
    dims: tuple[int | str, ...]
    usual: tuple[Usual | None, ...] = ()  # of each axis; None where the size is declared


# --- what a model asks for --------------------------------------------------------------------------------


def specs(model: ir.Model, file: str = "") -> list[Input]:
    """The inputs that must be fed: those of the graph, without the ones that have a default value.

    The name of the FILE is a hint at usual sizes.
    """
    about = kinds.facts(model, file)
    while True:
        wanted = _specs(model, about)
        if not any(u is not None and u.kind == "image" for spec in wanted for u in spec.usual):
            return wanted
        dims = default_dims(wanted)
        if largest_value(model, {spec.name: shape_of(spec, dims) for spec in wanted}) <= MOST_ELEMENTS:
            return wanted
        if (smaller := about.halved()) == about:
            return wanted
        about = smaller  # attention over a large picture would take all memory


def overridable_weights(model: ir.Model) -> list[str]:
    """Weights that are inputs, too, as exporters of old wrote them: whoever runs the model may override them, so they are no constants."""
    given = {value.name for value in model.graph.inputs}
    weights = ((name, value.shape) for name, value in model.graph.initializers.items() if name in given)
    return [name for name, shape in weights if shape is not None and math.prod(shape.numpy()) >= WEIGHT]


WEIGHT = 1024  # elements of what counts as one
MOST_ELEMENTS = 1 << 27  # of one value at typical sizes: 512 MiB in single precision


def _specs(model: ir.Model, about: kinds.Facts) -> list[Input]:
    wanted = []
    for value in model.graph.inputs:
        name = value.name or ""
        if name in model.graph.initializers:
            continue
        if not isinstance(value.type, ir.TensorType) or value.dtype is None:
            raise OpsmithError(f"input {name!r} is not a tensor", "only stored test data can feed it")
        if value.shape is None:
            raise OpsmithError(f"input {name!r} has no declared rank", "only stored test data can feed it")
        dims = tuple(dim_name(dim, name, axis) for axis, dim in enumerate(value.shape))
        forced = kinds.forced_sizes(value) if any(isinstance(d, str) for d in dims) else {}
        usual = [
            kinds.axis_size(d, value, axis, about, forced.get(axis)) if isinstance(d, str) else None
            for axis, d in enumerate(dims)
        ]
        wanted.append(Input(name, value.dtype, dims, tuple(usual)))
    return wanted


def dim_name(dim: int | ir.SymbolicDim, name: str, axis: int) -> int | str:
    """A number, or the symbol by which --shape and messages call it."""
    if isinstance(dim, int):
        return dim
    if dim.value:
        return str(dim.value)
    # Nameless dims: the first axis is taken for the batch that all inputs share.
    return "batch" if axis == 0 else f"{name}.{axis}"


def symbols(inputs: Sequence[Input]) -> list[str]:
    """The free symbols, in order of appearance. Expressions of other symbols are not free."""
    return list(usual_sizes(inputs))


# --- expressions such as "past_sequence_length + sequence_length" ------------------------------------------


def _expression(dim: str, standalone: Iterable[str]) -> sizes.Size | None:
    """The size if DIM is arithmetic on other symbols; None if it is a symbol of its own."""
    alone = set(standalone)
    if dim.startswith("total_") and {f"past_{dim[6:]}", dim[6:]} <= alone:
        return sizes.name(f"past_{dim[6:]}") + sizes.name(dim[6:])  # the usual names of decoders with a KV cache
    size = dim_names.parse(dim)
    if size is None or size.name == dim:
        return None
    # "batch-size" is a name with a dash unless `batch` or `size` exist by themselves.
    used = sizes.names(size)
    return None if not used or ("-" in dim and not alone & used) else size


def evaluate(dim: str, dims: Mapping[str, int]) -> int | None:
    """The value of a symbol or expression; None if it is not made of the given symbols, or divides by zero."""
    if dim in dims:
        return dims[dim]
    size = _expression(dim, dims)
    return None if size is None else sizes.at(size, dims)


def shape_of(spec: Input, dims: Mapping[str, int]) -> tuple[int, ...]:
    """The input's shape with its symbols replaced by numbers."""
    shape = []
    for dim in spec.dims:
        if isinstance(dim, int):
            shape.append(dim)
        else:
            value = evaluate(dim, dims)
            if value is None:
                raise OpsmithError(f"input {spec.name!r}: no value for dim {dim!r}")
            if value < 0:
                raise OpsmithError(f"input {spec.name!r}: dim {dim!r} would be {value}")
            shape.append(value)
    if len(shape) > 64 or math.prod(shape) > (machine.memory_bytes() or math.inf):
        size = " x ".join(map(str, shape[:8])) + (" ..." if len(shape) > 8 else "")
        raise OpsmithError(f"input {spec.name!r} of rank {len(shape)} ({size}) cannot be made here")
    return tuple(shape)


# --- choosing dims ----------------------------------------------------------------------------------------


def usual_sizes(inputs: Sequence[Input]) -> dict[str, Usual]:
    """free symbol -> its usual sizes, in order of appearance."""
    texts = [(dim, spec, axis) for spec in inputs for axis, dim in enumerate(spec.dims) if isinstance(dim, str)]
    standalone = {dim for dim, _, _ in texts if (size := dim_names.parse(dim)) is None or size.name == dim}
    usual_of: dict[str, Usual] = {}
    for dim, spec, axis in texts:
        size = _expression(dim, standalone)
        for symbol in [dim] if size is None else sorted(sizes.names(size)):
            usual = (spec.usual[axis] if size is None else None) or kinds.by_name(symbol)
            if symbol not in usual_of or (size is None and _weight(usual) > _weight(usual_of[symbol])):
                usual_of[symbol] = usual
    return usual_of


def _weight(usual: Usual) -> int:
    """A size that weights fix outweighs one that the kind of data suggests, and that outweighs none."""
    return {"other": 0, "fixed": 2}.get(usual.kind, 1)


def cases(inputs: Sequence[Input], count: int, fixed: Fixed | None = None) -> list[Dims]:
    """COUNT different assignments of numbers to symbols; FIXED ones stay the same in all of them."""
    usual = usual_sizes(inputs)
    bound = _bind(inputs, usual, fixed or {})
    assignments: list[Dims] = []
    for index in range(count):
        dims = {s: bound.get(s, u.values[min(index, len(u.values) - 1)]) for s, u in usual.items()}
        if dims not in assignments:
            assignments.append(dims)
    for name, shape in (fixed or {}).items():
        spec = next((s for s in inputs if s.name == name), None)
        if spec is None or isinstance(shape, int):
            continue
        if any(shape_of(spec, dims) != tuple(shape) for dims in assignments):
            raise OpsmithError(f"input {name!r} of shape {list(spec.dims)} cannot be {'x'.join(map(str, shape))}")
    return assignments


def default_dims(inputs: Sequence[Input], fixed: Fixed | None = None) -> Dims:
    """The typical assignment: batch 1, 128 tokens, an image of its usual side."""
    return cases(inputs, 1, fixed)[0]


def _bind(inputs: Sequence[Input], free: Mapping[str, Usual], fixed: Fixed) -> Dims:
    by_name = {spec.name: spec for spec in inputs}
    bound: Dims = {}

    def bind(symbol: str, value: int) -> None:
        if value < 0:
            raise OpsmithError(f"dim {symbol!r} cannot be {value}")
        if bound.setdefault(symbol, value) != value:
            raise OpsmithError(f"dim {symbol!r} is given as {bound[symbol]} and as {value}")

    for name, given in fixed.items():
        # "x=3" is a symbol's size, or the shape of an input of one axis
        value = (given,) if isinstance(given, int) and name not in free and name in by_name else given
        if isinstance(value, int):
            if name not in free:
                raise OpsmithError(f"the model has no dim {name!r}", f"it has {', '.join(free) or 'none'}")
            bind(name, value)
        elif name not in by_name:
            raise OpsmithError(f"the model has no input {name!r}", f"it has {', '.join(by_name) or 'none'}")
        elif len(value) != len(by_name[name].dims):
            raise OpsmithError(f"input {name!r} has rank {len(by_name[name].dims)}, not {len(value)}")
        else:
            for dim, number in zip(by_name[name].dims, value):
                if dim in free:
                    bind(str(dim), int(number))
    return bound


def parse_fixed(texts: Sequence[str]) -> dict[str, int | tuple[int, ...]]:
    """`name=1x4x64x64` fixes an input's shape, `symbol=2` one dim."""
    fixed: dict[str, int | tuple[int, ...]] = {}
    for option in texts:
        name, equals, value = option.rpartition("=")
        parts = value.split("x") if value else []
        if not equals or not name or not parts or not all(p.isdecimal() for p in parts):
            raise OpsmithError(f"{option!r} is not a shape", "write NAME=1x4x64x64 for an input or SYMBOL=2 for a dim")
        numbers = tuple(int(p) for p in parts)
        fixed[name] = numbers[0] if len(numbers) == 1 else numbers
    return fixed
