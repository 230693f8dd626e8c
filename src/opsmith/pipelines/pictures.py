"""Picture files: reading them with clear errors, writing PNGs that say how they were made, sheets of several."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageDraw, PngImagePlugin

from opsmith.errors import OpsmithError

Array = np.ndarray[Any, Any]
KEY = "opsmith"  # the PNG text entry that holds the settings as JSON


def read(path: str | os.PathLike[str] | IO[bytes], mode: str = "RGB") -> Image.Image:
    try:
        with Image.open(path) as opened:
            converted: Image.Image = opened.convert(mode)
            return converted
    except FileNotFoundError as error:
        raise OpsmithError(f"{path} does not exist") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        name = path if isinstance(path, (str, os.PathLike)) else "it"
        raise OpsmithError(f"{name} is not a readable picture: {' '.join(str(error).split())}") from error


def as_html(images: Sequence[Image.Image], captions: Sequence[str]) -> str:
    """The pictures with their captions, for a notebook."""
    figures = []
    for image, caption in zip(images, captions, strict=True):
        file = io.BytesIO()
        image.save(file, "PNG")
        data, words = base64.b64encode(file.getvalue()).decode(), html.escape(caption)
        figures.append(f'<figure style="display: inline-block"><img src="data:image/png;base64,{data}" alt="{words}">')
        figures.append(f"<figcaption>{words}</figcaption></figure>")
    return "".join(figures)


def check_target(path: str | os.PathLike[str]) -> Path:
    """Whether a picture can be written there, asked before the work is done."""
    target = Path(path)
    if target.suffix.lower() != ".png":
        raise OpsmithError(f"{target} does not end in .png", "pictures are written as PNG, which holds their settings")
    if target.is_dir():
        raise OpsmithError(f"{target} is a folder", "name a file")
    there = next(p for p in target.absolute().parents if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise OpsmithError(f"{target} cannot be written: {there} is not a folder that may be written to")
    return target


def save(image: Image.Image, path: str | os.PathLike[str], settings: Mapping[str, Any]) -> Path:
    """Write a PNG whose metadata holds SETTINGS; in place at once or not at all."""
    target = check_target(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                image.save(file, "PNG", pnginfo=notes(settings))
            Path(temporary).chmod(0o644)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OpsmithError(f"{target} cannot be written: {error.strerror or error}") from error
    return target


def notes(settings: Mapping[str, Any]) -> PngImagePlugin.PngInfo:
    """PNG text entries that hold SETTINGS."""
    made = PngImagePlugin.PngInfo()
    made.add_text("Software", "opsmith")
    if settings.get("prompt"):
        made.add_text("Description", str(settings["prompt"]))
    made.add_text(KEY, json.dumps(settings, ensure_ascii=True, default=str))
    return made


def settings_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save` stored in a picture; empty if it was made elsewhere."""
    try:
        with Image.open(path) as opened:
            found = json.loads(str(opened.info.get(KEY, "{}")))
    except (OSError, ValueError) as error:
        raise OpsmithError(f"{os.fspath(path)} is not a readable picture: {' '.join(str(error).split())}") from error
    return found if isinstance(found, dict) else {}


def sheet(
    images: Sequence[Image.Image], labels: Sequence[str], columns: int | None = None, gap: int = 8
) -> Image.Image:
    """Pictures side by side, each under its label."""
    width, height = max(i.width for i in images), max(i.height for i in images)
    columns = min(columns or len(images), len(images))
    rows = -(-len(images) // columns)
    line = 14
    made = Image.new("RGB", (gap + columns * (width + gap), gap + rows * (height + line + gap)), "white")
    pen = ImageDraw.Draw(made)
    for i, (image, label) in enumerate(zip(images, labels)):
        x, y = gap + (i % columns) * (width + gap), gap + (i // columns) * (height + line + gap)
        pen.text((x, y), label, fill="black")
        made.paste(image.convert("RGB"), (x, y + line))
    return made


def psnr(a: Array, b: Array) -> float:
    """Peak signal-to-noise ratio of two pictures with values from 0 to 255, in dB; infinite if they are the same."""
    error = float(np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))
    return float("inf") if error == 0 else 10 * float(np.log10(255**2 / error))
