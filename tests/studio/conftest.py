"""A studio on a free port, with a cache and a folder of its own, and a browser to look at it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from quick import own_cache
from serving import Hold, Running, begin

import opsmith
from opsmith import starter
from opsmith.pipelines.diffusion import Preview
from opsmith.studio.core import Studio
from opsmith.studio.jobs import Job
from opsmith.studio.models import Models

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing of these tests touches the user's cache."""
    folder = tmp_path_factory.mktemp("studio")
    before = os.environ.get("OPSMITH_CACHE")
    os.environ["OPSMITH_CACHE"] = str(own_cache(folder / "cache"))
    yield folder
    os.environ.pop("OPSMITH_CACHE")
    if before is not None:
        os.environ["OPSMITH_CACHE"] = before


@pytest.fixture(scope="session")
def pipeline(home: Path) -> Path:
    """The starter's picture model with a second variant of the UNet."""
    folder = home / "models" / "two"
    shutil.copytree(starter.folder("pictures"), folder)
    original = next(p for p in (folder / "unet").iterdir() if p.is_dir())
    opsmith.optimize(original, folder / "unet" / f"{original.name}_rewritten")
    return folder


@pytest.fixture(scope="session")
def running(home: Path) -> Iterator[Running]:
    """The starter models."""
    made = begin(Studio(Models(), home / "pictures"))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def running_two(home: Path, pipeline: Path) -> Iterator[Running]:
    """A pipeline folder with two variants."""
    made = begin(Studio(Models(pictures=pipeline), home / "pictures_two"))
    yield made
    made.stop()


@pytest.fixture
def visitor(running: Running) -> Iterator[httpx.Client]:
    with running.visitor() as client:
        yield client


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    held, before = Hold(), Job.on_step

    def on_step(job: Job, step: int, total: int, preview: Preview) -> bool:
        going = before(job, step, total, preview)
        if job.owner:  # warming up is nobody's
            held.look(job, step)
        return going and not job.stop.is_set()

    monkeypatch.setattr(Job, "on_step", on_step)
    yield held
    held.release()


@pytest.fixture(scope="session")
def artefacts(home: Path) -> Path:
    """Where screenshots go: OPSMITH_TEST_ARTEFACTS, else the temporary folder."""
    folder = Path(os.environ.get("OPSMITH_TEST_ARTEFACTS") or home / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")  # while it is open, its event loop occupies this thread: other tests may need their own
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as player:
        opened = player.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def sure_eye(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask model finds something in the middle of any picture, with at most 0.9: what a small model paints in a few steps need
    not look like anything to the real one, whose quality training/evaluate.py measures on scenes with known masks."""
    from opsmith.pipelines.masks import Segmenter

    def find(self: Segmenter, image: Image.Image, words: str) -> np.ndarray:
        y, x = np.mgrid[-1 : 1 : 1j * image.height, -1 : 1 : 1j * image.width]
        return (0.9 * np.exp(-4 * (x * x + y * y))).astype(np.float32)

    monkeypatch.setattr(Segmenter, "find", find)
