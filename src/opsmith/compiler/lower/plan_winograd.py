"""Which convolutions go through Winograd: those that save most seconds for the bytes that their transformed weights add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from opsmith.analysis.registry import Node
from opsmith.analysis.window import is_plain
from opsmith.compiler import winograd
from opsmith.compiler.lower.convolution import DIRECT, WINOGRAD2_BF16
from opsmith.compiler.precision import Precision
from opsmith.compiler.program import Target
from opsmith.compiler.winograd import Way
from opsmith.nodes import ONNX
from opsmith.sizes import estimate

# Transformed weights are 4 times (F4) or 16/9 times (F2) as large. They lie beside the direct ones where sizes are dynamic, but
# of a layer's two forms only one is read. What a model reads may grow by this share, or by this many bytes if that is more.
GROWTH, FREE_BYTES = 0.75, 768 << 20
# In bf16 a layer's weights lie in one form only, and the file stays small: transformed ones are 16/9 times as large.
GROWTH_BF16, FREE_BYTES_BF16 = 0.15, 96 << 20
CHANNELS_BF16 = 16  # on both sides: with fewer the transforms are not worth it
DIRECT_SPEED = 200e9  # operations per second; only the order of the options depends on it


@dataclass(frozen=True)
class Option:
    """A faster way to convolve, and what it costs."""

    node: ir.Node
    algorithm: str
    saved: float  # seconds per run
    growth: int  # bytes
    worth: float  # seconds per byte that it adds to the next smaller way


def plan_algorithms(
    nodes: Iterable[Node], target: Target, precisions: Mapping[ir.Node, Precision]
) -> dict[ir.Node, str]:
    """Winograd where it saves most for the memory it costs; everything else is direct."""
    nodes = list(nodes)
    if target.strict:
        return {}
    # A folded node (the Cast of weights stored in half precision) is no user of its own: they would count twice.
    users = [n for n in nodes if any(o.constant is None for o in n.outputs)]
    total = sum(v.constant.size for n in users for v in n.inputs if v is not None and v.constant is not None) * 4
    narrow, wide = (
        [o for n in nodes if (n.ir in precisions) == low for o in options(n, target)]
        for low, options in ((True, _options_bf16), (False, _options))
    )
    chosen = _affordable(wide, max(GROWTH * total, FREE_BYTES))
    chosen |= _affordable(narrow, max(GROWTH_BF16 * total / 2, FREE_BYTES_BF16))
    return {node: option.algorithm for node, option in chosen.items()}


def _affordable(options: Iterable[Option], budget: float) -> dict[ir.Node, Option]:
    chosen: dict[ir.Node, Option] = {}
    for option in sorted(options, key=lambda o: -o.worth):
        before = chosen.get(option.node)
        more = option.growth - (before.growth if before else 0)
        if more <= budget and (before is None or option.saved > before.saved):
            budget -= more
            chosen[option.node] = option
    return chosen


def _options_bf16(node: Node, target: Target) -> list[Option]:
    if target.isa.multiplies_tiles or "conv2d_winograd2" not in _ways(node):  # tiles multiply faster than it transforms
        return []
    o, c = _weight_dims(node)[:2]
    if min(o, c) < CHANNELS_BF16:
        return []
    batch, height, width = (max(1, estimate(d)) for d in (node.outputs[0].dims[0], *node.outputs[0].dims[2:]))
    gain = winograd.cost_bf16(None, batch, height, width)
    gain -= winograd.cost_bf16(2, batch, height, width, _pair(node, "dilations"))
    growth = o * c * 2 * (16 - 9)
    saved = gain * o * c / DIRECT_SPEED
    return [Option(node.ir, WINOGRAD2_BF16.name, saved, growth, saved / growth)] if gain > 0 else []


def _options(node: Node, target: Target) -> list[Option]:
    """The ways of one layer. A larger one that saves less per byte is a step up from the smaller one, and worth that step."""
    if not (ways := _ways(node)):
        return []
    weights = node.input(1).constant
    assert weights is not None
    o, c = weights.dims[:2]
    stored = int((weights.stored or weights).dtype.itemsize)
    growth = {name: o * c * (4 * way.filters**2 - 9 * stored) for name, way in ways.items()}  # bytes
    saved = _saved(node, target, o * c, ways)
    options: list[Option] = []
    for way in sorted(saved, key=lambda a: growth[a]):
        worth = saved[way] / max(1, growth[way])
        if options and worth < options[-1].worth:
            worth = (saved[way] - options[-1].saved) / (growth[way] - options[-1].growth)
        options.append(Option(node.ir, way, saved[way], growth[way], worth))
    return options


def _ways(node: Node) -> Mapping[str, Way]:
    """Winograd's ways that fit a convolution."""
    if node.op != "Conv" or node.ir.domain not in ONNX or is_plain(node):
        return {}
    dims = _weight_dims(node)
    if len(dims) != 4:
        return {}
    return winograd.fitting(dims, _pair(node, "strides"), _pair(node, "dilations"), int(node.attribute("group", 1)))


def _pair(node: Node, attribute: str) -> list[int]:
    """Strides or dilations of an image."""
    return list(node.attribute(attribute) or [1, 1])


def _weight_dims(node: Node) -> tuple[int, ...]:
    weights = node.input(1).constant
    assert weights is not None
    return weights.dims


def _saved(node: Node, target: Target, channels: int, ways: Mapping[str, Way]) -> Mapping[str, float]:
    """Seconds that each way saves against the direct one: measured, or estimated at the judged or else typical sizes."""
    measured = target.tuned.get(node.name)
    if measured is not None and DIRECT.name in measured.best:
        direct = measured.best[DIRECT.name].seconds
        times = {a: measured.best[a].seconds for a in ways if a in measured.best}
        return {a: direct - t for a, t in times.items() if t < direct * 0.98}
    seen = (node.outputs[0].dims[0], *node.outputs[0].dims[2:])
    batch, height, width = (max(1, estimate(d, target.sizes)) for d in seen)
    plain = winograd.direct_cost(batch, height, width)
    costs = {name: way.cost(batch, height, width, _pair(node, "dilations")) for name, way in ways.items()}
    return {a: (plain - c) * channels / DIRECT_SPEED for a, c in costs.items() if c < plain}
