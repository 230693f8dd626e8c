"""x / sqrt(mean(x^2) + epsilon) * scale -> RmsNorm(x, scale)

Over the last dimension. Cases: (1) the square as Pow(x, 2) or x * x; (2) division by the root or multiplication by its
reciprocal; (3) the scale on either side.
"""

from __future__ import annotations

from opsmith.rewriter.rule import Site, input_of, rule, scalar_of
from opsmith.rewriter.rules._norms import mean_of_last, normalised, square_of, vector_operand


@rule("rms_norm", "x / sqrt(mean x^2 + e) * scale -> RmsNorm(x, scale)", roots=("Sqrt",), makes=("opsmith.RmsNorm",))
def rms_norm(site: Site) -> None:
    plus = site.input(site.root, 0, "Add")
    epsilon, mean = scalar_of(input_of(plus, 1)), input_of(plus, 0)
    if epsilon is None:
        epsilon, mean = scalar_of(input_of(plus, 0)), input_of(plus, 1)
    if epsilon is None:
        site.miss("epsilon is not a constant added under the root", plus)
    x = square_of(site, mean_of_last(site, mean))  # (1)
    scale, result = vector_operand(site, normalised(site, x), "Mul", x)  # (2) (3)
    site.need(scale.dtype == x.dtype, "the scale has another type than x")
    site.replace(result, site.call("RmsNorm", x, scale, epsilon=epsilon))
