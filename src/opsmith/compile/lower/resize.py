"""Resize and Upsample by whole factors with nearest neighbours: every pixel repeated. Other modes stay with ORT."""

from __future__ import annotations

from opsmith.compile.dims import Dim, dim, exact_div
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import Abstract, FloatScalar, Unsupported, abstract, memory_order


@infers("Resize", "Upsample")
def _resize(node: Node) -> list[Abstract]:
    x = node.input(0)
    factors = _factors(node)
    return [abstract(x.dtype, [d * f for d, f in zip(x.dims, factors)])]


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
    factors = _factors(node)
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
    return bool(uses) and all(u.node.op_type == "Conv" and u.idx == 0 and u.node in out.inside for u in uses)
