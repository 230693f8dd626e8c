"""LoRAs against diffusers' own (peft), from the same noise: both key styles, stock and compiled; off again: the same bytes."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from live_pipeline import pipeline
from PIL import Image
from safetensors.numpy import load_file, save_file

import opsmith
from opsmith.errors import OpsmithError
from opsmith.pipelines import lora, pictures
from opsmith.pipelines.diffusion import DiffusionApp

TARGETS = ["to_q", "to_k", "to_v", "to_out.0", "proj_in", "ff.net.0.proj", "conv1", "time_emb_proj"]
STEPS = {"guidance": 4.0, "steps": 3, "seed": 4, "torch_noise": True}


@functools.cache
def files(folder: Path) -> dict[str, Path]:
    """One LoRA of random numbers, as diffusers saves it and as kohya's scripts would; and a second one."""
    return {
        "diffusers": _save(folder / "diffusers", 0),
        "kohya": _kohya(_save(folder / "for_kohya", 0), folder / "kohya.safetensors"),
        "second": _save(folder / "second", 1),
    }


def _save(folder: Path, seed: int) -> Path:
    import torch
    from diffusers import StableDiffusionPipeline
    from peft import LoraConfig, get_peft_model_state_dict

    pipe = pipeline()
    torch.manual_seed(seed)
    config = {"r": 3, "lora_alpha": 6, "init_lora_weights": "gaussian"}
    pipe.unet.add_adapter(LoraConfig(**config, target_modules=TARGETS))
    pipe.text_encoder.add_adapter(LoraConfig(**config, target_modules=["q_proj", "v_proj", "out_proj", "fc1"]))
    states = []
    for part in (pipe.unet, pipe.text_encoder):
        for name, weight in part.named_parameters():
            if "lora_B" in name:  # which begin as zeros
                torch.nn.init.normal_(weight, std=0.08)
        states.append(get_peft_model_state_dict(part))
    StableDiffusionPipeline.save_lora_weights(
        folder,
        unet_lora_layers=states[0],
        text_encoder_lora_layers=states[1],
        unet_lora_adapter_metadata=pipe.unet.peft_config["default"].to_dict(),
        text_encoder_lora_adapter_metadata=pipe.text_encoder.peft_config["default"].to_dict(),
    )
    (file,) = folder.glob("*.safetensors")
    return file


def _kohya(file: Path, target: Path) -> Path:
    tensors = {}
    for key, array in load_file(file).items():
        layer, half = key.removesuffix(".weight").rsplit(".", 1)
        component, _, name = layer.partition(".")
        text = component != "unet"
        name = f"text_model.{name.removeprefix('text_model.')}" if text else name
        plain = f"{'lora_te' if text else 'lora_unet'}_{name.replace('.', '_')}"
        tensors[f"{plain}.{'lora_down' if half in ('lora_A', 'down') else 'lora_up'}.weight"] = array
        tensors[f"{plain}.alpha"] = np.array(6.0, np.float32)
    save_file(tensors, target)
    return target


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return files(tmp_path_factory.mktemp("loras"))


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DiffusionApp]:
    """The same pipeline on stock ONNX Runtime, and with UNet and text encoder compiled."""
    home = tmp_path_factory.mktemp("pipeline") / "sd"
    shutil.copytree(models.tiny_pipeline("dynamo"), home)
    for name in ("unet", "text_encoder"):
        opsmith.compile(home / name / "dynamo", home / name / "dynamo_compiled", regions="all")
    plain = {"text_encoder": "dynamo", "unet": "dynamo", "vae_decoder": "dynamo"}
    compiled = plain | {"text_encoder": "dynamo_compiled", "unet": "dynamo_compiled"}
    return {k: DiffusionApp(home, variant=v, threads=1) for k, v in (("stock", plain), ("compiled", compiled))}


def ours(app: DiffusionApp) -> Image.Image:
    return app.generate("a red apple", **STEPS).images[0]


def theirs(*loras: tuple[Path, float]) -> Image.Image:
    import torch

    pipe = pipeline()
    for i, (file, _) in enumerate(loras):
        pipe.load_lora_weights(file.parent, weight_name=file.name, adapter_name=f"l{i}")
    if loras:
        pipe.set_adapters([f"l{i}" for i in range(len(loras))], [scale for _, scale in loras])
    generator = torch.Generator("cpu").manual_seed(4)
    return pipe("a red apple", num_inference_steps=3, guidance_scale=4.0, generator=generator).images[0]


def apart(a: Image.Image, b: Image.Image) -> float:
    return pictures.psnr(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("kind", ["stock", "compiled"])
@pytest.mark.parametrize("style", ["diffusers", "kohya"])
def test_the_picture_is_that_of_diffusers_and_off_is_off(
    apps: dict[str, DiffusionApp], made: dict[str, Path], kind: str, style: str
) -> None:
    app = apps[kind]
    before = ours(app)
    name = app.load_lora(made[style], 0.7)
    expected = theirs((made[style], 0.7))
    assert apart(ours(app), expected) >= 45
    assert apart(before, expected) < 35  # it does something
    app.set_scale(name, 0.0)
    assert ours(app).tobytes() == before.tobytes()
    app.set_scale(name, 1.0)
    assert apart(ours(app), theirs((made[style], 1.0))) >= 45
    app.unload(name)
    assert ours(app).tobytes() == before.tobytes()


@pytest.mark.parametrize("kind", ["stock", "compiled"])
def test_several_at_once(apps: dict[str, DiffusionApp], made: dict[str, Path], kind: str) -> None:
    app = apps[kind]
    app.load_lora(made["diffusers"], 0.5, "one")
    app.load_lora(made["second"], 0.8, "two")
    picture = app.generate("a red apple", **STEPS)
    assert apart(picture.images[0], theirs((made["diffusers"], 0.5), (made["second"], 0.8))) >= 45
    assert [(a["name"], a["scale"]) for a in picture.settings[0]["loras"]] == [("one", 0.5), ("two", 0.8)]
    with pytest.raises(OpsmithError, match="'one' is on already"):
        app.load_lora(made["diffusers"], name="one")
    app.unload()
    assert app.generate("a red apple", **STEPS).settings[0]["loras"] == []


def edited(made: dict[str, Path], folder: Path, change: Any) -> Path:
    tensors = load_file(made["kohya"])
    change(tensors)
    save_file(tensors, folder / "edited.safetensors")
    return folder / "edited.safetensors"


FIRST = "lora_unet_down_blocks_0_attentions_0_proj_in"
WRONG = {
    "a layer that is not there": (
        lambda t: [
            t.__setitem__(f"lora_unet_nowhere.{h}.weight", np.ones((2, 2), np.float32))
            for h in ("lora_down", "lora_up")
        ],
        r"the unet has no layer for lora_unet_nowhere\.lora_(down|up)\.weight",
    ),
    "another size": (
        lambda t: t.__setitem__(f"{FIRST}.lora_down.weight", np.ones((3, 5, 1, 1), np.float32)),
        rf"{FIRST}.*gives \[32, 5, 1, 1\], the unet's layer is \[32, 32, 1, 1\]",
    ),
    "half of it": (lambda t: t.pop(f"{FIRST}.lora_up.weight"), rf"{FIRST}\.lora_down\.weight has no up"),
    "another kind": (
        lambda t: t.__setitem__("lora_unet_x.hada_w1_a", np.ones(2, np.float32)),
        "hada_w1_a is not of a LoRA",
    ),
    "another encoder": (
        lambda t: [
            t.__setitem__(f"lora_te2_x.{h}.weight", np.ones((2, 2), np.float32)) for h in ("lora_down", "lora_up")
        ],
        "the pipeline has no text_encoder_2 for lora_te2_x",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_named_and_changes_nothing(
    apps: dict[str, DiffusionApp], made: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    change, message = WRONG[kind]
    with pytest.raises(OpsmithError, match=message):
        apps["stock"].load_lora(edited(made, tmp_path, change))
    assert not apps["stock"].adapters.on


def test_files_that_are_no_loras(apps: dict[str, DiffusionApp], tmp_path: Path) -> None:
    app = apps["stock"]
    with pytest.raises(OpsmithError, match="does not exist"):
        app.load_lora(tmp_path / "none.safetensors")
    (tmp_path / "a.bin").write_bytes(b"x")
    with pytest.raises(OpsmithError, match="not a .safetensors"):
        app.load_lora(tmp_path / "a.bin")
    (tmp_path / "a.safetensors").write_bytes(b"nonsense")
    with pytest.raises(OpsmithError, match="cannot be read"):
        app.load_lora(tmp_path / "a.safetensors")
    with pytest.raises(OpsmithError, match="no LoRA 'x' is on"):
        app.unload("x")


def test_the_older_keys_of_diffusers_name_the_same_layers() -> None:
    block = "unet.mid_block.attentions.0.transformer_blocks.0.attn1"
    assert lora._place(f"{block}.processor.to_out".removesuffix("x")) == ("unet", f"{block[5:]}.to_out.0")
    assert lora._place("text_encoder.text_model.encoder.layers.0.mlp.fc1") == (
        "text_encoder",
        "text_model.encoder.layers.0.mlp.fc1",
    )
