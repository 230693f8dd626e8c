"""How far a model is from itself: does a difference exceed what its own rounding does?

A step (a quantizer, a rounding, a comparison) turns a difference of the last bit into one of a whole step, and the next
layers amplify it: a quantized model differs from itself by a tenth of its output when ONNX Runtime's optimizations are
switched off. So the source is run again in ways that must give the same result but for rounding:

    optimizations off   the same nodes, in ONNX Runtime's plain kernels
    inputs              an ulp away
    steps               what enters them, and sums in half precision, a few ulps away: each number by itself, and equal numbers alike
                        (of a picture of one colour whole channels are one number, which another order of sums moves as a whole)
    sums, norms         where a model has no steps and its inputs are degenerate: its sums a few ulps of their terms away, and its norms'
                        inputs shifted, which changes nothing but how their means are rounded

What these runs differ by is the source's spread. A variant may differ from the source by twice as much in every statistic: the
largest difference, the mean square, and the systematic parts that rounding does not have (offset, gain), over all elements and over
the worst slice of every axis, where a wrong channel shows.

Of the bytes of a KV cache so few flip that all statistics but the largest are a matter of chance. Where the largest is one step, or
within the spread, they pass if the mean is at most a quarter of a step.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from opsmith import bounds, machine, session
from opsmith.check.inputs import Array
from opsmith.errors import OpsmithError
from opsmith.nodes import ONNX

ROOM = 2.0  # times its own spread
ULPS = 8  # that what enters a step moves by at most, as it does when a sum is taken in another order
# That a sum moves by at most, of the sum of its terms' sizes: where terms cancel, as those of a constant image do, another order or
# Winograd's transform moves the little that is left by more than its own ulps, and a norm behind it makes that large.
TERMS_ULPS = 4
SEEDS = (1, 2, 3)
MOST_FLIPPED = 0.25  # of the bytes of a cache; one that is cut off instead of rounded is another one half of the time
BLOCK = 1 << 20  # elements that are compared at once
PATIENCE = 30.0  # seconds: after that, each kind of run has been made once, and no further one is begun

# Operators whose result jumps where their operand moves by an ulp.
STEPS = {
    "QuantizeLinear", "DynamicQuantizeLinear", "Round", "Floor", "Ceil", "Sign", "ArgMax", "ArgMin", "TopK", "Greater", "Less",
    "GreaterOrEqual", "LessOrEqual", "Equal", "NonMaxSuppression", "NonZero", "Unique", "Hardmax", "DynamicQuantizeMatMul",
    "DynamicQuantizeLSTM", "CacheQuantize", "MatMulIntegerToFloat", "QAttention", "QGemm", "MatMulNBits", "ThresholdedRelu", "Shrink",
}  # fmt: skip
# Operators whose results are sums, which another order moves by a few ulps.
SUMS = {"Conv", "ConvTranspose", "MatMul", "Gemm"}
_INTEGERS = {onnx.TensorProto.DataType.Value(f"{u}INT{b}") for u in ("", "U") for b in (8, 16, 32, 64)}
_HALVES = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
_ULP = {onnx.TensorProto.FLOAT: 2.0**-23, onnx.TensorProto.DOUBLE: 2.0**-52}
_EPSILON = {**{kind: ULPS * ulp for kind, ulp in _ULP.items()}, onnx.TensorProto.FLOAT16: 2.0**-10}


def has_steps(model: ir.Model) -> bool:
    """Whether a model has steps. Shape arithmetic does not count: no ulp moves the size of a picture. Halves do: every node rounds to
    them."""
    exact: set[ir.Value] = set()
    if any(v.dtype in _HALVES for v in (*model.graph.inputs, *model.graph.initializers.values())):
        return True
    bodies = [model.graph, *(f.graph for f in model.functions.values())]
    for node in (n for body in bodies for n in body.all_nodes()):
        operands = [v for v in node.inputs if v is not None]
        if node.op_type in ("Shape", "Size") or (operands and all(v in exact or _is_constant(v) for v in operands)):
            exact.update(node.outputs)
        elif is_step(node):
            return True
    return False


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return value.is_initializer() if producer is None else producer.op_type == "Constant"


def is_step(node: ir.Node) -> bool:
    to = node.attributes.get("to")
    return _is_step(node.op_type, to.as_int() if node.op_type == "Cast" and to is not None else 0)


def _is_step(op: str, to: int) -> bool:
    return op in STEPS or (op == "Cast" and to in _INTEGERS | _HALVES)


def bytes_of_caches(model: ir.Model) -> set[str]:
    """The outputs that are rows of a KV cache, rounded to bytes (compiler/cache_type.py)."""
    rounded = [n.outputs[0] for n in model.graph if n.op_type == "CacheQuantize"]
    return {n.outputs[0].name or "" for v in rounded for n in v.consumers() if n.op_type == "Concat"}


def flipped(reference: Array, other: Array, own: Mapping[str, float]) -> bool:
    """Whether few bytes differ, by single steps or what the source's OWN spread allows."""
    if reference.shape != other.shape or reference.dtype != other.dtype or reference.dtype.kind != "i":
        return False
    far = np.abs(reference.astype(np.int16) - other)
    most = max(1.0, ROOM * own.get("largest", 0.0))
    return bool(far.max(initial=0) <= most and far.sum() <= MOST_FLIPPED * far.size)


# --- running the source a little differently -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
    """One way to run the source that must give the same result but for rounding."""

    what: str
    optimize: bool = True
    edit: Callable[[onnx.ModelProto], None] | None = None
    seed: int | None = None  # of the inputs' last bits


def runs(steps: bool) -> tuple[list[Run], list[Run]]:
    """Those that must be made, one of each kind, and further ones."""
    moved = [Run("inputs an ulp away", seed=s) for s in SEEDS[:2]]
    what = "steps" if steps else "sums"
    shaken = [Run(f"{what} a few ulps away", edit=_shaken(s, sums=not steps)) for s in SEEDS]
    alike = [Run("steps a few ulps away, equal numbers alike", edit=_shaken(s, alike=True)) for s in SEEDS if steps]
    shifted = [] if steps else [Run("inputs of norms shifted", edit=_shift_norms)]
    first = [Run("optimizations off", optimize=False), *moved[:1], *shaken[:1], *alike[:1], *shifted]
    return first, [*moved[1:], *shaken[1:], *alike[1:]]


def answers(
    path: Path,
    feeds: Sequence[tuple[Mapping[str, Any], Mapping[str, float]]],
    steps: bool,
    threads: int | None,
    ulp: float | None = None,
) -> Iterator[tuple[int, list[Any]]]:
    """(index of the feed, outputs) for every feed and run; a run that ONNX Runtime refuses is left out.

    A feed comes with the usual size of the inputs that are degenerate in it: zeros have no ulp to speak of, but what a model
    computes from them is as far from zero as from usual inputs, and is rounded there: to ULP, where the variant has a coarser one.
    """
    first, further = runs(steps)
    started = time.monotonic()
    for run in (*first, *further):
        if run in further and time.monotonic() - started > PATIENCE:
            return
        running = None  # one session at a time
        machine.release_memory()
        try:
            running = session.load(path, threads=threads, optimize=run.optimize, edit=run.edit, lean=True)
            for index, (feed, usual) in enumerate(feeds):
                moved = dict(feed)
                if run.seed is not None:
                    moved = {n: _ulp_away(a, run.seed, usual.get(n), ulp) for n, a in feed.items()}
                yield index, session.run(running, moved)
        except OpsmithError:
            continue


def _ulp_away(array: Any, seed: int, usual: float | None, ulp: float | None) -> Any:
    """Each float one step up, down, or where it is; a step of USUAL, where it is given and larger. Whole numbers in floats
    stay what they are, unless they are degenerate."""
    if not isinstance(array, np.ndarray) or array.dtype not in (np.float16, np.float32, np.float64):
        return array
    away = np.random.default_rng(seed).choice(np.array([-1.0, 0.0, 1.0]), array.shape)
    if usual is not None:
        step = np.maximum(np.abs(array), usual) * (ulp or np.finfo(array.dtype).eps)
        return (array + away * step).astype(array.dtype)
    if np.array_equal(array, np.round(array)):
        return array
    return np.where(away == 0, array, np.nextafter(array, np.copysign(np.inf, away).astype(array.dtype)))


def _shaken(seed: int, sums: bool = False, alike: bool = False) -> Callable[[onnx.ModelProto], None]:
    """An edit that multiplies what enters each step, or each sum, by 1 plus or minus a few ulps."""

    def edit(proto: onnx.ModelProto) -> None:
        inferred = bounds.infer_shapes(proto)
        kinds: dict[str, int] = {}
        _collect(inferred.graph, kinds)
        if sums:
            _shake_sums(proto.graph, kinds, np.random.default_rng(seed))
        else:
            _shake(proto.graph, kinds, np.random.default_rng(seed), _alike if alike else _each)

    return edit


def _shift_norms(proto: onnx.ModelProto) -> None:
    """Subtract from what enters a norm its largest element per mean: x - max has the deviations of x, and another mean. That of a
    constant becomes exact: summed up as it is, thousands of times, its error is what the norm makes large."""
    by_input = any(o.domain in ONNX and o.version >= 18 for o in proto.opset_import)
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        if node.op_type == "InstanceNormalization" or (node.op_type == "LayerNormalization" and _last_axis(node)):
            name = f"{node.input[0]}.shifted.{len(nodes)}"
            nodes += _largest(node, f"{name}.largest", by_input)
            nodes.append(onnx.helper.make_node("Sub", [node.input[0], f"{name}.largest"], [name]))
            node.input[0] = name
        nodes.append(node)
    _replace_nodes(proto.graph, nodes)


def _last_axis(node: onnx.NodeProto) -> bool:
    return all(a.i == -1 for a in node.attribute if a.name == "axis")


def _largest(norm: onnx.NodeProto, name: str, by_input: bool) -> list[onnx.NodeProto]:
    """Nodes that give the largest element of each row or channel that a norm takes the mean of, as NAME."""
    make, value = onnx.helper.make_node, norm.input[0]
    if norm.op_type == "InstanceNormalization":
        return [make("GlobalMaxPool", [value], [name])]
    if not by_input:
        return [make("ReduceMax", [value], [name], axes=[-1])]
    return [make("Constant", [], [f"{name}.axis"], value_ints=[-1]), make("ReduceMax", [value, f"{name}.axis"], [name])]


def _collect(graph: onnx.GraphProto, kinds: dict[str, int]) -> None:
    for value in (*graph.input, *graph.value_info, *graph.output):
        kinds[value.name] = value.type.tensor_type.elem_type
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _collect(attribute.g, kinds)


def _shake(graph: onnx.GraphProto, kinds: Mapping[str, int], rng: np.random.Generator, factors: _Factors) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _shake(attribute.g, kinds, rng, factors)
        to = next((a.i for a in node.attribute if a.name == "to"), 0)
        if _is_step(node.op_type, to) and node.input and (kind := kinds.get(node.input[0], 0)) in _EPSILON:
            name = f"{node.input[0]}.shaken.{len(nodes)}.{graph.name}"
            nodes += _shaker(node.input[0], name, kind, float(rng.integers(1 << 20)), factors)
            node.input[0] = name
        nodes.append(node)
        if kinds.get(node.output[0], 0) == onnx.TensorProto.FLOAT16:  # a sum is rounded to it: a step of its own
            nodes += _shaken_sum(node, kinds, rng, factors)
    _replace_nodes(graph, nodes)


def _shake_sums(graph: onnx.GraphProto, kinds: Mapping[str, int], rng: np.random.Generator) -> None:
    """Shake the sums of the main graph."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes += [node, *_moved_sum(node, kinds, rng)]
    _replace_nodes(graph, nodes)


def _moved_sum(node: onnx.NodeProto, kinds: Mapping[str, int], rng: np.random.Generator) -> list[onnx.NodeProto]:
    """Nodes behind NODE that move its result by a few ulps of the sizes of its terms, if it is a sum."""
    if node.op_type not in SUMS or (kind := kinds.get(node.output[0], 0)) not in _ULP:
        return []
    result, node.output[0] = node.output[0], f"{node.output[0]}.sum"
    make, most = onnx.helper.make_node, TERMS_ULPS * _ULP[kind]
    sizes = [f"{result}.size.{i}" for i in (0, 1)]
    terms = make(node.op_type, sizes, [f"{result}.terms"])
    terms.attribute.extend(a for a in node.attribute if a.name not in ("alpha", "beta"))
    scale = next((abs(a.f) for a in node.attribute if a.name == "alpha"), 1.0) * most
    uniform = {"dtype": kind, "low": -scale, "high": scale, "seed": float(rng.integers(1 << 20))}
    return [
        *(make("Abs", [operand], [size]) for operand, size in zip(node.input[:2], sizes)),
        terms,
        make("RandomUniformLike", [f"{result}.terms"], [f"{result}.by"], **uniform),
        make("Mul", [f"{result}.terms", f"{result}.by"], [f"{result}.away"]),
        make("Add", [node.output[0], f"{result}.away"], [result]),
    ]


def _shaken_sum(
    node: onnx.NodeProto, kinds: Mapping[str, int], rng: np.random.Generator, factors: _Factors
) -> list[onnx.NodeProto]:
    """Nodes behind NODE that move its result, if it is a sum; it writes under another name then."""
    if node.op_type not in SUMS or (kind := kinds.get(node.output[0], 0)) not in _EPSILON:
        return []
    result, node.output[0] = node.output[0], f"{node.output[0]}.sum"
    return _shaker(node.output[0], result, kind, float(rng.integers(1 << 20)), factors)


def _replace_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _shaker(value: str, name: str, kind: int, seed: float, factors: _Factors) -> list[onnx.NodeProto]:
    """NAME = VALUE, each element times one of the FACTORS, 1 plus or minus up to a few ulps."""
    wide = onnx.TensorProto.FLOAT if kind == onnx.TensorProto.FLOAT16 else kind  # halves have no generator, and no sine
    make = onnx.helper.make_node
    return [
        *factors(value, f"{name}.wide", wide, _EPSILON[kind], seed),
        make("Cast", [f"{name}.wide"], [f"{name}.by"], to=kind),
        make("Mul", [value, f"{name}.by"], [name]),
    ]


_Factors: TypeAlias = "Callable[[str, str, int, float, float], list[onnx.NodeProto]]"  # value, name, type, most, seed


def _each(value: str, name: str, kind: int, most: float, seed: float) -> list[onnx.NodeProto]:
    """A factor for each number."""
    limits = {"low": 1 - most, "high": 1 + most}
    return [onnx.helper.make_node("RandomUniformLike", [value], [name], dtype=kind, seed=seed, **limits)]


def _alike(value: str, name: str, kind: int, most: float, seed: float) -> list[onnx.NodeProto]:
    """A factor that depends on the number alone: the sine of so large a multiple of it that its last bits decide."""
    make = onnx.helper.make_node

    def constant(what: str, number: float) -> onnx.NodeProto:
        tensor = onnx.helper.make_tensor(f"{name}.{what}", kind, [], [number])
        return make("Constant", [], [f"{name}.{what}"], value=tensor)

    return [
        constant("one", 1.0),
        constant("most", most),
        constant("least", 1e-30),
        constant("turns", 1e7 + seed),
        make("Cast", [value], [f"{name}.x"], to=kind),
        make("Abs", [f"{name}.x"], [f"{name}.abs"]),
        make("ReduceMax", [f"{name}.abs"], [f"{name}.max"], keepdims=0),
        make("Max", [f"{name}.max", f"{name}.least"], [f"{name}.size"]),
        make("Div", [f"{name}.x", f"{name}.size"], [f"{name}.share"]),
        make("Mul", [f"{name}.share", f"{name}.turns"], [f"{name}.angle"]),
        make("Sin", [f"{name}.angle"], [f"{name}.sine"]),
        make("Mul", [f"{name}.sine", f"{name}.most"], [f"{name}.part"]),
        make("Add", [f"{name}.part", f"{name}.one"], [name]),
    ]


# --- comparing differences ------------------------------------------------------------------------------------


def statistics(reference: Array, other: Array) -> dict[str, float] | None:
    """What a difference is like; None if the two cannot be subtracted or have NaN or infinity in different places."""
    if reference.shape != other.shape or reference.dtype != other.dtype or reference.dtype.kind not in "fiub":
        return None
    if not reference.size:
        return {}
    shape = reference.shape
    sums, squares = ([np.zeros(length) for length in shape] for _ in range(2))  # per slice of every axis
    largest = product = size = 0.0
    for index in _blocks(shape):
        pair = _numbers(reference[index], other[index])
        if pair is None:
            return None
        a, difference = pair
        largest = max(largest, float(np.abs(difference).max()))
        product += float((difference * a).sum())
        size += float((a**2).sum())
        for totals, part in ((sums, difference), (squares, difference**2)):
            for axis in range(len(shape)):
                at = index[axis] if axis < len(index) else slice(None)
                others = tuple(i for i in range(part.ndim) if i != axis - len(index))
                totals[axis][at] += part.sum(others)
    count = reference.size
    figures = {
        "largest": largest,
        "mean square": math.sqrt(squares[0].sum() / count) if shape else largest,
        "offset": abs(float(sums[0].sum())) / count if shape else largest,
        "gain": abs(product / count) / math.sqrt(size / count) if size else 0.0,
    }
    for axis, length in enumerate(shape):
        if length > 1 and len(shape) > 1:
            figures[f"mean square on axis {axis}"] = math.sqrt(float(squares[axis].max()) * length / count)
            figures[f"offset on axis {axis}"] = float(np.abs(sums[axis]).max()) * length / count
    return figures


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Indices into the first axes, so many that what is left is small: eight bytes for every element of an image are a lot."""
    leading = next((k for k in range(len(shape)) if math.prod(shape[k:]) <= BLOCK), len(shape))
    return np.ndindex(*shape[:leading])


def _numbers(reference: Array, other: Array) -> tuple[Array, Array] | None:
    """The reference, and how far the other is from it; None where NaN or infinity are in different places."""
    if reference.dtype.kind == "f":
        a, b = reference.astype(np.float64), other.astype(np.float64)
        finite = np.isfinite(a)
        if not np.array_equal(np.where(finite, 0, a), np.where(np.isfinite(b), 0, b), equal_nan=True):
            return None
        return np.where(finite, a, 0), np.where(finite, b - np.where(finite, a, 0), 0)
    if reference.dtype.itemsize == 1 and reference.dtype.kind != "b":
        return reference.astype(np.float64), other.astype(np.float64) - reference
    # indices and labels: which differ, not by how much
    return np.zeros(reference.shape), np.asarray(reference != other, np.float64)


def size_of(reference: Array) -> float:
    """The root of the mean square of what is finite."""
    if reference.dtype.kind not in "fiub":
        return 0.0
    total = count = 0.0
    for index in _blocks(reference.shape):
        numbers = reference[index].astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        total, count = total + float((finite**2).sum()), count + finite.size
    return math.sqrt(total / count) if count else 0.0


def exceeds(variant: Mapping[str, float], own: Mapping[str, float], floor: float) -> str | None:
    """The statistic in which a variant is farther from the source than twice the source's own spread; None if there is none.

    FLOOR is what tolerance allows an element of the usual size: a mean below it is no news.
    """
    for name, value in variant.items():
        room = ROOM * own.get(name, 0.0)
        if value > (room if name == "largest" else max(room, floor)):
            return f"{name} {value:.3g}, its own {own.get(name, 0.0):.3g}"
    return None


def is_nearer(variant: Mapping[str, float] | None, own: Mapping[str, float], floor: float) -> bool:
    """Whether a variant is nearer to the exact answer than its source is: in the largest error and on the average, and not worse in
    any other statistic than `exceeds` lets pass."""
    if not variant or not own or exceeds(variant, own, floor) is not None:
        return False
    return all(variant[name] <= own.get(name, 0.0) for name in ("largest", "mean square"))
