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


def counted_decoder() -> onnx.ModelProto:
    """As onnxruntime-genai's builder writes decoders: GroupQueryAttention over packed q, k, v that counts its keys by the mask, and a
    cache that does not declare the size of a head (16)."""
    rng = np.random.default_rng(1)
    make, value, context = helper.make_node, helper.make_tensor_value_info, "com.microsoft"
    angles = np.outer(np.arange(256), 1 / 100 ** (np.arange(8) / 8)).astype(np.float32)
    weights = {
        "table": rng.standard_normal((VOCABULARY, 32)).astype(np.float32),
        "qkv": rng.standard_normal((32, 64)).astype(np.float32),
        "head": rng.standard_normal((32, VOCABULARY)).astype(np.float32),
        "cos": np.cos(angles),
        "sin": np.sin(angles),
        "one": np.array([1]),
        "axis": np.array([1]),
        "second": np.array(1),
    }
    past, present = (
        ["past_key_values.0.key", "past_key_values.0.value"],
        ["present.0.key", "present.0.value"],
    )
    nodes = [
        make("ReduceSum", ["attention_mask", "axis"], ["counts"], keepdims=0),
        make("Sub", ["counts", "one"], ["last"]),
        make("Cast", ["last"], ["seqlens"], to=TensorProto.INT32),
        make("Shape", ["attention_mask"], ["mask_shape"]),
        make("Gather", ["mask_shape", "second"], ["total64"]),
        make("Cast", ["total64"], ["total"], to=TensorProto.INT32),
        make("Gather", ["table", "input_ids"], ["embedded"]),
        make("MatMul", ["embedded", "qkv"], ["packed"]),
        make(
            "GroupQueryAttention",
            ["packed", "", "", *past, "seqlens", "total", "cos", "sin"],
            ["attended", *present],
            domain=context,
            num_heads=2,
            kv_num_heads=1,
            do_rotary=1,
        ),
        make("Add", ["embedded", "attended"], ["hidden"]),
        make("MatMul", ["hidden", "head"], ["logits"]),
    ]
    sizes = ["batch", 1, "past_sequence_length", "kv_cache_dim"]
    inputs = [
        value("input_ids", TensorProto.INT64, ["batch", "sequence_length"]),
        value("attention_mask", TensorProto.INT64, ["batch", "total_sequence_length"]),
    ]
    outputs = [value("logits", TensorProto.FLOAT, ["batch", "sequence_length", VOCABULARY])]
    graph = helper.make_graph(
        nodes,
        "counted",
        inputs + [value(name, TensorProto.FLOAT, sizes) for name in past],
        outputs + [value(n, TensorProto.FLOAT, ["batch", 1, "total_sequence_length", "kv_cache_dim"]) for n in present],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
        value_info=[value("packed", TensorProto.FLOAT, ["batch", "sequence_length", 64])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(context, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


VOCABULARY = 514  # of the tiny models' tokenizer (models.py)
