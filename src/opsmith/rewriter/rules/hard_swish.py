"""x * clip(x + 3, 0, 6) / 6 -> HardSwish(x), and clip(x + 3, 0, 6) / 6 alone -> HardSigmoid(x)

Exporters write them so where the operators are newer than the opset. A division costs as much as ten products.

Cases of the limits: (1) inputs, since opset 11; (2) attributes.
"""

from __future__ import annotations

import onnx_ir as ir

from opsmith.rewriter.rule import Site, attribute, constant_factor, input_of, is_close, rule, scalar_of
from opsmith.rewriter.rules._products import finish_product


@rule("hard_swish", "x * clip(x + 3, 0, 6) / 6 -> HardSwish(x)", roots=("Clip",), makes=("HardSwish",))
def hard_swish(site: Site) -> None:
    x = _gated(site)
    site.need(site.model.opset_imports.get("", 0) >= 14, "HardSwish needs opset 14")
    site.replace(finish_product(site, site.root.outputs[0], x, 1 / 6), site.op("HardSwish", x))


@rule("hard_sigmoid", "clip(x + 3, 0, 6) / 6 -> HardSigmoid(x)", roots=("Clip",), makes=("HardSigmoid",))
def hard_sigmoid(site: Site) -> None:
    x = _gated(site)
    divided = site.only_user(site.root.outputs[0], "Mul", "Div").outputs[0]
    factor, inner = constant_factor(divided)
    site.need(inner is site.root.outputs[0] and is_close(factor, 1 / 6), "expected a division by 6", divided.producer())
    site.replace(divided, site.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))


def _gated(site: Site) -> ir.Value:
    """x of clip(x + 3, 0, 6)."""
    low, high = (_limit(site.root, name, index) for name, index in (("min", 1), ("max", 2)))
    site.need(low == 0 and high == 6, f"clipped to {low} and {high}, expected 0 and 6")
    shifted = site.input(site.root, 0, "Add")
    a, b = input_of(shifted, 0), input_of(shifted, 1)
    x, three = (a, b) if scalar_of(b) is not None else (b, a)
    site.need(scalar_of(three) == 3, "expected x + 3", shifted)
    if x is None or x.dtype != ir.DataType.FLOAT:
        site.miss("x is not float32", shifted)
    return x


def _limit(clip: ir.Node, name: str, index: int) -> float | None:
    at = attribute(clip, name)  # (2)
    return float(at) if at is not None else scalar_of(input_of(clip, index))  # (1)
