"""What operators ask of the values of their operands, one rule per operand.

    Gather(data, indices)           indices lie below the size of the axis that they index
    Reshape(data, shape)            shape is that of the declared output
    LSTM(x, w, r, b, lengths)       no length exceeds the sequence

A rule gives exact values or bounds, or None where it cannot tell. Where the declared sizes of the outputs follow from the
operand, it is made to fit them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The smallest and the largest value allowed; WHOLE numbers even in an input of floats."""

    low: float
    high: float
    whole: bool = False

    def meet(self, other: Bounds) -> Bounds:
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Bounds(low, max(low, high), self.whole or other.whole)

    def narrow(self) -> Bounds:
        """Bounds of only the two smallest whole numbers within these."""
        return dataclasses.replace(self, high=min(self.high, self.low + 1))


@dataclasses.dataclass(frozen=True)
class Use:
    """One place where an input's values arrive: operand POSITION of NODE."""

    node: ir.Node
    position: int
    dtype: ir.DataType | None  # of the input
    shape: Shape  # of the input
    size_of: Callable[[ir.Value | None], Shape | None]
    rng: np.random.Generator

    def size(self, index: int) -> Shape | None:
        """The shape of an operand."""
        return self.size_of(_stored(self.node.inputs[index])) if index < len(self.node.inputs) else None

    def out(self, index: int = 0) -> Shape | None:
        return self.size_of(self.node.outputs[index]) if index < len(self.node.outputs) else None

    def attribute(self, name: str, default: int) -> int:
        return self.node.attributes.get_int(name, default)

    def constant(self, index: int) -> Array | None:
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        tensor = ir.convenience.get_const_tensor(value) if value is not None else None
        return None if tensor is None else tensor.numpy()

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def integer(self) -> bool:
        return self.dtype is not None and self.dtype.is_integer()


Guess = Bounds | Array | None
Rule = Callable[[Use], Guess]
_RULES: dict[tuple[str, int], Rule] = {}


def rule(ops: str, *positions: int) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update({(op, p): function for op in ops.split() for p in positions})
        return function

    return register


def guess(use: Use) -> Guess:
    guesser = _RULES.get((use.node.op_type, use.position))
    return None if guesser is None else guesser(use)


def _stored(value: ir.Value | None) -> ir.Value | None:
    """Looks through the dequantization of a table to the table itself."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in ("DequantizeLinear", "Cast", "Identity") or value.shape is not None:
            break
        value = node.inputs[0]
    return value


def _array(values: Sequence[float] | Sequence[int]) -> Array:
    return np.asarray(values)


def _below(limit: int) -> Bounds:
    return Bounds(0, max(0, limit - 1), whole=True)


# --- indices ----------------------------------------------------------------------------------------------


@rule("Gather GatherElements ArrayFeatureExtractor", 1)
def _index(use: Use) -> Guess:
    data = use.size(0)
    axis = -1 if use.node.op_type == "ArrayFeatureExtractor" else use.attribute("axis", 0)
    table = _stored(use.node.inputs[0])
    if data is None and table is not None and table.shape is not None:  # one known axis is enough
        size = table.shape[axis]
        return _below(size if isinstance(size, int) else 2)
    return _below(2 if data is None or not -len(data) <= axis < len(data) else data[axis])


@rule("EmbedLayerNormalization", 0, 1)
def _embedding(use: Use) -> Guess:
    table = use.size(2 if use.position == 0 else 4)
    return _below(table[0]) if table else None


@rule("GatherND", 1)
def _index_tuples(use: Use) -> Guess:
    data, indices, batch = use.size(0), use.size(1), use.attribute("batch_dims", 0)
    if data is None or not indices:
        return _below(2)
    limits = data[batch : batch + indices[-1]]
    if math.prod(indices) != use.count:
        return _below(min(limits, default=1))
    columns = [use.rng.integers(0, max(1, n), indices[:-1]) for n in limits]
    return np.stack(columns, -1) if columns else None


@rule("ScatterElements Scatter", 1)
def _distinct_on_axis(use: Use) -> Guess:
    """ONNX leaves open what happens to an element that is written twice."""
    data, indices, axis = use.size(0), use.size(1), use.attribute("axis", 0)
    if data is None:
        return _below(2)
    if indices is None or math.prod(indices) != use.count or indices[axis] > data[axis]:
        return _below(data[axis])
    room = list(indices)
    room[axis] = data[axis]
    order = np.argsort(use.rng.random(room), axis=axis)
    return np.take(order, np.arange(indices[axis]), axis=axis)


@rule("ScatterND", 1)
def _distinct_tuples(use: Use) -> Guess:
    data, indices = use.size(0), use.size(1)
    if data is None or not indices:
        return _below(2)
    limits = data[: indices[-1]]
    rows, room = math.prod(indices[:-1]), math.prod(limits)
    if math.prod(indices) != use.count or not 0 < rows <= room <= 1 << 24:
        return _below(min(limits, default=1))
    flat = use.rng.permutation(room)[:rows]
    return np.stack(np.unravel_index(flat, limits), -1)


@rule("MaxUnpool", 1)
def _unpool(use: Use) -> Guess:
    return np.arange(use.count)


@rule("OneHot", 0)
def _one_hot(use: Use) -> Guess:
    depth = use.constant(1)
    out = use.out()
    return _below(int(depth.ravel()[0]) if depth is not None else out[use.attribute("axis", -1)] if out else 2)


@rule("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss", 1)
def _labels(use: Use) -> Guess:
    scores = use.size(0)
    return _below(scores[1]) if scores and len(scores) > 1 else _below(2)


@rule("Equal", 0, 1)
def _compared(use: Use) -> Guess:
    """Values that now and then equal the constant that they are compared with."""
    other = use.constant(1 - use.position)
    if other is None or not other.size or other.dtype.kind not in "iu" or not use.integer:
        return None
    return Bounds(float(min(0, other.min())), float(max(1, other.max())), whole=True)


@rule("RoiAlign", 2)
def _of_batch(use: Use) -> Guess:
    data = use.size(0)
    return _below(data[0] if data else 1)


@rule("RoiAlign MaxRoiPool", 1)
def _boxes(use: Use) -> Guess:
    data, boxes = use.size(0), use.size(1)
    if data is None or boxes is None or math.prod(boxes) != use.count or len(boxes) != 2:
        return None
    far = np.array([data[-1], data[-2]]) / float(use.node.attributes.get_float("spatial_scale", 1.0) or 1.0)
    corner = use.rng.uniform(0, 0.4, (boxes[0], 2)) * far
    boxed = np.concatenate([corner, corner + use.rng.uniform(0.3, 0.5, (boxes[0], 2)) * far], 1)
    return np.concatenate([np.zeros((boxes[0], 1)), np.floor(boxed)], 1) if boxes[1] == 5 else boxed


# --- sizes, and which axes --------------------------------------------------------------------------------


@rule("Reshape", 1)
def _reshape(use: Use) -> Guess:
    out = use.out()
    if out is not None and len(out) == use.count:
        data = use.size(0)
        if use.attribute("allowzero", 0) or data is None:
            return _array(out)
        return _array(out) if math.prod(out) == math.prod(data) else None
    return _array([-1, *[1] * (use.count - 1)])


@rule("Expand", 1)
def _expand(use: Use) -> Guess:
    out = use.out()
    return _array(out) if out is not None and len(out) == use.count else np.ones(use.count, np.int64)


@rule("Tile", 1)
def _tile(use: Use) -> Guess:
    data, out = use.size(0), use.out()
    if data and out and len(data) == len(out) == use.count and all(data):
        return _array([o // d for o, d in zip(out, data)])
    return np.ones(use.count, np.int64)


@rule("ConstantOfShape RandomNormal RandomUniform", 0)
def _shape(use: Use) -> Guess:
    out = use.out()
    return _array(out) if out is not None and len(out) == use.count else np.full(use.count, 2)


def _changed(use: Use) -> list[int]:
    """The axes that the output has another size on, then the others."""
    data, out = use.size(0), use.out()
    if data is None or out is None or len(data) != len(out):
        return list(range(len(data or ()) or 1))
    return sorted(range(len(data)), key=lambda a: (data[a] == out[a], a))


@rule("Slice", 1, 2, 3, 4)
def _slice(use: Use) -> Guess:
    """start 0, end as far as the output goes, on the axes that change, step 1."""
    data, out, count = use.size(0), use.out(), use.count
    if use.position in (1, 4):
        return np.full(count, 0 if use.position == 1 else 1)
    given = use.constant(3)
    axes = [int(a) for a in given.ravel()] if given is not None else sorted(_changed(use)[:count])
    if len(use.node.inputs) < 4 or use.node.inputs[3] is None:
        axes = list(range(count))
    if use.position == 3:
        return _array(axes) if len(axes) == count else np.arange(count)
    fits = data is not None and out is not None and len(out) == len(data) and len(axes) == count
    if fits and out is not None and data is not None:
        return _array([min(out[a], data[a]) if -len(out) <= a < len(out) else 1 for a in axes])
    return np.full(count, 1 if data is None else max(data, default=1))


@rule("Pad", 1, 3)
def _pad(use: Use) -> Guess:
    data, out = use.size(0), use.out()
    if use.position == 3:
        return _array(sorted(_changed(use)[: use.count]))
    half = use.count // 2
    if data is None or out is None or len(data) != len(out):
        return np.zeros(use.count, np.int64)
    axes = list(range(half)) if half == len(data) else sorted(_changed(use)[:half])
    return _array([*[0] * half, *[out[a] - data[a] for a in axes]])


@rule("Resize Upsample", 1, 2, 3)
def _resize(use: Use) -> Guess:
    data, out = use.size(0), use.out()
    if use.position == 1 and len(use.node.inputs) > 2:  # the region of interest
        half = use.count // 2
        return _array([*[0.0] * half, *[1.0] * (use.count - half)])
    chosen = use.node.attributes.get_ints("axes", None) or range(len(data or ()))
    if data is None or out is None or len(data) != len(out) or len(chosen) != use.count or not all(data):
        return np.ones(use.count) if use.position < 3 or data is None else _array(list(data)[-use.count :])
    if use.position == 3:
        return _array([out[a] for a in chosen])
    return _array([_exact_scale(out[a], data[a]) for a in chosen])


def _exact_scale(out: int, data: int) -> float:
    """floor(data * scale) must be `out` in single precision too."""
    scale = np.float32(out / data)
    return float(scale if math.floor(np.float32(data) * scale) == out else np.nextafter(scale, np.float32(np.inf)))


@rule("TopK", 1)
def _top_k(use: Use) -> Guess:
    out = use.out()
    return np.full(use.count, out[use.attribute("axis", -1)] if out else 1)


@rule("Range", 0, 1, 2)
def _range(use: Use) -> Guess:
    out = use.out()
    return np.full(use.count, (0, out[0] if out else 8, 1)[use.position])


@rule("OneHot", 1)
def _depth(use: Use) -> Guess:
    out = use.out()
    return np.full(use.count, out[use.attribute("axis", -1)] if out else 10)


_REDUCES = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare"
)


@rule(_REDUCES, 1)
def _reduced(use: Use) -> Guess:
    data, out = use.size(0), use.out()
    if data is None:
        return np.arange(use.count)
    for axes in itertools.combinations(range(len(data)), min(use.count, len(data))):
        left = [1 if a in axes else n for a, n in enumerate(data) if use.attribute("keepdims", 1) or a not in axes]
        if out is None or tuple(left) == out:
            return _array(axes)
    return np.arange(use.count)


@rule("Squeeze", 1)
def _squeezed(use: Use) -> Guess:
    data = use.size(0)
    single = [a for a, n in enumerate(data or ()) if n == 1]
    return _array(single[: use.count]) if len(single) >= use.count else np.arange(use.count)


@rule("Unsqueeze", 1)
def _unsqueezed(use: Use) -> Guess:
    data, out = use.size(0), use.out()
    if data is None or out is None:
        return np.arange(use.count)
    for axes in itertools.combinations(range(len(out)), use.count):
        if tuple(n for a, n in enumerate(out) if a not in axes) == data and all(out[a] == 1 for a in axes):
            return _array(axes)
    return np.arange(use.count)


@rule("Split SplitToSequence", 1)
def _split(use: Use) -> Guess:
    data, axis = use.size(0), use.attribute("axis", 0)
    outs = [use.out(i) for i in range(len(use.node.outputs))]
    if use.node.op_type == "Split" and all(o is not None for o in outs):
        return _array([o[axis] for o in outs if o is not None])
    if data is None:
        return np.ones(use.count, np.int64)
    if not use.shape:
        return _array(1)  # type: ignore[arg-type]
    sizes = [data[axis] // use.count] * use.count
    return _array([*sizes[:-1], data[axis] - sum(sizes[:-1])])


@rule("CumSum CumProd", 1)
def _cumulated(use: Use) -> Guess:
    return np.zeros(use.count, np.int64)


@rule("Trilu", 1)
def _diagonal(use: Use) -> Guess:
    return Bounds(-1, 1)


@rule("CenterCropPad", 1)
def _crop(use: Use) -> Guess:
    out = use.out()
    axes = use.node.attributes.get_ints("axes", None) or range(use.count)
    return _array([out[a] for a in axes]) if out else np.full(use.count, 2)


@rule("AffineGrid", 1)
def _grid(use: Use) -> Guess:
    out, theta = use.out(), use.size(0)
    batch = theta[0] if theta else 1
    return _array([batch, 1, *(out[1:-1] if out else [3] * (use.count - 2))])


@rule("MaxUnpool", 2)
def _unpooled(use: Use) -> Guess:
    out = use.out()
    return _array(out) if out and len(out) == use.count else None


@rule("Col2Im", 1, 2)
def _col2im(use: Use) -> Guess:
    """The block, of which product and number of places are known, is searched among small ones."""
    data, out = use.size(0), use.out()
    if data is None or out is None:
        return None
    image, rank = out[2:], len(out) - 2
    if use.position == 1:
        return _array(image)
    ones, attributes = [1] * rank, use.node.attributes
    strides, dilations = (attributes.get_ints(n, ones) or ones for n in ("strides", "dilations"))
    pads = attributes.get_ints("pads", [0] * 2 * rank) or [0] * 2 * rank
    for block in itertools.product(range(1, 10), repeat=rank):
        spans = zip(image, block, strides, dilations, pads, pads[rank:])
        places = math.prod((n + p + q - d * (b - 1) - 1) // s + 1 for n, b, s, d, p, q in spans)
        if math.prod(block) * out[1] == data[1] and places == data[2]:
            return _array(block)
    return None


# --- signals ----------------------------------------------------------------------------------------------


@rule("DFT", 1, 2)
def _dft(use: Use) -> Guess:
    data, out = use.size(0), use.out()
    axis = (
        use.attribute("axis", -2)
        if use.position == 1
        else next((a for a in _changed(use) if 0 < a < len(data or ()) - 1), 1)
    )
    if use.position == 2:
        return np.full(use.count, axis)
    if use.attribute("onesided", 0) and data:
        return np.full(use.count, data[axis])
    return np.full(use.count, out[axis] if out else data[axis] if data else 8)


@rule("STFT", 1, 3)
def _stft(use: Use) -> Guess:
    signal, out = use.size(0), use.out()
    window = use.size(2)
    bins = out[-2] if out and len(out) > 2 else 9
    length = window[0] if window else (bins - 1) * 2 if use.attribute("onesided", 1) else bins
    if use.position == 3:
        return np.full(use.count, length)
    frames = out[1] if out and len(out) > 2 else 1
    return np.full(use.count, max(1, (signal[1] - length) // max(1, frames - 1)) if signal and frames > 1 else 8)


@rule("HannWindow HammingWindow BlackmanWindow", 0)
def _window(use: Use) -> Guess:
    out = use.out()
    return np.full(use.count, out[0] if out else 10)


@rule("MelWeightMatrix", 0, 1, 2, 3, 4)
def _mel(use: Use) -> Guess:
    out = use.out() or (9, 8)
    return np.full(use.count, (out[1], 2 * (out[0] - 1), 8192, 0, 4096)[use.position])


# --- lengths, counts, conditions ----------------------------------------------------------------------------


@rule("LSTM GRU RNN DynamicQuantizeLSTM", 4)
def _recurrent_lengths(use: Use) -> Guess:
    data = use.size(0)
    steps = data[1 if use.attribute("layout", 0) else 0] if data else 1
    return Bounds(1, max(1, steps), whole=True)


@rule("ReverseSequence", 1)
def _reversed_lengths(use: Use) -> Guess:
    data = use.size(0)
    return Bounds(1, max(1, data[use.attribute("time_axis", 0)] if data else 1), whole=True)


@rule("Attention", 6)
def _kept_keys(use: Use) -> Guess:
    keys = use.size(1)
    return Bounds(1, max(1, keys[-2] if keys else 1), whole=True)


@rule("GroupQueryAttention", 5, 6)
def _group_query(use: Use) -> Guess:
    query, past = use.size(0), use.size(3)
    total = (query[1] if query else 1) + (past[2] if past else 0)
    return np.full(use.count, total - (use.position == 5))


@rule("RotaryEmbedding", 1, 3)
def _rotary(use: Use) -> Guess:
    contrib = use.node.domain == "com.microsoft"
    if use.position == (3 if contrib else 1):
        return None
    table = use.size(2 if contrib else 1)
    return _below(table[0]) if table else _below(2)


@rule("TensorScatter", 2)
def _written(use: Use) -> Guess:
    data, update, axis = use.size(0), use.size(1), use.attribute("axis", -2)
    return Bounds(0, max(0, data[axis] - update[axis]), whole=True) if data and update else _below(1)


@rule("Loop", 0, 1)
def _loop(use: Use) -> Guess:
    return np.full(use.count, 3 if use.position == 0 else 1)


@rule("SequenceAt SequenceErase", 1)
@rule("SequenceInsert", 2)
def _first(use: Use) -> Guess:
    return np.zeros(use.count, np.int64)


@rule("NonMaxSuppression", 2, 3, 4)
def _suppression(use: Use) -> Guess:
    return np.full(use.count, (10, 0.5, 0.0)[use.position - 2])


@rule("Dropout", 1, 2)
def _dropout(use: Use) -> Guess:
    """Not in training: the result would change from run to run."""
    return Bounds(0.1, 0.5) if use.position == 1 else np.zeros(use.count, bool)


# --- numbers that an operator is defined for ------------------------------------------------------------------


@rule("Bernoulli", 0)
def _probability(use: Use) -> Guess:
    return Bounds(0, 1)


@rule("BitShift", 1)
def _shift(use: Use) -> Guess:
    return Bounds(0, 3, whole=True)


@rule("Div Mod", 1)
def _divisor(use: Use) -> Guess:
    """A division of integers by zero ends the process."""
    return Bounds(1, 9, whole=True) if use.integer else None


@rule("Pow", 1)
def _exponent(use: Use) -> Guess:
    return Bounds(0, 3, whole=True) if use.integer else None


@rule(
    "QuantizeLinear DequantizeLinear QLinearConv QLinearMatMul QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu", 1
)
@rule("QLinearConv QLinearMatMul QLinearAdd QLinearMul", 4, 6)
@rule("QLinearSigmoid QLinearLeakyRelu", 3)
def _scale(use: Use) -> Guess:
    return None if use.integer else Bounds(0.02, 0.2)


@rule("QuantizeLinear DequantizeLinear", 2)
def _zero_point(use: Use) -> Guess:
    wide = use.dtype is not None and (use.dtype.bitwidth > 16 or not use.integer)
    return np.zeros(use.count) if wide else None


@rule("BatchNormalization", 4)
def _variance(use: Use) -> Guess:
    return Bounds(0.5, 1.5)
