"""Models with trained weights, from the package registries, compile whole and compute the same."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import real_models

import opsmith

pytestmark = pytest.mark.slow


def check(source: Path, dest: Path) -> None:
    result = opsmith.compile(source, dest, regions="whole")
    assert result.variant is not None
    assert len(onnx.load(result.variant.path, load_external_data=False).graph.node) == 1
    again = opsmith.verify(source, result.variant, rtol=1e-4, atol=1e-4, seed=7)
    assert again.ok, again.problems


def test_terrain_unet_with_attention_written_as_einsum(tmp_path: Path) -> None:
    check(real_models.terrain_unet(), tmp_path / "terrain" / "compiled")


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_minilm(exporter: str, tmp_path: Path) -> None:
    opsmith.export(real_models.minilm(), tmp_path / "minilm", exporter=exporter)
    check(tmp_path / "minilm" / exporter, tmp_path / "minilm" / "compiled")
