"""The operators of ONNX as functions of torch: inputs in order, attributes by their names.

It needs torch, so it is imported when a graph is translated and not before. Inputs that onnx_to_torch.py holds fixed
(axes, shapes, pads) arrive as numbers. Attributes that change nothing here are taken and dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch import Tensor

from opsmith.errors import OpsmithError

Ints: TypeAlias = Sequence[int]
Operator: TypeAlias = Callable[..., Any]

_DTYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.INT64: torch.int64,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT8: torch.int8,
    ir.DataType.UINT8: torch.uint8,
    ir.DataType.BOOL: torch.bool,
}


# --- arithmetic -------------------------------------------------------------------------------------------


def _div(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")


def _mod(a: Tensor, b: Tensor, fmod: int = 0) -> Tensor:
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


def _of_any_number(binary: Operator) -> Operator:
    """Max, Min and Sum take one input or more."""

    def run(first: Tensor, *rest: Tensor) -> Tensor:
        for value in rest:
            first = binary(first, value)
        return first

    return run


def _cast(x: Tensor, to: int, **_: Any) -> Tensor:
    return x.to(_DTYPES[ir.DataType(to)])


def _gemm(
    a: Tensor, b: Tensor, c: Any = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Tensor:
    y = torch.matmul(a.T if transA else a, b.T if transB else b)
    y = y if alpha == 1.0 else alpha * y
    return y if c is None else y + (c if beta == 1.0 else beta * c)


def _reduce(compute: Operator) -> Operator:
    """COMPUTE takes x, the dims and whether they stay."""

    def run(x: Tensor, axes: Ints | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        if not axes and noop_with_empty_axes:
            return x
        return compute(x, list(axes or range(x.ndim)), bool(keepdims))

    return run


def _sum_of_squares(x: Tensor, dims: Ints, keep: bool) -> Tensor:
    return (x * x).sum(dims, keepdim=keep)


def _product(x: Tensor, dims: Ints, keep: bool) -> Tensor:
    for dim in sorted((d % x.ndim for d in dims), reverse=True):
        x = x.prod(dim, keepdim=keep)
    return x


def _extreme(compute: Operator) -> Operator:
    def run(x: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
        return compute(x, axis, keepdim=bool(keepdims))

    return run


def _cumsum(x: Tensor, axis: Any, exclusive: int = 0, reverse: int = 0) -> Tensor:
    if exclusive or reverse:
        raise OpsmithError("peer torch: CumSum, exclusive or reverse")
    return x.cumsum(axis if isinstance(axis, int) else axis[0])


def _topk(x: Tensor, k: Ints, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, ...]:
    return tuple(x.topk(k[0], axis, bool(largest), bool(sorted)))


# --- windows ----------------------------------------------------------------------------------------------


def _padded(
    x: Tensor, pads: Any, auto_pad: str, kernel: Ints, strides: Ints, dilations: Ints, value: float
) -> tuple[Tensor, list[int]]:
    """(x, symmetric padding): asymmetric padding is applied here."""
    rank = x.ndim - 2
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        windows = zip(x.shape[2:], strides, kernel, dilations)
        total = [max(0, (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n) for n, s, k, d in windows]
        small = [t // 2 for t in total]
        large = [t - s for t, s in zip(total, small)]
        pads = small + large if auto_pad == "SAME_UPPER" else large + small
    pads = pads or [0] * 2 * rank
    if pads[:rank] == pads[rank:]:
        return x, pads[:rank]
    flat = [p for i in reversed(range(rank)) for p in (pads[i], pads[rank + i])]
    return F.pad(x, flat, value=value), [0] * rank


def _conv(x: Tensor, w: Tensor, b: Any = None, *, auto_pad: str = "NOTSET", group: int = 1, **window: Ints) -> Tensor:
    rank = x.ndim - 2
    strides, dilations = (window.get(name) or [1] * rank for name in ("strides", "dilations"))
    x, padding = _padded(x, window.get("pads"), auto_pad, w.shape[2:], strides, dilations, 0.0)
    run = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return run(x, w, b, strides, padding, dilations, group)


def _conv_transpose(
    x: Tensor, w: Tensor, b: Any = None, *, auto_pad: str = "NOTSET", group: int = 1, **window: Any
) -> Tensor:
    rank = x.ndim - 2
    pads = window.get("pads") or [0] * 2 * rank
    if auto_pad != "NOTSET" or pads[:rank] != pads[rank:]:
        raise OpsmithError("peer torch: ConvTranspose with uneven padding")
    strides, more, dilations = (window.get(name) for name in ("strides", "output_padding", "dilations"))
    run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    return run(x, w, b, strides or 1, pads[:rank], more or 0, group, dilations or 1)


def _max_pool(x: Tensor, *, kernel_shape: Ints, ceil_mode: int = 0, auto_pad: str = "NOTSET", **window: Any) -> Tensor:
    rank = x.ndim - 2
    strides, dilations = (window.get(name) or [1] * rank for name in ("strides", "dilations"))
    whole, padding = _padded(x, window.get("pads"), auto_pad, kernel_shape, strides, dilations, -math.inf)
    run = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    return run(whole, kernel_shape, strides, padding, dilations, bool(ceil_mode))


def _average_pool(
    x: Tensor, *, kernel_shape: Ints, ceil_mode: int = 0, auto_pad: str = "NOTSET", **window: Any
) -> Tensor:
    rank = x.ndim - 2
    include = bool(window.get("count_include_pad"))
    strides, dilations = (window.get(name) or [1] * rank for name in ("strides", "dilations"))
    how = (window.get("pads"), auto_pad, kernel_shape, strides, dilations, 0.0)
    whole, padding = _padded(x, *how)
    run = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    y = run(whole, kernel_shape, strides, padding, bool(ceil_mode), include)
    if whole is x or include:
        return y
    # Padding that was put in above counted as zeros: divide by the share of real elements.
    ones = _padded(torch.ones_like(x), *how)[0]
    return y / run(ones, kernel_shape, strides, padding, bool(ceil_mode), include)


def _pad(x: Tensor, pads: Ints, value: Any = 0.0, axes: Ints | None = None, mode: str = "constant") -> Tensor:
    axes = [a % x.ndim for a in axes] if axes is not None else list(range(x.ndim))
    both = {axis: (pads[i], pads[len(axes) + i]) for i, axis in enumerate(axes)}
    flat = [p for axis in reversed(range(x.ndim)) for p in both.get(axis, (0, 0))]
    if mode == "constant":
        return F.pad(x, flat, value=value or 0)
    while flat[-2:] == [0, 0]:
        flat = flat[:-2]
    return F.pad(x, flat, mode={"reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode])


def _resize(x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None, **kind: Any) -> Tensor:
    mode, how = kind.get("mode", "nearest"), kind.get("coordinate_transformation_mode", "half_pixel")
    size = sizes[2:] if sizes else [int(n * s) for n, s in zip(x.shape[2:], scales[2:])]
    whole = all(n % m == 0 for n, m in zip(size, x.shape[2:]))
    if mode == "nearest" and (whole or (how == "asymmetric" and kind.get("nearest_mode") == "floor")):
        return F.interpolate(x, size, mode="nearest")
    if mode == "linear" and x.ndim == 4 and how in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        return F.interpolate(x, size, mode="bilinear", align_corners=how == "align_corners")
    raise OpsmithError(f"peer torch: Resize with mode {mode} and {how}")


# --- moving data ------------------------------------------------------------------------------------------


def _reshape(x: Tensor, shape: Ints, allowzero: int = 0) -> Tensor:
    return x.reshape([x.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(shape)])


def _unsqueeze(x: Tensor, axes: Ints) -> Tensor:
    rank = x.ndim + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


def _slice(x: Tensor, starts: Ints, ends: Ints, axes: Any = None, steps: Any = None) -> Tensor:
    for start, end, axis, step in zip(starts, ends, axes or range(x.ndim), steps or [1] * len(starts)):
        indices = range(x.shape[axis])[slice(start, end if abs(end) < 2**40 else None, step)]
        if step < 0:
            x = x.index_select(axis, torch.tensor(list(indices), dtype=torch.int64))
            continue
        x = x.narrow(axis, indices.start if indices else 0, max(0, indices.stop - indices.start) if indices else 0)
        if step > 1:
            x = x[(slice(None),) * (axis % x.ndim) + (slice(None, None, step),)]
    return x


def _split(x: Tensor, sizes: Any = None, axis: int = 0, parts: int = 0, num_outputs: int = 0) -> Any:
    return torch.split(x, sizes or math.ceil(x.shape[axis] / parts), axis)


def _gather(x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    index = torch.where(index < 0, index + x.shape[axis], index)
    if x.ndim == 2 and axis == 0 and x.is_floating_point():
        return F.embedding(index, x)
    axis = axis % x.ndim
    return x.index_select(axis, index.reshape(-1)).reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


def _gather_nd(x: Tensor, index: Tensor, batch_dims: int = 0) -> Tensor:
    if batch_dims:
        raise OpsmithError("peer torch: GatherND with batch_dims")
    return x[tuple(index.unbind(-1))]


def _scatter(x: Tensor, index: Tensor, updates: Tensor, axis: int = 0, reduction: str = "none") -> Tensor:
    return x.scatter(axis, index, updates)


def _shape(x: Tensor, start: int = 0, end: int | None = None) -> Tensor:
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64)


def _constant(**attributes: Any) -> Tensor:
    (value,) = attributes.values()
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)


def _filled(shape: Ints, value: Any = None) -> Tensor:
    return torch.full(shape, 0.0) if value is None else torch.full(shape, value.item(), dtype=value.dtype)


# --- normalization ----------------------------------------------------------------------------------------


def _layer_norm(x: Tensor, scale: Tensor, bias: Any = None, axis: int = -1, epsilon: float = 1e-5, **_: Any) -> Tensor:
    return F.layer_norm(x, x.shape[axis:], scale, bias, epsilon)


def _rms_norm(x: Tensor, scale: Tensor, axis: int = -1, epsilon: float = 1e-5, **_: Any) -> Tensor:
    return F.rms_norm(x, x.shape[axis:], scale, epsilon)


def _group_norm(x: Tensor, scale: Tensor, bias: Tensor, num_groups: int, epsilon: float = 1e-5, **_: Any) -> Tensor:
    return F.group_norm(x, num_groups, scale, bias, epsilon)


def _batch_norm(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, epsilon: float = 1e-5, **_: Any
) -> Tensor:
    return F.batch_norm(x, mean, var, scale, bias, eps=epsilon)


# torch's function has the operator's name and its arguments.
_SAME = (
    "Add Sub Mul Pow Where Sqrt Exp Log Erf Tanh Sigmoid Relu Neg Abs Reciprocal Sin Cos Floor Ceil Round Sign IsNaN"
)

OPERATORS: dict[str, Operator] = {name: getattr(torch, name.lower()) for name in _SAME.split()} | {
    "And": torch.logical_and,
    "ArgMax": _extreme(torch.argmax),
    "ArgMin": _extreme(torch.argmin),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "CastLike": lambda x, like: x.to(like.dtype),
    "Clip": lambda x, low=None, high=None: x.clamp(low, high),
    "Concat": lambda *x, axis: torch.cat(x, axis),
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "CumSum": _cumsum,
    "Div": _div,
    "Dropout": lambda x, *_, **__: x,
    "Einsum": lambda *x, equation: torch.einsum(equation, *x),
    "Elu": lambda x, alpha=1.0: F.elu(x, alpha),
    "Equal": torch.eq,
    "Expand": lambda x, shape: x.expand(torch.broadcast_shapes(tuple(x.shape), tuple(shape))),
    "Flatten": lambda x, axis=1: x.reshape(math.prod(x.shape[:axis]), -1),
    "Gather": _gather,
    "GatherElements": lambda x, index, axis=0: x.gather(axis, index),
    "GatherND": _gather_nd,
    "Gelu": lambda x, approximate="none": F.gelu(x, approximate=approximate),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda x: x.mean(list(range(2, x.ndim)), keepdim=True),
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "GroupNormalization": _group_norm,
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1),
    "HardSwish": F.hardswish,
    "Identity": lambda x: x,
    "InstanceNormalization": lambda x, s, b, epsilon=1e-5: F.instance_norm(x, weight=s, bias=b, eps=epsilon),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda x, alpha=0.01: F.leaky_relu(x, alpha),
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "LogSoftmax": lambda x, axis=-1: x.log_softmax(axis),
    "MatMul": lambda a, b: torch.matmul(a, b),
    "Max": _of_any_number(torch.maximum),
    "MaxPool": _max_pool,
    "Min": _of_any_number(torch.minimum),
    "Mish": F.mish,
    "Mod": _mod,
    "Not": torch.logical_not,
    "Or": torch.logical_or,
    "Pad": _pad,
    "RMSNormalization": _rms_norm,
    "Range": lambda start, limit, delta: torch.arange(start, limit, delta),
    "ReduceL2": _reduce(lambda x, dims, keep: _sum_of_squares(x, dims, keep).sqrt()),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceMin": _reduce(torch.amin),
    "ReduceProd": _reduce(_product),
    "ReduceSum": _reduce(torch.sum),
    "ReduceSumSquare": _reduce(_sum_of_squares),
    "Reshape": _reshape,
    "Resize": _resize,
    "ScatterElements": _scatter,
    "Shape": _shape,
    "Size": lambda x: torch.tensor(x.numel()),
    "Slice": _slice,
    "Softmax": lambda x, axis=-1: torch.softmax(x, axis),
    "Softplus": F.softplus,
    "Split": _split,
    "Squeeze": lambda x, axes=None: x.squeeze() if axes is None else x.squeeze(tuple(axes)),
    "Sum": _of_any_number(torch.add),
    "Swish": lambda x, alpha=1.0: x * torch.sigmoid(alpha * x),
    "Tile": lambda x, repeats: x.repeat(repeats),
    "TopK": _topk,
    "Transpose": lambda x, perm=None: x.permute(perm or list(reversed(range(x.ndim)))),
    "Trilu": lambda x, k=0, upper=1: x.triu(k) if upper else x.tril(k),
    "Unsqueeze": _unsqueeze,
    "Xor": torch.logical_xor,
}
