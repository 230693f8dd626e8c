"""Small graphs in ONNX's text form, and what the tests of the rewriter ask of them."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort

from opsmith.rewriter import RuleResult, rewrite_model


def model(
    signature: str, body: str, opset: int = 18, constants: dict[str, Any] | None = None, ir_version: int = 9
) -> ir.Model:
    """`model("float[2,3] x => float[2,3] y", "y = Relu(x)")`; constants become initializers."""
    inputs, outputs = signature.split("=>")
    text = f'<ir_version: {ir_version}, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    for name, array in (constants or {}).items():
        array = np.asarray(array)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.checker.check_model(proto)
    return ir.from_proto(proto)


def random_inputs(proto: onnx.ModelProto, sizes: dict[str, int] | None = None, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found = {}
    for value in proto.graph.input:
        if value.name in {i.name for i in proto.graph.initializer}:
            continue
        shape = [
            d.dim_value if d.HasField("dim_value") else (sizes or {}).get(d.dim_param, 3)
            for d in value.type.tensor_type.shape.dim
        ]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype == np.bool_:
            found[value.name] = rng.random(shape) > 0.4
        elif dtype.kind == "i":
            found[value.name] = rng.integers(0, 3, shape).astype(dtype)
        else:
            found[value.name] = rng.standard_normal(shape).astype(dtype)
    return found


def run(proto: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def rewrite(
    original: ir.Model, sizes: dict[str, int] | None = None, tolerance: float = 1e-5, **options: Any
) -> tuple[collections.Counter[str], list[RuleResult], ir.Model]:
    """Rewrite a copy, check that it is valid ONNX and computes the same; the ops that it holds now, and the results."""
    before = ir.to_proto(original)
    changed = ir.from_proto(before)
    results = rewrite_model(changed, **options)
    after = ir.to_proto(changed)
    onnx.checker.check_model(after, full_check=True)
    for seed in range(2):
        inputs = random_inputs(before, sizes, seed)
        for expected, got in zip(run(before, inputs), run(after, inputs), strict=True):
            assert expected.shape == got.shape and expected.dtype == got.dtype
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    ops = collections.Counter(n.op_type for n in changed.graph.all_nodes())
    return ops, results, changed


def fired(results: list[RuleResult], rule: str) -> int:
    return next(r.matches for r in results if r.rule == rule)


def why_not(results: list[RuleResult], rule: str) -> str:
    """The reason of the nearest miss of a rule that did not fire."""
    result = next(r for r in results if r.rule == rule)
    assert result.matches == 0, f"{rule} fired"
    return result.near_miss.reason if result.near_miss is not None else ""
