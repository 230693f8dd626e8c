"""Pictures from outside, decoded with care: few formats, limited bytes and pixels, nothing truncated, names ignored."""

from __future__ import annotations

import dataclasses
import io
import json
import threading
import warnings
from typing import Any

from PIL import Image, ImageOps

from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures

FORMATS = ("PNG", "JPEG", "WEBP")
_TURN = threading.BoundedSemaphore(2)  # a small file may take 100 MB while it is decoded


@dataclasses.dataclass(frozen=True)
class Limits:
    body: int = 20 * 2**20  # bytes of one request
    json: int = 4 * 2**20  # of one without pictures: JSON is read in one go, while others wait
    pixels: int = 16 * 10**6  # of one picture

    def largest(self, path: str) -> int:
        """How many bytes may be sent to PATH."""
        pictures = not path.startswith("/v1/") or path == "/v1/images/edits"
        return self.body if pictures else min(self.json, self.body)


class Refused(OpsmithError):
    """An upload that is not a picture, or too large."""


def decode(data: bytes, limits: Limits, mode: str = "RGB") -> Image.Image:
    """The picture in MODE. Its size is read from the header and checked before a pixel is decoded."""
    return _open(data, limits, mode)[0]


def decode_with_settings(data: bytes, limits: Limits) -> tuple[Image.Image, dict[str, Any]]:
    """The picture, and the settings that Opsmith stored in it; empty if it was made elsewhere."""
    return _open(data, limits, "RGB")


def _open(data: bytes, limits: Limits, mode: str) -> tuple[Image.Image, dict[str, Any]]:
    if not data:
        raise Refused("the file is empty")
    with _TURN:
        return _decoded(data, limits, mode)


def _decoded(data: bytes, limits: Limits, mode: str) -> tuple[Image.Image, dict[str, Any]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is lower
            opened = Image.open(io.BytesIO(data), formats=FORMATS)
        with opened:
            width, height = opened.size
            if width * height > limits.pixels:
                raise Refused(
                    f"the picture has {width}x{height} = {width * height / 1e6:.0f} million pixels, "
                    f"{limits.pixels / 1e6:.0f} million are allowed"
                )
            if width < 8 or height < 8:
                raise Refused(f"the picture has {width}x{height} pixels", "8x8 is the smallest")
            opened.load()
            note = str(opened.info.get(pictures.KEY, "{}"))
            upright = ImageOps.exif_transpose(opened)
            return _converted(upright, mode), _settings(note)
    except Refused:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds for damaged files
        words = " ".join(str(error).split())[:120]
        if type(error).__name__ == "UnidentifiedImageError":
            words = "PNG, JPEG and WebP are read"
        raise Refused("the file is not a readable picture", words) from error


def _converted(image: Image.Image, mode: str) -> Image.Image:
    """Transparent parts of a picture become white, as on paper."""
    if mode == "RGB" and (image.mode in ("RGBA", "LA") or "transparency" in image.info):
        clear = image.convert("RGBA")
        paper = Image.new("RGBA", clear.size, "white")
        return Image.alpha_composite(paper, clear).convert("RGB")
    return image.convert(mode)


def _settings(note: str) -> dict[str, Any]:
    try:
        found = json.loads(note)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
