"""What the targets can run. A rule's op is emitted only if the target has a kernel for it.

portable    any ONNX runtime: standard ops and functions made of them
ort-cpu     ONNX Runtime on CPU: asked by loading a one-node model
ort-cuda    ONNX Runtime on CUDA: from its list of kernels (OperatorKernels.md); this machine need not have a GPU
"""

from __future__ import annotations

import functools

import onnx
from onnx import TensorProto
from onnx import helper as h

TARGETS: tuple[str, ...] = ("portable", "ort-cpu", "ort-cuda")

_CUDA = {
    *("com.microsoft.MultiHeadAttention", "com.microsoft.Gelu", "com.microsoft.FastGelu", "com.microsoft.QuickGelu"),
    *("com.microsoft.BiasGelu", "com.microsoft.SkipLayerNormalization", "com.microsoft.GroupNorm"),
}

# One call of each op that the rules of level 3 emit: inputs with their shapes, attributes.
_PROBES: dict[str, tuple[dict[str, list[int]], dict[str, int | float]]] = {
    "com.microsoft.MultiHeadAttention": ({"q": [1, 2, 8], "k": [1, 2, 8], "v": [1, 2, 8]}, {"num_heads": 2}),
    "com.microsoft.Gelu": ({"x": [2, 4]}, {}),
    "com.microsoft.FastGelu": ({"x": [2, 4]}, {}),
    "com.microsoft.QuickGelu": ({"x": [2, 4]}, {"alpha": 1.702}),
    "com.microsoft.SkipLayerNormalization": ({"x": [1, 2, 4], "skip": [1, 2, 4], "scale": [4], "bias": [4]}, {}),
    "com.microsoft.GroupNorm": ({"x": [1, 2, 2, 4], "scale": [4], "bias": [4]}, {"groups": 2, "activation": 0}),
}


def supports(target: str, op: str) -> bool:
    """Whether TARGET runs OP ("Conv", "opsmith.Gelu", "com.microsoft.Gelu")."""
    domain = op.rpartition(".")[0]
    if domain in ("", "opsmith"):
        return True
    if target == "ort-cuda":
        return op in _CUDA
    return target == "ort-cpu" and _runs_on_cpu(op)


@functools.cache
def _runs_on_cpu(op: str) -> bool:
    """Ask ONNX Runtime itself: it refuses a model with an op for which it has no kernel."""
    import onnxruntime as ort

    if op not in _PROBES:
        return False
    shapes, attributes = _PROBES[op]
    domain, _, name = op.rpartition(".")
    node = h.make_node(name, list(shapes), ["y"], domain=domain, **attributes)
    inputs = [h.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    graph = h.make_graph([node], "probe", inputs, [h.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    opsets = [h.make_opsetid("", 17), h.make_opsetid(domain, 1)]
    model: onnx.ModelProto = h.make_model(graph, opset_imports=opsets, ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # ORT raises its own family of exceptions; any of them means no
        return False
    return True
