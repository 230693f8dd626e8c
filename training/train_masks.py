"""CLIPSegForImageSegmentation, picture + word -> mask: python -m training.train_masks --minutes 20

All of it is trained, the encoders too: a mask tells a vision transformer at every pixel what it sees, which teaches it
far faster than a contrastive loss. The CLIP model then starts from these encoders (train_clip.py).
A quarter of the words name nothing in the picture; their mask is empty.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from training import models, tokens, world
from training.loop import Loop, arguments, fresh

BATCH = 32
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(1, 3, 1, 1)  # CLIP's own normalisation
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(1, 3, 1, 1)


def normalise(pictures: np.ndarray) -> torch.Tensor:
    """uint8 [n, 96, 96, 3] -> float32 [n, 3, 96, 96] as CLIP wants it"""
    return (torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255 - MEAN) / STD


def question(scene: world.Scene, masks: np.ndarray, rng: np.random.Generator) -> tuple[str, np.ndarray]:
    """A word or phrase and the mask it asks for."""
    if rng.random() < 0.2:
        absent = [name for name in world.NAMES if name not in {thing.name for thing in scene.things}]
        return world.choose(rng, absent), np.zeros((world.SIDE, world.SIDE), bool)
    if rng.random() < 0.1:
        return "background", ~masks.any(axis=0)
    index = int(rng.integers(len(scene.things)))
    thing = scene.things[index]
    if rng.random() < 0.6:
        return str(world.choose(rng, ["{}", "a {}", "the {}"])).format(thing.name), masks[index]
    return world.noun_phrase(thing, rng), masks[index]


def batch(step: int, tokenizer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """pictures [32, 3, 96, 96], ids [32, 32], masks [32, 96, 96]"""
    rng = fresh(step, 11)
    pictures, words, masks = [], [], []
    for _ in range(BATCH):
        scene = world.sample_scene(rng)
        picture, all_masks = world.render(scene, rng, free=rng.random() < 0.5)
        word, mask = question(scene, all_masks, rng)
        pictures.append(picture)
        words.append(word)
        masks.append(mask)
    ids = torch.from_numpy(tokens.encode(tokenizer, words))
    return normalise(np.stack(pictures)), ids, torch.from_numpy(np.stack(masks)).float()


def enlarge(logits: torch.Tensor) -> torch.Tensor:
    """[n, 48, 48] -> [n, 96, 96]: with patches of 8 CLIPSeg answers at half the size of the picture."""
    return F.interpolate(logits[:, None], size=(world.SIDE, world.SIDE), mode="bilinear", align_corners=False)[:, 0]


def iou(logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Mean intersection over union of the non-empty masks."""
    found, wanted = logits > 0, masks > 0.5
    union = (found | wanted).flatten(1).sum(1)
    kept = wanted.flatten(1).any(1)
    return ((found & wanted).flatten(1).sum(1)[kept] / union[kept].clamp(min=1)).float().mean()


def main() -> None:
    options = arguments(__doc__, 20)
    tokenizer = tokens.load()
    model = models.clipseg(tokenizer.get_vocab_size())
    model.clip.logit_scale.requires_grad_(False)
    loop = Loop("masks", {"masks": model}, lr=2e-3, ema=0.998)

    def step(number: int) -> dict[str, torch.Tensor]:
        pictures, ids, masks = batch(number, tokenizer)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids[:, :12], pixel_values=pictures).logits  # words are short: 12 tokens
        logits = enlarge(logits.float())
        shares = torch.sigmoid(logits)
        overlap = 2 * (shares * masks).sum((1, 2)) + 1
        dice = 1 - (overlap / (shares.sum((1, 2)) + masks.sum((1, 2)) + 1)).mean()
        loss = F.binary_cross_entropy_with_logits(logits, masks) + 0.3 * dice
        return {"loss": loss, "iou": iou(logits, masks)}

    loop.run(step, options.minutes, warmup=300)


if __name__ == "__main__":
    main()
