"""Scores of picture variants: figures that can be checked by hand, and one whole row."""

from __future__ import annotations

import models
import numpy as np
import pytest
from PIL import Image

from opsmith import starter
from opsmith.errors import OpsmithError
from opsmith.measure.score_pictures import Clip, contact_sheet, score_pictures, ssim
from opsmith.pipelines.pictures import psnr


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (24, 32, 3)).astype(np.uint8)


def test_ssim_and_psnr_of_known_pairs() -> None:
    a = noise(0)
    assert ssim(a, a) == pytest.approx(1)
    assert psnr(a, a) == float("inf")
    assert abs(ssim(a, noise(1))) < 0.2
    flat = np.full_like(a, 100)
    assert psnr(flat, flat + 10) == pytest.approx(10 * np.log10(255**2 / 100))
    c1 = (0.01 * 255) ** 2  # two flat pictures: only the means differ
    assert ssim(flat, flat + 10) == pytest.approx((2 * 100 * 110 + c1) / (100**2 + 110**2 + c1))
    with pytest.raises(OpsmithError, match="cannot be compared"):
        ssim(a, a[:12])


def test_the_starters_clip_prefers_what_a_picture_shows() -> None:
    judge = Clip(starter.folder("clip"), threads=1)
    picture = Image.new("RGB", (96, 96), "blue")
    whole, parts = judge.look(picture)
    assert parts.shape[0] == 144
    assert float(whole @ whole) == pytest.approx(1, abs=1e-4)
    assert judge.words("a cat") @ judge.words("a cat") > judge.words("a cat") @ judge.words("a rocket")


def test_a_variant_against_itself_is_the_same_and_less_work_is_not() -> None:
    rows = score_pictures(
        models.tiny_pipeline("dynamo"),
        ["dynamo", "dynamo", "dynamo@steps=1", "dynamo@size=16x24"],
        ["a cat"],
        seeds=[0, 1],
        steps=2,
        threads=1,
    )
    for less in rows[2:]:
        assert less.psnr is not None
        assert less.psnr < 60
        assert {image.size for image in less.images} == {(32, 32)}  # the smaller ones were enlarged
    assert rows[2].picture_seconds > 0
    assert all(2**24 < row.peak_rss < 2**33 for row in rows)
    assert rows[0].psnr is None
    assert (rows[1].psnr, rows[1].distance) == (100.0, 0.0)
    assert rows[1].ssim == pytest.approx(1)
    assert rows[0].clip == rows[1].clip
    assert rows[0].bytes > 10_000
    assert contact_sheet(rows).width == 8 + 2 * 40
    with pytest.raises(OpsmithError, match="nothing to score"):
        score_pictures(models.tiny_pipeline("dynamo"), [], ["a cat"])
    for bad in ("dynamo@steps=0", "dynamo@fast", "dynamo@size=8"):
        with pytest.raises(OpsmithError, match="not understood"):
            score_pictures(models.tiny_pipeline("dynamo"), ["dynamo", bad], ["a cat"])
    with pytest.raises(OpsmithError, match="has no variant 'none'"):
        score_pictures(models.tiny_pipeline("dynamo"), ["none"], ["a cat"], threads=1)
