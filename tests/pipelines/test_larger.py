"""A larger canvas and larger pictures: what was there stays, what is added is painted or interpolated."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image
from typer.testing import CliRunner

from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures
from opsmith.pipelines.diffusion import DiffusionApp
from opsmith.pipelines.extend import Sides, _strips, extended
from opsmith.pipelines.upscale import TILE, Upscaler


@functools.cache
def painter() -> DiffusionApp:
    return DiffusionApp(models.tiny_pipeline("dynamo"), threads=1)


def picture(width: int = 60, height: int = 40) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 255, (5, 7, 3)).astype(np.uint8)
    return Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)


def test_the_picture_within_a_larger_canvas_is_byte_equal_and_the_rest_is_painted() -> None:
    seen: list[tuple[int, int]] = []
    before = picture()
    sides = Sides.parse("left=11,bottom=30,right=5")
    after, made = extended(
        before, sides, painter(), "a pear", steps=2, seed=3, callback=lambda done, total, _: seen.append((done, total))
    )
    assert after.size == (60 + 16, 40 + 30)
    assert after.crop((11, 0, 71, 40)).tobytes() == before.tobytes()
    for box in ((0, 0, 11, 40), (71, 0, 76, 40), (0, 40, 76, 70)):
        assert np.asarray(after.crop(box), np.float32).std() > 5
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1)) and {total for _, total in seen} == {len(seen)}
    again, _ = extended(before, sides, painter(), "a pear", steps=2, seed=3)
    other, _ = extended(before, sides, painter(), "a pear", steps=2, seed=4)
    assert again.tobytes() == after.tobytes() != other.tobytes()
    assert made.settings[0]["prompt"] == "a pear"


@pytest.mark.parametrize("size", [(100, 100), (300, 50), (50, 300)])
def test_every_new_pixel_is_painted_once_and_beside_as_many_old_ones(size: tuple[int, int]) -> None:
    sides = Sides(left=120, top=40)
    width, height = size
    for strip in _strips(size, sides):
        assert strip.pixels <= min(width, height) / 2
        width += strip.pixels * (strip.name == "left")
        height += strip.pixels * (strip.name == "top")
        assert [a for a, _ in strip.portions] + [(height, width)[strip.axis]] == [0] + [b for _, b in strip.portions]
        assert all(b - a <= min(width, height) for a, b in strip.portions)
    assert (width, height) == (size[0] + 120, size[1] + 40)


@pytest.mark.parametrize("text", ["", "0", "left", "left=-1", "up=3", "left=1,left=2", "9999", "left=a"])
def test_sides_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(OpsmithError):
        Sides.parse(text)


def model(path: Path, shape: list[Any], scale: int = 2, white: float = 1.0, last: bool = False) -> Path:
    """Bilinear enlargement as a model, with values clipped to 0..WHITE: one that knows nothing of other ranges."""
    axes = [1.0, scale, scale, 1.0] if last else [1.0, 1.0, scale, scale]
    nodes = [
        helper.make_node("Clip", ["x", "low", "high"], ["c"]),
        helper.make_node("Resize", ["c", "", "scales"], ["y"], mode="linear"),
    ]
    constants = {"low": np.float32(0), "high": np.float32(white), "scales": np.array(axes, np.float32)}
    graph = helper.make_graph(
        nodes,
        "larger",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize(
    ("shape", "white", "last"),
    [
        ([1, 3, "h", "w"], 1.0, False),
        ([1, 3, "h", "w"], 255.0, False),
        ([1, "h", "w", 3], 1.0, True),
        ([1, 3, 32, 48], 1.0, False),
        ([1, 3, 64, 80], 255.0, False),
        ([1, 1, "h", "w"], 1.0, False),
    ],
)
def test_any_form_of_model_makes_the_same_larger_picture(
    tmp_path: Path, shape: list[Any], white: float, last: bool
) -> None:
    image = picture()
    larger = Upscaler(model(tmp_path / "m.onnx", shape, 2, white, last), threads=1)(image)
    assert larger.size == (120, 80)
    assert pictures.psnr(np.asarray(larger), np.asarray(image.resize((120, 80), Image.Resampling.BILINEAR))) > 33


def test_a_picture_beyond_a_tile_has_no_seams(tmp_path: Path) -> None:
    image = picture(TILE + 100, TILE + 30)
    larger = Upscaler(model(tmp_path / "m.onnx", [1, 3, "h", "w"], 3), threads=1)(image)
    plain = image.resize((3 * image.width, 3 * image.height), Image.Resampling.BILINEAR)
    difference = np.abs(np.asarray(larger, np.int16) - np.asarray(plain, np.int16))
    assert difference.max() <= 2


def test_models_that_do_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OpsmithError, match="no super-resolution model: it reads"):
        Upscaler(model(tmp_path / "four.onnx", [1, 4, "h", "w"]))
    with pytest.raises(OpsmithError, match="what it gives is another picture"):
        Upscaler(model(tmp_path / "black.onnx", [1, 3, "h", "w"], white=0.0), threads=1)(
            Image.new("RGB", (40, 40), "red")
        )
    with pytest.raises(OpsmithError, match="does not exist"):
        Upscaler(tmp_path / "none.onnx")


def test_the_command_extends_and_upscales(tmp_path: Path) -> None:
    from opsmith.cli import build_app

    source = pictures.save(picture(), tmp_path / "in.png", {"prompt": "a pear"})

    def run(*words: str) -> Any:
        return CliRunner().invoke(
            build_app(), ["edit", str(source), "-o", str(tmp_path / "o.png"), "--threads", "1", *words]
        )

    for wrong in (
        ["--extend", "left=8", "--box", "1,1,5,5"],
        ["--extend", "left=8", "--upscale", "m.onnx"],
        ["--upscale", str(tmp_path / "none.onnx")],
        ["--extend", "sideways"],
    ):
        assert isinstance(run(*wrong).exception, OpsmithError)
        assert not (tmp_path / "o.png").exists()
    done = run("--extend", "left=8", "--steps", "2", "--model", str(models.tiny_pipeline("dynamo")))
    assert done.exit_code == 0, done.output
    assert "60x40 became 68x40" in done.stderr
    settings = pictures.settings_of(tmp_path / "o.png")
    assert (settings["prompt"], settings["extend"]["left"], settings["width"]) == ("a pear", 8, 68)
    done = run("--upscale", str(model(tmp_path / "m.onnx", [1, 3, "h", "w"])))
    assert done.exit_code == 0, done.output
    assert pictures.read(tmp_path / "o.png").size == (120, 80)
