"""Quality of picture variants: the same prompts and seeds on each, compared with the first.

CLIP score         100 cos(picture, prompt) in a CLIP model's space; the starter's by default
PSNR, SSIM         against the first variant's pictures (SSIM: Wang et al. 2004, 8x8 windows, on luminance)
feature distance   as LPIPS does it: squared distance of unit-length CLIP patch features, averaged over the patches
memory             peak resident memory of the process that made the pictures

Every row is made in a process of its own, one after the other. A row is a variant, alone or with its own number of steps
or size: `fp16`, `fp16@steps=10`, `fp16@size=64x64` (width x height; compared after enlarging).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from opsmith import progress, session, store
from opsmith.errors import OpsmithError
from opsmith.measure import alone
from opsmith.pipelines import pictures
from opsmith.pipelines.clip_tokenizer import ClipTokenizer
from opsmith.pipelines.diffusion import DiffusionApp
from opsmith.pipelines.text import choose_variant

Array = np.ndarray[Any, Any]


@dataclasses.dataclass
class PictureScore:
    """One row; medians and means over prompts x seeds. The first variant has no distances."""

    variant: str
    clip: float
    psnr: float | None
    ssim: float | None
    distance: float | None
    step_seconds: float
    picture_seconds: float
    bytes: int
    peak_rss: int
    images: list[Image.Image]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """One row that is asked for: VARIANT[@steps=N][@size=WxH]."""

    variant: str
    steps: int | None = None
    size: tuple[int, int] | None = None  # width, height

    @classmethod
    def parse(cls, text: str) -> Wanted:
        variant, *parts = text.split("@")
        steps, size = None, None
        for part in parts:
            if matched := re.fullmatch(r"steps=([1-9]\d{0,3})", part):
                steps = int(matched[1])
            elif matched := re.fullmatch(r"size=([1-9]\d{0,4})x([1-9]\d{0,4})", part):
                size = int(matched[1]), int(matched[2])
            else:
                raise OpsmithError(f"{text!r} is not understood", "VARIANT, VARIANT@steps=10 or VARIANT@size=64x64")
        return cls(variant, steps, size)


class Clip:
    """An exported CLIP: text_model and vision_model in one folder."""

    def __init__(self, folder: store.PathLike, threads: int | None = None) -> None:
        self.folder = Path(folder)
        self.text = session.load(choose_variant(self.folder / "text_model"), threads=threads)
        self.vision = session.load(choose_variant(self.folder / "vision_model"), threads=threads)
        self.tokenizer = ClipTokenizer(self.folder)
        file = self.folder / "preprocessor_config.json"
        try:
            self.settings = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise OpsmithError(f"{file} cannot be read: {error}") from error

    def words(self, text: str) -> Array:
        """A unit vector."""
        ids = np.array([self.tokenizer.enclosed(text, self.tokenizer.longest or 77)[0]], np.int64)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        known = {i.name for i in self.text.get_inputs()}
        return _unit(session.run(self.text, {k: v for k, v in feeds.items() if k in known}, ["text_embeds"])[0][0])

    def look(self, image: Image.Image) -> tuple[Array, Array]:
        """A unit vector of the picture, and unit vectors [patches, width] of its parts."""
        height, width = self.vision.get_inputs()[0].shape[2:]
        small = image.convert("RGB").resize(
            (int(width), int(height)), Image.Resampling(int(self.settings.get("resample", 3)))
        )
        pixels = np.asarray(small, np.float32) / 255
        pixels = (pixels - np.array(self.settings["image_mean"])) / np.array(self.settings["image_std"])
        feed = {"pixel_values": np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], np.float32)}
        whole, parts = session.run(self.vision, feed, ["image_embeds", "last_hidden_state"])
        return _unit(whole[0]), _unit(parts[0, 1:])


def score_pictures(
    folder: store.PathLike,
    variants: Sequence[str],
    prompts: Sequence[str],
    *,
    seeds: Sequence[int] = (0, 1),
    steps: int = 25,
    guidance: float | None = None,
    clip: store.PathLike | None = None,
    threads: int | None = None,
) -> list[PictureScore]:
    """One row per variant (see `Wanted`) of the pipeline in FOLDER; the first is what the others are compared with."""
    if not variants or not prompts or not seeds:
        raise OpsmithError("there is nothing to score", "give variants, prompts and seeds")
    if clip is None:
        from opsmith import starter

        clip = starter.folder("clip")
    judge = Clip(clip, threads)
    asked = [judge.words(prompt) for prompt in prompts]
    rows: list[PictureScore] = []
    base: list[tuple[Array, Array]] = []  # pixels and features of the first variant's pictures
    wanted = [Wanted.parse(name) for name in variants]
    with tempfile.TemporaryDirectory(prefix="opsmith-score-") as out, progress.task("score", len(variants)) as step:
        for name, want in zip(variants, wanted):
            step(name)
            order = {
                "folder": str(folder),
                "variant": want.variant,
                "prompts": list(prompts),
                "seeds": [int(s) for s in seeds],
                "steps": want.steps or steps,
                "size": want.size,
                "guidance": guidance,
                "threads": threads,
                "out": out,
            }
            answer = alone.ask("opsmith.measure.score_pictures", order, name)
            images = [pictures.read(file) for file in answer["files"]]
            if base:
                height, width = base[0][0].shape[:2]
                images = [i if i.size == (width, height) else i.resize((width, height), _ENLARGE) for i in images]
            seen = [judge.look(image) for image in images]
            clips = [100 * float(whole @ asked[i // len(seeds)]) for i, (whole, _) in enumerate(seen)]
            row = PictureScore(
                name,
                float(np.mean(clips)),
                None,
                None,
                None,
                float(np.median(answer["step_seconds"])),
                float(np.median(answer["seconds"])),
                answer["bytes"],
                answer["peak_rss"],
                images,
            )
            now = [(np.asarray(image), features) for image, (_, features) in zip(images, seen)]
            _set_distances(row, now, base)
            base = base or now
            rows.append(row)
    return rows


def _set_distances(row: PictureScore, now: list[tuple[Array, Array]], base: list[tuple[Array, Array]]) -> None:
    """Of pictures and their features to those of the first variant, which itself has none."""
    pairs = [(a, b, f, g) for (a, f), (b, g) in zip(now, base)]
    if pairs:
        row.psnr = float(np.mean([min(pictures.psnr(a, b), 100.0) for a, b, _, _ in pairs]))
        row.ssim = float(np.mean([ssim(a, b) for a, b, _, _ in pairs]))
        row.distance = float(np.mean([((f - g) ** 2).sum(-1).mean() for _, _, f, g in pairs]))


_ENLARGE = Image.Resampling.BICUBIC


def _make(order: dict[str, Any]) -> dict[str, Any]:
    """All pictures of one row, in this process."""
    from opsmith.timing.worker import memory

    app = DiffusionApp(order["folder"], variant=order["variant"], threads=order["threads"])
    width, height = order["size"] or (None, None)
    files, steps, seconds = [], list[float](), list[float]()
    for prompt in order["prompts"]:
        for seed in order["seeds"]:
            made = app.generate(
                prompt, steps=order["steps"], guidance=order["guidance"], seed=seed, width=width, height=height
            )
            handle, file = tempfile.mkstemp(suffix=".png", dir=order["out"])
            os.close(handle)
            made.images[0].save(file)
            files.append(file)
            steps += made.step_seconds
            seconds.append(made.seconds)
    size = sum(session.size_on_disk(path) for name, path in app.paths.items() if name != "vae_encoder")
    return {"files": files, "step_seconds": steps, "seconds": seconds, "bytes": size, "peak_rss": memory("VmHWM")}


def contact_sheet(rows: Sequence[PictureScore]) -> Image.Image:
    """One line of pictures per variant."""
    count = len(rows[0].images)
    labels = [row.variant if i == 0 else "" for row in rows for i in range(count)]
    return pictures.sheet([image for row in rows for image in row.images], labels, columns=count)


def ssim(a: Array, b: Array) -> float:
    """Structural similarity of two pictures [H,W,3] of 0..255, over all 8x8 windows."""
    if a.shape != b.shape or min(a.shape[:2]) < 8:
        raise OpsmithError(f"pictures of shape {a.shape} and {b.shape} cannot be compared")
    luma = np.array([0.299, 0.587, 0.114])
    x, y = (np.lib.stride_tricks.sliding_window_view(p.astype(np.float64) @ luma, (8, 8)) for p in (a, b))
    mx, my = x.mean((2, 3)), y.mean((2, 3))
    vx, vy = x.var((2, 3)), y.var((2, 3))
    both = (x * y).mean((2, 3)) - mx * my
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    return float((((2 * mx * my + c1) * (2 * both + c2)) / ((mx**2 + my**2 + c1) * (vx + vy + c2))).mean())


def _unit(array: Any) -> Array:
    vectors = np.asarray(array, np.float32)
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12))


if __name__ == "__main__":
    alone.answer(_make)
