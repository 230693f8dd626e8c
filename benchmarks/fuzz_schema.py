"""One operator, drawn from ONNX's own schemas (opsets 7 to 24), for benchmarks/fuzz.py: any element type it allows, any rank, dims n
and m (0 among what they are fed with), operands that broadcast, negative axes, optional inputs left out, attributes of any legal value.
Of every fifth draw all inputs are constants: it is folded.

A schema says which types and attributes there are. SHAPES says what shapes fit together, in the notation of the operator's page;
what is not in it takes operands that broadcast. NUMBERS holds what small integers and strings mean. ONNX's inference says
whether a draw is valid; another is drawn if not.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

Dim = int | str
Shape = tuple[Dim, ...]
KINDS = {
    "tensor(float)": T.FLOAT,
    "tensor(double)": T.DOUBLE,
    "tensor(float16)": T.FLOAT16,
    "tensor(bfloat16)": T.BFLOAT16,
    "tensor(bool)": T.BOOL,
} | {f"tensor({s}int{b})": getattr(T, f"{s}int{b}".upper()) for s in ("", "u") for b in (8, 16, 32, 64)}
# Random on purpose, not of tensors of numbers, or of graphs.
LEFT_OUT = """Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike If Loop Scan ImageDecoder Constant
SequenceMap Optional OptionalGetElement OptionalHasElement StringConcat StringNormalizer StringSplit RegexFullMatch TfIdfVectorizer
BitCast""".split()
TRIES = 40
ATTRIBUTES: dict[str, list[Any]] = {
    "mode": "nearest linear cubic constant edge reflect wrap DCR CRD bilinear bicubic nearest avg max".split(),
    "coordinate_transformation_mode": """half_pixel pytorch_half_pixel align_corners asymmetric half_pixel_symmetric
    tf_crop_and_resize output_half_pixel""".split(),
    "nearest_mode": "round_prefer_floor round_prefer_ceil floor ceil".split(),
    "padding_mode": "zeros border reflection".split(),
    "auto_pad": "NOTSET NOTSET VALID SAME_UPPER SAME_LOWER".split(),
    "direction": ["forward", "reverse", "bidirectional", "LEFT", "RIGHT"],
    "reduction": "none add mul max min mean sum".split(),
    "approximate": ["none", "tanh"],
    "to": list(KINDS.values()),
    "dtype": [T.FLOAT, T.DOUBLE, T.INT64, T.INT32],
    "output_datatype": [T.FLOAT, T.DOUBLE, T.INT64],
    "output_dtype": [0],
    "precision": [0],
    "saturate": [1],
    "softmax_precision": [1],
    "blocksize": [1, 2],
    "p": [1, 2, 3],
    "size": [1, 3, 5],
    "fmod": [0, 1],
    "num_groups": [1, 2, 4],
    "group": [1, 1, 2],
    "hidden_size": [3],
    "training_mode": [0],
    "block_size": [0],
    "kv_num_heads": [2],
    "q_num_heads": [2, 4],
    "num_heads": [0, 2],
    "rotary_embedding_dim": [0, 2],
    "num_outputs": [1, 2, 3],
    "ignore_index": [-1, 1],
    "qk_matmul_output_mode": [0, 1, 2, 3],
    "seed": [0],
    "batch_dims": [0, 0, 1],
    "k": [0, -1, 1],
}
WINDOWS = {"kernel_shape": (1, 3), "strides": (1, 3), "dilations": (1, 2), "pads": (0, 1), "output_padding": (0, 1)}
FLAGS = """keepdims exclusive reverse select_last_index largest sorted ceil_mode count_include_pad align_corners exclude_outside
antialias upper transA transB allowzero interleaved is_causal linear_before_reset noop_with_empty_axes keep_aspect_ratio_policy
detect_negative detect_positive center_point_box onesided inverse periodic storage_order input_forget layout""".split()


def draw(seed: int) -> onnx.ModelProto:
    """The first valid one of TRIES; else the last, which ONNX Runtime refuses."""
    rng = random.Random(seed)
    opset = rng.randint(7, 24)
    schema = rng.choice(schemas(opset))
    model = onnx.ModelProto()
    for _ in range(TRIES):
        model = _Draw(rng, schema, opset).model()
        try:
            inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
            onnx.checker.check_model(inferred)
            return inferred
        except Exception:  # not valid
            continue
    return model


@functools.cache
def schemas(opset: int) -> list[onnx.defs.OpSchema]:
    newest: dict[str, onnx.defs.OpSchema] = {}
    for schema in sorted(onnx.defs.get_all_schemas_with_history(), key=lambda s: int(s.since_version)):
        if schema.domain == "" and schema.since_version <= opset and not schema.deprecated:
            newest[schema.name] = schema
    usable = [s for s in newest.values() if s.name not in LEFT_OUT and not s.name.startswith(("Sequence", "SplitTo"))]
    return sorted((s for s in usable if s.outputs and s.inputs), key=lambda s: str(s.name))


class _Draw:
    """One attempt at a node of a schema."""

    def __init__(self, rng: random.Random, schema: onnx.defs.OpSchema, opset: int) -> None:
        self.rng, self.schema, self.opset = rng, schema, opset
        self.folded = rng.random() < 0.2
        self.numbers = np.random.default_rng(rng.randrange(1 << 30))
        self.bound = {c.type_param_str: self._kind(c.allowed_type_strs) for c in schema.type_constraints}
        self.dims: Shape = tuple(
            rng.choice([1, 2, 3, 4, "n", "m"]) for _ in range(rng.choice([0, 1, 2, 2, 3, 3, 4, 5]))
        )
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.shapes: list[Shape | None] = []

    def model(self) -> onnx.ModelProto:
        make = SHAPES.get(self.schema.name)
        self.shapes = list(make(self)) if make else []
        names = [self._input(i, formal) for i, formal in self._formals()]
        while names and not names[-1]:
            names.pop()
        least = [f for f in self.schema.outputs if f.option == onnx.defs.OpSchema.FormalParameterOption.Single]
        outputs = [
            f"y{i}" for i in range(self.rng.randint(max(1, len(least)), max(1, min(3, len(self.schema.outputs)))))
        ]
        if self.schema.name == "Split":
            outputs = [f"y{i}" for i in range(self.rng.randint(1, 3))]
        attributes = self._attributes()
        if self.schema.name == "Split" and "num_outputs" in attributes:
            attributes["num_outputs"] = len(outputs)
        node = h.make_node(self.schema.name, names, outputs, **attributes)
        results = [onnx.ValueInfoProto(name=o) for o in outputs]
        graph = h.make_graph([node], "one", self.inputs, results, self.constants)
        return h.make_model(graph, opset_imports=[h.make_opsetid("", self.opset)], ir_version=9)

    # --- types ---

    def _kind(self, allowed: Sequence[str]) -> int:
        kinds = [KINDS[t] for t in sorted(allowed) if t in KINDS]
        if T.FLOAT in kinds and self.rng.random() < 0.4:
            return T.FLOAT
        return self.rng.choice(kinds) if kinds else T.FLOAT

    def _formals(self) -> list[tuple[int, Any]]:
        option = onnx.defs.OpSchema.FormalParameterOption
        formals = list(enumerate(self.schema.inputs))
        if formals and formals[-1][1].option == option.Variadic:
            count = len(self.shapes) or self.rng.randint(1, 4)
            formals += [(i, formals[-1][1]) for i in range(len(formals), count)]
        return formals

    def _input(self, place: int, formal: Any) -> str:
        option = onnx.defs.OpSchema.FormalParameterOption
        if formal.option == option.Optional and self.rng.random() < 0.4:
            return ""
        name = f"x{place}"
        kind = self.bound.get(formal.type_str)
        if kind is None:
            kind = KINDS.get(formal.type_str, T.FLOAT)
        numbers = NUMBERS.get((self.schema.name, formal.name)) or NUMBERS.get(("", formal.name))
        if numbers is not None:
            array = numbers(self)
            if self.rng.random() < 0.85:
                return self._constant(name, array, kind)
        shape = self.shapes[place] if place < len(self.shapes) else self.alike()
        if shape is None:
            return ""
        if self.folded:
            shape = tuple({"n": 2, "m": 3}.get(d, d) if isinstance(d, str) else d for d in shape)
        if self._is_constant(place, shape) and kind != T.BFLOAT16:
            return self._constant(name, self._numbers(shape, kind), kind)
        self.inputs.append(h.make_tensor_value_info(name, kind, shape))
        return name

    def _is_constant(self, place: int, shape: Shape) -> bool:
        fixed = all(isinstance(d, int) for d in shape)
        return fixed and bool(self.folded or (place and self.rng.random() < 0.4))

    def _numbers(self, shape: Shape, kind: int) -> Any:
        dims = [int(d) for d in shape]
        values: Any = self.numbers.standard_normal(dims) * 2
        return values if kind in (T.FLOAT, T.DOUBLE, T.FLOAT16) else self.numbers.integers(0, 3, dims)

    def _constant(self, name: str, numbers: Any, kind: int) -> str:
        array = np.asarray(numbers).astype(h.tensor_dtype_to_np_dtype(kind))
        self.constants.append(nh.from_array(array, name))
        return name

    # --- shapes ---

    def alike(self) -> Shape:
        """A shape that broadcasts with `dims`."""
        shape = tuple(1 if self.rng.random() < 0.15 else d for d in self.dims)
        return shape[self.rng.randint(0, len(shape)) :] if self.rng.random() < 0.2 else shape

    def image(self, least: int = 1) -> Shape:
        """[N, C, spatial...]"""
        spatial = [self.rng.choice([5, 6, 7, "m", 8]) for _ in range(self.rng.choice([1, 2, 2, 2, 3]))]
        self.dims = (self.rng.choice([1, 2, "n"]), self.rng.choice([2, 4, 8][least - 1 :]), *spatial)
        return self.dims

    def axis(self, more: int = 0) -> int:
        rank = max(1, len(self.dims) + more)
        return self.rng.randrange(rank) - self.rng.choice([0, rank])

    def size(self, axis: int) -> int:
        """A dim as a number; of n or m the smallest that is not empty."""
        d = self.dims[axis] if self.dims else 1
        return d if isinstance(d, int) else 1

    # --- attributes ---

    def _attributes(self) -> dict[str, Any]:
        chosen: dict[str, Any] = {}
        for name, attribute in self.schema.attributes.items():
            if (attribute.required or self.rng.random() < 0.6) and (
                value := self._attribute(name, attribute)
            ) is not None:
                chosen[name] = value
        return chosen

    def _attribute(self, name: str, attribute: Any) -> Any:
        if name == "axis":
            return self.axis(1 if self.schema.name == "Flatten" else 0)
        if name in ("axes", "perm"):
            return self._axes(name)
        if name in WINDOWS and len(self.dims) > 2 and self.schema.name != "Pad":
            return self._of_windows(name)
        if name == "equation":
            return self.equation
        is_float = attribute.type == onnx.defs.OpSchema.AttrType.FLOAT
        if (numbers := NUMBERS.get((self.schema.name, name)) or _ONCE_ATTRIBUTES.get(name)) is not None:
            value = numbers(self)
            return float(value) if is_float else None if value == [] else value
        if name in FLAGS:
            return self.rng.randint(0, 1)
        if name in ATTRIBUTES:
            return self.rng.choice(ATTRIBUTES[name])
        return self.rng.choice([0.0, 0.1, 0.5, 1.0, 1.5, -1.0]) if is_float else None

    def _axes(self, name: str) -> list[int] | None:
        rank = len(self.dims)
        places = self.rng.sample(range(rank), self.rng.randint(0, rank))
        return (self.rng.sample(range(rank), rank) if name == "perm" else sorted(places)) or None

    def _of_windows(self, name: str) -> list[int]:
        if name == "kernel_shape":
            return self.window
        count = (len(self.dims) - 2) * (2 if name == "pads" else 1)
        return [self.rng.randint(*WINDOWS[name]) for _ in range(count)]

    @functools.cached_property
    def window(self) -> list[int]:
        return [self.rng.randint(1, 3) for _ in self.dims[2:]]

    equation = ""


# --- what shapes fit together ---


def _matmul(d: _Draw) -> list[Shape | None]:
    a, b, c = (d.rng.choice([1, 2, 3, 5, 17, "n", "m"]) for _ in range(3))
    lead = tuple(d.rng.choice([1, 2, "n"]) for _ in range(d.rng.choice([0, 0, 1, 2])))
    left, right = d.rng.choice(
        [((*lead, a, b), (b, c)), ((*lead, a, b), (*lead, b, c)), ((b,), (*lead, b, c)), ((a, b), (b,))]
    )
    d.dims = left
    zero: Shape = ()
    if d.schema.name == "QLinearMatMul":
        return [left, zero, zero, right, zero, zero, zero, zero]
    return [left, right, zero, zero]


def _gemm(d: _Draw) -> list[Shape | None]:
    d.dims = (3, 3)
    return [("n", 3), (3, 3), d.rng.choice([(3,), (1, 3), (), ("n", 3)])]


def _conv(d: _Draw) -> list[Shape | None]:
    x = d.image()
    c, o = d.size(1), d.rng.choice([2, 4, 6])
    group = d.rng.choice([1, 2])
    turned = d.schema.name == "ConvTranspose"
    w: Shape = (c, o // group, *d.window) if turned else (o, c // group, *d.window)
    if d.schema.name == "QLinearConv":
        return [x, (), (), w, (), (), (), (), (o,)]
    if d.schema.name == "ConvInteger":
        return [x, w, (), ()]
    return [x, w, (o,)]


def _per_channel(d: _Draw) -> list[Shape | None]:
    x = d.image()
    return [x, *[(x[1],)] * 4]


def _trailing(d: _Draw) -> list[Shape | None]:
    d.dims = ("n", d.rng.choice([3, "m"]), d.rng.choice([4, 5, 17]))
    return [d.dims, d.dims[-1:], d.dims[-1:]]


def _image(d: _Draw) -> list[Shape | None]:
    return [d.image()]


def _same(d: _Draw) -> list[Shape | None]:
    return [d.dims] * d.rng.randint(1, 5)


def _recurrent(gates: int) -> Callable[[_Draw], list[Shape | None]]:
    def shapes(d: _Draw) -> list[Shape | None]:
        s, b, i, ways, size = "m", "n", 4, d.rng.choice([1, 2]), 3
        state = (ways, b, size)
        d.dims = (s, b, i)
        peepholes = (ways, 3 * size)
        rest: list[Shape | None] = [(ways, 2 * gates * size), None, state, state, peepholes]
        return [d.dims, (ways, gates * size, i), (ways, gates * size, size), *rest[: 5 if gates == 4 else 3]]

    return shapes


def _attention(d: _Draw) -> list[Shape | None]:
    b, s, t = "n", d.rng.choice([1, 3, "m"]), d.rng.choice([1, 4, "m"])
    heads, size = d.rng.choice([2, 4]), 4
    d.dims = (b, heads, s, size)
    keys: Shape = (b, 2, t, size)
    mask = d.rng.choice([(s, t), (b, 1, s, t), (1, heads, s, t)])
    return [d.dims, keys, keys, mask, None, None]


def _rotary(d: _Draw) -> list[Shape | None]:
    d.dims = ("n", 2, "m", 4)
    return [d.dims, ("n", "m", 2), ("n", "m", 2), None]


def _einsum(d: _Draw) -> list[Shape | None]:
    size = {k: d.rng.choice([1, 2, 3, "n", "m"]) for k in "abcd"}
    terms = ["".join(d.rng.sample("abcd", d.rng.randint(1, 3))) for _ in range(d.rng.choice([1, 2, 2, 3]))]
    used = sorted(set("".join(terms)))
    result = "".join(d.rng.sample(used, d.rng.randint(0, len(used))))
    d.equation = ",".join(terms) + d.rng.choice([f"->{result}"] * 3 + [""])
    return [tuple(size[k] for k in term) for term in terms]


def _gather(d: _Draw) -> list[Shape | None]:
    return [d.dims, d.rng.choice([(), (2,), ("n", 1), (2, 3)])]


def _updates(d: _Draw) -> list[Shape | None]:
    return [d.dims, d.dims, d.dims]


def _grid(d: _Draw) -> list[Shape | None]:
    d.dims = ("n", 2, 5, 6)
    return [d.dims, ("n", 3, 4, 2)]


def _loss(d: _Draw) -> list[Shape | None]:
    d.dims = ("n", 4, *d.rng.choice([(), (3,), ("m", 2)]))
    return [d.dims, (d.dims[0], *d.dims[2:]), (4,)]


def _scaled(d: _Draw) -> list[Shape | None]:
    per_axis = (d.dims[1],) if len(d.dims) > 1 and isinstance(d.dims[1], int) and d.rng.random() < 0.5 else ()
    return [d.dims, per_axis, per_axis]


def _square(d: _Draw) -> list[Shape | None]:
    return [(*d.rng.choice([(), ("n",), (2, "m")]), 3, 3)]


SHAPES: dict[str, Callable[[_Draw], list[Shape | None]]] = {
    **dict.fromkeys(["MatMul", "MatMulInteger", "QLinearMatMul"], _matmul),
    **dict.fromkeys(["Conv", "ConvTranspose", "ConvInteger", "QLinearConv"], _conv),
    **dict.fromkeys(["InstanceNormalization", "BatchNormalization", "GroupNormalization"], _per_channel),
    **dict.fromkeys(["LayerNormalization", "RMSNormalization"], _trailing),
    **dict.fromkeys(
        ["MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool", "LRN"], _image
    ),
    **dict.fromkeys(["DepthToSpace", "SpaceToDepth", "Resize", "Upsample", "MeanVarianceNormalization"], _image),
    **dict.fromkeys(["GatherElements", "ScatterElements", "Scatter"], _updates),
    **dict.fromkeys(["QuantizeLinear", "DequantizeLinear"], _scaled),
    **dict.fromkeys(["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"], _loss),
    "Gemm": _gemm,
    "Concat": _same,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "Attention": _attention,
    "RotaryEmbedding": _rotary,
    "Einsum": _einsum,
    "Gather": _gather,
    "GridSample": _grid,
    "Det": _square,
}


# --- what small integers mean ---


def _axes(d: _Draw) -> list[int]:
    rank = len(d.dims)
    places = d.rng.sample(range(rank), d.rng.randint(0, rank))
    return [p - d.rng.choice([0, rank]) for p in places]


def _unsqueezed(d: _Draw) -> list[int]:
    return [d.axis(1)]


def _ones(d: _Draw) -> list[int]:
    return [i - d.rng.choice([0, len(d.dims)]) for i, size in enumerate(d.dims) if size == 1]


def _reshaped(d: _Draw) -> list[int]:
    sizes = [0 if isinstance(s, str) else s for s in d.dims]
    return d.rng.choice([[-1], [0] * len(sizes), [*sizes[:-1], -1], [-1, *sizes[1:]], [1, *sizes[:1], -1]])


def _pads(d: _Draw) -> list[int]:
    return [d.rng.choice([0, 0, 1, 2, -1]) for _ in range(2 * len(d.dims))]


def _split(d: _Draw) -> list[int]:
    return [1] * d.rng.randint(1, 3)


def _any(*numbers: Any) -> Callable[[_Draw], Any]:
    return lambda d: d.rng.choice(numbers)


def _of_rank(*numbers: float) -> Callable[[_Draw], Any]:
    return lambda d: [d.rng.choice(numbers) for _ in d.dims]


def _few(*numbers: int) -> Callable[[_Draw], Any]:
    return lambda d: [d.rng.choice(numbers) for _ in range(d.rng.randint(1, max(1, len(d.dims))))]


NUMBERS: dict[tuple[str, str], Callable[[_Draw], Any]] = {
    ("", "axes"): _axes,
    ("Squeeze", "axes"): _ones,
    ("Unsqueeze", "axes"): _unsqueezed,
    ("", "axis"): lambda d: d.axis(),
    ("Reshape", "shape"): _reshaped,
    ("Expand", "shape"): lambda d: [d.rng.choice([1, 1, 2]) if isinstance(s, str) or s == 1 else s for s in d.dims],
    ("CenterCropPad", "shape"): _few(1, 2, 5),
    ("ConstantOfShape", "input"): _few(0, 1, 2, 3),
    ("", "repeats"): _of_rank(0, 1, 2, 3),
    ("", "pads"): _pads,
    ("", "split"): _split,
    ("", "starts"): _few(0, 1, -1, -2, 5, -(1 << 62), 1 << 62),
    ("", "ends"): _few(0, 1, -1, 2, 5, -(1 << 62), 1 << 62),
    ("", "steps"): _few(1, 1, 2, -1, -2),
    ("TopK", "K"): lambda d: [d.rng.choice([0, 1, 2])],
    ("Trilu", "k"): _any(-10, -1, 0, 1, 2, 10),
    ("OneHot", "depth"): _any(1, 3, [4]),
    ("OneHot", "values"): lambda d: [0, d.rng.choice([1, 5])],
    ("Resize", "scales"): lambda d: [1, 1, *(d.rng.choice([1, 2, 3, 0.5, 0.6, 1.7]) for _ in d.dims[2:])],
    ("Resize", "sizes"): lambda d: [d.size(0), d.size(1), *(d.rng.choice([1, 3, 5, 8, 11]) for _ in d.dims[2:])],
    ("Resize", "roi"): lambda d: [0.0] * len(d.dims) + [1.0] * len(d.dims),
    ("Upsample", "scales"): lambda d: [1.0, 1.0, *(d.rng.choice([1.0, 2.0, 3.0, 1.5]) for _ in d.dims[2:])],
    ("Range", "start"): _any(0, 1, 5),
    ("Range", "limit"): _any(0, 4, 10),
    ("Range", "delta"): _any(1, 2, 3),
    ("Clip", "min"): _any(0, 1),
    ("Clip", "max"): _any(0, 1, 2),
    ("BitShift", "Y"): _any(0, 1, 3),
    ("", "indices"): lambda d: d.numbers.integers(-1, 1, [d.size(i) for i in range(len(d.dims))]),
    ("Gather", "indices"): _any(0, -1, [0, -1], [[0], [-1]], []),
    ("GatherND", "indices"): _any([[0]], [[-1], [0]], [[[0]]]),
    ("", "x_scale"): _any(0.05),
    ("", "y_scale"): _any(0.05, 0.1),
    ("", "a_scale"): _any(0.05),
    ("", "b_scale"): _any(0.1),
    ("", "w_scale"): _any(0.1),
    ("", "position_ids"): _any([[0]]),
    ("HannWindow", "size"): _any(0, 1, 2, 8),
    ("HammingWindow", "size"): _any(0, 1, 2, 8),
    ("BlackmanWindow", "size"): _any(0, 1, 2, 8),
    ("", "ratio"): _any(0.0, 0.5),
    ("", "training_mode"): _any(False),
    ("Compress", "condition"): _any([True], [True, False], [False]),
}
_ONCE_ATTRIBUTES = {name: NUMBERS["", name] for name in ("starts", "ends", "pads", "split")}  # inputs since
