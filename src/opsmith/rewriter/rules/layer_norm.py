"""(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * scale + bias -> LayerNormalization(x, scale, bias)

Over the last dimension. Cases: (1) the square as Pow(d, 2) or d * d; (2) the division as Div(d, sqrt) or as
Mul(d, Reciprocal(sqrt)); (3) scale and bias are vectors as long as the last dimension, in either operand.
A model that holds LayerNormalization already is left as it is: that is the standard op.
"""

from __future__ import annotations

from opsmith.rewriter.rule import Site, rule
from opsmith.rewriter.rules._norms import deviation, normalised, vector_operand


@rule(
    "layer_norm",
    "(x - mean x) / sqrt(var x + e) * scale + bias -> LayerNormalization",
    roots=("Sqrt",),
    makes=("LayerNormalization",),
)
def layer_norm(site: Site) -> None:
    site.need(site.model.opset_imports.get("", 0) >= 17, "LayerNormalization needs opset 17")
    found = deviation(site)  # (1)
    x = found.x
    result = normalised(site, found.difference)  # (2)
    scale, result = vector_operand(site, result, "Mul", x)  # (3)
    bias, result = vector_operand(site, result, "Add", x)
    site.need(scale.dtype == x.dtype and bias.dtype == x.dtype, "scale and bias have another type than x")
    site.replace(result, site.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=found.epsilon))
