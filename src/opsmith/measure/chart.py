"""The bench result as a picture: one bar per variant with its spread, and the ratio to the first in words."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from opsmith.errors import OpsmithError
from opsmith.measure.bench import BenchResult, Entry
from opsmith.measure.units import counted, faster

_INK, _SOFT, _GRID, _PAPER = "#1d2733", "#5b6b7c", "#e3e8ee", "#ffffff"
_BARS = ("#8796a8", "#d9622b", "#2f7d95", "#6a994e", "#9b5094", "#b8860b")
_SCALE = 2  # drawn at twice the size: sharp on dense screens


def check_path(path: Path) -> None:
    """Complain before the measuring, not after it."""
    if path.suffix.lower() != ".png":
        raise OpsmithError(f"--plot writes PNG files, not {path.suffix or path.name!r}", "name it FILE.png")
    if not path.absolute().parent.is_dir():
        raise OpsmithError(f"the folder of {path} does not exist")


def plot(result: BenchResult, path: Path) -> None:
    """Write a PNG. The whiskers are the 5th and 95th percentile of single runs."""
    check_path(path)
    _draw(result).save(path)


def _draw(result: BenchResult) -> Image.Image:
    big, normal, small = (ImageFont.load_default(size * _SCALE) for size in (18, 14, 12))
    row, top, left, right = 54 * _SCALE, 70 * _SCALE, 210 * _SCALE, 230 * _SCALE
    width, height = 960 * _SCALE, top + row * len(result.entries) + 50 * _SCALE
    image = Image.new("RGB", (width, height), _PAPER)
    pen = ImageDraw.Draw(image)
    pen.text((20 * _SCALE, 16 * _SCALE), "Time of one run", _INK, big)
    about = f"{result.cpu}, {counted(result.threads, 'thread')}, inputs {result.inputs_from}"
    pen.text((20 * _SCALE, 42 * _SCALE), about + ("" if result.clean else ", machine was busy"), _SOFT, small)

    largest = max(min(e.run.p95, 2 * e.run.median) for e in result.entries)
    unit, factor = ("ms", 1e3) if largest < 1 else ("s", 1.0)
    step = nice_step(largest * factor)
    reach = (width - left - right) / (step * (int(largest * factor / step) + 1))  # pixels per unit
    for tick in range(int((width - left - right) / (step * reach)) + 1):
        x = left + tick * step * reach
        pen.line((x, top, x, height - 40 * _SCALE), _GRID, _SCALE)
        pen.text((x, height - 32 * _SCALE), f"{tick * step:g} {unit}", _SOFT, small, anchor="ma")
    for i, entry in enumerate(result.entries):
        y = top + i * row
        middle = y + row / 2
        pen.text((left - 12 * _SCALE, middle), _fit(pen, entry.label, normal, left - 30 * _SCALE), _INK, normal, "rm")
        end = left + entry.run.median * factor * reach
        pen.rectangle((left, y + 12 * _SCALE, end, y + row - 12 * _SCALE), _BARS[i % len(_BARS)])
        low, high = (left + t * factor * reach for t in (entry.run.p5, entry.run.p95))
        pen.line((low, middle, min(high, width - right), middle), _INK, 2 * _SCALE)
        for x in (low, high):
            if x <= width - right:  # a whisker that leaves the picture has no end in it
                pen.line((x, middle - 6 * _SCALE, x, middle + 6 * _SCALE), _INK, 2 * _SCALE)
        pen.text((width - right + 14 * _SCALE, middle), _words(entry, i, factor, unit), _INK, small, "lm", spacing=8)
    return image


def _words(entry: Entry, index: int, factor: float, unit: str) -> str:
    time = f"{entry.run.median * factor:.4g} {unit}"
    if index == 0:
        return time
    verified = "" if entry.verified else "\noutputs differ"
    gain = entry.speedup
    return f"{time}\n{faster(gain.value)}  [{gain.low:.3f}, {gain.high:.3f}]{verified}"


def nice_step(largest: float, ticks: int = 5) -> float:
    """A round number that divides 0..LARGEST into about TICKS parts."""
    raw = max(largest, 1e-9) / ticks
    power = 10.0 ** len(str(int(raw))) / 10 if raw >= 1 else 1.0
    while power > raw:
        power /= 10
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw)


def _fit(pen: ImageDraw.ImageDraw, label: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: float) -> str:
    if pen.textlength(label, font) <= width:
        return label
    while label and pen.textlength(f"...{label}", font) > width:
        label = label[1:]
    return f"...{label}"
