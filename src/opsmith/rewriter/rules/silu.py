"""x * sigmoid(x) -> Silu(x)"""

from __future__ import annotations

from opsmith.rewriter.rule import Site, input_of, rule


@rule("silu", "x * sigmoid(x) -> Silu(x)", roots=("Sigmoid",), makes=("opsmith.Silu",))
def silu(site: Site) -> None:
    x = input_of(site.root, 0)
    sigmoid = site.root.outputs[0]
    multiply = site.only_user(sigmoid, "Mul")
    site.need(site.other_input(multiply, sigmoid) is x, "sigmoid(x) is not multiplied by x itself", multiply)
    site.replace(multiply.outputs[0], site.call("Silu", x))
