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


def decoder(tokens: int | str = "sequence", of_past: str = "Identity", of_logits: str = "Identity") -> onnx.ModelProto:
    """logits = (embedded ids + sum of present) @ head, present = past, then the embedded ids; the table is positive."""
    rng = np.random.default_rng(0)
    make, value = helper.make_node, helper.make_tensor_value_info
    weights = {
        "table": rng.uniform(0.1, 1, (40, 16)).astype(np.float32),
        "head": rng.standard_normal((16, 40)).astype(np.float32),
        "one": np.array([1]),
        "two": np.array([2]),
    }
    nodes = [
        make("Gather", ["table", "input_ids"], ["embedded"]),
        make("Unsqueeze", ["embedded", "one"], ["fresh"]),
        make("Concat", ["past_key_values.0.key", "fresh"], ["present.0.key"], axis=2),
        make(of_past, ["present.0.key"], ["seen"]),
        make("Unsqueeze", ["attention_mask", "one"], ["mask_row"]),
        make("Unsqueeze", ["mask_row", "two"], ["mask_rows"]),
        make("Cast", ["mask_rows"], ["weights"], to=TensorProto.FLOAT),
        make("MatMul", ["weights", "seen"], ["sums"]),  # [batch,1,1,past+sequence] @ [batch,1,past+sequence,16]
        make("Squeeze", ["sums", "one"], ["context"]),
        make("Add", ["embedded", "context"], ["hidden"]),
        make("MatMul", ["hidden", "head"], ["scores"]),
        make(of_logits, ["scores"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            value("input_ids", TensorProto.INT64, ["batch", tokens]),
            value("attention_mask", TensorProto.INT64, ["batch", f"past + {tokens}"]),
            value("past_key_values.0.key", TensorProto.FLOAT, ["batch", 1, "past", 16]),
        ],
        [
            value("logits", TensorProto.FLOAT, ["batch", tokens, 40]),
            value("present.0.key", TensorProto.FLOAT, ["batch", 1, f"past + {tokens}", 16]),
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
