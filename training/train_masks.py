"""CLIPSegForImageSegmentation, picture + word -> mask: python -m training.train_masks --minutes 20

All of it is trained, the encoders too: a mask tells a vision transformer at every pixel what it sees, which teaches it
far faster than a contrastive loss. The CLIP model then starts from these encoders (train_clip.py).
Two words are asked about every picture; some name nothing in it: their mask is empty.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from training import models, tokens, world
from training.latents import load_vae
from training.loop import Loop, arguments, fresh
from training.paths import folder
from training.train_words import start_from_words

BATCH, WORDS = 24, 2  # pictures, and words asked about each
NAMING = 400  # first steps, in which the vision encoder alone learns what is where: half the price of a whole step
FREE = 0.2  # share of renderings off the grid
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(1, 3, 1, 1)  # CLIP's own normalisation
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(1, 3, 1, 1)


def normalise(pictures: np.ndarray) -> torch.Tensor:
    """uint8 [n, 96, 96, 3] -> float32 [n, 3, 96, 96] as CLIP wants it"""
    return (torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255 - MEAN) / STD


def questions(scene: world.Scene, masks: np.ndarray, rng: np.random.Generator) -> list[tuple[str, np.ndarray]]:
    """Two words or phrases about one picture, and the mask that each asks for.

    Two different answers about the same picture are what teaches a model to listen to the word.
    """
    order = rng.permutation(len(scene.things))
    asked = []
    for index in order[:WORDS]:
        thing = scene.things[index]
        named = rng.random() < 0.7
        word = str(world.choose(rng, ["{}", "a {}", "the {}"])).format(thing.name)
        asked.append((word if named else world.noun_phrase(thing, rng), masks[index]))
    if len(asked) < WORDS and rng.random() < 0.3:
        asked.append(("background", ~masks.any(axis=0)))
    absent = [name for name in world.NAMES if name not in {thing.name for thing in scene.things}]
    while len(asked) < WORDS:
        asked.append((world.choose(rng, absent), np.zeros((world.SIDE, world.SIDE), bool)))
    return asked


def batch(step: int, tokenizer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """pictures [24, 3, 96, 96], ids [48, 32], masks [48, 96, 96], thing of every patch [24, 144]"""
    rng = fresh(step, 11)
    pictures, words, masks, patches = [], [], [], []
    for _ in range(BATCH):
        scene = world.sample_scene(rng)
        picture, all_masks = world.render(scene, rng, free=rng.random() < FREE)
        pictures.append(picture)
        patches.append(patch_labels(scene, all_masks))
        for word, mask in questions(scene, all_masks, rng):
            words.append(word)
            masks.append(mask)
    ids = torch.from_numpy(tokens.encode(tokenizer, words))
    wanted = torch.from_numpy(np.stack(masks)).float()
    return normalise(np.stack(pictures)), ids, wanted, torch.from_numpy(np.stack(patches))


@torch.no_grad()
def through_vae(pictures: torch.Tensor, vae, rng: np.random.Generator) -> torch.Tensor:
    """Every second picture as the decoder gives it back, from latents that are a little off: what is to be masked in the studio
    is a generated picture, softer than a rendered one."""
    some = pictures[::2] * STD + MEAN
    with torch.autocast("cpu", torch.bfloat16):
        latents = vae.encode(some * 2 - 1).latent_dist.mean.float()
        off = torch.from_numpy(rng.uniform(0, 0.25, (len(some), 1, 1, 1)).astype(np.float32)) * latents.std()
        latents = latents + off * torch.from_numpy(rng.standard_normal(latents.shape, np.float32))
        decoded = vae.decode(latents).sample.float()
    pictures[::2] = ((decoded.clamp(-1, 1) + 1) / 2 - MEAN) / STD
    return pictures


def answer(model, pictures: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [48, 48, 48] of every word's mask and the vision encoder's last states [24, 145, 128].

    The model's own forward runs both encoders without gradients (CLIPSeg expects a finished CLIP), and would run the
    vision encoder once per word.
    """
    seen = model.clip.vision_model(pixel_values=pictures, output_hidden_states=True)
    layers = [seen.hidden_states[i + 1].repeat_interleave(WORDS, 0) for i in model.extract_layers]
    said = model.clip.get_text_features(ids).pooler_output  # [48, 128]
    return model.decoder(layers, said).logits, seen.last_hidden_state


def patch_labels(scene: world.Scene, masks: np.ndarray) -> np.ndarray:
    """Which thing covers most of each patch, 40 for none: int64 [144]"""
    cells = world.SIDE // models.PATCH
    shares = masks.reshape(len(masks), cells, models.PATCH, cells, models.PATCH).mean((2, 4)).reshape(len(masks), -1)
    numbers = np.array([world.NAMES.index(thing.name) for thing in scene.things])
    return np.where(shares.max(0) > 0.25, numbers[shares.argmax(0)], len(world.NAMES))


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
    start_from_words(model.clip.text_model)
    model.set_attn_implementation("eager")  # the backward pass of the fused attention took more than half of a step
    model.clip.logit_scale.requires_grad_(False)
    # Used in training only: asks the vision encoder at every patch what it sees.
    head = torch.nn.Linear(model.config.vision_config.hidden_size, len(world.NAMES) + 1)
    rarity = torch.ones(len(world.NAMES) + 1)
    rarity[-1] = 0.1  # most patches are background
    vae = load_vae() if (folder("vae") / "checkpoint.pt").exists() else None
    loop = Loop("masks", {"masks": model, "head": head}, lr=1.5e-3, ema=0.995)

    def step(number: int) -> dict[str, torch.Tensor]:
        pictures, ids, masks, patches = batch(number, tokenizer)
        if vae is not None:
            pictures = through_vae(pictures, vae, fresh(number, 12))
        if number < NAMING:
            with torch.autocast("cpu", torch.bfloat16):
                seen = head(model.clip.vision_model(pixel_values=pictures).last_hidden_state[:, 1:])
            naming = F.cross_entropy(seen.float().transpose(1, 2), patches, rarity)
            return {"loss": naming, "iou": torch.zeros(()), "naming": naming}
        with torch.autocast("cpu", torch.bfloat16):
            logits, states = answer(model, pictures, ids[:, :8])  # words are short
            seen = head(states[:, 1:])  # [24, 144, 41]
        logits = enlarge(logits.float())
        naming = F.cross_entropy(seen.float().transpose(1, 2), patches, rarity)
        shares = torch.sigmoid(logits)
        overlap = 2 * (shares * masks).sum((1, 2)) + 1
        dice = 1 - (overlap / (shares.sum((1, 2)) + masks.sum((1, 2)) + 1)).mean()
        loss = F.binary_cross_entropy_with_logits(logits, masks) + 0.5 * dice + 0.5 * naming
        return {"loss": loss, "iou": iou(logits, masks), "naming": naming}

    loop.run(step, options.minutes, warmup=80, cooldown=options.cooldown)


if __name__ == "__main__":
    main()
