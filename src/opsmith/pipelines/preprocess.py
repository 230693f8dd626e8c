"""Pictures as a model reads them, as the preprocessor_config.json of its folder says (the fields of Hugging Face's image processors).

resize        size: height and width, or shortest_edge         -> [H,W,3]
center crop   crop_size, if do_center_crop
rescale       times rescale_factor                             -> 0..1
normalize     minus image_mean, divided by image_std           -> [3,H,W] float32
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from opsmith.errors import OpsmithError
from opsmith.pipelines.text import read_config

Array = np.ndarray[Any, Any]
FILE = "preprocessor_config.json"


def settings_near(model: Path) -> dict[str, Any] | None:
    """What the folder of a model file says: its own, that of its model, or that of the pipeline around it; None: nothing."""
    folders = model.absolute().parents[:3]
    return next((read_config(f / FILE) for f in folders if (f / FILE).is_file()), None)


def pixels(image: Image.Image, settings: Mapping[str, Any]) -> Array:
    """[3,H,W] float32"""
    shown = image.convert("RGB")
    if settings.get("do_resize", True):
        resample = Image.Resampling(int(settings.get("resample", 2)))
        shown = shown.resize(_size(shown, settings.get("size")), resample)
    if settings.get("do_center_crop"):
        shown = _cropped(shown, settings.get("crop_size") or settings.get("size"))
    return scaled(shown, settings)


def scaled(shown: Image.Image, settings: Mapping[str, Any]) -> Array:
    """[3,H,W] float32 of a picture that has its size"""
    values: Array = np.asarray(shown, np.float32)
    if settings.get("do_rescale", True):
        values = values * float(settings.get("rescale_factor", 1 / 255))
    if settings.get("do_normalize", True):
        mean = np.array(settings.get("image_mean", (0.485, 0.456, 0.406)), np.float32)
        values = (values - mean) / np.array(settings.get("image_std", (0.229, 0.224, 0.225)), np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1), np.float32)


def _size(image: Image.Image, size: Any) -> tuple[int, int]:
    """Width and height after resizing."""
    if isinstance(size, Mapping) and size.get("height") and size.get("width"):
        return int(size["width"]), int(size["height"])
    short = size.get("shortest_edge") if isinstance(size, Mapping) else size
    if not isinstance(short, int):
        raise OpsmithError(f"{FILE}: size is {size!r}", "height and width, or shortest_edge, are understood")
    width, height = image.size
    if width <= height:
        return short, int(short * height / width)
    return int(short * width / height), short


def _cropped(image: Image.Image, size: Any) -> Image.Image:
    sides = size if isinstance(size, Mapping) else {"height": size, "width": size}
    if not isinstance(sides.get("height"), int) or not isinstance(sides.get("width"), int):
        raise OpsmithError(f"{FILE}: crop_size is {size!r}", "height and width are understood")
    left, top = (image.width - sides["width"]) // 2, (image.height - sides["height"]) // 2
    return image.crop((left, top, left + sides["width"], top + sides["height"]))
