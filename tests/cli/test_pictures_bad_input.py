"""imagine and edit: a user's mistake is one clear line on stderr and exit code 2, and nothing is written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import models
import pytest
from PIL import Image

import opsmith
from opsmith.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands run: two pictures, a broken one, and a pipeline that lacks parts."""
    models.tiny_pipeline("dynamo")  # made before the output is looked at
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (32, 32), "red").save("in.png")
    Image.new("L", (16, 16), 255).save("small.png")
    Path("broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    for lacks in ("unet", "vae_encoder"):
        shutil.copytree(models.tiny_pipeline("dynamo"), f"no_{lacks}")
        shutil.rmtree(f"no_{lacks}/{lacks}")
    return tmp_path


def refused(capfd: pytest.CaptureFixture[str], folder: Path, *arguments: object) -> str:
    before = sorted(folder.rglob("*"))
    capfd.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    said = capfd.readouterr().err
    assert stop.value.code == 2
    assert said.startswith("opsmith: error:")
    assert len(said.strip().splitlines()) == 1
    assert sorted(folder.rglob("*")) == before
    return said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--width", "30"], "30x32 is not possible (both sides are multiples of 8"),
        (["--height", "0"], "multiples of 8"),
        (["--steps", "0"], "0 steps are not possible"),
        (["--steps", "1001"], "1001 steps"),
        (["--model", "no_unet"], "no_unet has no unet"),
        (["--model", "nowhere"], "nowhere does not exist"),
        (["--model", "no_vae_encoder", "--init", "in.png"], "no_vae_encoder has no vae_encoder"),
        (["--init", "in.png", "--mask", "small.png"], "the mask is 16x16, the picture 32x32"),
        (["--mask", "small.png"], "a mask needs a picture"),
        (["--init", "broken.png"], "broken.png is not a readable picture"),
        (["--init", "missing.png"], "missing.png does not exist"),
        (["--width", "8000000", "--height", "8000000"], "this machine has"),
        (["--scheduler", "magic"], "magic"),
        (["--variant", "none"], "has no variant 'none' (there are: dynamo)"),
        (["--strength", "2", "--init", "in.png"], "a strength of 2"),
        (["--guidance", "nan"], "guidance"),
        (["--seed", "-1"], "negative"),
        (["--n", "0"], "0 pictures"),
        (["--model", "in.png"], "in.png is not a folder"),
        (["--out", "o.jpg"], "does not end in .png"),
        (["--out", "in.png/o.png"], "cannot be written"),
    ],
)
def test_imagine(options: list[str], words: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = [] if "--model" in options else ["--model", models.tiny_pipeline("dynamo")]
    assert words in refused(capfd, folder, "imagine", "a cat", *model, "--threads", 1, *options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mask", "small.png", "-c", "make it blue"], "the mask is 16x16, the picture 32x32"),
        (["--mask", "broken.png", "-c", "make it blue"], "broken.png is not a readable picture"),
        (["--box", "1,1,9,9", "-c", "dance"], "understood are: make it blue"),
        (["--box", "1,1,9,9", "-c", "replace it with a pear", "--model", "no_unet"], "no_unet has no unet"),
        (["--box", "1,1,9,9", "-c", "replace it with a pear", "--model", "no_vae_encoder"], "has no vae_encoder"),
        (
            ["--box", "1,1,9,9", "-c", "remove it", "--fill", "wild"],
            "there is no filling 'wild' (known: painted, smooth)",
        ),
        (["--box", "1,1,9,9", "-c", "remove it", "--steps", "0"], "0 steps"),
        (["--box", "1,1,90,9", "-c", "blur it"], "does not lie in the picture of 32x32"),
        (["--box", "1,1,9,9", "-c", "blur it", "--out", "o.gif"], "does not end in .png"),
        (["--select", "apple", "-c", "blur it", "--threshold", "7"], "a threshold of 7"),
        (["--select", "apple", "-c", "blur it"], "nothing like 'apple' was found"),
    ],
)
def test_edit(options: list[str], words: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capfd, folder, "edit", "in.png", "--threads", 1, *options)


def test_a_broken_picture_to_edit(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = refused(capfd, folder, "edit", "broken.png", "--box", "1,1,9,9", "-c", "blur it")
    assert "broken.png is not a readable picture" in said


@pytest.mark.skipif(sys.platform != "linux", reason="limits of data are Linux's")
def test_a_size_that_fits_the_machine_but_not_what_is_free(folder: Path) -> None:
    """With 400 MiB for itself the process cannot hold the maps of a picture of 2048x2048; it says so and is not killed."""
    before = sorted(folder.rglob("*"))
    limit = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20)); sys.argv[0] = 'x'; "
    )
    command: list[Any] = [sys.executable, "-c", limit + "from opsmith.cli import main; main()", "imagine", "a cat"]
    command += ["--model", models.tiny_pipeline("dynamo"), "--threads", "1", "--width", "2048", "--height", "2048"]
    env = {**os.environ, "PYTHONPATH": str(Path(opsmith.__file__).parents[1])}
    done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "not enough memory for the unet at this size" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(folder.rglob("*")) == before
