"""(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * scale + bias -> LayerNormalization(x, scale, bias)

Over the last dimension. Cases: (1) the square as Pow(d, 2) or d * d; (2) the division as Div(d, sqrt) or as
Mul(d, Reciprocal(sqrt)); (3) scale and bias are vectors as long as the last dimension, in either operand.
A model that holds LayerNormalization already is left as it is: that is the standard op.
"""

from __future__ import annotations

from opsmith.rewriter.rule import Site, input_of, rule, scalar_of
from opsmith.rewriter.rules._norms import mean_of_last, normalised, square_of, vector_operand


@rule(
    "layer_norm",
    "(x - mean x) / sqrt(var x + e) * scale + bias -> LayerNormalization",
    roots=("Sqrt",),
    makes=("LayerNormalization",),
)
def layer_norm(site: Site) -> None:
    site.need(site.model.opset_imports.get("", 0) >= 17, "LayerNormalization needs opset 17")
    plus = site.input(site.root, 0, "Add")
    epsilon = scalar_of(input_of(plus, 1))
    variance = input_of(plus, 0)
    if epsilon is None:
        epsilon, variance = scalar_of(input_of(plus, 0)), input_of(plus, 1)
    site.need(epsilon is not None, "epsilon is not a constant added under the root", plus)
    difference = square_of(site, mean_of_last(site, variance))  # (1)
    subtract = site.producer(difference, "Sub")
    x = input_of(subtract, 0)
    site.need(mean_of_last(site, input_of(subtract, 1)) is x, "the subtracted mean is not the mean of x", subtract)
    assert x is not None
    result = normalised(site, difference)  # (2)
    scale, result = vector_operand(site, result, "Mul", x)  # (3)
    bias, result = vector_operand(site, result, "Add", x)
    site.need(scale.dtype == x.dtype and bias.dtype == x.dtype, "scale and bias have another type than x")
    site.replace(result, site.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=float(epsilon)))  # type: ignore[arg-type]
