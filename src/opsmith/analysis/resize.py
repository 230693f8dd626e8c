"""Resize and Upsample: whole factors of nearest neighbours, or any scale by any mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opsmith.analysis.axes import check_rank
from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import REALS, Abstract, Unsupported, abstract
from opsmith.sizes import (
    AllOf,
    AnyOf,
    Number,
    Real,
    RealApply,
    Scalar,
    Size,
    apply,
    as_size,
    compare,
    exact_div,
)

COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"),
    *("tf_half_pixel_for_nn", "align_corners", "asymmetric", "tf_crop_and_resize"),
)


@infers("Resize", "Upsample")
def _resize(node: Node) -> list[Abstract]:
    x = node.input(0)
    factors = whole_factors(node)
    if factors is None:
        return [abstract(x.dtype, _infer_general(node))]
    return [abstract(x.dtype, [d * f for d, f in zip(x.dims, factors)])]


def whole_factors(node: Node) -> list[int] | None:
    """The factor of each dim, if the operator does nothing but repeat pixels."""
    if node.attribute("mode", "nearest") != "nearest":
        return None
    scales = _constant_scales(node)
    if scales is None:
        return None
    factors = [round(s) for s in scales]
    if any(abs(f - s) > 1e-6 or f < 1 for f, s in zip(factors, scales)):
        return None
    if not is_old(node) and any(f > 1 for f in factors) and not _repeats(node):
        return None
    return factors


def is_old(node: Node) -> bool:
    """Upsample, and Resize before opset 11: positions i / scale, the pixel below, or above where the image shrinks."""
    return node.op == "Upsample" or node.opset < 11


def _repeats(node: Node) -> bool:
    """out -> in: asymmetric i/f with floor, and half_pixel (i + 0.5)/f - 0.5 rounded, both give floor(i / f). A half, where the
    two roundings would differ, never occurs for whole factors."""
    where = node.attribute("coordinate_transformation_mode", "half_pixel")
    rounding = node.attribute("nearest_mode", "round_prefer_floor")
    if where == "asymmetric":
        return bool(rounding == "floor")
    halves = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
    return where in halves and rounding in ("round_prefer_floor", "round_prefer_ceil")


def _constant_scales(node: Node) -> list[float] | None:
    """The scale of each dim, where all are known while compiling."""
    x = node.input(0)
    scales = _given_scales(node)
    if scales:
        numbers = [s.value for s in scales if isinstance(s, Real)]
        if len(numbers) != len(scales) or None in numbers:
            return None
    elif node.has(3) and node.op == "Resize" and node.attribute("keep_aspect_ratio_policy", "stretch") == "stretch":
        wanted = node.input(3).elements
        olds = x.dims if node.attribute("axes") is None else [x.dims[a] for a in node.attribute("axes")]
        numbers = [_ratio(s, d) for s, d in zip(wanted or (), olds)]
        if wanted is None or None in numbers:
            return None
    else:
        return None
    full = [1.0] * x.rank
    for axis, scale in zip(_axes(node), numbers):
        full[axis] = float(scale or 0.0)
    return full


def _axes(node: Node) -> list[int]:
    rank, given = node.input(0).rank, node.attribute("axes")
    return list(range(rank)) if given is None else [int(a) % rank for a in given]


def _ratio(new: Scalar, old: Size) -> float | None:
    if new == old:
        return 1.0
    if not isinstance(new, Size):
        return None
    if new.value is not None and old.value:
        return new.value / old.value
    factor = exact_div(new, old)
    return None if factor is None or factor.value is None else float(factor.value)


def _given_scales(node: Node) -> Sequence[Scalar]:
    """The scales that an attribute or input gives; none where the new sizes are given instead."""
    if node.op == "Upsample" and node.attribute("scales") is not None:
        return [Number(float(v)) for v in node.attribute("scales")]
    index = 2 if node.op == "Resize" and node.opset >= 11 else 1
    if not node.has(index) or node.input(index).size == 0:
        return []
    elements = node.input(index).elements
    if elements is None:
        raise Unsupported("the scales depend on computed data")
    return elements


# --- any scale, any mode ---


@dataclass
class ResizePlan:
    """Per axis: new size, scale, and the region of interest."""

    sizes: list[Size]
    scales: list[Real]
    regions: list[tuple[Scalar, Scalar]]


def _infer_general(node: Node) -> list[Size]:
    x = node.input(0)
    mode = node.attribute("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise Unsupported(f"Resize with mode {mode}")
    if mode != "nearest" and x.dtype not in REALS:
        raise Unsupported(f"{mode} Resize on {x.dtype.name}")
    if node.attribute("coordinate_transformation_mode", "half_pixel") not in COORDINATES:
        raise Unsupported(f"coordinates {node.attribute('coordinate_transformation_mode')}")
    if (
        mode == "cubic"
        and node.flag("antialias")
        and node.attribute("coordinate_transformation_mode") == "align_corners"
    ):
        raise Unsupported("a cubic Resize with antialias and align_corners stays with ONNX Runtime")
    plan = resize_plan(node)
    for new, old in zip(plan.sizes, x.dims):
        if new.value is None or old.value is None:
            filled = AllOf((compare(new, ">", 0), compare(old, ">", 0)))
            message = "a new size is negative, or there is nothing to resize"
            node.require(AnyOf((compare(new, "==", 0), filled)), message)
        elif new.value < 0 or (new.value > 0 and old.value == 0):
            raise Unsupported("a new size is negative, or there is nothing to resize")
    return plan.sizes


def resize_plan(node: Node) -> ResizePlan:
    x = node.input(0)
    axes = _axes(node)
    plan = ResizePlan(list(x.dims), [Number(1.0)] * x.rank, _regions(node, x.rank, axes))
    if scales := _given_scales(node):
        _plan_by_scales(plan, x, axes, scales)
    elif node.has(3):
        _plan_by_sizes(plan, x, axes, node)
    else:
        raise Unsupported("Resize without scales or sizes")
    return plan


def _plan_by_scales(plan: ResizePlan, x: Abstract, axes: list[int], scales: Sequence[Scalar]) -> None:
    if len(scales) != len(axes):
        raise Unsupported("the scales do not fit the rank")
    for axis, scale in zip(axes, scales):
        if not isinstance(scale, Real):
            raise Unsupported("the scales are not floats")
        old = x.dims[axis]
        plan.scales[axis] = scale
        if scale.value is not None and old.value is not None:
            plan.sizes[axis] = as_size(math.floor(np.float32(old.value) * np.float32(scale.value)))  # in float, as ORT
        elif scale.value != 1.0:
            plan.sizes[axis] = apply("resized", old, scale)


def _plan_by_sizes(plan: ResizePlan, x: Abstract, axes: list[int], node: Node) -> None:
    wanted = node.elements(3, "the new size")
    if len(wanted) != len(axes):
        raise Unsupported("the new size does not fit the rank")
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch" and any(a < 0 for a in node.attribute("axes") or []):
        raise Unsupported("negative axes with a kept aspect ratio, which ONNX Runtime does not resize, stay with it")
    olds = [x.dims[a] for a in axes]
    check_rank(olds)
    for axis, old, new in zip(axes, olds, wanted):
        if policy == "stretch":
            plan.sizes[axis] = new
            if new != old:
                plan.scales[axis] = RealApply("/", (RealApply("size", (new,)), RealApply("size", (old,))))
        else:
            plan.scales[axis] = RealApply("aspect_scale", (policy == "not_larger", tuple(olds), tuple(wanted)))
            plan.sizes[axis] = apply("aspect_size", old, plan.scales[axis])


def _regions(node: Node, rank: int, axes: list[int]) -> list[tuple[Scalar, Scalar]]:
    regions: list[tuple[Scalar, Scalar]] = [(Number(0.0), Number(1.0))] * rank
    if node.attribute("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize":
        return regions
    bounds = node.input(1).elements
    if bounds is None or len(bounds) != 2 * len(axes):
        raise Unsupported("the region of interest depends on computed data")
    for i, a in enumerate(axes):
        regions[a] = (bounds[i], bounds[len(axes) + i])
    return regions
