"""Masks: found by a text query (CLIPSeg), read from a file, or a box; then cleaned.

soft      probabilities [H,W] in 0..1
cleaned   threshold -> parts (small ones dropped) -> feathered outwards; 1 inside, falling to 0 around it

A part is dropped if it is a speck (less than SPECK of the picture) or small beside the largest part. What a user draws,
as a file or a box, is taken as it is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from opsmith import session, store
from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures, preprocess
from opsmith.pipelines.clip_tokenizer import ClipTokenizer
from opsmith.pipelines.text import choose_variant, read_config

Array = np.ndarray[Any, Any]

SPECK = 0.0005  # of the picture: 131 pixels at 512x512
# A selection is in doubt where its mean probability is not this far between the threshold and 1. On 24 pictures of the starter,
# things that are in them reach 0.85 to 0.97 (5 to 95 of 100); of 144 questions for things that are not, 134 find nothing, 3 are in doubt.
SURE = 0.4


@dataclasses.dataclass(frozen=True)
class Mask:
    hard: Array  # [H,W] bool: what was selected
    soft: Array  # [H,W] float32: 1 there, feathered outwards
    sure: float | None = None  # mean probability of what was selected by words
    doubt: str = ""  # why it may be wrong

    @property
    def image(self) -> Image.Image:
        return Image.fromarray((self.soft * 255).round().astype(np.uint8))

    @property
    def box(self) -> tuple[int, int, int, int]:
        """left, top, right, bottom of the selection"""
        rows, columns = np.flatnonzero(self.hard.any(1)), np.flatnonzero(self.hard.any(0))
        return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


class Segmenter:
    """A CLIPSeg-type model folder: a picture and words -> probabilities."""

    def __init__(self, folder: store.PathLike, variant: str | None = None, threads: int | None = None) -> None:
        self.folder = Path(folder)
        self.path = choose_variant(self.folder, variant)
        self.session = session.load(self.path, threads=threads)
        inputs = {i.name: i for i in self.session.get_inputs()}
        if "pixel_values" not in inputs or "input_ids" not in inputs:
            raise OpsmithError(
                f"{self.path} does not find things by words", "CLIPSeg models do: pixel_values, input_ids"
            )
        self.tokenizer = ClipTokenizer(self.folder)
        self.preprocessor = read_config(self.folder / "preprocessor_config.json")
        config = read_config(self.folder / "config.json")
        self.longest = int((config.get("text_config") or {}).get("max_position_embeddings") or 77)
        size = self.preprocessor.get("size") or {}
        shape = inputs["pixel_values"].shape
        self.height, self.width = (
            fixed if isinstance(fixed, int) else int(size.get(name) or 352)
            for fixed, name in zip(shape[2:], ("height", "width"))
        )

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    def find(self, image: Image.Image, words: str) -> Array:
        """[H,W] of the picture, 0..1"""
        if not words.strip():
            raise OpsmithError("what to select is empty", "name a thing in the picture")
        resample = Image.Resampling(int(self.preprocessor.get("resample", 2)))
        small = image.convert("RGB").resize((self.width, self.height), resample)
        ids = np.array([self.tokenizer.enclosed(words, self.longest)[0]], np.int64)
        feeds = {
            "pixel_values": preprocess.scaled(small, self.preprocessor)[None],
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
        }
        known = {i.name for i in self.session.get_inputs()}
        logits = session.run(self.session, {k: v for k, v in feeds.items() if k in known})[0]
        chance = 1 / (1 + np.exp(-np.asarray(logits, np.float32).reshape(logits.shape[-2:])))
        stretched = Image.fromarray(chance.astype(np.float32)).resize(image.size, Image.Resampling.BILINEAR)
        return np.asarray(stretched, np.float32)


def from_words(
    image: Image.Image,
    words: str,
    segmenter: Segmenter,
    threshold: float = 0.5,
    feather: float = 2.0,
    min_area: float | None = None,
) -> Mask:
    """MIN_AREA of a part is in pixels; SPECK of the picture by default. The mask says how sure it is, and why if it is not."""
    _check_threshold(threshold)
    soft = segmenter.find(image, words)
    if float(soft.max()) < threshold:
        raise OpsmithError(
            f"nothing like {words!r} was found: the best match has {float(soft.max()):.0%}, {threshold:.0%} are asked for",
            "try other words, a lower threshold, or another way to select",
        )
    found = clean(soft, threshold, feather, min_area=min_area)
    sure = float(soft[found.hard].mean())
    return dataclasses.replace(found, sure=sure, doubt=_doubt(segmenter, words, sure, threshold))


def _doubt(segmenter: Segmenter, words: str, sure: float, threshold: float) -> str:
    if unknown := segmenter.tokenizer.unknown(words):
        return f"the mask model was never shown {unknown[0]!r}"
    limit = threshold + SURE * (1 - threshold)
    return f"{words!r} is {sure:.0%} sure, below {limit:.0%}" if sure < limit else ""


def from_file(image: Image.Image, path: str | os.PathLike[str], feather: float = 2.0) -> Mask:
    """White is selected."""
    mask = pictures.read(path, "L")
    if mask.size != image.size:
        raise OpsmithError(
            f"the mask is {mask.width}x{mask.height}, the picture {image.width}x{image.height}", "they must be equal"
        )
    selected = np.asarray(mask, np.float32) / 255
    if selected.max() < 0.5:
        raise OpsmithError(f"the mask {os.fspath(path)} is empty", "white parts are selected")
    return clean(selected, 0.5, feather, smallest=0.0, min_area=0)


def from_box(image: Image.Image, box: tuple[int, int, int, int], feather: float = 2.0) -> Mask:
    left, top, right, bottom = box
    if not (0 <= left < right <= image.width and 0 <= top < bottom <= image.height):
        raise OpsmithError(
            f"the box {left},{top},{right},{bottom} does not lie in the picture of {image.width}x{image.height}",
            "left,top,right,bottom in pixels",
        )
    selected = np.zeros((image.height, image.width), np.float32)
    selected[top:bottom, left:right] = 1
    return clean(selected, 0.5, feather, smallest=0.0, min_area=0)


def clean(soft: Array, threshold: float, feather: float, smallest: float = 0.1, min_area: float | None = None) -> Mask:
    """Parts of fewer than MIN_AREA pixels, or smaller than SMALLEST times the largest one, are dropped. FEATHER is in pixels."""
    _check_threshold(threshold)
    if not 0 <= feather <= 200:
        raise OpsmithError(f"a feather of {feather} pixels is not possible", "0 to 200")
    if min_area is None:
        min_area = SPECK * soft.size
    if not 0 <= min_area < soft.size:
        raise OpsmithError(f"a smallest area of {min_area:g} pixels is not possible", f"0 up to {soft.size - 1}")
    hard = soft >= threshold
    if smallest > 0 or min_area > 0:
        labels, areas = parts(hard)
        largest = int(areas.max(initial=0))
        if 0 < largest < min_area:
            raise OpsmithError(
                f"only specks were found: the largest has {largest} pixels, {min_area:.0f} are asked for",
                "try other words or a lower threshold, or allow a smaller area",
            )
        hard = np.isin(labels, np.flatnonzero(areas >= max(smallest * largest, min_area)) + 1)
    return Mask(hard, feathered(hard, feather))


def _check_threshold(threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise OpsmithError(f"a threshold of {threshold} is not possible", "above 0, at most 1")


def feathered(hard: Array, radius: float) -> Array:
    """1 inside, falling to exactly 0 within three RADIUS outside."""
    shown = Image.fromarray(hard.astype(np.uint8) * 255)
    if radius > 0:
        shown = grown(hard, radius).filter(ImageFilter.GaussianBlur(radius / 2))
    return np.maximum(np.asarray(shown, np.float32) / 255, hard.astype(np.float32))


def grown(hard: Array, radius: float) -> Image.Image:
    """The selection, RADIUS pixels larger on all sides."""
    shown = Image.fromarray(hard.astype(np.uint8) * 255)
    for _ in range(max(1, round(radius))):
        shown = shown.filter(ImageFilter.MaxFilter(3))
    return shown


def parts(hard: Array) -> tuple[Array, Array]:
    """Labels [H,W] from 1 up of the 4-connected parts, and their areas. Runs of each row are joined by union-find."""
    parent: list[int] = []

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    runs: list[tuple[int, int, int]] = []  # row, start, end; its index is its label
    above: list[int] = []
    for y in range(hard.shape[0]):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], hard[y].astype(np.int8), [0]])))
        row: list[int] = []
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist()):
            i = len(runs)
            runs.append((y, start, end))
            parent.append(i)
            for other in above:
                if runs[other][1] < end and start < runs[other][2]:
                    parent[root(other)] = root(i)
            row.append(i)
        above = row
    numbers: dict[int, int] = {}
    labels = np.zeros(hard.shape, np.int32)
    for i, (y, start, end) in enumerate(runs):
        labels[y, start:end] = numbers.setdefault(root(i), len(numbers) + 1)
    return labels, np.bincount(labels.ravel(), minlength=len(numbers) + 1)[1:]


def overlay(image: Image.Image, mask: Mask, area: Array | None = None) -> Image.Image:
    """The picture with the selection in red and the rest darkened, to look at before the edit. AREA [H,W]: what may change, in yellow."""
    pixels = np.asarray(image.convert("RGB"), np.float32)
    m = mask.soft[..., None]
    shown = pixels * (0.45 + 0.2 * m) + m * np.array([110, 0, 0], np.float32)
    if area is not None:
        ring = ((area > 0) & (mask.soft == 0))[..., None]
        shown = shown + ring * np.array([90, 75, 0], np.float32)
    return Image.fromarray(np.clip(shown, 0, 255).astype(np.uint8))
