"""Small ONNX models for the tests of the workbench."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def tensor(name: str, *shape: int, seed: int = 0, scale: float = 0.1) -> onnx.TensorProto:
    rng = np.random.default_rng([seed, sum(map(ord, name))])
    return numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name)


def mlp(width: int = 64, depth: int = 2, *, shift: float = 0.0, seed: int = 0) -> onnx.ModelProto:
    """DEPTH times  x @ w + b -> relu ; SHIFT added to the result, so that variants can be made to disagree."""
    nodes, weights, x = [], [], "x"
    for i in range(depth):
        weights += [tensor(f"w{i}", width, width, seed=seed), tensor(f"b{i}", width, seed=seed)]
        nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"], name=f"matmul{i}"))
        nodes.append(helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"], name=f"add{i}"))
        nodes.append(helper.make_node("Relu", [f"a{i}"], [f"r{i}"], name=f"relu{i}"))
        x = f"r{i}"
    weights.append(numpy_helper.from_array(np.float32(shift), "shift"))
    nodes.append(helper.make_node("Add", [x, "shift"], ["y"], name="last"))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", width])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def save(model: onnx.ModelProto, folder: Path) -> Path:
    """Write MODEL as the variant FOLDER, which is its path in return."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / f"{folder.parent.name}_{folder.name}.onnx"))
    return folder
