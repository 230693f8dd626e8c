"""What every exported model holds, by family and exporter."""

from __future__ import annotations

import json
from pathlib import Path

import models
import numpy as np
import onnx
import pytest

import opsmith
from opsmith import store

# (model, part) -> inputs and outputs with their dynamic dims
_TEXT = {"input_ids": ["batch", "sequence"], "attention_mask": ["batch", "sequence"]}
SIGNATURES = {
    ("gpt2", ""): (
        {
            "input_ids": ["batch", "sequence"],
            "attention_mask": ["batch", "past + sequence"],
            "position_ids": ["batch", "sequence"],
            **{f"past_key_values.{i}.{k}": ["batch", 4, "past", 16] for i in (0, 1) for k in ("key", "value")},
        },
        {
            "logits": ["batch", "sequence", 514],
            **{f"present.{i}.{k}": ["batch", 4, "past + sequence", 16] for i in (0, 1) for k in ("key", "value")},
        },
    ),
    ("llama", ""): (
        {
            "input_ids": ["batch", "sequence"],
            "attention_mask": ["batch", "past + sequence"],
            "position_ids": ["batch", "sequence"],
            **{f"past_key_values.{i}.{k}": ["batch", 2, "past", 16] for i in (0, 1) for k in ("key", "value")},
        },
        {
            "logits": ["batch", "sequence", 514],
            **{f"present.{i}.{k}": ["batch", 2, "past + sequence", 16] for i in (0, 1) for k in ("key", "value")},
        },
    ),
    ("bert", ""): (
        {**_TEXT, "token_type_ids": ["batch", "sequence"]},
        {"last_hidden_state": ["batch", "sequence", 64], "pooler_output": ["batch", 64]},
    ),
    ("clip", "text_model"): (_TEXT, {"text_embeds": ["batch", 32], "last_hidden_state": ["batch", "sequence", 64]}),
    ("clip", "vision_model"): (
        {"pixel_values": ["batch", 3, 32, 32]},
        {"image_embeds": ["batch", 32], "last_hidden_state": ["batch", 17, 64]},
    ),
    # 48 pixels in a model built for 32: the position embeddings are stretched
    ("clipseg", ""): ({"pixel_values": ["batch", 3, 48, 48], **_TEXT}, {"logits": ["batch", 48, 48]}),
    ("stable-diffusion", "text_encoder"): (
        {"input_ids": ["batch", "sequence"]},
        {
            "last_hidden_state": ["batch", "sequence", 64],
            "pooler_output": ["batch", 64],
            **{f"hidden_states.{i}": ["batch", "sequence", 64] for i in range(3)},
        },
    ),
    ("stable-diffusion", "unet"): (
        {
            "sample": ["batch", 4, "height", "width"],
            "timestep": [1],
            "encoder_hidden_states": ["batch", "sequence", 64],
        },
        {"out_sample": ["batch", 4, "height", "width"]},
    ),
    ("stable-diffusion", "vae_encoder"): (
        {"sample": ["batch", 3, "2*height", "2*width"]},
        {"latent_parameters": ["batch", 8, "height", "width"]},
    ),
    ("stable-diffusion", "vae_decoder"): (
        {"latent_sample": ["batch", 4, "height", "width"]},
        {"sample": ["batch", 3, "2*height", "2*width"]},
    ),
}
CASES = [(*key, exporter) for key in SIGNATURES for exporter in models.EXPORTERS]


def dims(values: list[onnx.ValueInfoProto]) -> dict[str, list[object]]:
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


@pytest.mark.parametrize(("model", "part", "exporter"), CASES)
def test_signature_and_dynamic_dims(model: str, part: str, exporter: str) -> None:
    proto = onnx.load(store.find_model(models.tiny_variant(model, exporter, part)))
    inputs, outputs = SIGNATURES[model, part]
    assert dims(list(proto.graph.input)) == inputs
    assert dims(list(proto.graph.output)) == outputs
    assert next(o.version for o in proto.opset_import if o.domain == "") >= 18
    onnx.checker.check_model(proto)


@pytest.mark.parametrize(("model", "part", "exporter"), CASES)
def test_stored_test_data_is_reproduced(model: str, part: str, exporter: str) -> None:
    path = store.find_model(models.tiny_variant(model, exporter, part))
    session = opsmith.load(path)
    (data,) = store.read_test_data(path)
    for got, (name, expected) in zip(session.run(None, data.inputs), data.outputs.items()):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4, err_msg=name)
        assert expected.std() > 1e-3, f"{name} says nothing: it is constant"


@pytest.mark.parametrize(("model", "part", "exporter"), CASES)
def test_record_says_what_was_proved(model: str, part: str, exporter: str) -> None:
    folder = models.tiny_variant(model, exporter, part)
    record = store.read_record(store.find_model(folder))
    assert record["verb"] == "export"
    assert record["options"] == {"exporter": exporter, "random_weights": False, "seed": 0}
    verified = record["verified"]
    assert (verified["rtol"], verified["atol"]) == (1e-3, 1e-4)
    assert 0 < verified["max_abs_error"] < 1e-2
    batches = [case["sizes"]["batch"] for case in verified["cases"]]
    assert batches[0] == 1
    assert max(batches) >= 2
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        [f"{folder.parent.name}_{exporter}.onnx", "opsmith.json", "test_data_set_0"]
    )


@pytest.mark.parametrize("exporter", models.EXPORTERS)
def test_no_paths_of_this_machine_in_the_file(exporter: str) -> None:
    content = store.find_model(models.tiny_variant("bert", exporter)).read_bytes()
    assert str(Path(onnx.__file__).parents[1]).encode() not in content
    assert str(Path(opsmith.__file__).parents[2]).encode() not in content


@pytest.mark.parametrize("exporter", models.EXPORTERS)
def test_graph_keeps_the_names_of_the_weights(exporter: str) -> None:
    proto = onnx.load(store.find_model(models.tiny_variant("stable-diffusion", exporter, "unet")))
    names = {tensor.name for tensor in proto.graph.initializer}
    assert "down_blocks.0.resnets.0.conv1.weight" in names


def test_pipeline_folder_is_complete() -> None:
    pipeline = models.tiny_pipeline("dynamo")
    index = json.loads((pipeline / "model_index.json").read_text())
    assert index["_class_name"] == "StableDiffusionPipeline"
    for name, entry in index.items():
        if isinstance(entry, list) and entry[0]:
            assert (pipeline / name).is_dir(), name
    assert json.loads((pipeline / "vae_decoder" / "config.json").read_text())["scaling_factor"] == 0.18215
    assert (pipeline / "scheduler" / "scheduler_config.json").is_file()
    assert (pipeline / "tokenizer" / "vocab.json").is_file()
    assert not list(pipeline.rglob(".*"))


def test_tokenizer_and_config_stand_beside_the_variants() -> None:
    from transformers import AutoTokenizer

    folder = models.tiny_model("gpt2")
    assert json.loads((folder / "config.json").read_text())["model_type"] == "gpt2"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("Grüße, world")["input_ids"]) == "Grüße, world"


def test_inpainting_unet_takes_nine_channels() -> None:
    pipeline = models.tiny_pipeline("torchscript", inpainting=True)
    session = opsmith.load(pipeline / "unet" / "torchscript")
    assert session.get_inputs()[0].shape == ["batch", 9, "height", "width"]
    assert json.loads((pipeline / "model_index.json").read_text())["_class_name"] == "StableDiffusionInpaintPipeline"


def test_stable_diffusion_2_unet_exports() -> None:
    """Linear projections, upcast attention and a head count per block."""
    pipeline = models.tiny_model("stable-diffusion-2", "torchscript")
    assert store.read_record(store.find_model(pipeline / "unet"))["verified"]["max_abs_error"] < 1e-3


def test_images_larger_than_the_traced_one() -> None:
    session = opsmith.load(models.tiny_variant("stable-diffusion", part="vae_decoder"))
    (image,) = session.run(None, {"latent_sample": np.zeros((1, 4, 21, 34), np.float32)})
    assert image.shape == (1, 3, 42, 68)
