"""Edits within a mask: recolour, replace, remove, blur, brighten, darken. Outside of `area(mask, change)` no pixel changes.

mask = masks.from_words(picture, "apple", Segmenter(folder))
edited = edit(picture, mask, grammar.parse("make it blue"))
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from opsmith.errors import OpsmithError, no_such
from opsmith.pipelines import masks
from opsmith.pipelines.diffusion import Callback, DiffusionApp, Generated
from opsmith.pipelines.grammar import Change
from opsmith.pipelines.masks import Mask

Array = np.ndarray[Any, Any]

PAINTED = ("replace", "remove")  # changes that a pipeline paints
FILLS = ("painted", "smooth")
# How strongly a UNet that only blends latents paints over what was filled. One that sees the mask was trained to continue the
# surroundings and starts from noise; others put a new thing there: on the starter's held-out scenes the root mean
# square error against the true background is, with a setting (grass, sea, sky, night) and with a plain one: 22.9 and 0.5
# unpainted, 18.3 and 3.1 at 0.2, 18.1 and 5.6 at 0.3, 19.0 and 13.0 at 0.4.
FILLED = 0.2
# Another thing has another shape: it may use the surroundings, an eighth of the selection's size, but not this many pixels more, nor so
# many that what is painted is more than twice what was selected.
GROWTH = 16
LARGEST_GROWTH = 128  # that may be asked for
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


@dataclasses.dataclass(frozen=True)
class Area:
    """What an edit may change."""

    soft: Array  # [H,W] how much of the new picture is there; 0 is left as it was, byte by byte
    grown: int  # pixels beyond the selection, its soft edge not counted

    @property
    def share(self) -> float:
        """Of the picture."""
        return float((self.soft > 0).mean())


def area(mask: Mask, change: Change, grow: int | None = None) -> Area:
    """What CHANGE may touch of a picture with MASK: the selection, and GROW pixels around it where something is painted."""
    if grow is not None and not 0 <= grow <= LARGEST_GROWTH:
        raise OpsmithError(f"growing by {grow} pixels is not possible", f"0 to {LARGEST_GROWTH}")
    if change.kind == "remove":
        return _grown(mask, 2 if grow is None else grow)  # the thing's soft edge goes too
    if change.kind == "replace":
        return _grown(mask, _room(mask) if grow is None else grow)
    return Area(mask.soft, 0)


def _grown(mask: Mask, pixels: int) -> Area:
    hard = np.asarray(masks.grown(mask.hard, pixels)) > 0 if pixels else mask.hard
    return Area(masks.feathered(hard, 2), pixels)


def _room(mask: Mask) -> int:
    selected = int(mask.hard.sum())
    pixels = int(np.clip(np.sqrt(selected) / 8, 2, GROWTH))
    while pixels > 2 and (_grown(mask, pixels).soft > 0).sum() > 2 * selected:
        pixels -= 1
    return pixels


def edit(
    image: Image.Image,
    mask: Mask,
    change: Change,
    *,
    app: DiffusionApp | None = None,
    prompt: str | None = None,
    steps: int = 25,
    guidance: float | None = None,
    seed: int = 0,
    callback: Callback | None = None,
    grow: int | None = None,
) -> tuple[Image.Image, Generated | None]:
    """The edited picture, and what the picture model did if it was needed.

    `replace` needs APP. `remove` fills from the surroundings, and with APP the model paints the background over the
    filling; PROMPT says what it looks like, without it nothing guides the model but the surroundings. GROW is as for `area`.
    """
    image = image.convert("RGB")
    if mask.hard.shape != (image.height, image.width):
        raise OpsmithError(
            f"the mask is {mask.hard.shape[1]}x{mask.hard.shape[0]}, the picture {image.width}x{image.height}"
        )
    pixels = np.asarray(image, np.float32)
    if change.kind == "recolour":
        assert change.colour is not None
        return blended(image, recoloured(pixels, change.colour), mask.soft), None
    if change.kind in ("brighten", "darken"):
        gamma = 1 / (1 + 0.6 * change.amount) if change.kind == "brighten" else 1 + 0.6 * change.amount
        return blended(image, 255 * (pixels / 255) ** gamma, mask.soft), None
    if change.kind == "blur":
        radius = change.amount * max(2.0, min(image.size) / 40)
        return blended(image, np.asarray(image.filter(ImageFilter.GaussianBlur(radius)), np.float32), mask.soft), None
    if change.kind == "remove":
        wide = area(mask, change, grow).soft
        filled = blended(image, filled_from_around(pixels, wide > 0), wide)
        if app is None:
            return filled, None
        strength = 1.0 if app.sees_masks else FILLED
        return painted(
            filled,
            wide,
            app,
            prompt or "",
            strength=strength,
            steps=steps,
            guidance=guidance if prompt else 1.0,
            seed=seed,
            callback=callback,
        )
    if change.kind == "replace":
        if app is None:
            raise OpsmithError("replacing needs a picture model", "name a pipeline folder with --model")
        wide = area(mask, change, grow).soft
        return painted(
            image,
            wide,
            app,
            prompt or change.text,
            strength=1.0,
            steps=steps,
            guidance=guidance,
            seed=seed,
            callback=callback,
        )
    raise OpsmithError(f"the change {change.kind!r} is unknown")


_BACKGROUND = re.compile(
    r"\b(?:on|in|under|before|against|behind|over)\b(?!.*\b(?:on|in|under|before|against|behind|over)\b).*$"
)


def with_background(thing: str, prompt: str) -> str:
    """THING before the background that PROMPT, which made the picture, names: "a pear" -> "a pear on a yellow background"."""
    found = _BACKGROUND.search(" ".join(prompt.split()))
    return f"{thing} {found[0]}" if found and not _BACKGROUND.search(thing) else thing


def prompt_of(change: Change, settings: Mapping[str, Any]) -> str | None:
    """What a replace paints, if nothing else is asked for: its words, and the background of what the SETTINGS say made the picture."""
    return with_background(change.text, str(settings.get("prompt") or "")) if change.kind == "replace" else None


def painter(
    change: Change, pipeline: Callable[[], DiffusionApp], fill: str | None = None
) -> tuple[DiffusionApp | None, str]:
    """The PIPELINE if CHANGE needs it, and for `remove` a line that says how the place is filled.

    FILL is "painted", "smooth", or None: painted if the pipeline can paint into a picture.
    """
    if fill not in (None, *FILLS):
        raise no_such("filling", fill, FILLS)
    if change.kind == "remove" and fill == "smooth":
        return None, "filled from the surroundings"
    if change.kind not in PAINTED:
        return None, ""
    app = pipeline()
    if change.kind == "replace":
        app.check_paints()
        return app, ""
    if not app.paints and fill is None:
        return None, f"filled from the surroundings; {app.folder} has no vae_encoder, so it cannot paint there"
    app.check_paints()
    return app, f"filled from the surroundings, then painted by {app.folder.name}, unet {app.variants['unet']}"


def blended(image: Image.Image, new: Array, soft: Array) -> Image.Image:
    """NEW [H,W,3] where SOFT [H,W] is 1, the picture where it is 0."""
    m = soft[..., None]
    mixed = np.asarray(image, np.float32) * (1 - m) + new * m
    return Image.fromarray(np.clip(mixed.round(), 0, 255).astype(np.uint8))


def recoloured(pixels: Array, colour: tuple[int, int, int]) -> Array:
    """Every pixel keeps its luminance and takes the colour's chroma, reduced where both do not fit into RGB.

    White, grey and black have no chroma. Grey keeps luminance; for white and black it moves into the upper or lower
    quarter, or nothing would be seen.
    """
    target = np.array(colour, np.float32)
    luma: Array = pixels @ _LUMA  # [H,W]
    chroma = target - target @ _LUMA
    if np.abs(chroma).max() < 8:
        level = float(target @ _LUMA)
        if level > 224 or level < 32:
            luma = luma / 4 + (191 if level > 224 else 0)
        return np.repeat(luma[..., None], 3, axis=-1)
    # The largest share of the chroma that keeps all three channels in 0..255.
    room = np.where(chroma > 0, 255 - luma[..., None], luma[..., None])  # [H,W,3]
    share = np.minimum(1, (room / np.maximum(np.abs(chroma), 1e-6)).min(-1))
    return np.asarray(luma[..., None] + share[..., None] * chroma)


def filled_from_around(pixels: Array, hole: Array) -> Array:
    """The hole [H,W] filled smoothly from its border: averages of known pixels at halved sizes, going back up (pull, push)."""
    return _pull_push(pixels.astype(np.float32), (~hole).astype(np.float32))


def _pull_push(values: Array, weight: Array) -> Array:
    height, width = weight.shape
    if weight.min() > 0 or min(height, width) <= 1:
        return values
    tall, wide = height + height % 2, width + width % 2
    pad = ((0, tall - height), (0, wide - width))
    w = np.pad(weight, pad)
    v = np.pad(values, (*pad, (0, 0))) * w[..., None]
    total = w.reshape(tall // 2, 2, wide // 2, 2).sum((1, 3))
    mean = v.reshape(tall // 2, 2, wide // 2, 2, 3).sum((1, 3)) / np.maximum(total, 1e-6)[..., None]
    below = _pull_push(mean, np.minimum(total, 1))
    channels = [
        np.asarray(Image.fromarray(np.ascontiguousarray(below[..., c])).resize((wide, tall), Image.Resampling.BILINEAR))
        for c in range(3)
    ]
    up = np.stack(channels, -1)[:height, :width]
    return np.asarray(values * weight[..., None] + up * (1 - weight[..., None]))


def painted(
    image: Image.Image,
    soft: Array,
    app: DiffusionApp,
    prompt: str,
    *,
    strength: float,
    steps: int,
    guidance: float | None,
    seed: int,
    callback: Callback | None,
) -> tuple[Image.Image, Generated]:
    """Inpaint a square around the mask at the model's own size, and put the result back within the mask."""
    rows, columns = np.flatnonzero(soft.any(1)), np.flatnonzero(soft.any(0))
    side = max(rows[-1] - rows[0], columns[-1] - columns[0]) + 1
    side = min(int(side * 1.5), *image.size) if side < min(image.size) else int(side)
    left = int(np.clip((columns[0] + columns[-1] + 1 - side) // 2, 0, max(0, image.width - side)))
    top = int(np.clip((rows[0] + rows[-1] + 1 - side) // 2, 0, max(0, image.height - side)))
    box = (left, top, min(left + side, image.width), min(top + side, image.height))
    size = (app.native[1], app.native[0])
    part = image.crop(box)
    area = Image.fromarray(((soft > 0) * 255).astype(np.uint8)).crop(box)
    made = app.generate(
        prompt,
        steps=steps,
        guidance=guidance,
        seed=seed,
        init=part.resize(size, Image.Resampling.LANCZOS),
        mask=area.resize(size, Image.Resampling.NEAREST),
        strength=strength,
        callback=callback,
    )
    whole = image.copy()
    whole.paste(made.images[0].resize(part.size, Image.Resampling.LANCZOS), box[:2])
    return blended(image, np.asarray(whole, np.float32), soft), made
