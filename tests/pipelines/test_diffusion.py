"""The picture pipeline against diffusers' own, on tiny random weights: same noise, same picture."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from PIL import Image

import opsmith
from opsmith import starter
from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures
from opsmith.pipelines.diffusion import Cancelled, DiffusionApp
from opsmith.pipelines.diffusion.loop import Loop

CLASSES = {
    "ddim": "DDIMScheduler",
    "pndm": "PNDMScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler_a": "EulerAncestralDiscreteScheduler",
    "dpm++": "DPMSolverMultistepScheduler",
    "dpm++_sde": "DPMSolverMultistepScheduler",
    "heun": "HeunDiscreteScheduler",
    "unipc": "UniPCMultistepScheduler",
    "lcm": "LCMScheduler",
}
SETTINGS = {"dpm++_sde": {"algorithm_type": "sde-dpmsolver++"}}


@functools.cache
def app() -> DiffusionApp:
    return DiffusionApp(models.tiny_pipeline("dynamo"), threads=1)


def reference(
    kind: str = "StableDiffusionPipeline", name: str = "stable-diffusion", scheduler: str | None = None
) -> Any:
    import diffusers

    pipe = getattr(diffusers, kind).from_pretrained(models.tiny_source(name), safety_checker=None)
    pipe.set_progress_bar_config(disable=True)
    if scheduler is not None:
        config = {**pipe.scheduler.config, **SETTINGS.get(scheduler, {})}
        pipe.scheduler = getattr(diffusers, CLASSES[scheduler]).from_config(config)
    return pipe


def torch_seed(seed: int) -> Any:
    import torch

    return torch.Generator("cpu").manual_seed(seed)


def picture(seed: int = 0, size: tuple[int, int] = (32, 32)) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 255, (4, 4, 3)).astype(np.uint8)
    return Image.fromarray(values).resize(size, Image.Resampling.BILINEAR)


def box_mask(size: tuple[int, int] = (32, 32)) -> Image.Image:
    mask = np.zeros((size[1], size[0]), np.uint8)
    mask[8:24, 8:20] = 255
    return Image.fromarray(mask)


def apart(a: Image.Image, b: Image.Image) -> float:
    return pictures.psnr(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("guidance", [1.0, 5.0])
def test_the_picture_is_that_of_diffusers(guidance: float) -> None:
    expected = reference()(
        "a red apple", negative_prompt="blue", num_inference_steps=5, guidance_scale=guidance, generator=torch_seed(3)
    ).images[0]
    made = app().generate("a red apple", "blue", steps=5, guidance=guidance, seed=3, torch_noise=True)
    assert made.images[0].size == (32, 32)
    assert np.asarray(expected).std() > 5  # not a grey field, on which anything would agree
    assert apart(made.images[0], expected) >= 45


@pytest.mark.parametrize("scheduler", CLASSES)
def test_latents_after_ten_steps_are_those_of_diffusers(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = reference(scheduler=scheduler)(
        "a red apple", num_inference_steps=10, guidance_scale=3.0, generator=torch_seed(1), output_type="latent"
    ).images
    kept: list[np.ndarray[Any, Any]] = []
    real = Loop.denoise

    def keep(self: Loop, *args: Any) -> Any:
        kept.append(real(self, *args))
        return kept[-1]

    monkeypatch.setattr(Loop, "denoise", keep)
    app().generate("a red apple", steps=10, guidance=3.0, seed=1, scheduler=scheduler, torch_noise=True)
    assert float(np.abs(kept[0] - expected.numpy()).max()) <= 1e-4


@pytest.mark.parametrize(
    "theirs, ours",
    [
        ({"eta": 0.6}, {"scheduler": "ddim", "eta": 0.6}),
        ({"guidance_rescale": 0.7}, {"scheduler": "ddim", "guidance_rescale": 0.7}),
    ],
)
def test_settings_of_diffusers_do_what_they_do_there(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    plain = {"guidance_scale": 6.0, "num_inference_steps": 4}
    pipe = reference(scheduler="ddim")
    expected, without = (
        pipe("a red apple", generator=torch_seed(1), **plain, **given).images[0] for given in (theirs, {})
    )
    made = app().generate("a red apple", steps=4, guidance=6.0, seed=1, torch_noise=True, **ours)
    assert apart(made.images[0], expected) >= 45
    assert apart(expected, without) < 45
    assert {k: made.settings[0][k] for k in ours} == ours


@pytest.mark.parametrize("scheduler, steps", [("ddim", 3), ("heun", 5)])
def test_picture_to_picture_is_that_of_diffusers(scheduler: str, steps: int) -> None:
    init = picture()
    expected = reference("StableDiffusionImg2ImgPipeline", scheduler=scheduler)(
        "a pear", image=init, strength=0.6, num_inference_steps=5, guidance_scale=4.0, generator=torch_seed(2)
    ).images[0]
    made = app().generate(
        "a pear", init=init, strength=0.6, steps=5, guidance=4.0, seed=2, scheduler=scheduler, torch_noise=True
    )
    assert len(made.step_seconds) == steps
    assert apart(made.images[0], expected) >= 45


@pytest.mark.parametrize(("channels", "strength", "steps"), [(4, 1.0, 4), (9, 1.0, 4), (4, 0.6, 2), (9, 0.6, 2)])
def test_inpainting_is_that_of_diffusers(channels: int, strength: float, steps: int) -> None:
    init, mask = picture(1), box_mask()
    name = "stable-diffusion-inpainting" if channels == 9 else "stable-diffusion"
    expected = reference("StableDiffusionInpaintPipeline", name, "ddim")(
        "a pear",
        image=init,
        mask_image=mask,
        height=32,
        width=32,
        strength=strength,
        num_inference_steps=4,
        guidance_scale=4.0,
        generator=torch_seed(2),
    ).images[0]
    ours = DiffusionApp(models.tiny_pipeline("dynamo", inpainting=True), threads=1) if channels == 9 else app()
    told = {"steps": 4, "guidance": 4.0, "seed": 2, "scheduler": "ddim", "torch_noise": True}
    made = ours.generate("a pear", init=init, mask=mask, strength=strength, **told)
    assert len(made.step_seconds) == steps
    assert apart(made.images[0], expected) >= 45


def test_the_same_seed_gives_the_same_picture_in_any_batch() -> None:
    one = app().generate("a cat", steps=3, seed=5, n=3, batch=1, scheduler="euler_a")
    two = app().generate("a cat", steps=3, seed=5, n=3, batch=3, scheduler="euler_a")
    for a, b in zip(one.images, two.images):
        assert apart(a, b) >= 45
    assert apart(one.images[0], one.images[1]) < 40
    again = app().generate("a cat", steps=3, seed=5, scheduler="euler_a")
    assert again.images[0].tobytes() == one.images[0].tobytes()


def test_other_sizes_need_no_rebuilding() -> None:
    for width, height in ((24, 32), (48, 16), (40, 40)):
        made = app().generate("a cat", steps=2, width=width, height=height)
        assert made.images[0].size == (width, height)


def test_components_are_loaded_late_and_released() -> None:
    own = DiffusionApp(models.tiny_pipeline("dynamo"), threads=1, low_memory=True)
    assert own.parts.sessions == {}
    first = own.generate("a cat", steps=2)
    assert own.parts.sessions == {}
    assert first.images[0].tobytes() == app().generate("a cat", steps=2).images[0].tobytes()


def test_previews_and_cancelling() -> None:
    seen: list[tuple[int, int, tuple[int, int]]] = []

    def stop(step: int, total: int, preview: Any) -> bool:
        seen.append((step, total, preview().size))
        return step < 2

    with pytest.raises(Cancelled):
        app().generate("a cat", steps=4, scheduler="ddim", callback=stop)
    assert seen == [(1, 4, (32, 32)), (2, 4, (32, 32))]


def test_settings_travel_in_the_png(tmp_path: Path) -> None:
    made = app().generate("ein Apfel: \u00e4\u00f6", steps=2, seed=9)
    path = pictures.save(made.images[0], tmp_path / "a.png", made.settings[0])
    found = pictures.settings_of(path)
    assert found["prompt"] == "ein Apfel: \u00e4\u00f6"
    assert (found["seed"], found["steps"]) == (9, 2)
    assert found["variants"]["unet"] == "dynamo"
    assert len(found["model_hashes"]["unet"]) == 16


def test_tokens_are_those_of_transformers() -> None:
    from transformers import CLIPTokenizer

    theirs = CLIPTokenizer.from_pretrained(models.tiny_source("stable-diffusion") / "tokenizer")
    for text in ("A red Apple", "it's 12 o'clock,  now!", "", "caf\u00e9 \u2013 na\u00efve"):
        assert app().tokenizer.padded(text, 77)[0] == theirs(text, padding="max_length", max_length=77).input_ids


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 30}, "multiples of 8"),
        ({"height": 0}, "multiples of 8"),
        ({"steps": 0}, "0 steps"),
        ({"guidance": float("nan")}, "guidance"),
        ({"seed": -1}, "negative"),
        ({"n": 0}, "0 pictures"),
        ({"scheduler": "magic"}, "magic"),
        ({"mask": box_mask()}, "needs a picture"),
        ({"init": picture(), "mask": box_mask((24, 32))}, "the mask is 24x32"),
        ({"init": picture(), "strength": 0.0}, "strength"),
        ({"width": 8_000_000, "height": 8_000_000}, "GiB"),
    ],
)
def test_bad_input_is_one_clear_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OpsmithError, match=words):
        app().generate("a cat", **{"steps": 2, **options})


def test_a_missing_component_is_named(tmp_path: Path) -> None:
    copy = tmp_path / "sd"
    shutil.copytree(models.tiny_pipeline("dynamo"), copy)
    shutil.rmtree(copy / "vae_encoder")
    with pytest.raises(OpsmithError, match="no vae_encoder"):
        DiffusionApp(copy).generate("a cat", init=picture(), steps=2)
    shutil.rmtree(copy / "unet")
    with pytest.raises(OpsmithError, match="has no unet"):
        DiffusionApp(copy)
    with pytest.raises(OpsmithError, match="does not exist"):
        DiffusionApp(tmp_path / "nowhere")


@pytest.mark.slow
def test_compiled_variants_give_the_same_picture(tmp_path: Path) -> None:
    copy = tmp_path / "sd"
    shutil.copytree(models.tiny_pipeline("dynamo"), copy)
    for name in ("text_encoder", "unet", "vae_decoder"):
        opsmith.compile(copy / name / "dynamo", copy / name / "dynamo_compiled", regions="all")
    compiled = DiffusionApp(copy, threads=1)
    assert compiled.variants["unet"] == "dynamo_compiled"
    expected = reference()("a red apple", num_inference_steps=5, guidance_scale=5.0, generator=torch_seed(3)).images[0]
    made = compiled.generate("a red apple", steps=5, guidance=5.0, seed=3, torch_noise=True)
    assert apart(made.images[0], expected) >= 45
    for width, height in ((24, 32), (48, 16)):
        stock = app().generate("a cat", steps=2, width=width, height=height).images[0]
        assert apart(compiled.generate("a cat", steps=2, width=width, height=height).images[0], stock) >= 45


def test_the_command_writes_numbered_pngs_and_nothing_for_bad_input(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from opsmith.cli import build_app

    def run(*options: str) -> Any:
        arguments = ["imagine", "a cat", "-m", str(models.tiny_pipeline("dynamo")), "-o", str(tmp_path / "o.png")]
        return CliRunner().invoke(build_app(), [*arguments, "--steps", "2", "--threads", "1", *options])

    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    for options in (
        ["--width", "33"],
        ["--init", str(broken)],
        ["--mask", str(tmp_path / "none.png")],
        ["--steps", "0"],
    ):
        failed = run(*options)
        assert isinstance(failed.exception, OpsmithError) or failed.exit_code == 2
        assert {p.name for p in tmp_path.iterdir()} == {"broken.png"}
    assert run("--n", "2").exit_code == 0
    assert {p.name for p in tmp_path.iterdir()} == {"broken.png", "o_0.png", "o_1.png"}
    assert pictures.settings_of(tmp_path / "o_1.png")["index"] == 1


def test_a_copy_of_the_starter_pipeline_has_its_guidance(tmp_path):
    shutil.copytree(starter.folder("pictures"), tmp_path / "copy")
    made = DiffusionApp(tmp_path / "copy").generate("a frog", steps=1)
    assert made.settings[0]["guidance"] == DiffusionApp(starter.folder("pictures")).guidance == 2.0
