"""Norms: layer, RMS, group, instance; with and without a residual."""

from __future__ import annotations

from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import FLOATS, Abstract, Unsupported
from opsmith.sizes import as_size, product


def _floats_only(node: Node) -> None:
    for value in node.inputs:
        if value is not None and value.dtype not in FLOATS:
            raise Unsupported(f"{node.op} on {value.dtype.name} stays with ONNX Runtime")


@infers("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")
def _layer_norm(node: Node) -> list[Abstract]:
    _floats_only(node)
    if any(o.uses() or o.is_graph_output() for o in node.ir.outputs[1:]):
        raise Unsupported("its statistics are used")
    x = node.input(0)
    normalized = product(x.dims[node.axis(x.rank) :])
    for i in (1, 2):
        if node.has(i) and product(node.input(i).dims) != normalized:
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


def group_count(node: Node) -> int:
    return int(node.attribute("num_groups" if node.op == "GroupNormalization" else "groups", 1))


@infers("opsmith::GroupNorm", "opsmith::GroupNormSilu", "GroupNormalization")
def _group_norm(node: Node) -> list[Abstract]:
    _floats_only(node)
    x = node.input(0)
    if x.rank < 3:
        raise Unsupported("GroupNorm on fewer than 3 dims")
    channels = x.dims[1].value
    if channels is None:
        raise Unsupported("a dynamic number of channels")
    groups = group_count(node)
    if groups < 1 or channels % groups:
        raise Unsupported(f"{channels} channels do not divide into {groups} groups")
    wanted = as_size(groups) if node.op == "GroupNormalization" and node.opset < 21 else x.dims[1]
    if any(node.input(i).dims != (wanted,) for i in (1, 2)):
        raise Unsupported("scale or bias has another size")
    return [Abstract(x.dtype, x.dims)]


@infers("InstanceNormalization")
def _instance_norm(node: Node) -> list[Abstract]:
    _floats_only(node)
    x = node.input(0)
    if x.rank < 3:
        raise Unsupported("InstanceNormalization on fewer than 3 dims")
    if any(node.input(i).dims != (x.dims[1],) for i in (1, 2)):
        raise Unsupported("scale or bias has another size")
    return [Abstract(x.dtype, x.dims)]
