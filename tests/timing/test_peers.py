"""Peers: what is installed here must compute what ONNX Runtime does."""

from __future__ import annotations

import importlib.util

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from node_tests import load_cases
from small_models import mlp, save

from opsmith import OpsmithError, store
from opsmith.measure.bench import bench
from opsmith.timing.peers import onnx_to_torch

pytest.importorskip("torch")

# ONNX's own node tests for the operators that exported transformers and diffusion models consist of.
NODES = [
    "add_bcast",
    "and_bcast3v1d",
    "averagepool_2d_precomputed_pads_count_include_pad",
    "basic_conv_with_padding",
    "batchnorm_epsilon",
    "averagepool_2d_same_upper",
    "clip",
    "concat_3d_axis_negative_1",
    "constantofshape_float_ones",
    "conv_with_autopad_same",
    "conv_with_strides_and_asymmetric_padding",
    "convtranspose_pads",
    "cumsum_1d",
    "div_int32_trunc",
    "einsum_batch_matmul",
    "elu",
    "equal_bcast",
    "erf",
    "expand_dim_changed",
    "flatten_axis2",
    "gather_1",
    "gather_2d_indices",
    "gather_elements_1",
    "gather_negative_indices",
    "gathernd_example_float32",
    "gelu_default_2",
    "gelu_tanh_2",
    "gemm_all_attributes",
    "globalaveragepool",
    "group_normalization_epsilon",
    "hardsigmoid",
    "hardswish",
    "instancenorm_epsilon",
    "rms_normalization_4d_axis_negative_2",
    "leakyrelu",
    "logsoftmax_axis_0",
    "matmul_4d",
    "max_example",
    "maxpool_2d_dilations",
    "maxpool_2d_same_upper",
    "mod_int64_fmod",
    "mod_mixed_sign_int32",
    "pow",
    "range_float_type_positive_delta",
    "reduce_l2_keep_dims_random",
    "reduce_max_keepdims_random",
    "reduce_mean_default_axes_keepdims_random",
    "reduce_prod_negative_axes_keepdims_random",
    "reduce_sum_square_do_not_keepdims_random",
    "reflect_pad",
    "reshape_negative_extended_dims",
    "reshape_zero_and_negative_dim",
    "scatter_elements_with_axis",
    "shape_start_1_end_negative_1",
    "slice",
    "slice_neg_steps",
    "slice_negative_axes",
    "softmax_axis_1",
    "softplus",
    "split_equal_parts_2d",
    "split_variable_parts_2d_opset18",
    "squeeze_negative_axes",
    "tile",
    "top_k",
    "transpose_all_permutations_3",
    "tril_neg",
    "triu_pos",
    "unsqueeze_unsorted_axes",
    "where_example",
]


@pytest.fixture(scope="module")
def node_tests():
    return {case.name: case for case in load_cases()}


@pytest.mark.parametrize("name", NODES)
def test_an_operator_in_torch_gives_the_result_that_onnx_states(name, node_tests, tmp_path):
    case = node_tests[f"test_{name}"]
    path, model = tmp_path / "model.onnx", onnx.load_from_string(case.model)
    named = {value.name: np.asarray(array) for value, array in zip(model.graph.input, case.inputs)}
    static = onnx_to_torch._STATIC.get(model.graph.node[0].op_type, ())
    for position in static:  # the exporters give shapes and axes as constants, ONNX's tests as inputs
        names = model.graph.node[0].input
        if position < len(names) and names[position] in named:
            onnx_tensor = onnx.numpy_helper.from_array(named.pop(names[position]), names[position])
            model.graph.initializer.append(onnx_tensor)
    onnx.save(model, str(path))
    module, inputs, _ = onnx_to_torch.translate(path, named)
    import torch

    found = module(*(torch.from_numpy(named[n]) for n in inputs))
    for a, b in zip(case.outputs, found):
        np.testing.assert_allclose(b.numpy(), np.asarray(a), rtol=1e-4, atol=1e-5)


def test_peer_torch_runs_the_same_model_and_verifies(tmp_path):
    folder = save(mlp(), tmp_path / "net" / "a")
    result = bench(folder, peer=["torch"], rounds=2, processes=1, threads=1, seconds=1.0)
    assert [(e.label, e.runtime) for e in result.entries] == [("a", "ort"), ("torch", "torch")]
    assert result.verified
    assert result["torch"].errors[0].max_abs < 1e-5


def test_an_operator_without_translation_is_named(tmp_path):
    model = mlp()
    model.graph.node[2].op_type = "ThresholdedRelu"
    folder = save(model, tmp_path / "net" / "a")
    with pytest.raises(
        OpsmithError, match=r"torch: peer torch has no translation of operator ThresholdedRelu \(node 'r"
    ):
        bench(folder, peer=["torch"], rounds=1, processes=1, threads=1)


def test_shapes_that_follow_from_shapes_become_numbers(tmp_path):
    """Shape -> Gather -> Concat -> Reshape, as exporters write it, is folded; the rest computes as before."""
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[n, 6] x) => (float[a, b, c] y) {
        s = Shape (x)
        zero = Constant <value_int = 0> ()
        n = Gather (s, zero)
        axes = Constant <value_ints = [0]> ()
        n1 = Unsqueeze (n, axes)
        tail = Constant <value_ints = [2, 3]> ()
        shape = Concat <axis = 0> (n1, tail)
        r = Reshape (x, shape)
        y = Softmax <axis = -1> (r)
    }"""
    onnx.save(onnx.parser.parse_model(text), str(tmp_path / "m.onnx"))
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    module, _, _ = onnx_to_torch.translate(tmp_path / "m.onnx", {"x": x})
    import torch

    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    assert len(calls) == 2  # Reshape and Softmax
    expected = ort.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"x": x})[0]
    np.testing.assert_allclose(module(torch.from_numpy(x))[0].numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["openvino-f32", "mnn"])
def test_optional_peers_verify_where_they_are_installed(name, tmp_path):
    if importlib.util.find_spec("MNN" if name == "mnn" else name) is None:
        pytest.skip(f"{name} is not installed")
    folder = save(mlp(), tmp_path / "net" / "a")
    store.find_model(folder)
    assert bench(folder, peer=[name], rounds=1, processes=1, threads=1, seconds=1.0).verified


def test_quantize_dynamic_of_onnx_runtime_is_a_peer_with_its_error(tmp_path) -> None:  # type: ignore[no-untyped-def]
    result = bench(
        [save(mlp(), tmp_path / "m" / "plain")], peer=["ort-int8"], rounds=1, processes=1, seconds=0.2, threads=1
    )
    (error,) = result["ort-int8"].errors
    assert 1e-4 < error.max_abs / error.scale < 0.1
