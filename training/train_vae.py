"""AutoencoderKL, factor 8, 4 latent channels: python -m training.train_vae --minutes 25

Trained on 48 px crops (a quarter of the cost of a whole scene, and the network is convolutional); loss: L1 and
squared error of the pixels, L1 of their differences at two scales (sharp edges), a small KL term.
Delete the folder "latents" to train the encoder again; the UNet has to start anew then.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from training import models, world
from training.linear_start import start_linear
from training.loop import Loop, arguments, fresh
from training.paths import folder

BATCH, CROP = 32, 48


def batch(step: int) -> torch.Tensor:
    """[32, 3, 48, 48] in -1..1"""
    rng = fresh(step)
    crops = np.empty((BATCH, CROP, CROP, 3), np.uint8)
    for i in range(BATCH // 2):  # two crops of each scene
        # One scene in eight stands off the grid, so that a picture moved by hand still decodes.
        picture = world.sample(int(rng.integers(2**31)), free=rng.random() < 0.125).picture
        for j in range(2):
            y, x = rng.integers(0, (world.SIDE - CROP) // world.GRID + 1, 2) * world.GRID
            crops[2 * i + j] = picture[y : y + CROP, x : x + CROP]
    return torch.from_numpy(crops).permute(0, 3, 1, 2).float() / 127.5 - 1


def edges(difference: torch.Tensor) -> torch.Tensor:
    across = (difference[..., 1:] - difference[..., :-1]).abs().mean()
    return across + (difference[..., 1:, :] - difference[..., :-1, :]).abs().mean()


def main() -> None:
    # Once the UNet is trained on the latents the encoder must stay as it is: it is frozen where latents are cached.
    frozen = (folder("latents") / "latents.json").exists()
    options = arguments(__doc__, 25)
    vae = models.vae()
    start_linear(vae)
    if frozen:
        vae.encoder.requires_grad_(False)
        vae.quant_conv.requires_grad_(False)
    loop = Loop("vae", {"vae": vae}, lr=1e-3, ema=0.998)
    if frozen:
        print("vae: latents are cached, so the encoder is frozen; only the decoder learns", flush=True)
        averaged = {k: v for k, v in loop.ema["vae"].items() if k.startswith(("encoder.", "quant_conv."))}
        vae.load_state_dict(averaged, strict=False)

    def step(number: int) -> dict[str, torch.Tensor]:
        pictures = batch(number)
        with torch.autocast("cpu", torch.bfloat16):
            posterior = vae.encode(pictures).latent_dist
            latents = posterior.sample()
            # What a diffusion model makes is never exact: the decoder must not hang on the last percent of a latent.
            latents = latents + 0.08 * latents.detach().std() * torch.randn_like(latents)
            decoded = vae.decode(latents).sample
        difference = decoded.float() - pictures
        squared = difference.square().mean()
        sharp = edges(difference) + edges(F.avg_pool2d(difference, 2))
        kl = posterior.kl().float().mean() / posterior.mean[0].numel()
        loss = difference.abs().mean() + squared + 0.5 * sharp + 5e-4 * kl
        return {"loss": loss, "psnr": -10 * torch.log10(squared / 4), "kl": kl}

    loop.run(step, options.minutes, cooldown=options.cooldown)


if __name__ == "__main__":
    main()
