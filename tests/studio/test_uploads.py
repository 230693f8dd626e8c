"""Pictures from outside: what is taken, what is refused, and before how much work."""

from __future__ import annotations

import io
import struct
import time
import zlib

import pytest
from PIL import Image

from opsmith.pipelines import pictures
from opsmith.studio import uploads
from opsmith.studio.uploads import Limits, Refused

LIMITS = Limits()


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A valid PNG of a few kB that unpacks to WIDTH x HEIGHT."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    packer = zlib.compressobj(9)
    row = b"\0" * (1 + (width + 7) // 8)
    data = b"".join(packer.compress(row) for _ in range(min(height, 2000))) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_pictures_are_read(kind: str) -> None:
    found = uploads.decode(encoded(Image.new("RGB", (40, 24), (200, 30, 30)), kind), LIMITS)
    assert (found.size, found.mode) == ((40, 24), "RGB")
    assert found.getpixel((20, 12))[0] > 180  # type: ignore[index]


def test_transparent_parts_become_white_and_turned_photos_stand_upright() -> None:
    clear = Image.new("RGBA", (16, 8), (255, 0, 0, 0))
    assert uploads.decode(encoded(clear), LIMITS).getpixel((0, 0)) == (255, 255, 255)
    turned = Image.new("RGB", (16, 8), "red")
    notes = turned.getexif()
    notes[0x0112] = 6
    assert uploads.decode(encoded(turned, "JPEG", exif=notes), LIMITS).size == (8, 16)


def test_settings_come_back() -> None:
    image = Image.new("RGB", (16, 16), "red")
    data = encoded(image, pnginfo=pictures.notes({"prompt": "a frog", "seed": 7}))
    assert uploads.decode_with_settings(data, LIMITS)[1] == {"prompt": "a frog", "seed": 7}
    assert uploads.decode_with_settings(encoded(image), LIMITS)[1] == {}


@pytest.mark.parametrize("size", [(60000, 60000), (5000, 4000)])
def test_decompression_bombs_are_refused_before_they_unpack(size: tuple[int, int]) -> None:
    data = bomb(*size)
    started = time.process_time()
    with pytest.raises(Refused, match="million pixels, 16 million are allowed|not a readable picture"):
        uploads.decode(data, LIMITS)
    assert time.process_time() - started < 0.5


WHOLE = encoded(Image.effect_noise((64, 64), 50).convert("RGB"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GIF89a not a picture",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        WHOLE[: len(WHOLE) // 2],
        WHOLE[:200] + bytes(500) + WHOLE[700:],
        encoded(Image.new("RGB", (64, 64)), "JPEG")[:-300],
        encoded(Image.new("RGB", (16, 16)), "GIF"),
        encoded(Image.new("RGB", (16, 16)), "BMP"),
        encoded(Image.new("RGB", (4, 4))),
    ],
    ids=["empty", "text", "svg", "truncated", "damaged", "truncated-jpeg", "gif", "bmp", "tiny"],
)
def test_what_is_no_picture_or_only_a_part_of_one_is_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        uploads.decode(data, LIMITS)
