"""The VAE tile by tile: no seams, and only where memory asks for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opsmith import starter
from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures
from opsmith.pipelines.diffusion import DiffusionApp, tiles
from opsmith.pipelines.diffusion.parts import TooLarge

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("size", [(8, 8), (20, 13), (9, 40)])
def test_tiles_of_a_local_decoder_are_the_whole(size: tuple[int, int]) -> None:
    latent = np.random.default_rng(0).standard_normal((1, 3, *size), dtype=np.float32)
    sides: list[int] = []

    def enlarged(part: Array) -> Array:
        sides.append(max(part.shape[2:]))
        return np.asarray(part[0].repeat(4, 1).repeat(4, 2))

    whole = enlarged(latent)
    sides.clear()
    np.testing.assert_allclose(tiles.decoded(latent, enlarged, 4, 8), whole, atol=1e-5)
    assert max(sides) == 8


def test_a_tiled_picture_is_near_the_whole_one_and_shows_no_seam() -> None:
    told: dict[str, Any] = {"steps": 8, "seed": 1, "width": 192, "height": 96}
    whole = np.asarray(DiffusionApp(starter.folder("pictures"), threads=1).generate("a frog", **told).images[0])
    app = DiffusionApp(starter.folder("pictures"), threads=1, tiles="on")
    made = app.generate("a frog", **told)
    tiled = np.asarray(made.images[0])
    assert any("in tiles" in line for line in made.remarks)
    assert pictures.psnr(whole, tiled) > 30
    # Where one tile's edge lies, the step to the next column is what it is in the whole picture.
    error = tiled.astype(np.float32) - whole.astype(np.float32)  # [H,W,3]
    steps = np.abs(np.diff(error, axis=1)).mean((0, 2))
    edges = [47, 95, 143]  # tiles of 96 pixels, half of which overlap
    assert steps[edges].max() <= 1.5 * steps.mean() + 0.5


def test_tiles_are_used_by_themselves_where_the_whole_does_not_fit() -> None:
    app = DiffusionApp(starter.folder("pictures"), threads=1)
    run, side = app.parts.run, app.native[0] // app.geometry.factor

    def cramped(name: str, feeds: Any) -> Array:
        if name == "vae_decoder" and feeds["latent_sample"].size > app.geometry.latent_channels * side**2:
            raise TooLarge("not enough memory for the vae_decoder at this size")
        return run(name, feeds)

    app.parts.run = cramped  # type: ignore[method-assign]
    made = app.generate("a frog", steps=2, width=192, height=96)
    assert made.images[0].size == (192, 96)
    assert any("in tiles" in line for line in made.remarks)
    assert not any("in tiles" in line for line in app.generate("a frog", steps=2).remarks)  # that one fits
    app.canvas.tiles = "off"
    with pytest.raises(TooLarge):
        app.generate("a frog", steps=2, width=192, height=96)
    with pytest.raises(OpsmithError, match="no choice of tiles 'some'"):
        DiffusionApp(starter.folder("pictures"), tiles="some")
