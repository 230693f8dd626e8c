"""BatchNormalization(Conv(x, weight, bias)) -> Conv(x, weight', bias') with the statistics folded into the weights

factor = scale / sqrt(variance + epsilon);  weight' = weight * factor;  bias' = (bias - mean) * factor + shift
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.rewriter.passes import weights
from opsmith.rewriter.rule import Site, attribute, distinct_users, input_of, rule, tensor_of


@rule("batch_norm", "BatchNormalization(Conv(x)) -> Conv(x)", roots=("BatchNormalization",), makes=("Conv",))
def batch_norm(site: Site) -> None:
    site.need(not attribute(site.root, "training_mode", 0), "it is in training mode")
    site.need(len([o for o in site.root.outputs if o.uses()]) <= 1, "its statistics are read")
    conv = site.input(site.root, 0, "Conv")
    weight = tensor_of(input_of(conv, 1))
    bias = tensor_of(input_of(conv, 2))
    statistics = [tensor_of(input_of(site.root, i)) for i in range(1, 5)]
    site.need(input_of(conv, 2) is None or bias is not None, "the bias is not a constant", conv)
    site.need(all(s is not None for s in statistics), "the statistics are not constants")
    if weight is None:
        site.miss("the weight is not a constant", conv)
    value = input_of(conv, 1)
    site.need(value is not None and len(distinct_users(value)) == 1, "the weight has other readers", conv)
    scale, shift, mean, variance = (np.asarray(s.numpy(), np.float64) for s in statistics if s is not None)
    channels = all(s.shape == (weight.shape[0],) for s in (scale, shift, mean, variance))
    site.need(channels, "its statistics are not one per channel")
    factor = scale / np.sqrt(variance + float(attribute(site.root, "epsilon", 1e-5)))
    before = np.zeros_like(mean) if bias is None else np.asarray(bias.numpy(), np.float64)
    dtype = weight.dtype.numpy()
    rank = len(weight.shape)

    def scaled() -> np.ndarray[Any, Any]:
        return (weight.numpy() * factor.reshape(-1, *[1] * (rank - 1))).astype(dtype)

    shape = [int(s) for s in weight.shape]  # type: ignore[arg-type]
    name = f"{weight.name or 'weight'}_folded"
    new_weight = site.weight(weights.lazy(scaled, weight.dtype, shape, name), name)
    new_bias = site.weight(ir.tensor(((before - mean) * factor + shift).astype(dtype)), f"{name}_bias")
    attributes = {a.name: a.value for a in conv.attributes.values()}
    site.replace(site.root.outputs[0], site.op("Conv", input_of(conv, 0), new_weight, new_bias, **attributes))
