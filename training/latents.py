"""Encode the training scenes once: python -m training.latents --scenes 30000

Writes, for every 2000 scenes, latents_N.npy (float16 [2000, 4, 12, 12], the posterior's mean) and captions_N.npy (int16
[2000, 4, 32], four captions of each scene), and once latents.json: the factor that gives the latents unit variance.
Chunks that are there already are kept; the training of the UNet takes up new ones while it runs.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch

from training import models, tokens, world
from training.paths import folder

CAPTIONS, CHUNK = 4, 2000


def load_vae():
    vae = models.vae()
    vae.load_state_dict(torch.load(folder("vae") / "checkpoint.pt", weights_only=False)["ema"]["vae"])
    return vae.eval()


@torch.no_grad()
def encode_chunk(number: int, vae, tokenizer) -> tuple[np.ndarray, np.ndarray]:
    latents = np.empty((CHUNK, 4, world.SIDE // 8, world.SIDE // 8), np.float16)
    captions = np.empty((CHUNK, CAPTIONS, models.TOKENS), np.int16)
    for start in range(0, CHUNK, 50):
        seeds = range(number * CHUNK + start, number * CHUNK + start + 50)
        samples = [world.sample(seed) for seed in seeds]
        pictures = torch.from_numpy(np.stack([s.picture for s in samples])).permute(0, 3, 1, 2).float() / 127.5 - 1
        with torch.autocast("cpu", torch.bfloat16):
            latents[start : start + 50] = vae.encode(pictures).latent_dist.mean.float().numpy()
        for i, (seed, s) in enumerate(zip(seeds, samples, strict=True)):
            rng = np.random.default_rng([seed, 21])
            written = [world.write_caption(s.scene, rng) for _ in range(CAPTIONS)]
            captions[start + i] = tokens.encode(tokenizer, written)
    return latents, captions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=30000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    vae, tokenizer, to = load_vae(), tokens.load(), folder("latents")
    for number in range(options.scenes // CHUNK):
        if (to / f"latents_{number}.npy").exists():
            continue
        latents, captions = encode_chunk(number, vae, tokenizer)
        if not (to / "latents.json").exists():
            scale = 1 / float(latents.astype(np.float32).std())
            (to / "latents.json").write_text(json.dumps({"scaling_factor": scale}) + "\n")
        np.save(to / f"captions_{number}.npy", captions)
        np.save(to / f"latents_{number}.npy", latents)
        print(f"latents {(number + 1) * CHUNK}/{options.scenes}", flush=True)


def coverage(number: int) -> np.ndarray:
    """How much of each latent cell of a chunk's scenes is covered by things: float16 [2000, 12, 12]"""
    cells = world.SIDE // 8
    seeds = range(number * CHUNK, (number + 1) * CHUNK)
    masks = np.stack([world.sample(seed).masks.any(0) for seed in seeds])
    return masks.reshape(CHUNK, cells, 8, cells, 8).mean((2, 4)).astype(np.float16)


def load_chunks() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All latents [scenes, 4, 12, 12], captions [scenes, 4, 32] and coverages [scenes, 12, 12] that are there."""
    latents, captions, coverages = [], [], []
    for file in sorted(folder("latents").glob("latents_*.npy")):
        latents.append(np.load(file))
        captions.append(np.load(file.with_name(file.name.replace("latents", "captions"))))
        covered = file.with_name(file.name.replace("latents", "coverage"))
        if not covered.exists():
            np.save(covered, coverage(int(file.stem.split("_")[1])))
        coverages.append(np.load(covered))
    return np.concatenate(latents), np.concatenate(captions), np.concatenate(coverages)


if __name__ == "__main__":
    main()
