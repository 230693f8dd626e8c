"""The picture side: pictures and masks as arrays, the VAE between pixels and latents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from opsmith.errors import OpsmithError, no_such
from opsmith.pipelines.diffusion import tiles
from opsmith.pipelines.diffusion.geometry import Geometry
from opsmith.pipelines.diffusion.noise import Noise
from opsmith.pipelines.diffusion.parts import Parts, TooLarge

if TYPE_CHECKING:
    from opsmith.pipelines.diffusion.request import Job

Array = np.ndarray[Any, Any]

TILES = ("auto", "on", "off")


class Canvas:
    def __init__(self, parts: Parts, geometry: Geometry, tiles: str = "auto") -> None:
        if tiles not in TILES:
            raise no_such("choice of tiles", tiles, TILES)
        self._parts, self._geometry, self.tiles = parts, geometry, tiles
        self.remarks: list[str] = []
        self._mean, self._deviation = (
            np.array(values, np.float32)[:, None, None] for values in (geometry.mean, geometry.deviation)
        )

    @property
    def paints(self) -> bool:
        """Whether it can start from a picture, and so inpaint."""
        return "vae_encoder" in self._parts

    def check_paints(self) -> None:
        if not self.paints:
            raise OpsmithError(
                f"the pipeline {self._parts.folder} has no vae_encoder", "it is needed to start from a picture"
            )

    def encode(self, picture: Array, source: Noise, job: Job) -> Array:
        """[3,H,W] -> the mean latent [4,h,w]; with torch noise a sample of the distribution, as diffusers takes.

        A tiny autoencoder gives the latent itself."""
        moments = self._parts.run("vae_encoder", {"sample": picture[None].astype(np.float32)}).astype(np.float32)
        self._parts.done_with("vae_encoder")
        count = self._geometry.latent_channels
        mean, log_variance = moments[0, :count], moments[0, count:]
        if job.torch_noise and len(log_variance):
            deviation = np.exp(0.5 * np.clip(log_variance, -30, 20))
            mean = mean + deviation * source.standard_normal(mean.shape, dtype=np.float32)
        return np.asarray((mean - self._mean) * self._geometry.scaling / self._deviation, np.float32)

    def decode(self, latent: Array, job: Job) -> Image.Image:
        """[1,4,h,w] -> the picture, cut to the size that was asked for."""
        unscaled = (latent * self._deviation / self._geometry.scaling + self._mean).astype(np.float32)
        values = self._decoded(unscaled)
        if not np.isfinite(values).all():
            raise OpsmithError("the VAE gave values that are not numbers", "try a variant in full precision")
        shown = np.clip(values.astype(np.float32) / 2 + 0.5, 0, 1) * 255
        whole = shown.round().astype(np.uint8).transpose(1, 2, 0)  # [H,W,3]
        return Image.fromarray(whole[: job.height, : job.width])

    def _decoded(self, latent: Array) -> Array:
        """[3,H,W], in tiles if TILES is on, or auto and the whole does not fit into memory."""

        def run(part: Array) -> Array:
            return np.asarray(self._parts.run("vae_decoder", {"latent_sample": np.ascontiguousarray(part)})[0])

        if self.tiles != "on":
            try:
                return run(latent)
            except TooLarge:
                if self.tiles == "off":
                    raise
        self.remarks = ["the VAE decoded the picture in tiles: it is near what it would be as a whole"]
        side = max(8, min(self._geometry.native) // self._geometry.factor)
        return tiles.decoded(latent, run, self._geometry.factor, side)


def _pad(array: Array, padded: tuple[int, int]) -> Array:
    return np.pad(array, [(0, 0), (0, padded[0] - array.shape[1]), (0, padded[1] - array.shape[2])], mode="edge")


def pixels(image: Image.Image, height: int, width: int, padded: tuple[int, int]) -> Array:
    """[3,H,W] in -1..1"""
    shown = image.convert("RGB")
    if shown.size != (width, height):
        shown = shown.resize((width, height), Image.Resampling.LANCZOS)
    return _pad(np.asarray(shown, np.float32).transpose(2, 0, 1) / 127.5 - 1, padded)


def mask(image: Image.Image, height: int, width: int, padded: tuple[int, int]) -> Array:
    """[1,H,W] of 0 and 1"""
    shown = image.convert("L")
    if shown.size != (width, height):
        shown = shown.resize((width, height), Image.Resampling.NEAREST)
    return _pad((np.asarray(shown, np.float32)[None] >= 127.5).astype(np.float32), padded)


def nearest(mask: Array, height: int, width: int) -> Array:
    rows = np.arange(height) * mask.shape[1] // height
    columns = np.arange(width) * mask.shape[2] // width
    return np.asarray(mask[:, rows][:, :, columns])
