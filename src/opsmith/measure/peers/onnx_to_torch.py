"""An ONNX graph as a torch.fx module, specialised to one set of input shapes.

The graph is walked once with real inputs. What depends on shapes and constants only is computed now, as it would be
by any exporter; every other node becomes one call in the module. Functions are inlined first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir

from opsmith import store
from opsmith.errors import OpsmithError

# Inputs that must be numbers when the module is built (axes, shapes, pads), by op; everything else is a tensor.
_STATIC = {
    "Reshape": (1,), "Expand": (1,), "Slice": (1, 2, 3, 4), "Unsqueeze": (1,), "Squeeze": (1,), "Tile": (1,),
    "Pad": (1, 2, 3), "Split": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2), "Resize": (1, 2, 3), "TopK": (1,),
    "Trilu": (1,), "CumSum": (1,), "Clip": (1, 2), "ReduceMean": (1,), "ReduceSum": (1,), "ReduceMax": (1,),
    "ReduceMin": (1,), "ReduceProd": (1,), "ReduceL2": (1,), "ReduceSumSquare": (1,),
}  # fmt: skip


def translate(path: Path, inputs: dict[str, Any]) -> tuple[Any, list[str], list[str]]:
    """(a torch module, the names of its inputs in order, the names of its outputs)."""
    import torch

    proto = store.read_proto(path)
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    table = _table(torch)
    weights = {
        tensor.name: torch.from_numpy(ir.serde.deserialize_tensor(tensor, str(path.parent)).numpy().copy())
        for tensor in proto.graph.initializer
    }
    module, graph = torch.nn.Module(), torch.fx.Graph()
    values: dict[str, Any] = dict(weights)  # what each value is on these inputs
    nodes: dict[str, Any] = {}  # value -> its place in the new graph; constants have none
    fed = [value.name for value in proto.graph.input if value.name not in weights]
    for i, name in enumerate(fed):
        nodes[name] = graph.placeholder(f"input_{i}")
        values[name] = torch.from_numpy(inputs[name].copy())

    def place(name: str) -> Any:
        if name not in nodes:
            attribute = f"constant_{len(nodes)}"
            module.register_buffer(attribute, values[name])
            nodes[name] = graph.get_attr(attribute)
        return nodes[name]

    with torch.inference_mode():
        for node in proto.graph.node:
            _check(node, table)
            function, attributes = table[node.op_type], _attributes(node, torch)
            names = list(node.input)
            static = _STATIC.get(node.op_type, ())
            moving = any(n in nodes and _is_computed(nodes[n]) for n in names) and node.op_type not in ("Shape", "Size")
            arguments = [_number(values[n], node) if n and i in static else values.get(n) for i, n in enumerate(names)]
            if any(n in nodes and _is_computed(nodes[n]) for i, n in enumerate(names) if i in static):
                raise OpsmithError(f"peer torch: node {node.name!r} ({node.op_type}) has a shape that depends on data")
            found = function(*arguments, **attributes)
            results = found if isinstance(found, (list, tuple)) else (found,)
            if moving:
                placed = tuple(
                    a if i in static else place(n) if n else None for i, (n, a) in enumerate(zip(names, arguments))
                )
                call = graph.call_function(function, placed, attributes)
            for i, (name, result) in enumerate(zip(node.output, results)):
                values[name] = result
                if moving and name:
                    single = not isinstance(found, (list, tuple))
                    nodes[name] = call if single else graph.call_function(_take, (call, i))
        graph.output(tuple(place(output.name) for output in proto.graph.output))
    return torch.fx.GraphModule(module, graph).eval(), fed, [output.name for output in proto.graph.output]


def _take(values: Any, index: int) -> Any:
    return values[index]


def _is_computed(place: Any) -> bool:
    return bool(place.op != "get_attr")


def _check(node: onnx.NodeProto, table: dict[str, Any]) -> None:
    if node.domain not in ("", "ai.onnx") or node.op_type not in table:
        op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        raise OpsmithError(f"peer torch has no translation of operator {op} (node {node.name!r})")


def _attributes(node: onnx.NodeProto, torch: Any) -> dict[str, Any]:
    found = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode()
        elif isinstance(value, onnx.TensorProto):
            value = torch.from_numpy(np.array(ir.serde.deserialize_tensor(value).numpy()))
        found[attribute.name] = list(value) if attribute.type == onnx.AttributeProto.INTS else value
    if node.op_type == "Split":
        found["parts"] = len(node.output)
    return found


def _number(value: Any, node: onnx.NodeProto) -> Any:
    if value is None:
        raise OpsmithError(f"peer torch: node {node.name!r} ({node.op_type}) lacks an input")
    return value.tolist()


def _table(torch: Any) -> dict[str, Callable[..., Any]]:
    F = torch.nn.functional
    dtypes = {
        ir.DataType.FLOAT: torch.float32, ir.DataType.DOUBLE: torch.float64, ir.DataType.FLOAT16: torch.float16,
        ir.DataType.BFLOAT16: torch.bfloat16, ir.DataType.INT64: torch.int64, ir.DataType.INT32: torch.int32,
        ir.DataType.INT8: torch.int8, ir.DataType.UINT8: torch.uint8, ir.DataType.BOOL: torch.bool,
    }  # fmt: skip

    def reduce(name: str) -> Callable[..., Any]:
        def run(x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
            if not axes and noop_with_empty_axes:
                return x
            dims, keep = list(axes or range(x.ndim)), bool(keepdims)
            if name == "prod":
                for dim in sorted((d % x.ndim for d in dims), reverse=True):
                    x = x.prod(dim, keepdim=keep)
                return x
            if name == "square":
                return (x * x).sum(dims, keepdim=keep)
            if name == "norm":
                return (x * x).sum(dims, keepdim=keep).sqrt()
            return getattr(torch, name)(x, dims, keepdim=keep)

        return run

    def div(a: Any, b: Any) -> Any:
        return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")

    def fold(name: str) -> Callable[..., Any]:
        def run(first: Any, *rest: Any) -> Any:
            for value in rest:
                first = getattr(torch, name)(first, value)
            return first

        return run

    def mod(a: Any, b: Any, fmod: int = 0) -> Any:
        return torch.fmod(a, b) if fmod else torch.remainder(a, b)

    def cast(x: Any, to: int, **_: Any) -> Any:
        return x.to(dtypes[ir.DataType(to)])

    def gemm(
        a: Any, b: Any, c: Any = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
    ) -> Any:
        y = torch.matmul(a.T if transA else a, b.T if transB else b)
        y = y if alpha == 1.0 else alpha * y
        return y if c is None else y + (c if beta == 1.0 else beta * c)

    def padded(
        x: Any, pads: Any, auto_pad: str, kernel: Any, strides: Any, dilations: Any, value: float
    ) -> tuple[Any, Any]:
        """(x, symmetric padding): asymmetric padding is applied here."""
        rank = x.ndim - 2
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            total = [
                max(0, (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n)
                for n, s, k, d in zip(x.shape[2:], strides, kernel, dilations)
            ]
            small = [t // 2 for t in total]
            large = [t - s for t, s in zip(total, small)]
            pads = small + large if auto_pad == "SAME_UPPER" else large + small
        pads = pads or [0] * 2 * rank
        if pads[:rank] == pads[rank:]:
            return x, pads[:rank]
        flat = [p for i in reversed(range(rank)) for p in (pads[i], pads[rank + i])]
        return F.pad(x, flat, value=value), [0] * rank

    def conv(
        x: Any, w: Any, b: Any = None, *, strides: Any = None, pads: Any = None, dilations: Any = None, group: int = 1,
        kernel_shape: Any = None, auto_pad: str = "NOTSET",
    ) -> Any:  # fmt: skip
        rank = x.ndim - 2
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        x, padding = padded(x, pads, auto_pad, w.shape[2:], strides, dilations, 0.0)
        run = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
        return run(x, w, b, strides, padding, dilations, group)

    def conv_transpose(
        x: Any, w: Any, b: Any = None, *, strides: Any = None, pads: Any = None, dilations: Any = None, group: int = 1,
        kernel_shape: Any = None, output_padding: Any = None, auto_pad: str = "NOTSET",
    ) -> Any:  # fmt: skip
        rank = x.ndim - 2
        pads = pads or [0] * 2 * rank
        if auto_pad != "NOTSET" or pads[:rank] != pads[rank:]:
            raise OpsmithError("peer torch: ConvTranspose with uneven padding")
        run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
        return run(x, w, b, strides or 1, pads[:rank], output_padding or 0, group, dilations or 1)

    def pool(kind: str) -> Callable[..., Any]:
        def run(
            x: Any, *, kernel_shape: Any, strides: Any = None, pads: Any = None, dilations: Any = None,
            ceil_mode: int = 0, auto_pad: str = "NOTSET", count_include_pad: int = 0, storage_order: int = 0,
        ) -> Any:  # fmt: skip
            rank = x.ndim - 2
            strides, dilations = strides or [1] * rank, dilations or [1] * rank
            lowest = -math.inf if kind == "max" else 0.0
            whole, padding = padded(x, pads, auto_pad, kernel_shape, strides, dilations, lowest)
            if kind == "max":
                return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1](
                    whole, kernel_shape, strides, padding, dilations, bool(ceil_mode)
                )
            average = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
            include = bool(count_include_pad)
            y = average(whole, kernel_shape, strides, padding, bool(ceil_mode), include)
            if whole is x or include:
                return y
            # Padding that was put in above counted as zeros: divide by the share of real elements.
            ones = padded(torch.ones_like(x), pads, auto_pad, kernel_shape, strides, dilations, 0.0)[0]
            return y / average(ones, kernel_shape, strides, padding, bool(ceil_mode), include)

        return run

    def reshape(x: Any, shape: Any, allowzero: int = 0) -> Any:
        return x.reshape([x.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(shape)])

    def transpose(x: Any, perm: Any = None) -> Any:
        return x.permute(perm or list(reversed(range(x.ndim))))

    def expand(x: Any, shape: Any) -> Any:
        return x.expand(torch.broadcast_shapes(tuple(x.shape), tuple(shape)))

    def unsqueeze(x: Any, axes: Any) -> Any:
        rank = x.ndim + len(axes)
        for axis in sorted(a % rank for a in axes):
            x = x.unsqueeze(axis)
        return x

    def squeeze(x: Any, axes: Any = None) -> Any:
        return x.squeeze() if axes is None else x.squeeze(tuple(axes))

    def slice_(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
        for i, (start, end) in enumerate(zip(starts, ends)):
            axis, step = (axes[i] if axes else i), (steps[i] if steps else 1)
            indices = range(x.shape[axis])[slice(start, end if abs(end) < 2**40 else None, step)]
            if step > 0:
                x = (
                    x.narrow(axis, indices.start, max(0, indices.stop - indices.start))
                    if indices
                    else x.narrow(axis, 0, 0)
                )
                if step > 1:
                    x = x[(slice(None),) * (axis % x.ndim) + (slice(None, None, step),)]
            else:
                x = x.index_select(axis, torch.tensor(list(indices), dtype=torch.int64))
        return x

    def split(x: Any, sizes: Any = None, axis: int = 0, parts: int = 0, num_outputs: int = 0) -> Any:
        return torch.split(x, sizes or math.ceil(x.shape[axis] / parts), axis)

    def gather(x: Any, index: Any, axis: int = 0) -> Any:
        index = torch.where(index < 0, index + x.shape[axis], index)
        if x.ndim == 2 and axis == 0 and x.is_floating_point():
            return F.embedding(index, x)
        flat = x.index_select(axis, index.reshape(-1))
        axis = axis % x.ndim
        return flat.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))

    def gather_nd(x: Any, index: Any, batch_dims: int = 0) -> Any:
        if batch_dims:
            raise OpsmithError("peer torch: GatherND with batch_dims")
        return x[tuple(index.unbind(-1))]

    def pad(x: Any, pads: Any, value: Any = 0.0, axes: Any = None, mode: str = "constant") -> Any:
        axes = [a % x.ndim for a in axes] if axes is not None else list(range(x.ndim))
        both = {axis: (pads[i], pads[len(axes) + i]) for i, axis in enumerate(axes)}
        flat = [p for axis in reversed(range(x.ndim)) for p in both.get(axis, (0, 0))]
        names = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
        if mode == "constant":
            return F.pad(x, flat, value=value or 0)
        while flat[-2:] == [0, 0]:
            flat = flat[:-2]
        return F.pad(x, flat, mode=names[mode])

    def layer_norm(
        x: Any, scale: Any, bias: Any = None, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
    ) -> Any:
        return F.layer_norm(x, x.shape[axis:], scale, bias, epsilon)

    def rms_norm(x: Any, scale: Any, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
        return F.rms_norm(x, x.shape[axis:], scale, epsilon)

    def group_norm(x: Any, scale: Any, bias: Any, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
        return F.group_norm(x, num_groups, scale, bias, epsilon)

    def batch_norm(x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float = 1e-5, **_: Any) -> Any:
        return F.batch_norm(x, mean, var, scale, bias, eps=epsilon)

    def resize(
        x: Any, roi: Any = None, scales: Any = None, sizes: Any = None, mode: str = "nearest", **kind: Any
    ) -> Any:
        how = kind.get("coordinate_transformation_mode", "half_pixel")
        size = sizes[2:] if sizes else [int(n * s) for n, s in zip(x.shape[2:], scales[2:])]
        whole = all(n % m == 0 for n, m in zip(size, x.shape[2:]))
        if mode == "nearest" and (whole or (how == "asymmetric" and kind.get("nearest_mode") == "floor")):
            return F.interpolate(x, size, mode="nearest")
        if mode == "linear" and x.ndim == 4 and how in ("half_pixel", "pytorch_half_pixel", "align_corners"):
            return F.interpolate(x, size, mode="bilinear", align_corners=how == "align_corners")
        raise OpsmithError(f"peer torch: Resize with mode {mode} and {how}")

    def clip(x: Any, low: Any = None, high: Any = None) -> Any:
        return x.clamp(low, high)

    def topk(x: Any, k: Any, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
        return tuple(x.topk(k[0], axis, bool(largest), bool(sorted)))

    def arg(name: str) -> Callable[..., Any]:
        def run(x: Any, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
            return getattr(torch, name)(x, axis, keepdim=bool(keepdims))

        return run

    def matmul(a: Any, b: Any) -> Any:
        return torch.matmul(a, b)

    def constant(**attributes: Any) -> Any:
        (value,) = attributes.values()
        return value if isinstance(value, torch.Tensor) else torch.tensor(value)

    def filled(shape: Any, value: Any = None) -> Any:
        return torch.full(shape, 0.0) if value is None else torch.full(shape, value.item(), dtype=value.dtype)

    def arange(start: Any, limit: Any, delta: Any) -> Any:
        return torch.arange(start, limit, delta)

    def shape(x: Any, start: int = 0, end: int | None = None) -> Any:
        return torch.tensor(list(x.shape)[start:end], dtype=torch.int64)

    def flatten(x: Any, axis: int = 1) -> Any:
        return x.reshape(math.prod(x.shape[:axis]), -1)

    def trilu(x: Any, k: Any = 0, upper: int = 1) -> Any:
        return x.triu(k) if upper else x.tril(k)

    def cumsum(x: Any, axis: Any, exclusive: int = 0, reverse: int = 0) -> Any:
        if exclusive or reverse:
            raise OpsmithError("peer torch: CumSum, exclusive or reverse")
        return x.cumsum(axis if isinstance(axis, int) else axis[0])

    def scatter(x: Any, index: Any, updates: Any, axis: int = 0, reduction: str = "none") -> Any:
        return x.scatter(axis, index, updates)

    table: dict[str, Callable[..., Any]] = {
        "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": div, "Pow": torch.pow, "Mod": mod,
        "Max": fold("maximum"), "Min": fold("minimum"), "Sum": fold("add"), "MatMul": matmul, "Gemm": gemm,
        "Where": torch.where, "Equal": torch.eq, "Greater": torch.gt, "Less": torch.lt, "GreaterOrEqual": torch.ge,
        "LessOrEqual": torch.le, "And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor,
        "Not": torch.logical_not, "IsNaN": torch.isnan, "Cast": cast, "CastLike": lambda x, like: x.to(like.dtype),
        "Identity": lambda x: x, "Dropout": lambda x, *_, **__: x, "Conv": conv, "ConvTranspose": conv_transpose,
        "MaxPool": pool("max"), "AveragePool": pool("average"),
        "GlobalAveragePool": lambda x: x.mean(list(range(2, x.ndim)), keepdim=True),
        "Softmax": lambda x, axis=-1: torch.softmax(x, axis), "LogSoftmax": lambda x, axis=-1: x.log_softmax(axis),
        "ReduceMean": reduce("mean"), "ReduceSum": reduce("sum"), "ReduceMax": reduce("amax"),
        "ReduceMin": reduce("amin"), "ReduceProd": reduce("prod"), "ReduceL2": reduce("norm"),
        "ReduceSumSquare": reduce("square"), "Reshape": reshape, "Transpose": transpose, "Expand": expand,
        "Concat": lambda *x, axis: torch.cat(x, axis), "Split": split, "Slice": slice_, "Gather": gather,
        "GatherElements": lambda x, i, axis=0: x.gather(axis, i), "GatherND": gather_nd, "ScatterElements": scatter,
        "Unsqueeze": unsqueeze, "Squeeze": squeeze, "Flatten": flatten, "Tile": lambda x, n: x.repeat(n), "Pad": pad,
        "Shape": shape, "Size": lambda x: torch.tensor(x.numel()), "Constant": constant, "ConstantOfShape": filled,
        "Range": arange, "LayerNormalization": layer_norm, "RMSNormalization": rms_norm,
        "InstanceNormalization": lambda x, s, b, epsilon=1e-5: F.instance_norm(x, weight=s, bias=b, eps=epsilon),
        "GroupNormalization": group_norm, "BatchNormalization": batch_norm, "Resize": resize,
        "Einsum": lambda *x, equation: torch.einsum(equation, *x), "Clip": clip, "CumSum": cumsum, "Trilu": trilu,
        "TopK": topk, "ArgMax": arg("argmax"), "ArgMin": arg("argmin"),
        "Gelu": lambda x, approximate="none": F.gelu(x, approximate=approximate),
        "LeakyRelu": lambda x, alpha=0.01: F.leaky_relu(x, alpha), "Elu": lambda x, alpha=1.0: F.elu(x, alpha),
        "HardSigmoid": lambda x, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1), "HardSwish": F.hardswish,
        "Mish": F.mish, "Softplus": F.softplus, "Swish": lambda x, alpha=1.0: x * torch.sigmoid(alpha * x),
    }  # fmt: skip
    same = ("Sqrt", "Exp", "Log", "Erf", "Tanh", "Sigmoid", "Relu", "Neg", "Abs", "Reciprocal", "Sin", "Cos", "Floor")
    table |= {name: getattr(torch, name.lower()) for name in (*same, "Ceil", "Round", "Sign")}
    return table
