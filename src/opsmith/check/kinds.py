"""What kind of data an input is, and which sizes such data usually have.

pixel_values float [batch, 3, h, w]     a picture: 224, 320 or 640 a side, by what the model is for
input_ids int64 [batch, sequence]       128 tokens; a decoder with a past gets one token after 128
audio float or int16 [1, samples]       1 s at 16 kHz
spectrum float [1, time, 80]            100 frames; of a sequence of other vectors 128 steps
x float [N, K] @ w [400, 10]            K is 400: no other size runs
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from opsmith import ops


@dataclasses.dataclass(frozen=True)
class Usual:
    """How long an axis is: typically, in the further cases of a verification, and in further tries when that does not run."""

    kind: str
    values: tuple[int, ...]
    tries: tuple[int, ...] = ()


BATCH = Usual("batch", (1, 2, 3), (4, 2, 8))  # a mean over four views of a thing needs all four
TOKENS = Usual("tokens", (128, 7, 1), (64, 32, 16, 512, 1))
STEPS = dataclasses.replace(TOKENS, kind="steps")  # of a sequence of vectors that are no spectrum
# with the past: one decode step, a prompt, a continued prompt
NEW_TOKENS = Usual("new tokens", (1, 16, 7))
PAST = Usual("past", (128, 0, 5), (64, 16, 0))
ENCODED = Usual("encoded", (64, 9, 5), (128, 16))
SAMPLES = Usual("samples", (16000, 24000, 8000), (32000, 48000, 80000, 160000, 512, 1536, 480))
FRAMES = Usual("frames", (100, 37, 53), (200, 3000, 32, 16, 1))
OTHER = Usual("other", (16, 5, 9), (32, 64, 1, 8, 2, 128, 256, 512))
GRAPH = dataclasses.replace(OTHER, kind="nodes and edges")
SIDES = (224, 256, 320, 384, 512, 640, 299, 227, 160, 128, 112, 96, 64, 48, 32, 28)
LINE = Usual("text line", (320, 160, 96), (640, 128, 100, 64))


def side(kind: str, axis: int, typical: int, unit: int) -> Usual:
    """Height (axis 0) or width of a picture; the further cases are not square."""
    return Usual(
        kind, (typical, *((3 * unit, 4 * unit), (5 * unit, 2 * unit))[axis]), tuple(s for s in SIDES if s != typical)
    )


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the sizes of all inputs depend on."""

    decoder: bool  # it has a past
    image_side: int
    image_unit: int  # sides are multiples of it, at least in what the model is used with

    def halved(self) -> Facts:
        """The same facts with a picture of half the side, one unit at least."""
        side = max(1, self.image_side // 2 // self.image_unit) * self.image_unit
        return dataclasses.replace(self, image_side=side)


def facts(model: ir.Model, name: str = "") -> Facts:
    """NAME is that of the file, which often states the side: yolo_320.onnx."""
    texts = [v.name or "" for v in model.graph.inputs]
    texts += [str(d) for v in model.graph.inputs for d in v.shape or () if not isinstance(d, int)]
    unit = max(32, _stride(model))
    typical = _stated_side(f"{name} {model.graph.name or ''}") or _usual_side(model)
    return Facts(any("past" in t.lower() for t in texts), -(-typical // unit) * unit, unit)


# Sides that a file name states: below them numbers mean versions (resnet50), above them years.
_STATED = {
    s
    for s in (*SIDES, 192, 208, 240, 288, 336, 416, 448, 480, 544, 576, 608, 672, 736, 768, 800, 896, 960, 1024, 1280)
    if s >= 96
}


def _stated_side(text: str) -> int | None:
    numbers = [int(n) for n in re.findall(r"(?<!\d)\d{2,4}(?!\d)", text)]
    return next((n for n in numbers if n in _STATED), None)


def _usual_side(model: ir.Model) -> int:
    """320 for maps of pixels, 224 for classes, 640 for boxes; an output of a fixed size says more."""
    ranks = []
    for value in model.graph.outputs:
        shape = value.shape
        ranks.append(0 if shape is None else len(shape))
        sides = [d for d in (shape or ())[2:] if isinstance(d, int) and d >= 64]
        if ranks[-1] == 4 and len(sides) == 2:
            return max(sides)
    if 4 in ranks:
        return 320
    grows = any(node.op_type in ("Resize", "Upsample", "ConvTranspose") for node in model.graph)
    return 640 if grows or (len(ranks) > 1 and 3 in ranks) else 224


def _stride(model: ir.Model) -> int:
    """The most that the picture shrinks on its way through the graph, up to 64 times."""
    shrunk: dict[ir.Value, float] = collections.defaultdict(lambda: 1.0)
    most = 1.0
    for node in model.graph:
        step = max((shrunk[v] for v in node.inputs if v is not None), default=1.0)
        strides = node.attributes.get_ints("strides", ())
        if strides and node.op_type in ("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool"):
            step *= max(strides)
        elif strides and node.op_type == "ConvTranspose":
            step /= max(strides)
        elif node.op_type in ("Resize", "Upsample"):
            step /= 2
        for out in node.outputs:
            shrunk[out] = step
        most = max(most, step)
    return 1 << (int(min(most, 64)).bit_length() - 1)


# --- the axes of one input --------------------------------------------------------------------------------

_AUDIO = ("audio", "wav", "speech", "signal", "input_values", "pcm")
_LATENT = ("latent", "sample", "noise", "z")
_PICTURE = ("image", "img", "pixel", "picture", "frame", "photo", "rgb")


_OF_A_GRAPH = ("node", "edge", "atom")  # and of molecules
_NO_BATCH = ("seq", "len", "height", "width", "sample", "time", "frame", *_OF_A_GRAPH)


def axis_size(symbol: str, value: ir.Value, axis: int, about: Facts, forced: int | None) -> Usual:
    """The usual sizes of the axis of an input, which the model calls SYMBOL; FORCED where its weights leave no choice."""
    name, symbol = (value.name or "").lower(), symbol.lower()
    if _says(symbol, "past", "cache") and forced is None:  # "cache_dim" may be the size of a head
        return ENCODED if "encoder" in symbol and "decoder" not in symbol else PAST
    if ("batch" in symbol and not _is_signal(value, axis)) or (axis == 0 and not _says(symbol, *_NO_BATCH)):
        return BATCH
    if _says(symbol, *_OF_A_GRAPH):
        return GRAPH
    if forced is not None:
        return Usual("fixed", (forced,))
    if axis == 1 and _says(name, "state", "hidden", "cell") and _is_float(value) and _of_layers(value):
        return BATCH
    if "past" in name:
        return ENCODED if "encoder" in symbol + name.replace("decoder", "") else PAST
    if "encoder" in symbol and "decoder" not in symbol:
        return ENCODED
    if (spatial := _spatial(value, about)) is not None and axis in spatial:
        return spatial[axis]
    return _along_time(symbol, value, axis, about)


def _of_layers(value: ir.Value) -> bool:
    """[layers, batch, width], as recurrent states are."""
    shape = value.shape
    return shape is not None and len(shape) == 3 and isinstance(shape[0], int) and isinstance(shape[2], int)


def _along_time(symbol: str, value: ir.Value, axis: int, about: Facts) -> Usual:
    """Frames, samples or tokens."""
    shape = value.shape
    assert shape is not None
    floats, last = _is_float(value), axis == len(shape) - 1
    if _says(symbol, "frame", "time"):
        return FRAMES
    if last and (floats or value.dtype == ir.DataType.INT16) and _named_as_signal(symbol, value):
        return SAMPLES
    if _is_signal(value, axis):
        return SAMPLES
    if _says(symbol, "seq", "len", "token") or (len(shape) == 2 and (not floats or _read_as_ids(value))):
        return NEW_TOKENS if about.decoder else _of_sequence(value, axis)
    return _of_sequence(value, axis) if floats and len(shape) == 3 else OTHER


def _of_sequence(value: ir.Value, axis: int) -> Usual:
    """Of ids, or of vectors that stand for them, or of frames of a sound, or of any numbers."""
    assert value.shape is not None
    name = (value.name or "").lower()
    if not _is_float(value) or _says(name, "mask", "embed", "hidden") or _read_as_ids(value):
        return TOKENS
    return FRAMES if len(value.shape) == 3 and (_bands(value.shape, axis) or _says(name, *_AUDIO)) else STEPS


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _is_signal(value: ir.Value, axis: int) -> bool:
    """What reads it says so, whatever it is called: some exporters call every open size a batch."""
    last = axis == len(value.shape or ()) - 1 > 0
    return last and (_is_float(value) or value.dtype == ir.DataType.INT16) and _read_as_signal(value)


def _named_as_signal(symbol: str, value: ir.Value) -> bool:
    named = _says(symbol, "sample", "audio") or _says((value.name or "").lower(), *_AUDIO)
    return named and len(value.shape or ()) <= 3


def by_name(symbol: str) -> Usual:
    """The usual sizes of a symbol that occurs in sums only."""
    text = symbol.lower()
    if _says(text, "past", "cache"):
        return PAST
    return BATCH if "batch" in text else TOKENS if _says(text, "seq", "len", "token") else OTHER


def _says(text: str, *words: str) -> bool:
    return any(word in text for word in words)


def _bands(shape: ir.Shape, axis: int) -> bool:
    """Frames of a spectrum have a fixed number of bands beside them."""
    return any(
        isinstance(d, int) and d in (40, 64, 80, 96, 128, 161, 201, 257, 513) for i, d in enumerate(shape) if i != axis
    )


def _spatial(value: ir.Value, about: Facts) -> dict[int, Usual] | None:
    """axis -> side, if the input is a picture, latents of one, or another map."""
    shape, name = value.shape, (value.name or "").lower()
    assert shape is not None
    if not _is_map(value):
        return None
    rank = len(shape)
    first = rank - 3 if rank < 5 else 1  # of a tensor with its channels first
    channels = forced_sizes(value).get(first, shape[first])
    height, width = (rank - 3, rank - 2) if _channels_last(shape, channels) else (rank - 2, rank - 1)
    if _says(str(shape[height]).lower(), "seq", "time", "frame", "len"):
        return None
    tall = shape[height]
    if isinstance(tall, int) and 16 <= tall <= 64 and not isinstance(shape[width], int):
        return {width: LINE}
    if channels == 4 and not _says(name, *_PICTURE) and _says(name, *_LATENT):
        return {height: Usual("latent", (64, 24, 32), (32, 16)), width: Usual("latent", (64, 32, 24), (32, 16))}
    if isinstance(channels, int) and channels > 4:
        return {height: Usual("map", (32, 24, 16), (64, 16, 8)), width: Usual("map", (32, 16, 24), (64, 16, 8))}
    return {a: side("image", i, about.image_side, about.image_unit) for i, a in enumerate((height, width))}


def _is_map(value: ir.Value) -> bool:
    """Whether rank and type are those of pictures."""
    rank = len(value.shape or ())
    named = _says((value.name or "").lower(), *_PICTURE) or value.dtype == ir.DataType.UINT8
    if rank not in (4, 5) and not (rank == 3 and named):
        return False
    return _is_float(value) or value.dtype in (ir.DataType.UINT8, ir.DataType.INT8)


def _channels_last(shape: ir.Shape, channels: int | ir.SymbolicDim) -> bool:
    few = isinstance(shape[-1], int) and shape[-1] in (1, 3, 4) and not isinstance(shape[-2], int)
    return few and len(shape) > 3 and channels not in (1, 3)


# --- sizes that the graph leaves no choice of ------------------------------------------------------------

# the first output has the shape of the first input; of an operator in ops.py, that of all of them broadcast
_SAME_SHAPE = {"Identity", "Dropout", "DynamicQuantizeLinear"} | {
    f"{kind}Normalization" for kind in ("Batch", "Instance", "Layer")
}


def forced_sizes(value: ir.Value) -> dict[int, int]:
    """axis -> size, where a weight that the input meets on its way has room for that one only."""
    forced: dict[int, int] = {}
    if value.shape is not None:
        for axis, size in _forced(value, list(range(len(value.shape)))):
            forced.setdefault(axis, size)
    return forced


def _forced(value: ir.Value, axes: list[int | None]) -> Iterator[tuple[int, int]]:
    """AXES names for each axis of VALUE the axis of the input that it is. The way may be longer than Python's stack is deep."""
    seen: set[ir.Node] = set()
    way = [(iter(value.uses()), axes)]
    while way:
        uses, axes = way[-1]
        use = next(uses, None)
        if use is None:
            way.pop()
            continue
        node, position = use
        if node in seen or node.graph is None:
            continue
        seen.add(node)
        for axis, size in _demands(node, position, len(axes)):
            if -len(axes) <= axis < len(axes) and (own := axes[axis]) is not None and size > 0:
                yield own, size
        onward = _onward(node, position, axes)
        if onward is not None and node.outputs:
            way.append((iter(node.outputs[0].uses()), onward))


def _demands(node: ir.Node, position: int, rank: int) -> Iterator[tuple[int, int]]:
    """(axis, size) that NODE asks of the input at POSITION."""
    yield from _beside(node, position, rank)
    op, ints = node.op_type, node.attributes.get_int
    if position or op not in _WEIGHTS:
        return
    weight, ranks = _WEIGHTS[op]
    sizes = _sizes(node, weight)
    if len(sizes) not in ranks:
        return
    if op in ("Conv", "ConvInteger", "QLinearConv"):  # (O, C / groups, ...)
        yield 1, sizes[1] * ints("group", 1)
    elif op in ("ConvTranspose", "BatchNormalization", "InstanceNormalization"):
        yield 1, sizes[0]
    elif op == "MatMulNBits":
        yield -1, ints("K", 0)
    elif op in _PRODUCTS:
        yield -1, sizes[-2]
    elif op == "Gemm":
        yield 0 if ints("transA", 0) else 1, sizes[1 if ints("transB", 0) else 0]
    elif op == "LayerNormalization":
        yield -1, sizes[0]
    elif op == "DynamicQuantizeLSTM":  # (directions, input, gates * hidden)
        yield 2, sizes[1]
    else:  # recurrent: (directions, gates * hidden, input)
        yield 2, sizes[2]


def _beside(node: ir.Node, position: int, rank: int) -> Iterator[tuple[int, int]]:
    """(axis, size) that follows from the other inputs of NODE, which are no weights of a product."""
    op, ints = node.op_type, node.attributes.get_int
    if op in ("Add", "Sub", "Mul", "Div") and len(node.inputs) == 2:
        other = node.inputs[1 - position]
        if other is not None and (other.is_initializer() or other.const_value is not None):
            sizes = _sizes(node, 1 - position)
            yield from ((i - len(sizes), d) for i, d in enumerate(sizes) if d > 1)
    elif op == "Concat" and rank:  # all sizes but those along its axis are the same
        along = ints("axis", 0) % rank
        for beside in range(len(node.inputs)):
            if beside != position and len(sizes := _sizes(node, beside)) == rank:
                yield from ((i, d) for i, d in enumerate(sizes) if i != along)
    elif position in _CACHES.get(op, ()):
        yield rank - 1, _head_size(node)


# operator -> which of its inputs is the weight, and of which ranks it may be
_MANY = range(2, 9)
_PRODUCTS = ("MatMul", "MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QLinearMatMul")
_WEIGHTS: dict[str, tuple[int, Sequence[int]]] = {
    **dict.fromkeys(("Conv", "ConvInteger", "MatMulNBits", *_PRODUCTS), (1, _MANY)),
    **dict.fromkeys(("ConvTranspose", "BatchNormalization", "InstanceNormalization"), (1, range(1, 9))),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), (1, [3])),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), (3, _MANY)),
    "Gemm": (1, [2]),
    "LayerNormalization": (1, [1]),
}


# com.microsoft's attention -> the inputs that are a cache of keys or values (batch, heads, past, size of a head)
_CACHES = {"GroupQueryAttention": (3, 4), "MultiHeadAttention": (6, 7)}


def _head_size(node: ir.Node) -> int:
    """Of an attention's queries (batch, length, width), which keys and values may lie behind; 0 where it is not known."""
    ints = node.attributes.get_int
    heads, groups = ints("num_heads", 0), ints("kv_num_heads", 0)
    packed = len(node.inputs) < 2 or node.inputs[1] is None
    if node.op_type == "GroupQueryAttention" and packed:
        heads += 2 * groups
    sizes = _sizes(node, 0)
    return sizes[2] // heads if len(sizes) == 3 and heads and sizes[2] % heads == 0 else 0


def _sizes(node: ir.Node, index: int) -> list[int]:
    """The sizes of an input of NODE, 0 where they are not known."""
    value = node.inputs[index] if index < len(node.inputs) else None
    shape = value.shape if value is not None else None
    return [d if isinstance(d, int) else 0 for d in shape or ()]


def _onward(node: ir.Node, position: int, axes: list[int | None]) -> list[int | None] | None:
    """Where the axes lie in the node's first output; None to stop there."""
    op = node.op_type
    if op in _SAME_SHAPE or ("", op) in ops.QUANTIZERS:
        return axes if position == 0 else None
    if (node.domain, op) in ops.TABLE:
        return axes if _no_wider(node, position, len(axes)) else None
    if op == "Transpose" and (perm := node.attributes.get_ints("perm", None)) and sorted(perm) == [*range(len(axes))]:
        return [axes[p] for p in perm]
    if op == "Gather" and position == 1 and node.attributes.get_int("axis", 0) == 0 and node.inputs[0] is not None:
        table = node.inputs[0].shape
        return None if table is None else [*axes, *[None] * (len(table) - 1)]
    if op == "Unsqueeze" and position == 0:
        return _unsqueezed(axes, _constant_ints(node, 1, "axes"))
    return None


def _unsqueezed(axes: list[int | None], where: Sequence[int] | None) -> list[int | None] | None:
    if where is None:
        return None
    rank = len(axes) + len(where)
    at = {w % rank for w in where}
    rest = iter(axes)
    return [None if i in at else next(rest) for i in range(rank)]


def _no_wider(node: ir.Node, position: int, rank: int) -> bool:
    shapes = [v.shape for i, v in enumerate(node.inputs) if v is not None and i != position]
    return all(s is None or len(s) <= rank for s in shapes)


def _constant_ints(node: ir.Node, index: int, attribute: str) -> Sequence[int] | None:
    if (given := node.attributes.get_ints(attribute, None)) is not None:
        return list(given)
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else [int(n) for n in tensor.numpy().ravel()]


def _read_as_ids(value: ir.Value) -> bool:
    """Floats that hold whole numbers: the first thing that happens to them is a cast."""
    return any(node.op_type == "Cast" and node.attributes["to"].as_int() in (6, 7) for node, _ in value.uses())


def _read_as_signal(value: ir.Value) -> bool:
    """[batch, n] or [batch, 1, n] that a convolution over one channel, or an STFT, reads."""
    assert value.shape is not None
    rank = len(value.shape)
    if rank == 3 and value.shape[1] != 1:
        return False
    todo, seen = [value], {value}
    while todo:
        for node, position in todo.pop().uses():
            if node.op_type == "STFT" and position == 0:
                return True
            if node.op_type == "Conv" and _weight_sizes(node)[1:2] == [1] and len(_weight_sizes(node)) == 3:
                return True
            if node.op_type in _BEFORE_A_SPECTRUM and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                todo.append(node.outputs[0])
    return False


_BEFORE_A_SPECTRUM = {"Unsqueeze", "Reshape", "Pad", "Concat", "Slice", "Cast", "Add", "Sub", "Mul", "Div", "Where"}


def _weight_sizes(node: ir.Node) -> list[int]:
    weight = node.inputs[1]
    tensor = ir.convenience.get_const_tensor(weight) if weight is not None else None
    return [int(n) for n in tensor.shape.numpy()] if tensor is not None else _sizes(node, 1)
