"""Where models come from: folders, known ids, random weights; and what is refused."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import models
import numpy as np
import onnx
import pytest

import opsmith
from opsmith import OpsmithError, store
from opsmith.exporter import causal_lm, diffusion, encoder, segmentation, source

# Parameters of the published checkpoints.
PARAMETERS = {
    "openai-community/gpt2": 124_439_808,
    "openai-community/gpt2-medium": 354_823_168,
    "distilbert/distilgpt2": 81_912_576,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "google-bert/bert-base-uncased": 109_482_240,
    "sentence-transformers/all-MiniLM-L6-v2": 22_713_216,
    "openai/clip-vit-base-patch32": 151_277_313,
    "openai/clip-vit-large-patch14": 427_616_513,
    "CIDAS/clipseg-rd64-refined": 150_747_746,
}
PIPELINES = {  # text encoder, UNet, VAE
    "CompVis/stable-diffusion-v1-4": (123_060_480, 859_520_964, 83_653_863),
    "stable-diffusion-v1-5/stable-diffusion-v1-5": (123_060_480, 859_520_964, 83_653_863),
    "stable-diffusion-v1-5/stable-diffusion-inpainting": (123_060_480, 859_535_364, 83_653_863),
    "stabilityai/stable-diffusion-2-1": (340_387_840, 865_910_724, 83_653_863),
}


def test_every_known_id_is_counted() -> None:
    assert set(source.known_ids()) == {*PARAMETERS, *PIPELINES}


@pytest.mark.parametrize("name", PARAMETERS)
def test_known_config_gives_the_published_number_of_parameters(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, CLIPSegForImageSegmentation

    with source.open_source(name, random=True, seed=0, revision=None) as opened, torch.device("meta"):
        config = AutoConfig.from_pretrained(opened.folder)
        if causal_lm.accepts(opened.config()):
            model = AutoModelForCausalLM.from_config(config)
        elif segmentation.accepts(opened.config()):
            model = CLIPSegForImageSegmentation._from_config(config)
        else:
            assert encoder.accepts(opened.config())
            model = AutoModel.from_config(config)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", PIPELINES)
def test_known_pipeline_gives_the_published_number_of_parameters(name: str) -> None:
    import torch
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    with source.open_source(name, random=True, seed=0, revision=None) as opened, torch.device("meta"):
        assert [p.name for p in diffusion.plan(opened).parts] == ["text_encoder", "unet", "vae_encoder", "vae_decoder"]
        parts = (
            CLIPTextModel(CLIPTextConfig.from_pretrained(opened.folder / "text_encoder")),
            UNet2DConditionModel.from_config(opened.config("unet")),
            AutoencoderKL.from_config(opened.config("vae")),
        )
    assert tuple(sum(p.numel() for p in part.parameters()) for part in parts) == PIPELINES[name]


def test_short_names_mean_the_known_ids() -> None:
    for short, full in (("gpt2-medium", "openai-community/gpt2-medium"), ("bert-base-uncased",) * 2):
        with (
            source.open_source(short, random=True, seed=0, revision=None) as a,
            source.open_source(full, random=True, seed=0, revision=None) as b,
        ):
            assert a.config() == b.config()


def config_only(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    shutil.copy(models.tiny_source("bert") / "config.json", folder)
    return folder


def weights(folder: Path) -> dict[str, np.ndarray]:
    proto = onnx.load(store.find_model(folder))
    return {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}


def test_random_weights_from_a_config_alone_are_those_of_the_seed(tmp_path: Path) -> None:
    folder = config_only(tmp_path)
    made = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        opsmith.export(folder, tmp_path / name, exporter="torchscript", random_weights=True, seed=seed)
        made[name] = weights(tmp_path / name)["embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(made["a"], made["b"])
    assert np.abs(made["a"] - made["c"]).max() > 0.01
    # biases are drawn too, so that the graph keeps them
    assert weights(tmp_path / "a")["encoder.layer.0.intermediate.dense.bias"].std() > 0.01


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpsmithError, match=r"no safetensors weights .*--random-weights"):
        opsmith.export(config_only(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pickled_weights_are_refused_and_never_opened(tmp_path: Path) -> None:
    folder = config_only(tmp_path)
    trap = tmp_path / "opened"

    class Trap:
        def __reduce__(self):  # type: ignore[no-untyped-def]
            return (Path.touch, (trap,))

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(OpsmithError, match=r"pickled weights only \(pytorch_model.bin\).*convert"):
        opsmith.export(folder, tmp_path / "out")
    assert not trap.exists()


def test_weights_that_lack_tensors_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "source"
    shutil.copytree(models.tiny_source("bert"), folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(OpsmithError, match=r"lack 1 of the model's tensors, e.g. encoder.layer.1.output.dense.weight"):
        opsmith.export(folder, tmp_path / "out")


def test_encoder_without_pooler_exports_without_it(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "source"
    shutil.copytree(models.tiny_source("bert"), folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if "pooler" not in k}, folder / "model.safetensors", {"format": "pt"})
    opsmith.export(folder, tmp_path / "out", exporter="torchscript")
    assert [o.name for o in opsmith.load(tmp_path / "out").get_outputs()] == ["last_hidden_state"]


def test_broken_weights_are_one_clear_line(tmp_path: Path) -> None:
    folder = config_only(tmp_path)
    (folder / "model.safetensors").write_bytes(b"not a safetensors file")
    with pytest.raises(OpsmithError, match="cannot be loaded"):
        opsmith.export(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("some/where/deep", "neither a folder nor a GGUF file nor a Hugging Face id"),
        ("no-such-owner/no-such-model", "could not be fetched from the hub"),
    ],
)
def test_source_that_is_not_there(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(OpsmithError, match=message):
        opsmith.export(name, tmp_path / "out")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"]}, "wav2vec2, which export does not know"),
        ({}, "of unknown type"),
    ],
)
def test_unknown_model_is_named(tmp_path: Path, config: dict[str, object], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(OpsmithError, match=message):
        opsmith.export(tmp_path, tmp_path / "out", random_weights=True)


def test_bad_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(OpsmithError, match=r"config.json is not valid JSON"):
        opsmith.export(tmp_path, tmp_path / "out", random_weights=True)


def test_other_pipelines_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    shutil.copytree(models.tiny_source("stable-diffusion"), folder)
    index = json.loads((folder / "model_index.json").read_text())
    index["text_encoder"] = ["transformers", "T5EncoderModel"]
    (folder / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(OpsmithError, match="text_encoder is T5EncoderModel, not CLIPTextModel"):
        opsmith.export(folder, tmp_path / "out")


def test_half_precision_files_alone_are_read_as_float32(tmp_path: Path) -> None:
    from transformers import BertModel

    folder = tmp_path / "source"
    model = BertModel.from_pretrained(models.tiny_source("bert")).half()
    model.save_pretrained(folder, variant="fp16")
    assert [f.name for f in folder.glob("*.safetensors")] == ["model.fp16.safetensors"]
    opsmith.export(folder, tmp_path / "out", exporter="torchscript")
    stored = weights(tmp_path / "out")["embeddings.word_embeddings.weight"]
    assert stored.dtype == np.float32
    np.testing.assert_array_equal(stored, model.embeddings.word_embeddings.weight.detach().float().numpy())
