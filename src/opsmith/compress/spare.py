"""What a diffusion UNet keeps in full precision unless told otherwise. It is small, and every pixel of every step goes through it.

    first and last convolution   between the latents and the network: few channels, so little to gain
    time embedding               products of what depends on the timestep alone

A UNet is known by its input `timestep`; layers are found by what they depend on, not by their names.
"""

from __future__ import annotations

import onnx_ir as ir

TIME, LATENTS = "timestep", "sample"


def spared(model: ir.Model) -> dict[str, str]:
    """Names of nodes -> why they are spared; empty for models that are no diffusion UNet."""
    inputs = {value.name for value in model.graph.inputs}
    if not {TIME, LATENTS} <= inputs:
        return {}
    depends: dict[ir.Value, frozenset[str]] = {}  # value -> the graph inputs whose content it depends on
    products, convolutions = [], []
    for node in model.graph:
        sources: frozenset[str] = frozenset()
        if node.op_type not in ("Shape", "Size"):  # sizes are not content
            for value in node.inputs:
                if value is not None:
                    sources |= (
                        frozenset([value.name or ""]) if value.is_graph_input() else depends.get(value, frozenset())
                    )
        depends |= dict.fromkeys(node.outputs, sources)
        if node.op_type in ("MatMul", "Gemm") and sources == {TIME}:
            products.append(node.name or "")
        if node.op_type == "Conv" and LATENTS in sources:
            convolutions.append(node.name or "")
    kept = dict.fromkeys(products, "time embedding, kept in full precision")
    for name, which in zip(convolutions[:1] + convolutions[-1:], ("first", "last")):
        kept[name] = f"{which} convolution, kept in full precision"
    return kept
