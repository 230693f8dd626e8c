"""Sizes of a pipeline: what the configs say; Stable Diffusion's where they do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from opsmith.errors import OpsmithError


@dataclasses.dataclass(frozen=True)
class Geometry:
    scaling: float  # latents are this times what the VAE gives, after their mean and deviation are taken out
    mean: list[float]  # of the VAE's latents, by channel; 0 where the config has none
    deviation: list[float]
    vae_channels: list[int]  # of its blocks
    latent_channels: int
    factor: int  # pixels per latent
    unet_channels: int  # of the UNet's input
    halved: int  # the UNet wants sides of the latents that are multiples of this
    guidance_channels: int  # of the embedded guidance scale; 0: the UNet is guided by running it twice
    native: tuple[int, int]  # height and width of a picture where none is asked for

    @property
    def sees_masks(self) -> bool:
        """Whether the UNet takes the mask and the picture around it: made for inpainting."""
        return self.unet_channels > self.latent_channels

    def padded(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that the UNet can halve as often as it wants to."""
        unit = self.factor * self.halved
        return -(-height // unit) * unit, -(-width // unit) * unit

    def latent(self, height: int, width: int) -> tuple[int, int, int]:
        """Shape of the latents of a picture of that size."""
        return self.latent_channels, height // self.factor, width // self.factor


def check_vae(unet: Mapping[str, Any], own: Mapping[str, Any], chosen: Mapping[str, Any]) -> None:
    """A VAE of CHOSEN's config must give latents of the shape that the pipeline's OWN gives."""
    ours, theirs = read(unet, own), read(unet, chosen)
    for what, a, b in (
        ("latents of {} channels", ours.latent_channels, theirs.latent_channels),
        ("{} pixels per latent", ours.factor, theirs.factor),
    ):
        if a != b:
            raise OpsmithError(f"the VAE does not fit: it has {what.format(b)}, the pipeline's own {a}")


def read(unet: Mapping[str, Any], vae: Mapping[str, Any]) -> Geometry:
    blocks = vae.get("block_out_channels") or vae.get("decoder_block_out_channels")
    channels = [int(c) for c in blocks or (128, 256, 512, 512)]
    factor = 2 ** (len(channels) - 1)
    latent = int(vae.get("latent_channels") or 4)
    size = unet.get("sample_size") or 64
    height, width = size if isinstance(size, list) else (size, size)
    return Geometry(
        scaling=float(vae.get("scaling_factor") or 0.18215),
        vae_channels=channels,
        mean=[float(m) for m in vae.get("latents_mean") or [0.0] * latent],
        deviation=[float(d) for d in vae.get("latents_std") or [1.0] * latent],
        latent_channels=latent,
        factor=factor,
        unet_channels=int(unet.get("in_channels") or 4),
        halved=2 ** (len(unet.get("block_out_channels") or (0,) * 4) - 1),
        guidance_channels=int(unet.get("time_cond_proj_dim") or 0),
        native=(factor * int(height), factor * int(width)),
    )
