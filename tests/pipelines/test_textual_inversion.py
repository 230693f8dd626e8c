"""Textual inversions against diffusers' own, from the same noise: one vector and several, stock and compiled; off again: the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from live_pipeline import pipeline
from PIL import Image
from safetensors.numpy import save_file

import opsmith
from opsmith.cli import main
from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures
from opsmith.pipelines.diffusion import DiffusionApp

STEPS: dict[str, Any] = {"guidance": 4.0, "steps": 3, "seed": 4, "torch_noise": True}
PROMPT = "a <cat> on a red <style>table, <Cat>"
WIDTH = 64


def saved(path: Path, name: str, *shape: int, seed: int = 0) -> Path:
    save_file({name: 3 * np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)}, path)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("embeddings")
    return {
        "cat": saved(folder / "cat.safetensors", "<cat>", WIDTH),
        "style": saved(folder / "style.safetensors", "emb_params", 3, WIDTH, seed=1),
    }


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DiffusionApp]:
    """The same pipeline on stock ONNX Runtime, and with the text encoder compiled."""
    home = tmp_path_factory.mktemp("pipeline") / "sd"
    shutil.copytree(models.tiny_pipeline("dynamo"), home)
    opsmith.compile(home / "text_encoder" / "dynamo", home / "text_encoder" / "dynamo_compiled", regions="all")
    return {
        kind: DiffusionApp(home, variant={"text_encoder": name}, threads=1)
        for kind, name in (("stock", "dynamo"), ("compiled", "dynamo_compiled"))
    }


def ours(app: DiffusionApp, prompt: str = PROMPT) -> Image.Image:
    return app.generate(prompt, **STEPS).images[0]


def theirs(*loaded: tuple[Path, str]) -> tuple[Image.Image, np.ndarray[Any, Any]]:
    """The picture, and the states [1,S,X] of the prompt."""
    import torch

    pipe = pipeline()
    for file, token in loaded:
        pipe.load_textual_inversion(file, token=token)
    generator = torch.Generator("cpu").manual_seed(4)
    made = pipe(PROMPT, num_inference_steps=3, guidance_scale=4.0, generator=generator).images[0]
    return made, pipe.encode_prompt(PROMPT, "cpu", 1, False)[0].detach().numpy()


@pytest.mark.parametrize("kind", ["stock", "compiled"])
def test_the_picture_is_that_of_diffusers_and_off_is_off(
    apps: dict[str, DiffusionApp], files: dict[str, Path], kind: str
) -> None:
    app = apps[kind]
    before = ours(app)
    assert app.load_textual_inversion(files["cat"]) == "<cat>"
    assert app.load_textual_inversion(files["style"], "<style>") == "<style>"
    expected, states = theirs((files["cat"], "<cat>"), (files["style"], "<style>"))
    np.testing.assert_allclose(app.words.encode([PROMPT], (32, 32)).feeds["encoder_hidden_states"], states, atol=2e-5)
    made = app.generate(PROMPT, **STEPS)
    assert pictures.psnr(np.asarray(made.images[0]), np.asarray(expected)) >= 45
    assert made.images[0].tobytes() != before.tobytes()
    assert [e["token"] for e in made.settings[0]["embeddings"]] == ["<cat>", "<style>"]
    assert any("text_encoder runs uncompiled" in line for line in made.remarks) == (kind == "compiled")
    assert not any("'cat'" in line for line in made.remarks)  # it is known now

    app.unload_textual_inversion("<cat>")
    expected, states = theirs((files["style"], "<style>"))
    assert pictures.psnr(np.asarray(ours(app)), np.asarray(expected)) >= 45
    np.testing.assert_allclose(app.words.encode([PROMPT], (32, 32)).feeds["encoder_hidden_states"], states, atol=2e-5)
    app.unload_textual_inversion()
    assert ours(app).tobytes() == before.tobytes()


def test_a_word_without_a_name_is_called_as_its_file(apps: dict[str, DiffusionApp], files: dict[str, Path]) -> None:
    app = apps["stock"]
    assert app.load_textual_inversion(files["style"]) == "style"
    ids = app.tokenizer.words("(style:1.2)")
    assert ids[1:4] == app.tokenizer.added["style"] and len(ids[1:4]) == 3
    app.unload_textual_inversion()


def test_bad_files_are_one_line_and_change_nothing(
    apps: dict[str, DiffusionApp], files: dict[str, Path], tmp_path: Path
) -> None:
    app = apps["stock"]
    two = tmp_path / "two.safetensors"
    save_file({"a": np.ones(WIDTH, np.float32), "b": np.ones(WIDTH, np.float32)}, two)
    (tmp_path / "a.pt").write_bytes(b"x")
    (tmp_path / "a.safetensors").write_bytes(b"nonsense")
    known = next(word for word in app.tokenizer.inner.get_vocab() if word.isalpha())
    wrong: list[tuple[Path, str | None, str]] = [
        (saved(tmp_path / "wide.safetensors", "<w>", 5, 96), None, "have 96 numbers, the text_encoder's 64"),
        (saved(tmp_path / "xl.safetensors", "clip_g", 1, WIDTH), None, "the text_encoder's 64"),
        (saved(tmp_path / "flat.safetensors", "<w>", 2, 2, WIDTH), None, r"its tensor is \[2, 2, 64\]"),
        (two, None, "it holds a, b"),
        (tmp_path / "none.safetensors", None, "does not exist"),
        (tmp_path / "a.pt", None, "not a .safetensors"),
        (tmp_path / "a.safetensors", None, "cannot be read"),
        (files["cat"], "two words", "cannot be a word"),
        (files["cat"], known, "vocabulary already"),
    ]
    for path, token, message in wrong:
        with pytest.raises(OpsmithError, match=message):
            app.load_textual_inversion(path, token)
    assert not app.adapters.tokens.on
    app.load_textual_inversion(files["cat"])
    with pytest.raises(OpsmithError, match="'<cat>' is on already"):
        app.load_textual_inversion(files["cat"])
    app.unload_textual_inversion()
    with pytest.raises(OpsmithError, match="no embedding '<cat>' is on"):
        app.unload_textual_inversion("<cat>")


def test_the_command(files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--embedding", str(files["cat"]), "--embedding", f"{files['style']}:<style>"]
    told = ["imagine", PROMPT, "--model", str(models.tiny_pipeline("dynamo")), "--steps", "1", "-o", "a.png", *given]
    with pytest.raises(SystemExit) as ended:
        main(told)
    assert not ended.value.code
    settings = pictures.settings_of(tmp_path / "a.png")
    assert settings["embeddings"] == [
        {"token": "<cat>", "file": "cat.safetensors"},
        {"token": "<style>", "file": "style.safetensors"},
    ]
