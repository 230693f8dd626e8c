"""Seeded random inputs for any model, in shapes that its declared dims allow.

    input_ids int64 [batch, seq]           ids below the smallest embedding table they index
    attention_mask int64 [batch, past+seq] ones, some rows partly zero
    past_key float [batch, 12, past, 64]   past = 0 in the first case, longer in the others

Dims that share a symbol get the same value in every input; a dim written as a sum or product of other symbols
follows from them.
"""

from __future__ import annotations

import ast
import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

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


# --- what a model asks for --------------------------------------------------------------------------------


def specs(model: ir.Model) -> list[Input]:
    """The inputs that must be fed: those of the graph, without the ones that have a default value."""
    found = []
    for value in model.graph.inputs:
        name = value.name or ""
        if name in model.graph.initializers:
            continue
        if not isinstance(value.type, ir.TensorType) or value.dtype is None:
            raise OpsmithError(f"input {name!r} is not a tensor", "only stored test data can feed it")
        if value.dtype == ir.DataType.STRING:
            raise OpsmithError(f"input {name!r} holds strings", "only stored test data can feed it")
        if value.shape is None:
            raise OpsmithError(f"input {name!r} has no declared rank", "only stored test data can feed it")
        dims = tuple(_dim_name(dim, name, axis) for axis, dim in enumerate(value.shape))
        found.append(Input(name, value.dtype, dims))
    return found


def _dim_name(dim: int | ir.SymbolicDim, name: str, axis: int) -> int | str:
    if isinstance(dim, int):
        return dim
    if dim.value:
        return str(dim.value)
    # Nameless dims: the first axis is taken for the batch that all inputs share.
    return "batch" if axis == 0 else f"{name}.{axis}"


def symbols(inputs: Sequence[Input]) -> list[str]:
    """The free symbols, in order of appearance. Expressions of other symbols are not free."""
    return list(_roles(inputs))


# --- expressions such as "past_sequence_length + sequence_length" ------------------------------------------

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def _parse(text: str) -> ast.expr | None:
    """The syntax tree of an arithmetic expression, or None for anything else."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    allowed = (ast.BinOp, ast.Name, ast.Constant, ast.operator, ast.expr_context)
    for node in ast.walk(tree):
        if not isinstance(node, allowed) or (isinstance(node, ast.BinOp) and type(node.op) not in _OPERATORS):
            return None
        if isinstance(node, ast.Constant) and type(node.value) is not int:
            return None
    return tree


def _names(tree: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


def _expression(text: str, standalone: Iterable[str]) -> ast.expr | None:
    """The tree if TEXT is arithmetic on other symbols; None if it is a symbol of its own."""
    known = set(standalone)
    if text.startswith("total_") and {f"past_{text[6:]}", text[6:]} <= known:
        return _parse(f"past_{text[6:]} + {text[6:]}")  # the usual names of decoders with a KV cache
    tree = _parse(text)
    if tree is None or isinstance(tree, ast.Name):
        return None
    names = _names(tree)
    # "batch-size" is a name with a dash unless `batch` or `size` exist by themselves.
    if not names or ("-" in text and not known & set(names)):
        return None
    return tree


def _evaluate(tree: ast.expr, dims: Mapping[str, int], text: str) -> int:
    if isinstance(tree, ast.BinOp):
        left, right = _evaluate(tree.left, dims, text), _evaluate(tree.right, dims, text)
        if isinstance(tree.op, (ast.FloorDiv, ast.Div, ast.Mod)) and right == 0:
            raise OpsmithError(f"dim {text!r} divides by zero")
        return _OPERATORS[type(tree.op)](left, right)
    if isinstance(tree, ast.Name):
        return dims[tree.id]
    assert isinstance(tree, ast.Constant) and isinstance(tree.value, int)
    return tree.value


def evaluate(text: str, dims: Mapping[str, int]) -> int | None:
    """The value of a symbol or expression; None if it is not made of the given symbols."""
    if text in dims:
        return dims[text]
    tree = _expression(text, dims)
    if tree is None or not set(_names(tree)) <= set(dims):
        return None
    return _evaluate(tree, dims, text)


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
    return tuple(shape)


# --- choosing dims ----------------------------------------------------------------------------------------

# Values for the successive cases; the last ones repeat. The first is the default of `inspect` and `bench`.
_VALUES = {
    "batch": (1, 2, 3),
    "past": (0, 5, 12),
    "sequence": (16, 7, 1),  # with the past above: a prompt, a continued prompt, one decode step
    "height": (16, 24, 32),
    "width": (16, 32, 24),
    "image height": (64, 48, 80),
    "image width": (64, 80, 48),
    "other": (16, 5, 9),
}


def _roles(inputs: Sequence[Input]) -> dict[str, str]:
    """free symbol -> its role, one of the keys of `_VALUES`."""
    texts = [(dim, spec, axis) for spec in inputs for axis, dim in enumerate(spec.dims) if isinstance(dim, str)]
    standalone = {dim for dim, _, _ in texts if (tree := _parse(dim)) is None or isinstance(tree, ast.Name)}
    roles: dict[str, str] = {}
    for dim, spec, axis in texts:
        tree = _expression(dim, standalone)
        for symbol in [dim] if tree is None else _names(tree):
            if symbol not in roles or (tree is None and roles[symbol] == "other"):
                roles[symbol] = _role(symbol, spec, axis if tree is None else None)
    return roles


def _role(symbol: str, spec: Input, axis: int | None) -> str:
    name = symbol.lower()
    if "past" in name or "cache" in name:
        return "past"
    if "batch" in name or (axis == 0 and not any(w in name for w in ("seq", "len", "height", "width"))):
        return "batch"
    if "past" in spec.name.lower() and axis is not None:
        return "past"
    spatial = len(spec.dims) == 4 and axis in (2, 3) and spec.dtype.is_floating_point()
    if "height" in name or "width" in name or (spatial and "seq" not in name):
        side = "width" if "width" in name or axis == 3 else "height"
        channels = spec.dims[1] if len(spec.dims) == 4 else None
        return f"image {side}" if channels in (1, 3) else side
    if any(word in name for word in ("seq", "len", "token")) or len(spec.dims) == 2:
        return "sequence"
    return "other"


def cases(inputs: Sequence[Input], count: int, fixed: Fixed | None = None) -> list[Dims]:
    """COUNT different assignments of numbers to symbols; FIXED ones stay the same in all of them."""
    roles = _roles(inputs)
    bound = _bind(inputs, roles, fixed or {})
    found: list[Dims] = []
    for index in range(count):
        dims = {s: bound.get(s, _VALUES[role][min(index, len(_VALUES[role]) - 1)]) for s, role in roles.items()}
        if dims not in found:
            found.append(dims)
    for name, shape in (fixed or {}).items():
        if not isinstance(shape, int):
            spec = next(s for s in inputs if s.name == name)
            if any(shape_of(spec, dims) != tuple(shape) for dims in found):
                raise OpsmithError(f"input {name!r} of shape {list(spec.dims)} cannot be {'x'.join(map(str, shape))}")
    return found


def default_dims(inputs: Sequence[Input], fixed: Fixed | None = None) -> Dims:
    """One sensible assignment: batch 1, sequence 16, no past, small images."""
    return cases(inputs, 1, fixed)[0]


def _bind(inputs: Sequence[Input], roles: Mapping[str, str], fixed: Fixed) -> Dims:
    by_name = {spec.name: spec for spec in inputs}
    bound: Dims = {}

    def bind(symbol: str, value: int) -> None:
        if value < 0:
            raise OpsmithError(f"dim {symbol!r} cannot be {value}")
        if bound.setdefault(symbol, value) != value:
            raise OpsmithError(f"dim {symbol!r} is given as {bound[symbol]} and as {value}")

    for name, value in fixed.items():
        if isinstance(value, int):
            if name not in roles:
                raise OpsmithError(f"the model has no dim {name!r}", f"it has {', '.join(roles) or 'none'}")
            bind(name, value)
        elif name not in by_name:
            raise OpsmithError(f"the model has no input {name!r}", f"it has {', '.join(by_name) or 'none'}")
        elif len(value) != len(by_name[name].dims):
            raise OpsmithError(f"input {name!r} has rank {len(by_name[name].dims)}, not {len(value)}")
        else:
            for dim, number in zip(by_name[name].dims, value):
                if dim in roles:
                    bind(str(dim), int(number))
    return bound


def parse_fixed(texts: Sequence[str]) -> dict[str, int | tuple[int, ...]]:
    """`name=1x4x64x64` fixes an input's shape, `symbol=2` one dim."""
    fixed: dict[str, int | tuple[int, ...]] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        parts = value.split("x") if value else []
        if not equals or not name or not parts or not all(p.isdecimal() for p in parts):
            raise OpsmithError(f"{text!r} is not a shape", "write NAME=1x4x64x64 for an input or SYMBOL=2 for a dim")
        numbers = tuple(int(p) for p in parts)
        fixed[name] = numbers[0] if len(numbers) == 1 else numbers
    return fixed


# --- choosing values --------------------------------------------------------------------------------------


def random_inputs(
    model: ir.Model,
    dims: Mapping[str, int],
    seed: int | Sequence[int] = 0,
    examples: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Inputs of the shapes that DIMS give; the same seed gives the same numbers on every machine.

    A compiled graph does not show which inputs are indices, and into what: EXAMPLES that are known to be right bound them.
    """
    rng = np.random.default_rng(seed)
    found = specs(model)
    roles = _roles(found)
    past = max((dims[s] for s, role in roles.items() if role == "past"), default=0)
    known = examples or {}
    return {s.name: _values(model, s, shape_of(s, dims), past, rng, known.get(s.name)) for s in found}


def _values(
    model: ir.Model,
    spec: Input,
    shape: tuple[int, ...],
    past: int,
    rng: np.random.Generator,
    example: Array | None,
) -> Array:
    name, dtype = spec.name.lower(), spec.dtype
    kind = dtype.numpy()
    if "use_cache" in name:
        return np.full(shape, past > 0, kind)
    if "mask" in name and "mask_token" not in name and len(shape) >= 1:
        return _mask(shape, past).astype(kind)
    if dtype.is_floating_point():
        if "timestep" in name:
            return rng.integers(0, 1000, shape).astype(kind)
        if "sigma" in name:
            return np.exp(rng.uniform(-2, 2, shape)).astype(kind)
        return rng.standard_normal(shape).astype(kind)
    if dtype == ir.DataType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if not dtype.is_integer():
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(kind)
    limit = _index_limit(model, spec.name)
    if "position" in name and len(shape) >= 1:
        positions = np.broadcast_to(past + np.arange(shape[-1]), shape)
        return np.minimum(positions, limit - 1 if limit else positions).astype(kind)
    if limit is None and example is not None and example.size and example.min() >= 0:
        limit = int(example.max()) + 1
    if limit is None:
        limit = 1000 if "timestep" in name else 10
        if dtype.bitwidth == 8:
            info = np.iinfo(kind)
            return rng.integers(info.min, info.max + 1, shape).astype(kind)
        if dtype.bitwidth < 8:
            low = -(2 ** (dtype.bitwidth - 1)) if dtype.is_signed() else 0
            return rng.integers(low, low + 2**dtype.bitwidth, shape).astype(kind)
    return rng.integers(0, limit, shape).astype(kind)


def _mask(shape: tuple[int, ...], past: int) -> Array:
    """Ones; in every row but the first about a third is zero.

    Padding lies on the left, inside the past, where a decoder has one, else on the right: so no query is left
    without any key, which would make its result meaningless.
    """
    mask = np.ones(shape, bool)
    length = shape[-1]
    if len(shape) == 2:
        for row in range(1, shape[0]):
            if past > 1:
                mask[row, : min(past - 1, 1 + (row * length // 3) % past)] = False
            elif length > 1:
                mask[row, max(1, length - row * length // 3 - 1) :] = False
    return mask


# The index input of an op whose values must stay below the size of the indexed tensor.
_GATHERS = {"Gather": 1, "GatherElements": 1, "GatherND": 1}
_KEEPS_VALUES = {"Cast", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Slice"}


def _index_limit(model: ir.Model, name: str) -> int | None:
    """The size of the smallest tensor that this input indexes; 2 if that size is unknown, None if it is no index."""
    value = next(v for v in model.graph.inputs if v.name == name)
    limits = list(_limits(model, value, set()))
    return min(limits) if limits else None


def _stored(table: ir.Value | None) -> ir.Value | None:
    """Looks through the dequantization of a table to the table itself."""
    while table is not None and (node := table.producer()) is not None:
        if node.op_type not in ("DequantizeLinear", "Cast", "Identity"):
            break
        table = node.inputs[0]
    return table


def _limits(model: ir.Model, value: ir.Value, seen: set[int]) -> Iterator[int]:
    for node, position in value.uses():
        key = id(node)
        if key in seen:
            continue
        seen.add(key)
        if _GATHERS.get(node.op_type) == position and node.domain == "":
            table = _stored(node.inputs[0])
            axis = node.attributes.get_int("axis", 0)
            size = table.shape[axis] if table is not None and table.shape is not None else None
            yield size if isinstance(size, int) else 2
        elif node.domain == "com.microsoft" and node.op_type == "EmbedLayerNormalization" and position < 2:
            table = node.inputs[2 if position == 0 else 4]
            if table is not None and table.shape is not None and isinstance(table.shape[0], int):
                yield table.shape[0]
        elif node.op_type in _KEEPS_VALUES and position == 0 and node.domain == "":
            for out in node.outputs:
                yield from _limits(model, out, seen)
        elif (function := model.functions.get(node.op_identifier())) is not None:
            yield from _limits(model, function.inputs[position], seen)
