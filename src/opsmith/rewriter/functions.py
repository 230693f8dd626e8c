"""The high-level ops: model-local functions of the domain "opsmith" whose bodies are standard ops.

A rewritten model carries the functions that it calls, so that any ONNX runtime runs it; the compiler reads the names
and ignores the bodies. ONNX functions have no optional inputs: each variant has its own name. A body may lean on the
calls that it has to serve (`Calls`): a model without grouped-query attention gets the plain attention body.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith import ops
from opsmith.errors import OpsmithError
from opsmith.rewriter.rule import DOMAIN, size_of

VERSION = 1
Operand = ir.Value | float | Sequence[int] | None  # of an op in a body


class Body:
    """Writes the nodes of one function body."""

    def __init__(self, opset: int, half: bool) -> None:
        self.opset = opset
        self.half = half  # some call is not float32: constants follow the type of the data
        self.nodes: list[ir.Node] = []

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)

        def build(*operands: Operand, outputs: int = 1, **attributes: Any) -> Any:
            inputs = self._values(op_type, operands)
            attrs = [
                v if isinstance(v, ir.Attr) else ir.convenience.convert_attribute(k, v) for k, v in attributes.items()
            ]
            node = ir.Node("", op_type, inputs, attrs, num_outputs=outputs, name=f"n{len(self.nodes)}")
            for value in node.outputs:
                value.name = f"v{len(self.nodes)}_{value.index()}"
            self.nodes.append(node)
            return node.outputs[0] if outputs == 1 else tuple(node.outputs)

        return build

    def _values(self, op_type: str, operands: Sequence[Operand]) -> list[ir.Value | None]:
        """Plain operands as constants: a number has the type of the first value, a list of whole numbers is int64."""
        like = next((x for x in operands if isinstance(x, ir.Value)), None)
        values: list[ir.Value | None] = []
        for operand in operands:
            if operand is None or isinstance(operand, ir.Value):
                values.append(operand)
            elif isinstance(operand, Sequence):
                values.append(self.ints(*operand))
            elif like is None:
                raise OpsmithError(
                    f"{op_type} of numbers alone: {operand!r} has no value to take its type from",
                    "compute it in Python, or write b.number(1.5, x)",
                )
            else:
                values.append(self.number(operand, like))
        return values

    def number(self, number: float, like: ir.Value) -> Any:
        constant: ir.Value = self.Constant(value=ir.tensor(np.float32(number)))
        return self.CastLike(constant, like) if self.half else constant

    def attribute_number(self, name: str, like: ir.Value) -> Any:
        constant: ir.Value = self.Constant(value_float=ir.RefAttr("value_float", name, ir.AttributeType.FLOAT))
        return self.CastLike(constant, like) if self.half else constant

    def ints(self, *numbers: int) -> Any:
        return self.Constant(value=ir.tensor(np.array(numbers, np.int64)))

    def mean_last(self, x: ir.Value) -> Any:
        """ReduceMean over the last axis; opset 18 made the axes an input."""
        if self.opset >= 18:
            return self.ReduceMean(x, self.ints(-1), keepdims=1)
        return self.ReduceMean(x, axes=[-1], keepdims=1)


@dataclasses.dataclass(frozen=True)
class Calls:
    """The calls of one function in a model."""

    nodes: tuple[ir.Node, ...]

    @property
    def grouped(self) -> bool:
        """Whether some call may have fewer key heads than query heads."""

        def differ(node: ir.Node) -> bool:
            q, k = node.inputs[0], node.inputs[1]
            if q is None or k is None:
                return True
            heads, key_heads = size_of(q, 1), size_of(k, 1)
            return heads is None or key_heads is None or heads != key_heads

        return any(differ(n) for n in self.nodes)

    @property
    def capped(self) -> bool:
        """Whether scores are cap * tanh(score / cap)."""
        return any(n.op_type.startswith(ops.CAPPED) for n in self.nodes)

    @property
    def guarded(self) -> bool:
        return any(n.metadata_props.get("opsmith.guarded") == "1" for n in self.nodes)


@dataclasses.dataclass(frozen=True)
class Function:
    """One function of the library: its inputs, its attributes, and how its body is written."""

    inputs: tuple[str, ...]
    write: Callable[..., Any]
    attributes: tuple[tuple[str, ir.AttributeType], ...] = ()
    outputs: tuple[str, ...] = ("y",)


_FLOAT, _INT = ir.AttributeType.FLOAT, ir.AttributeType.INT


# --- activations -----------------------------------------------------------------------------------------


def _gelu(b: Body, calls: Calls, x: ir.Value) -> Any:
    """0.5 x (1 + erf(x / sqrt 2)); before opset 20 in the order in which ONNX Runtime looks for it."""
    if b.opset >= 20:
        return b.Gelu(x)
    erf = b.Erf(b.Div(x, b.number(1.4142135381698608, x)))
    return b.Mul(b.Mul(x, b.Add(erf, b.number(1.0, x))), b.number(0.5, x))


def _gelu_tanh(b: Body, calls: Calls, x: ir.Value) -> Any:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))"""
    if b.opset >= 20:
        return b.Gelu(x, approximate="tanh")
    cubic = b.Mul(b.Pow(x, b.number(3.0, x)), b.number(0.044715, x))
    tanh = b.Tanh(b.Mul(b.Add(x, cubic), b.number(0.7978845608028654, x)))
    return b.Mul(b.Mul(x, b.number(0.5, x)), b.Add(tanh, b.number(1.0, x)))


def _quick_gelu(b: Body, calls: Calls, x: ir.Value) -> Any:
    """x sigmoid(1.702 x)"""
    return b.Mul(x, b.Sigmoid(b.Mul(x, b.number(1.702, x))))


def _silu(b: Body, calls: Calls, x: ir.Value) -> Any:
    """x sigmoid(x)"""
    return b.Mul(x, b.Sigmoid(x))


def _geglu(b: Body, calls: Calls, x: ir.Value) -> Any:
    """a * gelu(b) with a, b the halves of the last dimension"""
    a, gate = _halves(b, x)
    return b.Mul(a, _gelu(b, calls, gate))


# --- norms -----------------------------------------------------------------------------------------------


def _rms_norm(b: Body, calls: Calls, x: ir.Value, scale: ir.Value) -> Any:
    """x / sqrt(mean(x^2) + epsilon) * scale, over the last dimension"""
    mean = b.mean_last(b.Mul(x, x))
    root = b.Sqrt(b.Add(mean, b.attribute_number("epsilon", x)))
    return b.Mul(b.Div(x, root), scale)


def _skip_layer_norm(b: Body, calls: Calls, x: ir.Value, skip: ir.Value, scale: ir.Value, bias: ir.Value) -> Any:
    total = b.Add(x, skip)
    epsilon = ir.RefAttr("epsilon", "epsilon", _FLOAT)
    return b.LayerNormalization(total, scale, bias, axis=-1, epsilon=epsilon), total


def _skip_rms_norm(b: Body, calls: Calls, x: ir.Value, skip: ir.Value, scale: ir.Value) -> Any:
    total = b.Add(x, skip)
    return _rms_norm(b, calls, total, scale), total


def _group_norm(b: Body, calls: Calls, x: ir.Value, scale: ir.Value, bias: ir.Value) -> Any:
    """x (N,C,...) as (N,groups,-1), normalised per row, back to (N,C,...), times scale (C), plus bias (C)"""
    count = b.Reshape(b.Constant(value_int=ir.RefAttr("value_int", "groups", _INT)), b.ints(1))  # (1)
    rows = b.Reshape(x, b.Concat(b.ints(0), count, b.ints(-1), axis=0))  # (N,groups,-1)
    ones = b.Expand(b.number(1.0, x), count)  # (groups)
    zeros = b.Expand(b.number(0.0, x), count)
    epsilon = ir.RefAttr("epsilon", "epsilon", _FLOAT)
    normal = b.Reshape(b.InstanceNormalization(rows, ones, zeros, epsilon=epsilon), b.Shape(x))  # (N,C,...)
    rank = {len(n.inputs[0].shape) for n in calls.nodes if n.inputs[0] is not None and n.inputs[0].shape is not None}
    if len(rank) == 1:
        per_channel = b.ints(-1, *[1] * (rank.pop() - 2))
    else:  # (C,1,1...) for any rank: ones of the rank of x, with the channels first
        tail = b.Slice(b.Shape(x), b.ints(2), b.ints(2**31 - 1))
        per_channel = b.Concat(b.ints(-1), b.Div(tail, tail), axis=0)
    scaled = b.Mul(normal, b.Reshape(scale, per_channel))
    return b.Add(scaled, b.Reshape(bias, per_channel))


def _group_norm_silu(b: Body, calls: Calls, x: ir.Value, scale: ir.Value, bias: ir.Value) -> Any:
    return _silu(b, calls, _group_norm(b, calls, x, scale, bias))


# --- attention -------------------------------------------------------------------------------------------


def _scores(b: Body, calls: Calls, q: ir.Value, k: ir.Value) -> Any:
    """q (B,H,S,D), k (B,Hkv,T,D) -> scale q k^T (B,H,S,T), capped if its calls are"""
    products = _products(b, calls, q, k)
    if not calls.capped:
        return products
    cap = b.attribute_number("cap", q)
    return b.Mul(b.Tanh(b.Div(products, cap)), cap)


def _products(b: Body, calls: Calls, q: ir.Value, k: ir.Value) -> Any:
    scale = b.attribute_number("scale", q)
    if not calls.grouped:
        return b.Mul(b.MatMul(q, b.Transpose(k, perm=[0, 1, 3, 2])), scale)
    # Query head h reads key head h // (H / Hkv): the rows of the H / Hkv heads that share one key head are stacked.
    heads = b.Shape(k, start=1, end=2)
    stacked = b.Reshape(q, b.Concat(b.ints(0), heads, b.ints(-1), b.Shape(q, start=3, end=4), axis=0))
    scores = b.Mul(b.MatMul(stacked, b.Transpose(k, perm=[0, 1, 3, 2])), scale)  # (B,Hkv,H/Hkv*S,T)
    shape = b.Concat(b.Shape(q, start=0, end=3), b.Shape(k, start=2, end=3), axis=0)
    return b.Reshape(scores, shape)


def _weighted(b: Body, calls: Calls, probabilities: ir.Value, q: ir.Value, v: ir.Value) -> Any:
    """probabilities (B,H,S,T), v (B,Hkv,T,Dv) -> (B,H,S,Dv)"""
    if not calls.grouped:
        return b.MatMul(probabilities, v)
    heads, keys = b.Shape(v, start=1, end=2), b.Shape(v, start=2, end=3)
    stacked = b.Reshape(probabilities, b.Concat(b.ints(0), heads, b.ints(-1), keys, axis=0))
    result = b.MatMul(stacked, v)  # (B,Hkv,H/Hkv*S,Dv)
    shape = b.Concat(b.Shape(q, start=0, end=3), b.Shape(v, start=3, end=4), axis=0)
    return b.Reshape(result, shape)


def _zero_instead_of_nan(b: Body, probabilities: ir.Value) -> Any:
    """A query that may see no key at all gets 0, as in torch's scaled_dot_product_attention."""
    return b.Where(b.IsNaN(probabilities), b.number(0.0, probabilities), probabilities)


def _attention(b: Body, calls: Calls, q: ir.Value, k: ir.Value, v: ir.Value) -> Any:
    return _weighted(b, calls, b.Softmax(_scores(b, calls, q, k), axis=-1), q, v)


def _attention_bias(b: Body, calls: Calls, q: ir.Value, k: ir.Value, v: ir.Value, bias: ir.Value) -> Any:
    probabilities = b.Softmax(b.Add(_scores(b, calls, q, k), bias), axis=-1)
    if calls.guarded:
        probabilities = _zero_instead_of_nan(b, probabilities)
    return _weighted(b, calls, probabilities, q, v)


def _attention_mask(b: Body, calls: Calls, q: ir.Value, k: ir.Value, v: ir.Value, mask: ir.Value) -> Any:
    scores = _scores(b, calls, q, k)
    masked = b.Where(mask, scores, b.number(-np.inf, scores))
    return _weighted(b, calls, _zero_instead_of_nan(b, b.Softmax(masked, axis=-1)), q, v)


def _causal_attention(b: Body, calls: Calls, q: ir.Value, k: ir.Value, v: ir.Value) -> Any:
    """Query i sees the keys j <= i + T - S."""
    scores = _scores(b, calls, q, k)
    queries, keys = b.Shape(q, start=2, end=3), b.Shape(k, start=2, end=3)
    ones = b.Expand(b.Constant(value=ir.tensor(np.float32(1))), b.Concat(queries, keys, axis=0))  # (S,T)
    kept = b.Trilu(ones, b.Squeeze(b.Sub(keys, queries), b.ints(0)), upper=0)
    mask = b.Cast(kept, to=int(ir.DataType.BOOL))
    masked = b.Where(mask, scores, b.number(-np.inf, scores))
    return _weighted(b, calls, b.Softmax(masked, axis=-1), q, v)


# --- rotary embedding, cache ----------------------------------------------------------------------------


def _rotary(b: Body, calls: Calls, x: ir.Value, cos: ir.Value, sin: ir.Value) -> Any:
    """x cos + [-x2, x1] sin, x1 and x2 the halves of the last dimension"""
    first, second = _halves(b, x)
    return b.Add(b.Mul(x, cos), b.Mul(b.Concat(b.Neg(second), first, axis=-1), sin))


def _rotary_interleaved(b: Body, calls: Calls, x: ir.Value, cos: ir.Value, sin: ir.Value) -> Any:
    """x cos + [-x1, x0, -x3, x2 ...] sin"""
    end, last, two = b.ints(2**31 - 1), b.ints(-1), b.ints(2)
    even = b.Slice(x, b.ints(0), end, last, two)
    odd = b.Slice(x, b.ints(1), end, last, two)
    pairs = b.Concat(b.Unsqueeze(b.Neg(odd), last), b.Unsqueeze(even, last), axis=-1)
    return b.Add(b.Mul(x, cos), b.Mul(b.Reshape(pairs, b.Shape(x)), sin))


def _halves(b: Body, x: ir.Value) -> Any:
    """The two halves along the last dimension; opset 18 wants their number."""
    count = {"num_outputs": 2} if b.opset >= 18 else {}
    return b.Split(x, axis=-1, outputs=2, **count)


def _kv_append(b: Body, calls: Calls, past: ir.Value, new: ir.Value) -> Any:
    return b.Concat(past, new, axis=2)


def _cache_append(b: Body, calls: Calls, past: ir.Value, new: ir.Value, total: ir.Value, mask: ir.Value) -> Any:
    """The first total - S rows of past, the S new ones, and what room past has beyond; texts of one length (compiler/cache.py)."""
    axis, zero = b.ints(2), b.ints(0)
    cached = b.Sub(total, b.Slice(b.Shape(new), axis, b.ints(3)))
    room = b.Max(total, b.Slice(b.Shape(past), axis, b.ints(3)))
    return b.Concat(b.Slice(past, zero, cached, axis), new, b.Slice(past, total, room, axis), axis=2)


def _cache_rows(b: Body, calls: Calls, cache: ir.Value, total: ir.Value) -> Any:
    return b.Slice(cache, b.ints(0), total, b.ints(2))


def _cache_rows_as_float(b: Body, calls: Calls, cache: ir.Value, total: ir.Value) -> Any:
    return b.Cast(_cache_rows(b, calls, cache, total), to=int(ir.DataType.FLOAT))


def _cache_rows_scaled(b: Body, calls: Calls, cache: ir.Value, scales: ir.Value, total: ir.Value) -> Any:
    return b.Mul(_cache_rows_as_float(b, calls, cache, total), _cache_rows(b, calls, scales, total))


def _cache_quantize(b: Body, calls: Calls, x: ir.Value) -> Any:
    """x (B,H,S,D) as bytes with a scale (B,H,S,1) per row, its largest element / 127."""
    size = b.Abs(x)
    largest = b.ReduceMax(size, b.ints(-1), keepdims=1) if b.opset >= 18 else b.ReduceMax(size, axes=[-1], keepdims=1)
    scale = b.Mul(b.Max(largest, b.number(1e-30, x)), b.number(1 / 127, x))
    return b.Cast(b.Round(b.Div(x, scale)), to=int(ir.DataType.INT8)), scale


# --- linear and convolution with what follows them -------------------------------------------------------

ACTIVATIONS: dict[str, Callable[[Body, Calls, ir.Value], Any]] = {
    "Relu": lambda b, calls, x: b.Relu(x),
    "Tanh": lambda b, calls, x: b.Tanh(x),
    "Sigmoid": lambda b, calls, x: b.Sigmoid(x),
    "Gelu": _gelu,
    "GeluTanh": _gelu_tanh,
    "QuickGelu": _quick_gelu,
    "Silu": _silu,
    "Geglu": _geglu,
}


def _linear(activation: str, residual: bool) -> Function:
    def write(b: Body, calls: Calls, x: ir.Value, weight: ir.Value, bias: ir.Value, *rest: ir.Value) -> Any:
        y = b.Add(b.MatMul(x, weight), bias)
        y = ACTIVATIONS[activation](b, calls, y) if activation else y
        return b.Add(y, rest[0]) if residual else y

    return Function(("x", "weight", "bias", *(["residual"] if residual else [])), write)


_INTS = ir.AttributeType.INTS
_CONV = (("pads", _INTS), ("strides", _INTS), ("dilations", _INTS), ("group", _INT))


def _convolve(b: Body, x: ir.Value, weight: ir.Value, bias: ir.Value) -> Any:
    return b.Conv(x, weight, bias, **{name: ir.RefAttr(name, name, kind) for name, kind in _CONV})


def _conv(time: bool, activation: str, residual: bool) -> Function:
    def write(b: Body, calls: Calls, x: ir.Value, weight: ir.Value, bias: ir.Value, *rest: ir.Value) -> Any:
        y = _convolve(b, x, weight, bias)
        y = b.Add(y, rest[0]) if time else y
        y = ACTIVATIONS[activation](b, calls, y) if activation else y
        return b.Add(y, rest[-1]) if residual else y

    inputs = ("x", "weight", "bias", *(["time"] if time else []), *(["residual"] if residual else []))
    return Function(inputs, write, _CONV)


def _upsample_conv(b: Body, calls: Calls, x: ir.Value, weight: ir.Value, bias: ir.Value) -> Any:
    """Each pixel repeated factor x factor times, then Conv"""
    factor = b.Reshape(b.Constant(value_float=ir.RefAttr("value_float", "factor", _FLOAT)), b.ints(1))
    ones = b.Constant(value=ir.tensor(np.ones(2, np.float32)))
    scales = b.Concat(ones, factor, factor, axis=0)
    mode = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _convolve(b, b.Resize(x, None, scales, **mode), weight, bias)


_ATTENTION = {
    "Attention": Function(("q", "k", "v"), _attention, (("scale", _FLOAT),)),
    "AttentionBias": Function(("q", "k", "v", "bias"), _attention_bias, (("scale", _FLOAT),)),
    "AttentionMask": Function(("q", "k", "v", "mask"), _attention_mask, (("scale", _FLOAT),)),
    "CausalAttention": Function(("q", "k", "v"), _causal_attention, (("scale", _FLOAT),)),
}
_CAPPED = {
    ops.CAPPED + name: dataclasses.replace(plain, attributes=(*plain.attributes, ("cap", _FLOAT)))
    for name, plain in _ATTENTION.items()
}
LIBRARY: dict[str, Function] = {
    "Gelu": Function(("x",), _gelu),
    "GeluTanh": Function(("x",), _gelu_tanh),
    "QuickGelu": Function(("x",), _quick_gelu),
    "Silu": Function(("x",), _silu),
    "Geglu": Function(("x",), _geglu),
    "RmsNorm": Function(("x", "scale"), _rms_norm, (("epsilon", _FLOAT),)),
    "SkipLayerNorm": Function(("x", "skip", "scale", "bias"), _skip_layer_norm, (("epsilon", _FLOAT),), ("y", "sum")),
    "SkipRmsNorm": Function(("x", "skip", "scale"), _skip_rms_norm, (("epsilon", _FLOAT),), ("y", "sum")),
    "GroupNorm": Function(("x", "scale", "bias"), _group_norm, (("groups", _INT), ("epsilon", _FLOAT))),
    "GroupNormSilu": Function(("x", "scale", "bias"), _group_norm_silu, (("groups", _INT), ("epsilon", _FLOAT))),
    **_ATTENTION,
    **_CAPPED,
    "Rotary": Function(("x", "cos", "sin"), _rotary),
    "RotaryInterleaved": Function(("x", "cos", "sin"), _rotary_interleaved),
    "KvAppend": Function(("past", "new"), _kv_append),
    "CacheAppend": Function(("past", "new", "total", "mask"), _cache_append),
    "CacheRows": Function(("cache", "total"), _cache_rows),
    "CacheRowsAsFloat": Function(("cache", "total"), _cache_rows_as_float),
    "CacheRowsScaled": Function(("cache", "scales", "total"), _cache_rows_scaled),
    "CacheQuantize": Function(("x",), _cache_quantize, (), ("y", "scale")),
    "UpsampleConv": Function(("x", "weight", "bias"), _upsample_conv, (("factor", _FLOAT), *_CONV)),
    **{f"Linear{a}{r}": _linear(a, bool(r)) for a in ("", *ACTIVATIONS) for r in ("", "Residual")},
    **{
        f"Conv{t}{a}{r}": _conv(bool(t), a, bool(r))
        for t in ("", "Time")
        for a in ("", *ACTIVATIONS)
        for r in ("", "Residual")
        if t or a or r
    },
}


def attach(model: ir.Model, own: Mapping[str, Function] | None = None) -> None:
    """Give the model the functions that it calls, with bodies for its opset and for these calls. OWN are a user's."""
    library = {**LIBRARY, **(own or {})}
    calls: dict[str, list[ir.Node]] = {}
    for node in model.graph.all_nodes():
        if node.domain == DOMAIN and node.op_type in library:
            calls.setdefault(node.op_type, []).append(node)
    for key in [k for k in model.functions if k[0] == DOMAIN and k[1] in library]:
        del model.functions[key]
    for name, nodes in sorted(calls.items()):
        function = write(name, library[name], model.opset_imports[""], nodes)
        model.functions[function.identifier()] = function
    if calls:
        model.graph.opset_imports[DOMAIN] = VERSION
        model.ir_version = max(model.ir_version, 8)  # IR 8 brought model-local functions


def write(name: str, declared: Function, opset: int, nodes: list[ir.Node]) -> ir.Function:
    """One function as an ONNX function with a body."""
    half = any(
        v is not None and v.dtype is not None and v.dtype != ir.DataType.FLOAT for n in nodes for v in n.inputs[:1]
    )
    body = Body(opset, half)
    inputs = [ir.Value(name=i) for i in declared.inputs]
    results = declared.write(body, Calls(tuple(nodes)), *inputs)
    outputs = list(results) if isinstance(results, tuple) else [results]
    for value, output in zip(outputs, declared.outputs):
        value.name = output
    graph = ir.Graph(inputs, outputs, nodes=body.nodes, opset_imports={"": opset})
    attributes = [ir.Attr(a, kind, None) for a, kind in declared.attributes]
    return ir.Function(DOMAIN, name, "", graph=graph, attributes=attributes)
