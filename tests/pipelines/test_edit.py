"""Edits on generated scenes with known masks; the grammar; cleaning of masks; the command."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from opsmith import starter
from opsmith.errors import OpsmithError
from opsmith.pipelines import edit, grammar, masks, pictures
from opsmith.pipelines.diffusion import DiffusionApp

SIZE = (64, 48)


def background() -> np.ndarray[Any, Any]:
    y, x = np.mgrid[0 : SIZE[1], 0 : SIZE[0]].astype(np.float32)
    return np.stack([40 + x, 80 + y, np.full_like(x, 180)], -1)


def scene() -> tuple[Image.Image, masks.Mask]:
    """A shaded red disc before a blue gradient, and its mask."""
    y, x = np.mgrid[0 : SIZE[1], 0 : SIZE[0]].astype(np.float32)
    inside = (x - 30) ** 2 + (y - 22) ** 2 < 14**2
    light = 0.6 + 0.4 * np.cos((x - 26) / 12) * np.cos((y - 18) / 12)
    disc = np.stack([220 * light, 40 * light, 30 * light], -1)
    pixels = np.where(inside[..., None], disc, background())
    return Image.fromarray(pixels.astype(np.uint8)), masks.clean(inside.astype(np.float32), 0.5, 2.0)


def changed(a: Image.Image, b: Image.Image) -> np.ndarray[Any, Any]:
    return (np.asarray(a) != np.asarray(b)).any(-1)


def luma(image: Image.Image) -> np.ndarray[Any, Any]:
    return np.asarray(image, np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)


@pytest.mark.parametrize(
    "colour", ["blue", "green", "yellow", "#ff8800", "light blue", "purple", "grey", "black", "white"]
)
def test_recolour_changes_the_mask_and_nothing_outside(colour: str) -> None:
    image, mask = scene()
    edited, _ = edit.edit(image, mask, grammar.parse(f"make it {colour}"))
    difference = changed(image, edited)
    assert difference[mask.hard].mean() >= 0.95
    assert not difference[mask.soft == 0].any()
    if colour not in ("black", "white"):
        assert np.abs(luma(edited) - luma(image))[mask.hard].max() <= 1.5


def test_recolour_gives_the_colour_that_was_asked_for() -> None:
    image, mask = scene()
    for colour, channel in (("blue", 2), ("lime", 1), ("red", 0)):
        edited, _ = edit.edit(image, mask, grammar.parse(f"paint it {colour}"))
        assert set(np.asarray(edited)[mask.hard].argmax(-1).tolist()) == {channel}


@pytest.mark.parametrize(("word", "sign"), [("brighter", 1), ("darker", -1)])
def test_brighten_and_darken(word: str, sign: int) -> None:
    image, mask = scene()
    edited, _ = edit.edit(image, mask, grammar.parse(f"make it {word}"))
    assert (sign * (luma(edited) - luma(image))[mask.hard] > 5).mean() > 0.95
    assert not changed(image, edited)[mask.soft == 0].any()
    more, _ = edit.edit(image, mask, grammar.parse(f"make it a lot {word}"))
    assert sign * float((luma(more) - luma(edited))[mask.hard].mean()) > 5


def test_blur_smooths_within_the_mask_only() -> None:
    image, mask = scene()
    noisy = np.asarray(image).copy()
    noisy[::2, ::2] = 255 - noisy[::2, ::2]
    image = Image.fromarray(noisy)
    edited, _ = edit.edit(image, mask, grammar.parse("blur it"))
    inner = mask.hard & np.roll(mask.hard, 1, 1)
    rough = [float(np.abs(np.diff(luma(i), axis=1, prepend=0))[inner].mean()) for i in (image, edited)]
    assert rough[1] < rough[0] / 4
    assert not changed(image, edited)[mask.soft == 0].any()


def test_remove_shows_the_background_again() -> None:
    image, mask = scene()
    edited, _ = edit.edit(image, mask, grammar.parse("remove it"))
    error = np.abs(np.asarray(edited, np.float32) - background())[mask.hard]
    assert error.mean() < 6
    assert error.max() < 20
    far = np.asarray(masks.grown(mask.hard, 10)) == 0
    assert not changed(image, edited)[far].any()


def opener(folder: str | Path) -> Callable[[], DiffusionApp]:
    return lambda: DiffusionApp(folder, threads=1)


def test_remove_is_painted_over_where_there_is_a_painter() -> None:
    image, mask = scene()
    app, said = edit.painter(grammar.parse("remove it"), opener(models.tiny_pipeline("dynamo")))
    assert app is not None
    assert said == "filled from the surroundings, then painted by tiny-stable-diffusion, unet dynamo"
    smooth, _ = edit.edit(image, mask, grammar.parse("remove it"))
    painted, made = edit.edit(image, mask, grammar.parse("remove it"), app=app, steps=4, seed=1)
    assert made is not None
    settings = made.settings[0]
    assert (settings["prompt"], settings["guidance"]) == ("", 1.0)  # nothing to follow but the surroundings
    assert settings["strength"] == edit.FILLED
    assert changed(smooth, painted)[mask.hard].mean() > 0.95
    assert not changed(image, painted)[np.asarray(masks.grown(mask.hard, 10)) == 0].any()


def test_remove_painted_by_the_starter_shows_the_background_again() -> None:
    image, mask = scene()
    app, _ = edit.painter(grammar.parse("remove it"), opener(starter.folder("pictures")), "painted")
    edited, _ = edit.edit(image, mask, grammar.parse("remove it"), app=app, steps=10, seed=1)
    was, now = (np.abs(np.asarray(i, np.float32) - background())[mask.hard].mean() for i in (image, edited))
    assert was > 80
    assert now < 15


def test_remove_with_an_inpainting_unet_starts_from_noise() -> None:
    image, mask = scene()
    app = DiffusionApp(models.tiny_pipeline("dynamo", inpainting=True), threads=1)
    painted, made = edit.edit(image, mask, grammar.parse("remove it"), app=app, prompt="the sea", steps=2, guidance=3.0)
    assert made is not None
    assert [made.settings[0][k] for k in ("prompt", "guidance", "strength")] == ["the sea", 3.0, 1.0]
    assert not changed(image, painted)[np.asarray(masks.grown(mask.hard, 10)) == 0].any()


def test_the_choice_of_a_filling_is_visible(tmp_path: Path) -> None:
    remove, blind = grammar.parse("remove it"), tmp_path / "blind"
    shutil.copytree(models.tiny_pipeline("dynamo"), blind)
    shutil.rmtree(blind / "vae_encoder")
    assert edit.painter(remove, opener("nowhere"), "smooth") == (None, "filled from the surroundings")
    app, said = edit.painter(remove, opener(blind))
    assert app is None
    assert "has no vae_encoder, so it cannot paint" in said
    for change, fill in ((remove, "painted"), (grammar.parse("replace it with a pear"), None)):
        with pytest.raises(OpsmithError, match="no vae_encoder"):
            edit.painter(change, opener(blind), fill)
    with pytest.raises(OpsmithError, match="there is no filling 'wild'"):
        edit.painter(remove, opener(blind), "wild")
    assert edit.painter(grammar.parse("blur it"), opener("nowhere")) == (None, "")


def test_replace_paints_within_the_grown_mask() -> None:
    image, mask = scene()
    app = DiffusionApp(models.tiny_pipeline("dynamo"), threads=1)
    edited, made = edit.edit(image, mask, grammar.parse("replace it with a pear"), app=app, steps=2, seed=4)
    assert made is not None
    assert made.settings[0]["prompt"] == "a pear"
    difference = changed(image, edited)
    assert difference[mask.hard].mean() > 0.95
    assert not difference[np.asarray(masks.grown(mask.hard, 12)) == 0].any()
    again, _ = edit.edit(image, mask, grammar.parse("replace it with a pear"), app=app, steps=2, seed=4)
    assert again.tobytes() == edited.tobytes()
    with pytest.raises(OpsmithError, match="needs a picture model"):
        edit.edit(image, mask, grammar.parse("replace it with a pear"))


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("make it blue", grammar.Change("recolour", (0, 0, 255))),
        ("Make the big apple LIGHT blue!", grammar.Change("recolour", (173, 216, 230))),
        ("turn it #ff8800", grammar.Change("recolour", (255, 136, 0))),
        ("change it to orange", grammar.Change("recolour", (255, 165, 0))),
        ("change its colour to red", grammar.Change("recolour", (255, 0, 0))),
        ("change it to an orange", grammar.Change("replace", text="an orange")),
        ("replace it with an orange", grammar.Change("replace", text="an orange")),
        ("replace with a pear", grammar.Change("replace", text="a pear")),
        ("turn the cat into a dog", grammar.Change("replace", text="a dog")),
        ("remove it", grammar.Change("remove")),
        ("take the apple away", grammar.Change("remove")),
        ("blur it slightly", grammar.Change("blur", amount=0.5)),
        ("make it a lot darker", grammar.Change("darken", amount=2.0)),
        ("lighten it", grammar.Change("brighten")),
    ],
)
def test_sentences_are_understood(sentence: str, expected: grammar.Change) -> None:
    assert grammar.parse(sentence) == expected


@pytest.mark.parametrize("sentence", ["", "make it happy", "fly", "make it bigger"])
def test_other_sentences_get_a_list_of_what_is_understood(sentence: str) -> None:
    with pytest.raises(OpsmithError, match="replace it with a pear"):
        grammar.parse(sentence)


def test_small_parts_are_dropped_and_large_ones_kept() -> None:
    soft = np.zeros((40, 40), np.float32)
    soft[2:14, 2:14] = 0.9  # 144
    soft[20:30, 20:30] = 0.8  # 100
    soft[36, 5:8] = 0.9  # 3
    soft[35:39, 30] = 0.3  # below the threshold
    mask = masks.clean(soft, 0.5, 0)
    assert mask.hard.sum() == 244
    assert np.array_equal(mask.soft, mask.hard.astype(np.float32))


def test_specks_are_dropped_even_if_nothing_is_larger() -> None:
    soft = np.zeros((200, 200), np.float32)
    soft[10:14, 10:14] = 0.9  # 16 pixels; a speck is below 20
    with pytest.raises(OpsmithError, match="only specks were found: the largest has 16 pixels, 20 are asked for"):
        masks.clean(soft, 0.5, 0)
    assert masks.clean(soft, 0.5, 0, min_area=16).hard.sum() == 16
    soft[50:60, 50:60] = 0.9
    assert masks.clean(soft, 0.5, 0).hard.sum() == 100
    assert masks.clean(soft, 0.5, 0, min_area=5).hard.sum() == 116
    with pytest.raises(OpsmithError, match="not possible"):
        masks.clean(soft, 0.5, 0, min_area=-1)


def test_parts_join_along_any_path() -> None:
    image = Image.new("L", (30, 30))
    pen = ImageDraw.Draw(image)
    pen.line([(2, 20), (2, 2), (20, 2), (20, 20), (8, 20), (8, 8)], fill=255)
    pen.point((15, 10), fill=255)
    labels, areas = masks.parts(np.asarray(image) > 0)
    assert len(areas) == 2
    assert sorted(areas.tolist())[0] == 1
    assert labels.max() == 2


def test_a_clipseg_folder_gives_the_mask_that_transformers_gives() -> None:
    import torch
    from transformers import CLIPSegForImageSegmentation

    image, _ = scene()
    finder = masks.Segmenter(models.tiny_model("clipseg", "dynamo"), threads=1)
    found = finder.find(image.resize((finder.width, finder.height)), "an apple")
    source = models.tiny_source("clipseg")
    model = CLIPSegForImageSegmentation.from_pretrained(source).eval()
    settings = finder.preprocessor
    pixels = np.asarray(image.resize((finder.width, finder.height)), np.float32) / 255
    pixels = (pixels - np.array(settings["image_mean"])) / np.array(settings["image_std"])
    ids = torch.tensor([finder.tokenizer.enclosed("an apple", 77)[0]])
    with torch.no_grad():
        values = torch.from_numpy(pixels.transpose(2, 0, 1)[None].astype(np.float32))
        logits = model(input_ids=ids, pixel_values=values, attention_mask=torch.ones_like(ids)).logits
    expected = Image.fromarray(torch.sigmoid(logits).reshape(logits.shape[-2:]).numpy())
    stretched = np.asarray(expected.resize((finder.width, finder.height), Image.Resampling.BILINEAR))
    assert np.abs(found - stretched).max() < 1e-3


def run(*arguments: str) -> Any:
    from opsmith.cli import build_app

    return CliRunner().invoke(build_app(), ["edit", *arguments])


def test_the_command_writes_picture_mask_overlay_and_sheet(tmp_path: Path) -> None:
    image, mask = scene()
    image.save(tmp_path / "in.png")
    Image.fromarray(mask.hard.astype(np.uint8) * 255).save(tmp_path / "m.png")
    done = run(
        str(tmp_path / "in.png"),
        "--mask",
        str(tmp_path / "m.png"),
        "-c",
        "make it green",
        "-o",
        str(tmp_path / "o.png"),
    )
    assert done.exit_code == 0, done.output
    written = {p.name for p in tmp_path.iterdir()}
    assert written == {"in.png", "m.png", "o.png", "o_mask.png", "o_overlay.png", "o_sheet.png"}
    assert pictures.settings_of(tmp_path / "o.png")["change"] == "make it green"
    assert changed(image, pictures.read(tmp_path / "o.png"))[mask.hard].mean() >= 0.95


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--box", "1,2,3"], "box"),
        (["--box", "0,0,500,10"], "does not lie"),
        ([], "one selection"),
        (["--mask", "other.png"], "the mask is 10x10"),
        (["--mask", "broken.png"], "not a readable picture"),
        (["--mask", "missing.png"], "does not exist"),
        (["--box", "1,1,9,9", "-c", "dance"], "not understood"),
        (["--box", "1,1,9,9", "-c", "remove it", "--steps", "0"], "0 steps"),
    ],
)
def test_bad_input_writes_nothing(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scene()[0].save("in.png")
    Image.new("L", (10, 10), 255).save("other.png")
    Path("broken.png").write_bytes(b"no picture")
    before = {p.name for p in tmp_path.iterdir()}
    options = arguments if "-c" in arguments else [*arguments, "-c", "make it blue"]
    done = run("in.png", *options)
    assert isinstance(done.exception, OpsmithError) or done.exit_code == 2
    assert words in str(done.exception) or words in done.output
    assert {p.name for p in tmp_path.iterdir()} == before


def test_the_command_says_how_sure_the_mask_is_and_refuses_what_is_in_doubt(tmp_path: Path) -> None:
    file, out = tmp_path / "frog.png", tmp_path / "out.png"
    app = DiffusionApp(starter.folder("pictures"), threads=1)
    pictures.save(app.generate("a big frog on a yellow background", steps=12, seed=0).images[0], file, {})

    def ask(words: str, *more: str) -> Any:
        return run(str(file), "--select", words, "--change", "make it blue", "-o", str(out), "--threads", "1", *more)

    absent = ask("elephant")  # a word that the mask model knows, and that is not in the picture
    assert isinstance(absent.exception, OpsmithError)  # one line and exit code 2
    assert "nothing like 'elephant' was found" in str(absent.exception)
    strange = ask("submarine")
    assert isinstance(strange.exception, OpsmithError)
    assert "nothing was changed: the mask model was never shown 'submarine'" in str(strange.exception)
    assert not out.exists()
    assert ask("submarine", "--anyway").exit_code == 0
    sure = ask("frog")
    assert sure.exit_code == 0
    assert re.search(r"selected: [\d.]+% of the picture, within .*, 9\d% sure", sure.stderr)
    assert 0.9 < pictures.settings_of(out)["sure"] <= 1


def test_a_mask_that_is_barely_above_the_threshold_is_in_doubt() -> None:
    class Faint:
        tokenizer = masks.ClipTokenizer(starter.folder("masks"))

        def find(self, image: Image.Image, words: str) -> np.ndarray[Any, Any]:
            found = np.zeros((image.height, image.width), np.float32)
            found[10:30, 10:30] = 0.66
            return found

    image = scene()[0]
    faint = masks.from_words(image, "apple", Faint())  # type: ignore[arg-type]
    assert faint.sure == pytest.approx(0.66)
    assert faint.doubt == "'apple' is 66% sure, below 70%"
    assert masks.from_words(image, "apple", Faint(), threshold=0.4).doubt == ""  # type: ignore[arg-type]
