"""Pad, Tile and CenterCropPad: tensors put together from elements of another one, axis by axis (remap.hpp)."""

from __future__ import annotations

from collections.abc import Sequence

from opsmith.compile.dims import ZERO, Dim, dim
from opsmith.compile.lower.axes import axes_of, check_axes, plain_axes, sizes, sizes_text
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import CPP, Abstract, DataType, Unsupported, View, abstract, float_literal

_MODES = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}


def _pads(node: Node, rank: int) -> tuple[list[Dim], list[Dim]]:
    """Elements added before and after each axis."""
    given = node.attribute("pads") or node.attribute("paddings")
    pads = [dim(int(p)) for p in given] if given is not None else node.elements(1, "the padding")
    axes = axes_of(node, 3)
    if axes is None:
        if len(pads) != 2 * rank:
            raise Unsupported("the padding does not fit the rank")
        return pads[:rank], pads[rank:]
    half = len(pads) // 2
    if len(pads) != 2 * len(axes):
        raise Unsupported("the padding does not fit the axes")
    known = plain_axes(axes, rank)
    before, after = [ZERO] * rank, [ZERO] * rank
    if known is not None:
        for a, b, e in zip(known, pads[:half], pads[half:]):
            before[a], after[a] = b, e
        return before, after
    check_axes(node, axes, rank)
    for a in range(rank):
        for side, values in ((before, pads[:half]), (after, pads[half:])):
            side[a] = Dim({(f"for_axis({a}, {rank}, {sizes_text(values)}, {sizes_text(axes)}, 0)",): 1})
    return before, after


@infers("Pad")
def _pad(node: Node) -> list[Abstract]:
    x = node.input(0)
    mode = node.attribute("mode", "constant")
    if mode not in _MODES:
        raise Unsupported(f"Pad with mode {mode}")
    if mode == "constant" and node.opset >= 11 and node.has(2) and _fill(node) is None:
        raise Unsupported("the fill value is computed")
    before, after = _pads(node, x.rank)
    dims = [d + b + e for d, b, e in zip(x.dims, before, after)]
    for d, old, b, e in zip(dims, x.dims, before, after):
        if d.value is not None and d.value < 0:
            raise Unsupported("negative padding takes more than there is")
        if d.value is None:
            node.checks.append((f"{d.cpp()} >= 0", "negative padding takes more than there is"))
        if mode != "constant" and not (b == 0 and e == 0):
            if old == 0:
                raise Unsupported("an empty axis has nothing to repeat")
            if old.value is None or b.value is None or e.value is None:
                node.checks.append((f"{old.cpp()} > 0 || {d.cpp()} == 0", "an empty axis has nothing to repeat"))
    return [abstract(x.dtype, dims)]


def _fill(node: Node) -> str | None:
    """C++ text of the fill value."""
    dtype = node.input(0).dtype
    cpp = CPP[dtype]
    if node.opset < 11 and "value" in node.ir.attributes:
        return _literal(float(node.attribute("value", 0.0)), dtype)
    if not node.has(2):
        return f"{cpp}{{}}"
    given = node.input(2)
    if given.constant is not None and given.constant.size == 1:
        return _literal(given.constant.read().reshape(-1)[0], dtype)
    if given.elements is None or len(given.elements) != 1:
        return None
    element = given.elements[0]
    text = element.cpp() if isinstance(element, Dim) else element.text
    return f"to_storage<{cpp}>({text})"


def _literal(value: float, dtype: DataType) -> str:
    cpp = CPP[dtype]
    if cpp in ("half", "bfloat16"):
        return f"from_float<{cpp}>({float_literal(float(value))})"
    if cpp in ("float", "double"):
        return float_literal(float(value), cpp)
    if cpp == "bool":
        return "true" if value else "false"
    return f"({cpp})({int(value)}ll)"


@lowers("Pad")
def _lower_pad(node: Node, out: Lowering) -> None:
    x = out.tensor(node.ir.inputs[0])
    mode = _MODES[node.attribute("mode", "constant")]
    fill = _fill(node) if mode == "constant" else None
    before, _ = _pads(node, len(x.dims))
    target = out.result(node.ir.outputs[0])
    emit_pad(out, x, target, before, mode, fill or f"{CPP[x.dtype]}{{}}")


def emit_pad(out: Lowering, x: View, target: View, before: Sequence[Dim], mode: str, fill: str) -> None:
    t = CPP[x.dtype]
    name = out.instance(
        f"pad_{mode}",
        f"const Pool& pool, const Sizes& dims, const Sizes& from, const Sizes& strides, const Sizes& begin, const {t}* x, {t} fill, {t}* y, "
        "void* workspace",
        f"pad(pool, dims, from, strides, begin, Border::{mode}, x, fill, y, workspace);",
        ("remap.hpp",),
        f"pad with mode {mode}",
    )
    out.program.instance_headers.add("sizes.hpp")
    space = out.workspace(f"remap_workspace({sizes(out, target.dims)})", "remap.hpp")
    arguments = [sizes(out, v) for v in (target.dims, x.dims, x.strides, before)]
    out.call(
        name,
        f"{name}(pool, {', '.join([*arguments, out.pointer(x), fill, out.pointer(target), space])});",
        reads=[x],
        writes=[target],
        comment=f"({', '.join(d.cpp() for d in target.dims)}), {mode}",
    )


@infers("Tile")
def _tile(node: Node) -> list[Abstract]:
    x = node.input(0)
    repeats = node.elements(1, "the repeats")
    if len(repeats) != x.rank:
        raise Unsupported("the repeats do not fit the rank")
    node.checks += [(f"{r.cpp()} >= 0", "a repeat is negative") for r in repeats if r.value is None]
    if any(r.value is not None and r.value < 0 for r in repeats):
        raise Unsupported("a repeat is negative")
    return [abstract(x.dtype, [d * r for d, r in zip(x.dims, repeats)])]


@lowers("Tile")
def _lower_tile(node: Node, out: Lowering) -> None:
    x = out.tensor(node.ir.inputs[0])
    target = out.result(node.ir.outputs[0])
    emit_pad(out, x, target, [ZERO] * len(x.dims), "wrap", f"{CPP[x.dtype]}{{}}")
