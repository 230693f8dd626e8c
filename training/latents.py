"""Encode the training scenes once: python -m training.latents --scenes 30000

Writes latents.npy (float16 [scenes, 4, 12, 12], the posterior's mean), captions.npy (int16 [scenes, 4, 32], four captions
of each scene) and latents.json (the scaling factor that gives the latents unit variance).
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch

from training import models, tokens, world
from training.paths import folder

CAPTIONS = 4


def load_vae():
    vae = models.vae()
    vae.load_state_dict(torch.load(folder("vae") / "checkpoint.pt", weights_only=False)["ema"]["vae"])
    return vae.eval()


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=30000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    vae, tokenizer, to = load_vae(), tokens.load(), folder("latents")
    latents = np.empty((options.scenes, 4, world.SIDE // 8, world.SIDE // 8), np.float16)
    captions = np.empty((options.scenes, CAPTIONS, models.TOKENS), np.int16)
    for start in range(0, options.scenes, 64):
        seeds = range(start, min(start + 64, options.scenes))
        samples = [world.sample(seed) for seed in seeds]
        pictures = torch.from_numpy(np.stack([s.picture for s in samples])).permute(0, 3, 1, 2).float() / 127.5 - 1
        with torch.autocast("cpu", torch.bfloat16):
            mean = vae.encode(pictures).latent_dist.mean
        latents[start : start + 64] = mean.float().numpy()
        for seed, s in zip(seeds, samples, strict=True):
            rng = np.random.default_rng([seed, 21])
            captions[seed] = tokens.encode(tokenizer, [world.write_caption(s.scene, rng) for _ in range(CAPTIONS)])
        if start % 6400 == 0:
            print(f"latents {start}/{options.scenes}", flush=True)
    np.save(to / "latents.npy", latents)
    np.save(to / "captions.npy", captions)
    scale = 1 / float(latents[:4000].astype(np.float32).std())
    (to / "latents.json").write_text(json.dumps({"scaling_factor": scale, "scenes": options.scenes}) + "\n")
    print("scaling factor", scale)


if __name__ == "__main__":
    main()
