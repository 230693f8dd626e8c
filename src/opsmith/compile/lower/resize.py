"""Resize and Upsample. Nearest neighbours by whole factors are copies; everything else goes through resize.hpp."""

from __future__ import annotations

import dataclasses

import numpy as np

from opsmith.compile.dims import Dim, dim, exact_div, product
from opsmith.compile.lower.axes import sizes, sizes_text
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import (
    CPP,
    FLOATS,
    Abstract,
    DataType,
    Element,
    FloatScalar,
    Unsupported,
    abstract,
    float_element,
    float_literal,
    memory_order,
)


@infers("Resize", "Upsample")
def _resize(node: Node) -> list[Abstract]:
    x = node.input(0)
    factors = _whole_factors(node)
    if factors is None:
        return [abstract(x.dtype, _infer_general(node))]
    return [abstract(x.dtype, [d * f for d, f in zip(x.dims, factors)])]


def _whole_factors(node: Node) -> list[int] | None:
    try:
        return _factors(node)
    except Unsupported:
        return None


def _factors(node: Node) -> list[int]:
    """The whole factor of each dim; Unsupported for everything that is not plain repetition of pixels."""
    if node.attribute("mode", "nearest") != "nearest":
        raise Unsupported(f"Resize with mode {node.attribute('mode')}")
    x = node.input(0)
    scales = _scales(node, x)
    factors = [round(s) for s in scales]
    if any(abs(f - s) > 1e-6 or f < 1 for f, s in zip(factors, scales)):
        raise Unsupported("Resize by a factor that is not a whole number")
    if node.ir.op_type == "Resize" and any(f > 1 for f in factors):
        where = node.attribute("coordinate_transformation_mode", "half_pixel")
        rounding = node.attribute("nearest_mode", "round_prefer_floor")
        # out -> in: asymmetric i/f with floor, and half_pixel (i + 0.5)/f - 0.5 rounded, both give floor(i / f)
        exact = (where == "asymmetric" and rounding == "floor") or (
            where in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
            and rounding in ("round_prefer_floor", "round_prefer_ceil")
        )
        if not exact:
            raise Unsupported(f"nearest Resize with {where} and {rounding}")
        if where != "asymmetric" and rounding == "round_prefer_ceil" and any(f % 2 == 0 and f > 1 for f in factors):
            pass  # a half never occurs for whole factors: (i + 0.5)/f - 0.5 is a half only if f divides i + 0.5
    return factors


def _scales(node: Node, x: Abstract) -> list[float]:
    if node.ir.op_type == "Upsample":
        given = node.attribute("scales")
        if given is not None:
            return [float(v) for v in given]
        return [float(v) for v in node.array(1, "the scales").reshape(-1)]
    axes = node.attribute("axes")
    if node.opset < 11:
        scales = [float(v) for v in node.array(1, "the scales").reshape(-1)]
    elif node.has(2) and node.input(2).size != 0:
        found = node.input(2).elements
        if found is None or any(not isinstance(e, FloatScalar) or e.value is None for e in found):
            raise Unsupported("the scales are not constant")
        scales = [float(e.value) for e in found if isinstance(e, FloatScalar) and e.value is not None]
    elif node.has(3):
        if node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise Unsupported("Resize that keeps the aspect ratio")
        sizes = node.elements(3, "the new size")
        wanted = x.dims if axes is None else [x.dims[a] for a in axes]
        scales = [_ratio(s, d) for s, d in zip(sizes, wanted)]
    else:
        raise Unsupported("Resize without scales or sizes")
    if axes is not None:
        full = [1.0] * x.rank
        for a, s in zip(axes, scales):
            full[a] = s
        return full
    return scales


def _ratio(new: Dim, old: Dim) -> float:
    if new == old:
        return 1.0
    if new.value is not None and old.value:
        return new.value / old.value
    factor = exact_div(new, old)
    if factor is None or factor.value is None:
        raise Unsupported("the new size is not a known multiple of the old one")
    return float(factor.value)


@lowers("Resize", "Upsample")
def _lower_resize(node: Node, out: Lowering) -> None:
    """Repetition is a copy from a view with extra dims of stride 0: (H, W) -> (H, f, W, f)."""
    x = out.tensor(node.ir.inputs[0])
    factors = _whole_factors(node)
    if factors is None:
        _lower_general(node, out)
        return
    if _only_convolutions_read(node, factors, out):
        out.upsampled[node.ir.outputs[0]] = (x, factors[2])
        return
    order = memory_order(x) or tuple(range(len(x.dims)))
    target = out.result(node.ir.outputs[0], order)
    dims: list[Dim] = []
    source: list[Dim] = []
    into: list[Dim] = []
    for axis in order:
        dims += [x.dims[axis], dim(factors[axis])] if factors[axis] > 1 else [x.dims[axis]]
        source += [x.strides[axis], dim(0)] if factors[axis] > 1 else [x.strides[axis]]
        into += (
            [target.strides[axis] * factors[axis], target.strides[axis]]
            if factors[axis] > 1
            else [target.strides[axis]]
        )
    out.emit_copy(x.with_(dims, source), target.with_(dims, into))


def _only_convolutions_read(node: Node, factors: list[int], out: Lowering) -> bool:
    """Whether the repetition can be left to the convolutions that follow."""
    value = node.ir.outputs[0]
    if len(factors) != 4 or factors[:2] != [1, 1] or factors[2] != factors[3] or out.is_output(value):
        return False
    uses = list(value.uses())
    if node.input(0).dtype != DataType.FLOAT:
        return False
    return bool(uses) and all(
        u.node.op_type == "Conv"
        and u.idx == 0
        and u.node in out.inside
        and u.node.inputs[1] is not None
        and out.facts[u.node.inputs[1]].constant is not None
        for u in uses
    )


# --- any scale, any mode ---

_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip


@dataclasses.dataclass
class _Plan:
    """Per axis: new size, C++ text of the scale, and of the region of interest."""

    sizes: list[Dim]
    scales: list[str]
    regions: list[tuple[str, str]]


def _infer_general(node: Node) -> list[Dim]:
    x = node.input(0)
    mode = node.attribute("mode", "nearest")
    if node.ir.op_type == "Resize" and node.opset < 11:
        raise Unsupported("Resize of opset 10")
    if mode not in ("nearest", "linear", "cubic"):
        raise Unsupported(f"Resize with mode {mode}")
    if mode != "nearest" and x.dtype not in FLOATS and x.dtype != DataType.DOUBLE:
        raise Unsupported(f"{mode} Resize on {x.dtype.name}")
    if node.attribute("coordinate_transformation_mode", "half_pixel") not in _COORDINATES:
        raise Unsupported(f"coordinates {node.attribute('coordinate_transformation_mode')}")
    plan = _plan(node)
    for new, old in zip(plan.sizes, x.dims):
        if new.value is None or old.value is None:
            text = f"{new.cpp()} == 0 || ({new.cpp()} > 0 && {old.cpp()} > 0)"
            node.checks.append((text, "a new size is negative, or there is nothing to resize"))
        elif new.value < 0 or (new.value > 0 and old.value == 0):
            raise Unsupported("a new size is negative, or there is nothing to resize")
    return plan.sizes


def _plan(node: Node) -> _Plan:
    x = node.input(0)
    rank = x.rank
    given = node.attribute("axes")
    axes = list(range(rank)) if given is None else [int(a) % rank for a in given]
    new, scales = list(x.dims), ["1.0"] * rank
    index = 2 if node.ir.op_type == "Resize" else 1
    if node.ir.op_type == "Upsample" and node.attribute("scales") is not None:
        found: list[Element] = [float_element(float(v)) for v in node.attribute("scales")]
    elif node.has(index) and node.input(index).size != 0:
        elements = node.input(index).elements
        if elements is None:
            raise Unsupported("the scales depend on computed data")
        found = list(elements)
    else:
        found = []
    if found:
        if len(found) != len(axes):
            raise Unsupported("the scales do not fit the rank")
        for a, s in zip(axes, found):
            if not isinstance(s, FloatScalar):
                raise Unsupported("the scales are not floats")
            old = x.dims[a]
            scales[a] = f"double({s.text})"
            if s.value is not None and old.value is not None:
                new[a] = dim(int(np.floor(old.value * float(np.float32(s.value)))))
            elif s.value != 1.0:
                new[a] = Dim({(f"resized({old.cpp()}, {scales[a]})",): 1})
    elif node.has(3):
        wanted = node.elements(3, "the new size")
        if len(wanted) != len(axes):
            raise Unsupported("the new size does not fit the rank")
        policy = node.attribute("keep_aspect_ratio_policy", "stretch")
        olds = [x.dims[a] for a in axes]
        for i, a in enumerate(axes):
            if policy == "stretch":
                new[a] = wanted[i]
                scales[a] = "1.0" if wanted[i] == olds[i] else f"double({wanted[i].cpp()}) / double({olds[i].cpp()})"
            else:
                smaller = "true" if policy == "not_larger" else "false"
                scales[a] = f"aspect_scale({smaller}, {sizes_text(olds)}, {sizes_text(wanted)})"
                new[a] = Dim({(f"aspect_size({olds[i].cpp()}, {scales[a]})",): 1})
    else:
        raise Unsupported("Resize without scales or sizes")
    return _Plan(new, scales, _regions(node, rank, axes))


def _regions(node: Node, rank: int, axes: list[int]) -> list[tuple[str, str]]:
    regions = [("0.0", "1.0")] * rank
    if node.attribute("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize":
        return regions
    found = node.input(1).elements
    if found is None or len(found) != 2 * len(axes):
        raise Unsupported("the region of interest depends on computed data")
    texts = [e.text if isinstance(e, FloatScalar) else e.cpp() for e in found]
    for i, a in enumerate(axes):
        regions[a] = (texts[i], texts[len(axes) + i])
    return regions


def _lower_general(node: Node, out: Lowering) -> None:
    x = out.tensor(node.ir.inputs[0])
    target = out.result(node.ir.outputs[0])
    plan = _plan(node)
    t = CPP[x.dtype]
    upsample = node.ir.op_type == "Upsample"
    where = "asymmetric" if upsample else node.attribute("coordinate_transformation_mode", "half_pixel")
    nearest = "floor" if upsample else node.attribute("nearest_mode", "round_prefer_floor")
    flags = [str(bool(node.attribute(a, 0))).lower() for a in ("exclude_outside", "antialias")]
    cubic = float_literal(float(node.attribute("cubic_coeff_a", -0.75)), "double")
    mode = (
        f"ResizeMode{{Interpolation::{node.attribute('mode', 'nearest')}, Coordinate::{where}, Nearest::{nearest}, {cubic}, "
        f"{', '.join(flags)}}}"
    )
    axes = [
        f"{{{out.cpp(old)}, {out.cpp(new)}, {scale}, {first}, {last}}}"
        for old, new, scale, (first, last) in zip(x.dims, plan.sizes, plan.scales, plan.regions)
    ]
    geometry = f"ResizePlan{{{len(axes)}, {{{', '.join(axes)}}}}}"
    name = out.instance(
        "resize",
        f"const Pool& pool, const ResizePlan& plan, const ResizeMode& mode, const Sizes& strides, const {t}* x, double fill, {t}* y, "
        "void* workspace",
        "resize(pool, plan, mode, strides, x, fill, y, workspace);",
        ("resize.hpp",),
        "resize by any scale",
    )
    out.program.instance_headers.add("resize.hpp")
    space = out.workspace(f"resize_workspace({geometry}, {mode})", "resize.hpp")
    fill = float_literal(float(node.attribute("extrapolation_value", 0.0)), "double")
    arguments = [geometry, mode, sizes(out, x.strides), out.pointer(x), fill, out.pointer(target), space]
    out.call(
        name, f"{name}(pool, {', '.join(arguments)});", reads=[x], writes=[target],
        comment=f"{node.attribute('mode', 'nearest')} resize", flops=product(target.dims) * 8, header="resize.hpp",
    )  # fmt: skip
