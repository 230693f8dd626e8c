"""The rows of `score text` as a picture: what it costs (KL, size, memory) and what it brings (decode speed), a bar per model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from opsmith.measure.chart import _BARS, _GRID, _INK, _PAPER, _SCALE, _SOFT, _fit, check_path
from opsmith.measure.score_text import TextScore

# heading, what is drawn, how it is written
PANELS: tuple[tuple[str, Callable[[TextScore], float], str], ...] = (
    ("KL, nats per token", lambda r: r.kl, "{:.4f}"),
    ("size, MB", lambda r: r.size / 1e6, "{:.0f}"),
    ("peak memory, MB", lambda r: r.peak_rss / 1e6, "{:.0f}"),
    ("decode, tokens/s", lambda r: r.decode_speed, "{:.1f}"),
)


def plot(rows: Sequence[TextScore], path: Path) -> None:
    check_path(path)
    _draw(rows).save(path)


def _draw(rows: Sequence[TextScore]) -> Image.Image:
    big, normal, small = (ImageFont.load_default(size * _SCALE) for size in (18, 14, 12))
    row, top, left, panel = 40 * _SCALE, 96 * _SCALE, 190 * _SCALE, 230 * _SCALE
    width, height = left + panel * len(PANELS) + 20 * _SCALE, top + row * len(rows) + 24 * _SCALE
    image = Image.new("RGB", (width, height), _PAPER)
    pen = ImageDraw.Draw(image)
    pen.text((20 * _SCALE, 16 * _SCALE), "Text models beside the first", _INK, big)
    pen.text((20 * _SCALE, 42 * _SCALE), f"{rows[0].predicted} tokens predicted, batch 1", _SOFT, small)
    for p, (heading, figure, form) in enumerate(PANELS):
        x = left + p * panel
        reach = (panel - 80 * _SCALE) / max([figure(r) for r in rows] + [1e-12])
        pen.text((x, top - 22 * _SCALE), heading, _SOFT, small)
        pen.line((x, top, x, top + row * len(rows)), _GRID, _SCALE)
        for i, r in enumerate(rows):
            y = top + i * row
            end = x + figure(r) * reach
            pen.rectangle((x, y + 9 * _SCALE, max(end, x + 1), y + row - 9 * _SCALE), _BARS[i % len(_BARS)])
            pen.text((end + 6 * _SCALE, y + row / 2), form.format(figure(r)), _INK, small, "lm")
    for i, r in enumerate(rows):
        label = _fit(pen, r.name, normal, left - 30 * _SCALE)
        pen.text((left - 12 * _SCALE, top + (i + 0.5) * row), label, _INK, normal, "rm")
    return image
