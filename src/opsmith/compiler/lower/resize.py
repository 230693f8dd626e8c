"""Resize and Upsample. Nearest neighbours by whole factors are copies, or left to the convolution that follows; everything else
goes through resize.hpp."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from opsmith.analysis.registry import Node
from opsmith.analysis.resize import is_old, resize_plan, whole_factors
from opsmith.analysis.values import Abstract, DataType
from opsmith.compiler.kernel import SPACE, Kernel, Space, Struct, doubles, read, size_list, struct, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.pool import LAYOUT
from opsmith.compiler.lower.precision import is_depthwise
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.program import (
    Argument,
    Enumerator,
    StructValue,
    View,
    channels_last_order,
    layout_order,
    pixel_stride,
)
from opsmith.sizes import ONE, ZERO, Number, Real, RealApply, Scalar, Size, as_size, product

RESIZE_AXIS = Struct("ResizeAxis", "resize.hpp", ("in", "out", "scale", "first", "last"))
RESIZE_PLAN = Struct("ResizePlan", "resize.hpp", ("rank", "axes"))
RESIZE_MODE = Struct(
    "ResizeMode", "resize.hpp", ("interpolation", "coordinate", "nearest", "cubic", "exclude_outside", "antialias")
)
RESIZE = Kernel(
    "resize",
    "resize.hpp",
    [
        struct("plan", RESIZE_PLAN),
        struct("mode", RESIZE_MODE),
        size_list("strides"),
        read("x"),
        *doubles("fill"),
        write("y"),
        SPACE,
    ],
    "resize by any scale",
    Space("resize_workspace", ("plan", "mode")),
)


IMAGES = Kernel(
    "resize_images",
    "resize.hpp",
    [
        struct("h", RESIZE_AXIS),
        struct("w", RESIZE_AXIS),
        struct("mode", RESIZE_MODE),
        struct("layout", LAYOUT),
        read("x"),
        write("y"),
        SPACE,
    ],
    "resize of two axes",
    Space("resize_images_workspace", ("h", "w", "mode")),
)


def plan_upsamples(
    nodes: Iterable[Node], outputs: set[ir.Value], facts: Mapping[ir.Value, Abstract]
) -> dict[ir.Value, tuple[ir.Value, int]]:
    """Enlarged images that only convolutions read, which repeat the pixels themselves: value -> its source and the factor."""
    nodes = list(nodes)
    inside = {n.ir for n in nodes}
    plans: dict[ir.Value, tuple[ir.Value, int]] = {}
    for node in nodes:
        value = node.ir.outputs[0]
        if node.op not in ("Resize", "Upsample") or node.ir.domain or value in outputs or not facts[value].runs:
            continue
        factors = whole_factors(node) or []
        if len(factors) != 4 or factors[:2] != [1, 1] or factors[2] != factors[3] or node.type_of(0) != DataType.FLOAT:
            continue
        uses = list(value.uses())
        if uses and all(u.idx == 0 and u.node in inside and _is_packed_conv(u.node, facts) for u in uses):
            source = node.ir.inputs[0]
            assert source is not None
            plans[value] = (source, factors[2])
    return plans


def _is_packed_conv(node: ir.Node, facts: Mapping[ir.Value, Abstract]) -> bool:
    """A depthwise one does not repeat pixels."""
    weights = node.inputs[1] if node.op_type == "Conv" else None
    constant = facts[weights].constant if weights is not None else None
    groups = node.attributes.get("group")
    return constant is not None and not is_depthwise(groups.as_int() if groups else 1, constant.dims)


@lowers("Resize", "Upsample")
def _resize(node: Node, builder: Builder) -> None:
    if node.ir.outputs[0] in builder.region.upsamples:
        return
    x = builder.tensor(node.ir.inputs[0])
    factors = whole_factors(node)
    if factors is None:
        _general(node, builder, x)
    else:
        _repeat(node, builder, x, factors)


def _repeat(node: Node, builder: Builder, x: View, factors: list[int]) -> None:
    """Repetition is a copy from a view with extra dims of stride 0: (H, W) -> (H, f, W, f)."""
    order = layout_order(x) or tuple(range(len(x.dims)))
    target = builder.result(node.ir.outputs[0], order, strided=True)
    dims: list[Size] = []
    source: list[Size] = []
    into: list[Size] = []
    for axis in order:
        factor = factors[axis]
        dims += [x.dims[axis], as_size(factor)] if factor > 1 else [x.dims[axis]]
        source += [x.strides[axis], ZERO] if factor > 1 else [x.strides[axis]]
        step = target.strides[axis]
        into += [step * factor, step] if factor > 1 else [step]
    builder.copy_into(x.with_(dims, source), target.with_(dims, into), range(len(dims)))


def _general(node: Node, builder: Builder, x: View) -> None:
    plan = resize_plan(node)
    kind = node.attribute("mode", "nearest")
    old = is_old(node)
    where = "asymmetric" if old else node.attribute("coordinate_transformation_mode", "half_pixel")
    nearest = "simple" if old else node.attribute("nearest_mode", "round_prefer_floor")
    how: dict[str, Argument] = {
        "interpolation": Enumerator(f"Interpolation::{kind}"),
        "coordinate": Enumerator(f"Coordinate::{where}"),
        "nearest": Enumerator(f"Nearest::{nearest}"),
        "cubic": float(node.attribute("cubic_coeff_a", -0.75)),
        "exclude_outside": node.flag("exclude_outside"),
        "antialias": node.flag("antialias"),
    }
    mode = StructValue(RESIZE_MODE, how)
    axes = [
        StructValue(RESIZE_AXIS, dict(zip(RESIZE_AXIS.fields, (old_size, new, scale, _real(first), _real(last)))))
        for old_size, new, scale, (first, last) in zip(x.dims, plan.sizes, plan.scales, plan.regions)
    ]
    changed = [a for a, d in enumerate(x.dims) if plan.sizes[a] != d or plan.scales[a].value != 1.0]
    on_vectors = kind == "nearest" or x.dtype in (DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16)
    if where != "tf_crop_and_resize" and on_vectors and changed and changed[-1] - changed[0] < 2:
        _images(node, builder, x, changed, axes, mode)
        return
    y = builder.result(node.ir.outputs[0])
    x = builder.as_type(x, y.dtype)
    builder.call(
        RESIZE,
        plan=StructValue(RESIZE_PLAN, {"rank": len(axes), "axes": axes}),
        mode=mode,
        strides=x.strides,
        x=x,
        fill=float(node.attribute("extrapolation_value", 0.0)),
        y=y,
        comment=f"{kind} resize",
        flops=product(y.dims) * 8,
    )


def _images(
    node: Node, builder: Builder, x: View, changed: list[int], axes: list[StructValue], mode: StructValue
) -> None:
    """The two axes that change, or one and its neighbour; x as it lies: channels-last, or row-major."""
    rank = len(x.dims)
    first = max(0, changed[-1] - 1)
    trivial = StructValue(RESIZE_AXIS, dict(zip(RESIZE_AXIS.fields, (ONE, ONE, Number(1.0), Number(0.0), Number(1.0)))))
    pixel = pixel_stride(x)
    channels_last = pixel is not None and x.dims[1] != 1 and rank in (3, 4) and changed[0] >= 2
    if not channels_last:
        x = builder.dense(x)
    order = channels_last_order(rank) if channels_last else None
    y = builder.result(node.ir.outputs[0], order, strided=True)
    x = builder.as_type(x, y.dtype)
    pixel = pixel_stride(x)
    layout: list[Size]
    if channels_last:
        to_pixel = pixel_stride(y)
        assert pixel is not None and to_pixel is not None
        layout = [x.dims[0], x.dims[1], x.strides[0], pixel, y.strides[0], to_pixel]
        h, w = (trivial, axes[2]) if rank == 3 else (axes[2], axes[3])
    else:
        inner = product(x.dims[first + 2 :])
        outer = product(x.dims[:first])
        sizes = (product(v.dims[first : first + 2]) * inner for v in (x, y))
        from_image, to_image = sizes
        layout = [outer, inner, from_image, inner, to_image, inner]
        h, w = (axes[first], axes[first + 1]) if rank > 1 else (trivial, axes[0])
    builder.call(
        IMAGES,
        h=h,
        w=w,
        mode=mode,
        layout=StructValue(LAYOUT, dict(zip(LAYOUT.fields, layout))),
        x=x,
        y=y,
        label=f"resize_{node.attribute('mode', 'nearest')}",
        comment=f"{' x '.join(str(y.dims[a]) for a in changed)} from {' x '.join(str(x.dims[a]) for a in changed)}",
        flops=product(y.dims) * 8,
    )


def _real(value: Scalar) -> Real:
    return RealApply("size", (value,)) if isinstance(value, Size) else value
