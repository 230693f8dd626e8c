"""What an edit may change is known before, and nothing else changes: on photographs of scikit-image."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import real_models
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from opsmith import starter
from opsmith.errors import OpsmithError
from opsmith.pipelines import edit, grammar, masks, pictures
from opsmith.pipelines.diffusion import DiffusionApp

REPLACE, REMOVE, RECOLOUR = (grammar.parse(s) for s in ("replace it with a pear", "remove it", "make it blue"))


@functools.cache
def painter() -> DiffusionApp:
    return DiffusionApp(models.tiny_pipeline("dynamo"), threads=1)


def photograph(name: str) -> Image.Image:
    return pictures.read(real_models.wheel("scikit-image", "0.26.0") / "skimage" / "data" / name)


def scattered(size: tuple[int, int]) -> masks.Mask:
    """A fifth of the picture, in many parts all over it: what once changed three quarters of it."""
    shown = Image.new("L", size)
    pen = ImageDraw.Draw(shown)
    step = 80
    for x in range(10, size[0] - 40, step):
        for y in range(10, size[1] - 40, step):
            pen.ellipse((x, y, x + 38, y + 38), fill=255)
    return masks.clean(np.asarray(shown, np.float32) / 255, 0.5, 2.0, smallest=0.0, min_area=0)


def different(a: Image.Image, b: Image.Image) -> np.ndarray[Any, Any]:
    return (np.asarray(a) != np.asarray(b)).any(-1)


@pytest.mark.parametrize("name", ["astronaut.png", "chelsea.png", "coffee.png"])
def test_no_pixel_of_a_photograph_changes_outside_the_shown_area(name: str) -> None:
    image = photograph(name)
    mask = scattered(image.size)
    assert 0.14 < mask.hard.mean() < 0.25
    for change in (REPLACE, REMOVE, RECOLOUR):
        app = None if change is RECOLOUR else painter()
        edited, _ = edit.edit(image, mask, change, app=app, steps=2, seed=1)
        area = edit.area(mask, change)
        changed = different(image, edited)
        assert not changed[area.soft == 0].any()
        assert changed[mask.hard].mean() > 0.9
        assert changed.mean() <= area.share <= 2 * mask.hard.mean() + 1e-9


def test_the_area_grows_by_as_many_pixels_as_it_says_and_no_more_than_the_cap() -> None:
    square = np.zeros((200, 240), np.float32)
    square[50:150, 60:160] = 1  # its size is 100: an eighth is 12
    mask = masks.clean(square, 0.5, 2.0, smallest=0.0, min_area=0)
    assert edit.area(mask, RECOLOUR).soft is mask.soft
    for change, grow, expected in ((REPLACE, None, 12), (REMOVE, None, 2), (REPLACE, 0, 0), (REPLACE, 30, 30)):
        area = edit.area(mask, change, grow)
        assert area.grown == expected
        rows = np.flatnonzero((area.soft == 1).any(1))
        assert (rows[0], rows[-1]) == (50 - expected, 149 + expected)
        soft = np.flatnonzero((area.soft > 0).any(1))  # the soft edge
        assert rows[0] - soft[0] <= 6
    large = masks.clean(np.pad(np.ones((300, 300), np.float32), 100), 0.5, 2.0, smallest=0.0, min_area=0)
    assert edit.area(large, REPLACE).grown == edit.GROWTH
    for wrong in (-1, 129):
        with pytest.raises(OpsmithError, match=f"growing by {wrong} pixels"):
            edit.area(mask, REPLACE, wrong)


@pytest.mark.parametrize(
    ("thing", "prompt", "expected"),
    [
        ("a pear", "a big red apple beside a frog, on a yellow background", "a pear on a yellow background"),
        ("a pear", "a castle under the stars", "a pear under the stars"),
        ("a pear on a table", "a castle under the stars", "a pear on a table"),
        ("a pear", "a castle", "a pear"),
        ("a pear", "", "a pear"),
    ],
)
def test_a_replaced_thing_keeps_the_background_that_the_pictures_prompt_names(
    thing: str, prompt: str, expected: str
) -> None:
    assert edit.with_background(thing, prompt) == expected


def test_the_command_shows_the_painted_area_before_and_in_the_result(tmp_path: Path) -> None:
    from opsmith.cli import build_app

    image = Image.fromarray(np.full((96, 96, 3), 200, np.uint8))
    pictures.save(image, tmp_path / "in.png", {"prompt": "an apple on a grey background"})
    told = ["edit", str(tmp_path / "in.png"), "--box", "30,30,62,62", "-c", "replace it with a pear", "--steps", "2"]
    told += ["-o", str(tmp_path / "o.png"), "--model", str(starter.folder("pictures")), "--threads", "1", "--grow", "5"]
    done = CliRunner().invoke(build_app(), told)
    assert done.exit_code == 0, done.output
    settings = pictures.settings_of(tmp_path / "o.png")
    assert (settings["grown"], settings["prompt"]) == (5, "a pear on a grey background")
    assert f"painted: {settings['painted']:.1%} of the picture, the selection and 5 pixels around it" in done.stderr
    shown = np.asarray(pictures.read(tmp_path / "o_mask.png", "L")) > 0
    assert shown.mean() == pytest.approx(settings["painted"], abs=1e-4)
    edited = pictures.read(tmp_path / "o.png")
    assert not different(image, edited)[~shown].any()
    overlay = np.asarray(pictures.read(tmp_path / "o_overlay.png"), np.int16)
    ring = overlay[27, 46]  # above the selection, within what is painted
    assert ring[0] > overlay[5, 5][0] and ring[1] > overlay[5, 5][1]
