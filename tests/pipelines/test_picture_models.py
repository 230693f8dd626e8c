"""SDXL, Turbo, LCM and tiny autoencoders against diffusers' own pipelines: same noise, same picture."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from PIL import Image

from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures
from opsmith.pipelines.diffusion import DiffusionApp


@functools.cache
def app(name: str) -> DiffusionApp:
    return DiffusionApp(models.tiny_model(name), threads=1)


def reference(kind: str, name: str, scheduler: str | None = None, **options: Any) -> Any:
    import diffusers

    pipe = getattr(diffusers, kind).from_pretrained(models.tiny_source(name))
    pipe.set_progress_bar_config(disable=True)
    if scheduler is not None:
        pipe.scheduler = getattr(diffusers, scheduler).from_config(pipe.scheduler.config, **options)
    return pipe


def noise(seed: int) -> Any:
    import torch

    return torch.Generator("cpu").manual_seed(seed)


def same(ours: Image.Image, theirs: Image.Image) -> bool:
    assert np.asarray(theirs).std() > 5  # not a grey field, on which anything would agree
    return pictures.psnr(np.asarray(ours), np.asarray(theirs)) >= 45


@pytest.mark.parametrize("negative", ["", "blue"])
def test_an_xl_picture_is_that_of_diffusers(negative: str) -> None:
    told = {"negative_prompt": negative} if negative else {}  # without one XL takes zeros
    expected = reference("StableDiffusionXLPipeline", "sdxl")(
        "a red apple", num_inference_steps=4, generator=noise(3), width=24, **told
    )
    made = app("sdxl").generate("a red apple", negative, steps=4, seed=3, width=24, torch_noise=True)
    assert made.settings[0]["guidance"] == 5.0
    assert same(made.images[0], expected.images[0])


@pytest.mark.parametrize("scheduler", ["EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_turbo_picture_is_that_of_diffusers(scheduler: str, steps: int, tmp_path: Path) -> None:
    """Turbo models are SD and SDXL with timesteps from the end and without guidance."""
    pipe = reference("StableDiffusionXLPipeline", "sdxl", scheduler, timestep_spacing="trailing")
    expected = pipe("a red apple", num_inference_steps=steps, guidance_scale=0.0, generator=noise(3)).images[0]
    turbo = linked(models.tiny_model("sdxl"), tmp_path / "turbo", but="scheduler")
    pipe.scheduler.save_pretrained(turbo / "scheduler")
    made = DiffusionApp(turbo, threads=1).generate("a red apple", steps=steps, guidance=0.0, seed=3, torch_noise=True)
    assert same(made.images[0], expected)


def test_a_consistency_model_has_its_guidance_as_an_input() -> None:
    pipe = reference("LatentConsistencyModelPipeline", "lcm", "LCMScheduler")
    pictures_by_guidance = []
    for guidance in (8.5, 2.0):
        expected = pipe("a red apple", num_inference_steps=4, guidance_scale=guidance, generator=noise(3)).images[0]
        told = {} if guidance == 8.5 else {"guidance": guidance}  # 8.5 is the default
        made = app("lcm").generate("a red apple", steps=4, seed=3, scheduler="lcm", torch_noise=True, **told)
        assert same(made.images[0], expected)
        pictures_by_guidance.append(made.images[0])
    assert pictures.psnr(*(np.asarray(p) for p in pictures_by_guidance)) < 40


def test_another_autoencoder_by_choice() -> None:
    import diffusers

    pipe = reference("StableDiffusionImg2ImgPipeline", "lcm", "DDIMScheduler")
    pipe.vae = diffusers.AutoencoderTiny.from_pretrained(models.tiny_source("taesd"))
    start = Image.fromarray(np.random.default_rng(0).integers(0, 255, (4, 4, 3)).astype(np.uint8)).resize((32, 32))
    expected = pipe("a pear", image=start, strength=0.5, num_inference_steps=4, generator=noise(2)).images[0]
    tiny = DiffusionApp(models.tiny_model("lcm"), vae=models.tiny_model("taesd"), threads=1)
    options = {"steps": 4, "guidance": 7.5, "seed": 2, "scheduler": "ddim", "torch_noise": True}
    made = tiny.generate("a pear", init=start, strength=0.5, **options)
    assert same(made.images[0], expected)
    assert (made.settings[0]["vae"], made.settings[0]["variants"]["vae_decoder"]) == ("tiny-taesd", "dynamo")


def test_an_autoencoder_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    other = linked(models.tiny_model("taesd"), tmp_path / "other", but="vae_decoder")
    shutil.copytree(models.tiny_model("taesd") / "vae_decoder", other / "vae_decoder")
    config = other / "vae_decoder" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"latent_channels": 16}), encoding="utf-8")
    with pytest.raises(OpsmithError, match="latents of 16 channels, the pipeline's own 4"):
        DiffusionApp(models.tiny_model("lcm"), vae=other)
    with pytest.raises(OpsmithError, match="has no vae_decoder"):
        DiffusionApp(models.tiny_model("lcm"), vae=tmp_path)


def linked(source: Path, target: Path, but: str) -> Path:
    """A folder of links to what SOURCE holds, except one."""
    target.mkdir()
    for entry in source.iterdir():
        if entry.name != but:
            (target / entry.name).symlink_to(entry)
    return target


def drawing(seed: int) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 255, (4, 4, 3)).astype(np.uint8)
    return Image.fromarray(values).resize((32, 32), Image.Resampling.BILINEAR)


@pytest.mark.parametrize(("guess", "guidance"), [(False, 4.0), (True, 4.0), (True, 1.0)])
def test_controlnets_steer_as_in_diffusers(guess: bool, guidance: float) -> None:
    follow, scales = [drawing(1), drawing(2)], [0.9, 0.5]
    pipe = reference("StableDiffusionControlNetPipeline", "controlled", "DDIMScheduler")
    expected = pipe(
        "a pear",
        image=follow,
        controlnet_conditioning_scale=scales,
        guess_mode=guess,
        guidance_scale=guidance,
        num_inference_steps=3,
        generator=noise(2),
    ).images[0]
    options: dict[str, Any] = {"steps": 3, "guidance": guidance, "seed": 2, "scheduler": "ddim", "torch_noise": True}
    controlled = app("controlled")
    made = controlled.generate("a pear", control=follow, control_scale=scales, guess=guess, **options)
    assert same(made.images[0], expected)
    free = controlled.generate("a pear", control=follow, control_scale=0.0, **options)
    assert not same(free.images[0], expected)


def test_controls_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OpsmithError, match="has 2 ControlNets, 1 pictures"):
        app("controlled").generate("a pear", control=drawing(0))
    with pytest.raises(OpsmithError, match="has no controlnet"):
        app("lcm").generate("a pear", control=drawing(0))
    with pytest.raises(OpsmithError, match="2 pictures to follow, 1 scales"):
        app("controlled").generate("a pear", control=[drawing(0)] * 2, control_scale=[1.0])


def test_clip_skip_of_xl_is_that_of_diffusers() -> None:
    pipe = reference("StableDiffusionXLPipeline", "sdxl")
    told = {"num_inference_steps": 3, "guidance_scale": 4.0}
    expected = pipe("a red apple", generator=noise(3), clip_skip=1, **told).images[0]
    made = app("sdxl")("a red apple", seed=3, torch_noise=True, clip_skip=1, **told)
    assert same(made.images[0], expected)


def _refiner(folder: Path) -> None:
    """XL's refiner: the second text encoder alone, a score instead of the last size."""
    shutil.copytree(models.tiny_source("sdxl"), folder, ignore=lambda *_: {"text_encoder", "tokenizer", "unet"})
    import diffusers

    size = {"cross_attention_dim": 64, "projection_class_embeddings_input_dim": 32 + 5 * 8}
    config = json.loads((models.tiny_source("sdxl") / "unet" / "config.json").read_text())
    made = diffusers.UNet2DConditionModel.from_config(config | size)
    models._lively(made, 1.0).save_pretrained(folder / "unet")
    index = json.loads((folder / "model_index.json").read_text())
    index |= {"_class_name": "StableDiffusionXLImg2ImgPipeline", "requires_aesthetics_score": True}
    index |= {"text_encoder": [None, None], "tokenizer": [None, None], "force_zeros_for_empty_prompt": False}
    (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")


@pytest.mark.slow
def test_a_refined_picture_is_that_of_diffusers() -> None:
    import diffusers

    import opsmith

    source = models._once("source/tiny-refiner", _refiner)
    exported = models._once("dynamo/tiny-refiner", lambda folder: opsmith.export(source, folder) and None)
    pipe = diffusers.StableDiffusionXLImg2ImgPipeline.from_pretrained(source)
    pipe.set_progress_bar_config(disable=True)
    start = drawing(3)
    told = {"strength": 0.5, "num_inference_steps": 4, "guidance_scale": 4.0, "negative_prompt": "blue"}
    expected = pipe("a pear", image=start, generator=noise(2), **told).images[0]
    made = DiffusionApp(exported, threads=1)("a pear", image=start, seed=2, torch_noise=True, **told)
    assert same(made.images[0], expected)


def test_a_controlnet_of_another_base_is_refused(tmp_path: Path) -> None:
    other = linked(models.tiny_model("controlled"), tmp_path / "other", but="controlnet_1")
    net = linked(models.tiny_model("controlled") / "controlnet_1", other / "controlnet_1", but="config.json")
    config = json.loads((models.tiny_model("controlled") / "controlnet_1" / "config.json").read_text())
    (net / "config.json").write_text(json.dumps(config | {"cross_attention_dim": 1024}), encoding="utf-8")
    with pytest.raises(OpsmithError, match="controlnet_1 does not fit: its cross_attention_dim is 1024, the UNet's 64"):
        DiffusionApp(other)
    free = linked(models.tiny_pipeline("dynamo"), tmp_path / "free", but="none")
    (free / "controlnet").symlink_to(models.tiny_model("controlled") / "controlnet")
    with pytest.raises(OpsmithError, match="the UNet takes no controlnet"):
        DiffusionApp(free)
