"""Norms: layer, RMS, group, instance, batch; with and without a residual, with whatever elementwise nodes follow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opsmith.compile.dims import ONE, Dim, dim, product
from opsmith.compile.lower import fuse
from opsmith.compile.lower.matmul import _even_rows, anchored
from opsmith.compile.lower.program import Group, Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import CPP, FLOATS, Abstract, Unsupported, View, float_literal


def _floats_only(node: Node) -> None:
    for value in node.inputs:
        if value is not None and value.dtype not in FLOATS:
            raise Unsupported(f"{node.ir.op_type} on {value.dtype.name} stays with ONNX Runtime")


def _unused(node: Node, first: int) -> None:
    if any(o.uses() or o.is_graph_output() for o in node.ir.outputs[first:]):
        raise Unsupported("its statistics are used")


@infers("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")
def _layer_norm(node: Node) -> list[Abstract]:
    _floats_only(node)
    _unused(node, 1)
    x = node.input(0)
    axis = node.axis(x.rank)
    norm = product(x.dims[axis:])
    for i in (1, 2):
        if node.has(i) and product(node.input(i).dims) != norm:
            raise Unsupported("scale or bias broadcasts over the normalized axes")
    return [Abstract(x.dtype, x.dims)] * len(node.ir.outputs)


@infers("opsmith::RmsNorm")
def _rms_norm(node: Node) -> list[Abstract]:
    _floats_only(node)
    return [Abstract(node.input(0).dtype, node.input(0).dims)]


@infers("opsmith::SkipLayerNorm", "opsmith::SkipRmsNorm")
def _skip_norm(node: Node) -> list[Abstract]:
    _floats_only(node)
    x, skip = node.input(0), node.input(1)
    if x.dims != skip.dims:
        raise Unsupported("the residual has another shape")
    return [Abstract(x.dtype, x.dims)] * len(node.ir.outputs)


def _scale(node: Node, out: Lowering, index: int) -> View:
    return out.rows(node.ir.inputs[index])


def _epsilon(node: Node) -> str:
    return float_literal(float(node.attribute("epsilon", 1e-5)))


@lowers("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization", "opsmith::RmsNorm", anchor=True)
def _lower_layer_norm(node: Node, out: Lowering) -> None:
    rms = node.ir.op_type != "LayerNormalization"
    x = out.tensor(node.ir.inputs[0])
    axis = node.axis(len(x.dims)) if node.ir.op_type != "RmsNorm" else len(x.dims) - 1
    tail = product(x.dims[axis:])
    if axis != len(x.dims) - 1:
        x = out.dense(x)
        x = x.with_((*x.dims[:axis], tail), (*x.strides[:axis], ONE))
    x = _even_rows(x, out)
    scale = _scale(node, out, 1)
    bias = _scale(node, out, 2) if node.has(2) and not rms else None
    rows = product(x.dims[:-1])

    def emit(target: View, epilogue: fuse.Epilogue) -> None:
        tx, ts, ty = CPP[x.dtype], CPP[scale.dtype], CPP[target.dtype]
        kernel = "rms_norm" if rms else "layer_norm"
        bias_parameter = "" if rms else f", const {ts}* bias"
        name = out.instance(
            f"{kernel}_{epilogue.slug}" if epilogue.slug else kernel,
            f"const Pool& pool, i64 rows, i64 cols, const {tx}* x, i64 x_stride, const {ts}* scale{bias_parameter}, float eps, {ty}* y, "
            f"[[maybe_unused]] i64 rows_per_outer{epilogue.parameters}",
            f"{kernel}(pool, rows, cols, x, x_stride, scale, {'' if rms else 'bias, '}eps, y, cols, {epilogue.lambda_text}, rows_per_outer);",
            ("norm.hpp", "elementwise.hpp"),
            f"{kernel.replace('_', ' ')}{'; then ' + epilogue.comment if epilogue.comment else ''}",
        )
        bias_argument = "" if rms else f", {out.pointer(bias)}" if bias is not None else ", nullptr"
        stride = x.strides[-2] if len(x.dims) > 1 else tail
        out.call(
            name,
            f"{name}(pool, {out.cpp(rows)}, {out.cpp(tail)}, {out.pointer(x)}, {out.cpp(stride)}, {out.pointer(scale)}{bias_argument}, "
            f"{_epsilon(node)}, {out.pointer(target)}, {out.cpp(product(target.dims[1:-1]))}{epilogue.arguments});",
            reads=[x, scale, *([bias] if bias is not None else []), *epilogue.views],
            writes=[target],
            comment=f"({rows}, {tail})",
            flops=rows * tail * 8,
        )

    if axis != len(node.input(0).dims) - 1:  # the rows are longer than the last axis: no epilogue by column
        plain = fuse.Epilogue(fuse.IDENTITY, "", "", [], "", "", 0)
        emit(out.result(node.ir.outputs[0]), plain)
        if out.group.nodes:
            fuse.lower_map(Group(out.group.root, out.group.nodes), out, out.known)
        return
    anchored(node, out, emit)


@lowers("opsmith::SkipLayerNorm", "opsmith::SkipRmsNorm")
def _lower_skip_norm(node: Node, out: Lowering) -> None:
    rms = node.ir.op_type == "SkipRmsNorm"
    x, skip = (_even_rows(out.tensor(v), out) for v in node.ir.inputs[:2])
    scale = _scale(node, out, 2)
    bias = None if rms else _scale(node, out, 3)
    y = out.result(node.ir.outputs[0])
    wanted = len(node.ir.outputs) > 1 and (node.ir.outputs[1].uses() or node.ir.outputs[1].is_graph_output())
    total = out.result(node.ir.outputs[1]) if wanted else None
    cols, rows = x.dims[-1], product(x.dims[:-1])
    kernel = "skip_rms_norm" if rms else "skip_layer_norm"
    types = [CPP[v.dtype] for v in (x, skip, scale, y)]
    tt = CPP[x.dtype]
    name = out.instance(
        kernel,
        f"const Pool& pool, i64 rows, i64 cols, const {types[0]}* x, i64 x_stride, const {types[1]}* skip, i64 skip_stride, "
        f"const {types[2]}* scale{'' if rms else f', const {types[2]}* bias'}, float eps, {types[3]}* y, {tt}* sum",
        f"{kernel}(pool, rows, cols, x, x_stride, skip, skip_stride, scale, {'' if rms else 'bias, '}eps, y, cols, sum, cols);",
        ("norm.hpp",),
        f"{kernel.replace('_', ' ')}",
    )
    bias_text = "" if bias is None else f"{out.pointer(bias)}, "
    out.call(
        name,
        f"{name}(pool, {out.cpp(rows)}, {out.cpp(cols)}, {out.pointer(x)}, {out.cpp(_row_stride(x))}, {out.pointer(skip)}, "
        f"{out.cpp(_row_stride(skip))}, {out.pointer(scale)}, {bias_text}{_epsilon(node)}, {out.pointer(y)}, "
        f"{out.pointer(total) if total is not None else 'nullptr'});",
        reads=[x, skip, scale, *([bias] if bias is not None else [])],
        writes=[y, *([total] if total is not None else [])],
        comment=f"({rows}, {cols})",
        flops=rows * cols * 9,
    )


def _row_stride(view: View) -> Dim:
    return view.strides[-2] if len(view.dims) > 1 else view.dims[-1]


# --- norms over images ---


@infers("opsmith::GroupNorm", "opsmith::GroupNormSilu", "GroupNormalization")
def _group_norm(node: Node) -> list[Abstract]:
    _floats_only(node)
    x = node.input(0)
    if x.rank < 3:
        raise Unsupported("GroupNorm on fewer than 3 dims")
    if x.dims[1].value is None:
        raise Unsupported("a dynamic number of channels")
    groups = _groups(node)
    if groups < 1 or x.dims[1].value % groups:
        raise Unsupported(f"{x.dims[1]} channels do not divide into {groups} groups")
    wanted = dim(groups) if node.ir.op_type == "GroupNormalization" and node.opset < 21 else x.dims[1]
    if any(node.input(i).dims != (wanted,) for i in (1, 2)):
        raise Unsupported("scale or bias has another size")
    return [Abstract(x.dtype, x.dims)]


def _groups(node: Node) -> int:
    return int(node.attribute("num_groups" if node.ir.op_type == "GroupNormalization" else "groups", 1))


@infers("InstanceNormalization")
def _instance_norm(node: Node) -> list[Abstract]:
    _floats_only(node)
    x = node.input(0)
    if x.rank < 3:
        raise Unsupported("InstanceNormalization on fewer than 3 dims")
    if any(node.input(i).dims != (x.dims[1],) for i in (1, 2)):
        raise Unsupported("scale or bias has another size")
    return [Abstract(x.dtype, x.dims)]


@lowers("opsmith::GroupNorm", "opsmith::GroupNormSilu", "GroupNormalization", "InstanceNormalization", anchor=True)
def _lower_group_norm(node: Node, out: Lowering) -> None:
    x = out.tensor(node.ir.inputs[0])
    rank = len(x.dims)
    instance = node.ir.op_type == "InstanceNormalization"
    groups: Dim = x.dims[1] if instance else dim(_groups(node))
    scale, bias = (_channel_operand(node, out, i) for i in (1, 2))
    order = (0, *range(2, rank), 1)
    last = _is_channels_last(x, order)
    if not last:
        x = out.dense(x)
        order = tuple(range(rank))
    pixels = product(x.dims[2:])
    silu = node.ir.op_type == "GroupNormSilu"

    def emit(target: View, epilogue: fuse.Epilogue) -> None:
        tx, ts, ty = CPP[x.dtype], CPP[scale.dtype], CPP[target.dtype]
        kernel = "group_norm_nhwc" if last else "group_norm_nchw"
        strides = ", i64 x_batch, i64 x_stride" if last else ""
        pass_strides = ", x_batch, x_stride" if last else ""
        y_strides = ", pixels * channels, channels" if last else ""
        name = out.instance(
            f"{kernel}{'_silu' if silu else ''}{'_' + epilogue.slug if epilogue.slug else ''}",
            f"const Pool& pool, i64 batch, i64 pixels, i64 channels, i64 groups, const {tx}* x{strides}, const {ts}* scale, const {ts}* bias, "
            f"float eps, {ty}* y, void* workspace{epilogue.parameters}",
            f"{kernel}(pool, batch, pixels, channels, groups, x{pass_strides}, scale, bias, eps, y{y_strides}, workspace, {epilogue.lambda_text});",
            ("norm.hpp", "elementwise.hpp"),
            f"group norm{' and SiLU' if silu else ''}{'; then ' + epilogue.comment if epilogue.comment else ''}",
        )
        batch, channels = x.dims[0], x.dims[1]
        space = out.workspace(
            f"group_norm_workspace({out.cpp(batch)}, {out.cpp(channels)}, {out.cpp(groups)})", "norm.hpp"
        )
        stride_text = f", {out.cpp(x.strides[0])}, {out.cpp(_pixel_stride(x))}" if last else ""
        out.call(
            name,
            f"{name}(pool, {out.cpp(batch)}, {out.cpp(pixels)}, {out.cpp(channels)}, {out.cpp(groups)}, {out.pointer(x)}{stride_text}, "
            f"{out.pointer(scale)}, {out.pointer(bias)}, {_epsilon(node)}, {out.pointer(target)}, {space}{epilogue.arguments});",
            reads=[x, scale, bias, *epilogue.views],
            writes=[target],
            comment=f"{groups} groups of {channels} channels, {pixels} pixels",
            flops=product(x.dims) * 10,
            header="norm.hpp",
        )

    if last:
        anchored_with_silu(node, out, emit, silu, order)
        return
    plain = fuse.Epilogue(_SILU if silu else fuse.IDENTITY, "", "", [], "", "", 0)
    emit(out.result(node.ir.outputs[0]), plain)
    if out.group.nodes:
        fuse.lower_map(Group(out.group.root, out.group.nodes), out, out.known)


_SILU = "[](F acc, Row, i64, auto) -> F { return silu(acc); }"


def anchored_with_silu(node: Node, out: Lowering, emit: object, silu: bool, order: Sequence[int]) -> None:
    """The group as epilogue, after the SiLU that belongs to the operator itself."""
    assert callable(emit)

    def wrapped(target: View, epilogue: fuse.Epilogue) -> None:
        if silu:
            text = epilogue.lambda_text.replace("-> F {\n", "-> F {\n    acc = silu(acc);\n", 1)
            epilogue.lambda_text = _SILU if epilogue.lambda_text == fuse.IDENTITY else text
        emit(target, epilogue)

    anchored(node, out, wrapped, order=order)


def _channel_operand(node: Node, out: Lowering, index: int) -> View:
    """Scale or bias per channel; opset 18 gives them per group."""
    fact = node.input(index)
    channels = node.input(0).dims[1]
    if fact.dims == (channels,):
        return out.rows(node.ir.inputs[index])
    if fact.constant is None or channels.value is None:
        raise Unsupported("scale or bias per group is not constant")
    repeat = channels.value // fact.constant.dims[0]
    constant = fact.constant.map(f"repeat{repeat}", (channels.value,), lambda a: np.repeat(a, repeat))
    return out.weight(constant)


def _is_channels_last(x: View, order: Sequence[int]) -> bool:
    """Channels contiguous, pixels evenly spaced; the batch may have any stride."""
    if x.strides[1] != 1 or all(d == 1 for d in x.dims[2:]):
        return False
    return fuse._even([x.strides[a] for a in order[1:-1]], [x.dims[a] for a in order[1:-1]])


def _pixel_stride(x: View) -> Dim:
    return next(s for s, d in zip(reversed(x.strides[2:]), reversed(x.dims[2:])) if d != 1)
