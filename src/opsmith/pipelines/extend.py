"""Outpainting: a picture on a larger canvas, with what lies beyond its borders painted. Its own pixels stay, byte by byte.

sides = Sides.parse("left=64,right=64")
larger, made = extended(picture, sides, app, "a beach")

One side after the other, each in strips of at most half the shorter side of the canvas, each strip in squares as large as the canvas
has: every call of the pipeline sees at least as much of the picture as it paints, and continues what was painted before.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from PIL import Image

from opsmith.errors import OpsmithError
from opsmith.pipelines.diffusion import Callback, DiffusionApp, Generated
from opsmith.pipelines.diffusion.loop import shifted
from opsmith.pipelines.edit import filled_from_around, painted

Array = np.ndarray[Any, Any]

NAMES = ("left", "right", "top", "bottom")  # in the order in which they are painted
LARGEST = 4096  # pixels on a side


@dataclasses.dataclass(frozen=True)
class Sides:
    """Pixels that are added."""

    left: int = 0
    right: int = 0
    top: int = 0
    bottom: int = 0

    def __post_init__(self) -> None:
        for name, pixels in dataclasses.asdict(self).items():
            if not 0 <= pixels <= LARGEST:
                raise OpsmithError(f"{pixels} more pixels at the {name} are not possible", f"0 to {LARGEST}")
        if not any(dataclasses.astuple(self)):
            raise OpsmithError("nothing is to be added to the picture", "for example left=64,right=64, or 64 for all")

    @staticmethod
    def parse(text: str) -> Sides:
        """`64` for all four, or `left=64,top=32`."""
        if text.strip().isdecimal():
            return Sides(*[int(text)] * 4)
        found: dict[str, int] = {}
        for part in text.split(","):
            name, _, pixels = (piece.strip() for piece in part.partition("="))
            if name not in NAMES or not pixels.isdecimal() or name in found:
                raise OpsmithError(f"{text!r} does not say what to add", "for example left=64,right=64, or 64 for all")
            found[name] = int(pixels)
        return Sides(**found)


def extended(
    image: Image.Image,
    sides: Sides,
    app: DiffusionApp,
    prompt: str,
    *,
    steps: int = 25,
    guidance: float | None = None,
    seed: int = 0,
    callback: Callback | None = None,
) -> tuple[Image.Image, Generated]:
    """The larger picture, and what the model did for its last side."""
    app.check_paints()
    strips = _strips(image.size, sides)
    calls = sum(len(strip.portions) for strip in strips)
    canvas, made, done = image.convert("RGB"), None, 0
    for strip in strips:
        canvas, new = _with_side(canvas, strip.name, strip.pixels)
        along = np.arange(new.shape[strip.axis])
        for start, stop in strip.portions:
            here = np.expand_dims((along >= start) & (along < stop), 1 - strip.axis)
            canvas, made = painted(
                canvas,
                (new & here).astype(np.float32),
                app,
                prompt,
                strength=1.0,
                steps=steps,
                guidance=guidance,
                seed=seed,
                callback=callback and shifted(callback, done, calls),
            )
            done += 1
    assert made is not None
    return canvas, made


@dataclasses.dataclass(frozen=True)
class _Strip:
    name: str
    pixels: int  # its thickness
    axis: int  # along which it lies: 0 is down, 1 across
    portions: list[tuple[int, int]]  # along it


def _strips(size: tuple[int, int], sides: Sides) -> list[_Strip]:
    width, height = size
    found = []
    for name in NAMES:
        left = getattr(sides, name)
        while left:
            pixels = min(left, max(1, min(width, height) // 2))
            left -= pixels
            across = name in ("left", "right")
            width, height = (width + pixels, height) if across else (width, height + pixels)
            square, length = min(width, height), height if across else width
            portions = [(start, min(start + square, length)) for start in range(0, length, square)]
            found.append(_Strip(name, pixels, 0 if across else 1, portions))
    return found


def _with_side(image: Image.Image, name: str, pixels: int) -> tuple[Image.Image, Array]:
    """A larger canvas, filled smoothly from the picture's border, and [H,W] what of it is new."""
    pad = {"left": ((0, 0), (pixels, 0)), "right": ((0, 0), (0, pixels))}.get(name)
    pad = pad or ({"top": (pixels, 0), "bottom": (0, pixels)}[name], (0, 0))
    new = np.pad(np.zeros((image.height, image.width), bool), pad, constant_values=True)
    filled = filled_from_around(np.pad(np.asarray(image, np.float32), (*pad, (0, 0))), new)
    return Image.fromarray(np.clip(filled.round(), 0, 255).astype(np.uint8)), new
