"""A live diffusers pipeline on compiled components: the same picture; restored: the very same bytes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest
from live_pipeline import picture, pipeline

import opsmith
from opsmith import content
from opsmith.errors import OpsmithError
from opsmith.pipelines import homes, pictures


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder for all tests here; what is exported is taken from the tests' own cache."""
    exported = models.tiny_pipeline("dynamo")  # before the patch: making it exports

    def export(source: Any, dest: Any, **_: Any) -> None:
        shutil.copytree(exported, dest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(opsmith), "export", export)
        yield tmp_path_factory.mktemp("accelerated")


def test_the_same_picture_then_the_same_bytes(ready: Path) -> None:
    import torch

    pipe = pipeline()
    before = picture(pipe)
    assert opsmith.accelerate(pipe, folder=ready, regions="all", threads=1) is pipe
    assert "forward" in vars(pipe.unet)
    assert pictures.psnr(picture(pipe), before) >= 45
    with pytest.warns(UserWarning, match="text_encoder does not take output_attentions"):
        pipe.text_encoder(torch.arange(77)[None], output_attentions=True)
    opsmith.restore(pipe)
    assert not {"forward", "decode"} & {*vars(pipe.unet), *vars(pipe.vae), *vars(pipe.text_encoder)}
    assert picture(pipe).tobytes() == before.tobytes()


def test_outputs_come_in_the_same_classes(ready: Path) -> None:
    import torch

    pipe = pipeline()
    sample, states = torch.randn(2, 4, 8, 8), torch.randn(2, 77, 64)
    ids = torch.arange(77)[None]
    before = pipe.unet(sample, 5, states), pipe.vae.decode(sample), pipe.text_encoder(ids)
    layers = pipe.text_encoder(ids, output_hidden_states=True).hidden_states
    opsmith.accelerate(pipe, folder=ready, regions="all", threads=1)
    after = pipe.unet(sample, 5, states), pipe.vae.decode(sample), pipe.text_encoder(ids)
    for a, b in zip(after, before):
        assert type(a) is type(b)
        assert torch.allclose(a[0], b[0], atol=1e-3)
    states_now = pipe.text_encoder(ids, output_hidden_states=True).hidden_states
    assert len(states_now) == len(layers)
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(states_now, layers))
    assert torch.equal(pipe.unet(sample, 5, states, return_dict=False)[0], after[0].sample)


def test_other_weights_get_another_key() -> None:
    import torch

    from opsmith.pipelines.accelerate import _keys

    pipe = pipeline()
    parts = {"unet": pipe.unet}
    first = _keys(parts)
    assert first == _keys(parts) == {"unet": content.key_of_folder(models.tiny_source("stable-diffusion") / "unet")}
    with torch.no_grad():
        next(pipe.unet.parameters()).view(-1)[0] += 1
    assert _keys(parts) != first


CHANGES = {
    "in place": lambda torch, w: w.mul_(2),
    "behind torch's counters": lambda torch, w: w.data.mul_(2),
    "another tensor": lambda torch, w: setattr(w, "data", w.data * 2),
    "one number": lambda torch, w: w.view(-1)[7].add_(1),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_weights_that_change_afterwards_are_never_ignored(ready: Path, kind: str) -> None:
    import torch

    pipe = pipeline()
    sample, states = torch.randn(2, 4, 8, 8), torch.randn(2, 77, 64)
    opsmith.accelerate(pipe, folder=ready, regions="all", threads=1)
    stale = pipe.unet(sample, 5, states).sample
    with torch.no_grad():
        CHANGES[kind](torch, pipe.unet.conv_in.weight)
    with pytest.warns(UserWarning, match="the weights of UNet2DConditionModel changed"):
        now = pipe.unet(sample, 5, states).sample
    opsmith.restore(pipe)
    assert torch.equal(now, pipe.unet(sample, 5, states).sample)
    assert not torch.allclose(now, stale, atol=1e-4)


def test_a_pipeline_without_unet_is_refused() -> None:
    with pytest.raises(OpsmithError, match="no text_encoder"):
        opsmith.accelerate(object())


def test_one_call_gives_a_picture(ready: Path) -> None:
    opsmith.accelerate(pipeline(), folder=ready, regions="all", threads=1)
    (made,) = [home for home in ready.iterdir() if not (home / "unet").is_symlink()]
    app = opsmith.create_stable_diffusion(made, height=32, width=24, regions="all", threads=1)
    assert {app.variants[name] for name in ("text_encoder", "unet", "vae_decoder")} == {"dynamo_compiled"}
    assert app.generate_image("a cat", "a dog", steps=2)[0].size == (24, 32)
    with pytest.raises(OpsmithError, match="compiled where it is"):
        opsmith.create_stable_diffusion(made, folder=ready / "elsewhere")


def test_what_is_there_is_not_made_again(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opsmith.accelerate(pipeline(), folder=ready, regions="all", threads=1)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setitem(vars(opsmith), "compile", never)
    opsmith.accelerate(pipeline(), folder=ready, regions="all", threads=1)


def test_one_cache_by_content(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `accelerate` made `create_stable_diffusion` takes, with the source's own scheduler and tokenizer."""
    opsmith.accelerate(pipeline(), folder=ready, regions="all", threads=1)
    monkeypatch.setattr(homes, "cache", lambda: ready)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("made again")

    monkeypatch.setitem(vars(opsmith), "export", never)
    app = opsmith.create_stable_diffusion(models.tiny_source("stable-diffusion"), regions="all", threads=1)
    assert app.variants["unet"] == "dynamo_compiled"
    assert app.generate_image("a cat", steps=2)[0].size == (32, 32)
    opsmith.accelerate(pipeline(), regions="all", threads=1)  # and the other way round


@pytest.mark.parametrize("name", ["sdxl", "controlled"])
def test_xl_and_controlnets_are_swapped_whole(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the exported components; compiling them is the same as above."""
    import warnings

    import diffusers
    from PIL import Image

    exported = models.tiny_model(name)
    monkeypatch.setitem(vars(opsmith), "export", lambda source, dest: shutil.copytree(exported, dest))
    monkeypatch.setattr("opsmith.pipelines.accelerate.compile_components", lambda *_, **__: None)
    kind = {"sdxl": "StableDiffusionXLPipeline", "controlled": "StableDiffusionControlNetPipeline"}[name]
    pipe = getattr(diffusers, kind).from_pretrained(models.tiny_source(name))
    pipe.set_progress_bar_config(disable=True)
    gray = Image.linear_gradient("L").resize((32, 32)).convert("RGB")
    options = {"image": [gray, gray], "guess_mode": True} if name == "controlled" else {}
    before = picture(pipe, **options)
    opsmith.accelerate(pipe, folder=tmp_path, threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # nothing went to the original
        assert pictures.psnr(picture(pipe, **options), before) >= 45
    opsmith.restore(pipe)
    assert picture(pipe, **options).tobytes() == before.tobytes()
