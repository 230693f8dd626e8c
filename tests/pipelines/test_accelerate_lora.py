"""A live pipeline with LoRAs: whatever diffusers does to them, the picture is that of eager diffusers, never a stale one."""

from __future__ import annotations

import functools
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx_ir as ir
import pytest
from live_pipeline import picture, pipeline
from test_lora import _save

import opsmith
from opsmith import store
from opsmith.pipelines import accelerate, pictures

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(tmp_path_factory.mktemp("lora") / "one", 0)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Components run as exported: compiling them is tested elsewhere, and takes its time."""
    exported = models.tiny_pipeline("dynamo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(opsmith), "export", lambda source, dest: shutil.copytree(exported, dest))
        patch.setattr(accelerate, "compile_components", lambda *_, **__: None)
        yield tmp_path_factory.mktemp("accelerated")


def load(pipe: Any, file: Path) -> None:
    pipe.load_lora_weights(file.parent, weight_name=file.name, adapter_name="one")


CHANGES: dict[str, Callable[[Any, Path], None]] = {
    "load": load,
    "scale": lambda pipe, _: pipe.set_adapters(["one"], [0.3]),
    "disable": lambda pipe, _: pipe.disable_lora(),
    "enable": lambda pipe, _: pipe.enable_lora(),
    "fuse": lambda pipe, _: pipe.fuse_lora(),
    "unfuse": lambda pipe, _: pipe.unfuse_lora(),
    "unload": lambda pipe, _: pipe.unload_lora_weights(),
}


@functools.cache
def eager(changes: tuple[str, ...], file: Path) -> Array:
    pipe = pipeline()
    for name in changes:
        CHANGES[name](pipe, file)
    return picture(pipe)


def test_every_change_after_accelerating_shows_at_once(home: Path, lora: Path) -> None:
    pipe = opsmith.accelerate(pipeline(), folder=home, threads=1)
    done: tuple[str, ...] = ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert pictures.psnr(picture(pipe), eager((), lora)) >= 45
        for name, change in CHANGES.items():
            change(pipe, lora)
            done = (*done, name)
            assert pictures.psnr(picture(pipe), eager(done, lora)) >= 45, name
    assert pictures.psnr(eager(("load",), lora), eager((), lora)) < 35  # it does something


STATES = [
    ("load",),
    ("load", "scale"),
    ("load", "disable"),
    ("load", "fuse"),
    ("load", "fuse", "unload"),
    ("load", "unload"),
]


@pytest.mark.parametrize("state", STATES, ids=" ".join)
def test_what_is_exported_holds_what_the_adapters_do_now(lora: Path, state: tuple[str, ...]) -> None:
    """Its outputs are those of the live component, it has the layers of a plain one, and the live one is left as it was."""
    import torch

    pipe, plain = pipeline(), pipeline()
    for name in state:
        CHANGES[name](pipe, lora)
    torch.manual_seed(0)
    sample, states, ids = torch.randn(2, 4, 8, 8), torch.randn(2, 77, 64), torch.arange(77)[None]
    with torch.no_grad():
        for name, feeds in {"unet": (sample, 5, states), "text_encoder": (ids,)}.items():
            part = getattr(pipe, name)
            before = part(*feeds)[0]
            made = accelerate.without_adapters(part)
            assert made.state_dict().keys() == getattr(plain, name).state_dict().keys()
            assert torch.allclose(made(*feeds)[0], before, atol=1e-4)
            assert torch.equal(part(*feeds)[0], before)


def put_weights(source: Path, dest: Path) -> None:
    """The tiny pipeline as it was exported, with the weights that were saved in SOURCE: what an export of SOURCE would give."""
    from safetensors.numpy import load_file

    shutil.copytree(models.tiny_pipeline("dynamo"), dest)
    for name in ("unet", "text_encoder"):
        (file,) = (source / name).glob("*.safetensors")
        weights = {key.removeprefix("text_model."): value for key, value in load_file(file).items()}
        path = store.find_model(dest / name / "dynamo")
        model = store.open_model(path)
        for key, value in model.graph.initializers.items():
            plain = key.removesuffix(store.TRANSPOSED)
            if plain in weights:
                array = weights.pop(plain)
                value.const_value = ir.tensor(np.ascontiguousarray(array.T if plain != key else array), name=key)
        assert not [key for key, value in weights.items() if value.ndim > 1]  # norms have other names
        store.save_model(model, path)


def test_accelerated_with_a_lora_on_it_runs_without_the_original_until_the_scale_changes(
    tmp_path: Path, lora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerate, "compile_components", lambda *_, **__: None)
    monkeypatch.setitem(vars(opsmith), "export", put_weights)
    pipe = pipeline()
    load(pipe, lora)
    opsmith.accelerate(pipe, folder=tmp_path, threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert pictures.psnr(picture(pipe), eager(("load",), lora)) >= 45
    CHANGES["scale"](pipe, lora)
    with pytest.warns(UserWarning, match="weights of UNet2DConditionModel changed"):
        assert pictures.psnr(picture(pipe), eager(("load", "scale"), lora)) >= 45
    opsmith.restore(pipe)
    CHANGES["unload"](pipe, lora)
    assert picture(pipe).tobytes() == eager((), lora).tobytes()
