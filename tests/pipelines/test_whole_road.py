"""accelerate and create_stable_diffusion from end to end: nothing is replaced, everything is exported and compiled here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from live_pipeline import picture, pipeline

import opsmith
from opsmith import settings
from opsmith.pipelines import pictures

pytestmark = pytest.mark.slow


def test_a_live_pipeline_goes_the_whole_road(tmp_path: Path) -> None:
    """The live weights are saved, exported, compiled and swapped in; restored, the very same bytes come back."""
    import torch

    pipe = pipeline()
    with torch.no_grad():
        for weight in pipe.unet.parameters():  # no folder holds these
            weight.mul_(1.1)
    before = picture(pipe)
    assert before.std() > 5
    opsmith.accelerate(pipe, folder=tmp_path, threads=1)
    kept = {name: value.clone() for name, value in pipe.unet.state_dict().items()}
    with torch.no_grad():
        for weight in pipe.unet.parameters():  # plays no part now
            weight.zero_()
    assert pictures.psnr(picture(pipe), before) >= 45
    pipe.unet.load_state_dict(kept)
    opsmith.restore(pipe)
    assert picture(pipe).tobytes() == before.tobytes()
    (home,) = tmp_path.iterdir()
    for name in ("text_encoder", "unet", "vae_decoder"):
        assert {"dynamo", "dynamo_compiled"} <= {folder.name for folder in (home / name).iterdir()}


def test_one_call_from_a_folder_of_diffusers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Export, compile and run behind one call, kept in the cache; the second call makes nothing."""
    real = settings.cache_folder
    monkeypatch.setattr(settings, "cache_folder", lambda name: tmp_path if name == "pipelines" else real(name))
    source = models.tiny_source("stable-diffusion")
    app = opsmith.create_stable_diffusion(source, height=32, width=24, search=0, threads=1)
    assert app.variants == dict.fromkeys(("text_encoder", "unet", "vae_decoder", "vae_encoder"), "dynamo_compiled")
    made = app.generate_image("a red apple", "blue", steps=4, guidance=4.0, seed=4, torch_noise=True)[0]
    expected = picture(pipeline(), negative_prompt="blue", height=32, width=24)
    assert made.size == (24, 32)
    assert pictures.psnr(np.asarray(made), expected) >= 45

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("made again")

    monkeypatch.setitem(vars(opsmith), "compile", never)
    monkeypatch.setitem(vars(opsmith), "export", never)
    again = opsmith.create_stable_diffusion(source, height=32, width=24, search=0, threads=1)
    assert again.folder == app.folder
