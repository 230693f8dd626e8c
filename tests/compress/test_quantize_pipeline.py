"""A whole pipeline in one command: component by component, from fp32 and from fp16."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest
from typer.testing import CliRunner

from opsmith import store
from opsmith.compress.pipeline import quantize_pipeline
from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures
from opsmith.pipelines.diffusion import DiffusionApp


def picture(folder: Path) -> np.ndarray:
    return np.asarray(DiffusionApp(folder, threads=1).generate("a red apple", steps=3, seed=2).images[0])


def test_int8_from_fp32_and_from_fp16_is_the_same_pipeline_and_near_in_its_pictures(tmp_path: Path) -> None:
    plain = models.tiny_pipeline("dynamo")
    half = quantize_pipeline(plain, tmp_path / "half", method="fp16", samples=2, threads=1)
    assert {"text_encoder", "unet", "vae_decoder", "vae_encoder"} == {*half.components, *half.kept}
    expected = picture(plain)
    for source in (plain, half.folder):
        made = quantize_pipeline(source, tmp_path / f"int8-{source.name}", method="int8", samples=2, threads=1)
        assert {"text_encoder", "unet"} <= made.components.keys()
        for name, result in made.components.items():
            assert result.variant.path.is_relative_to(made.folder / name)
            assert result.after < result.before
            assert result.quality.cosine > 0.99
            operators = [node.op_type for node in store.read_proto(result.variant.path).graph.node]
            assert operators.count("MatMulNBits") == result.quantized
        assert pictures.psnr(picture(made.folder), expected) > 25
        assert (made.folder / "tokenizer" / "vocab.json").is_file()


def test_what_cannot_be_done_leaves_nothing_behind(tmp_path: Path) -> None:
    from opsmith.cli import build_app

    plain = models.tiny_pipeline("dynamo")
    there = tmp_path / "there"
    there.mkdir()
    with pytest.raises(OpsmithError, match="exists already"):
        quantize_pipeline(plain, there, method="int8")
    with pytest.raises(OpsmithError, match="there is no method"):
        quantize_pipeline(plain, tmp_path / "new", method="int7")
    with pytest.raises(OpsmithError, match="is not exported"):
        quantize_pipeline(models.tiny_source("stable-diffusion"), tmp_path / "new", method="int8")
    assert [p.name for p in tmp_path.iterdir()] == ["there"]
    failed = CliRunner().invoke(build_app(), ["quantize", str(plain), str(there), "--method", "int8"])
    assert isinstance(failed.exception, OpsmithError)
