"""CLIPModel, for the CLIP score: python -m training.train_clip --minutes 15

Starts from the mask model's vision encoder and the text encoder of train_words.py when there are any. The batch's captions differ in single attributes as often as in
all of them: every scene comes with a twin in which one thing, colour, size or background was changed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional as F

from opsmith.starter.vocabulary import BACKGROUNDS, TINTS
from training import models, tokens, world
from training.loop import Loop, arguments, fresh
from training.paths import folder
from training.train_masks import FREE, normalise
from training.train_words import start_from_words

BATCH = 48


def twin(scene: world.Scene, rng: np.random.Generator) -> world.Scene:
    """The scene with one attribute changed; never a held-out combination."""
    while True:
        kind = world.choose(rng, ("thing", "tint", "background"))
        changed = scene
        if kind == "background":
            changed = replace(scene, background=world.choose(rng, BACKGROUNDS))
        else:
            i = int(rng.integers(len(scene.things)))
            thing = scene.things[i]
            if kind == "thing":
                thing = replace(thing, name=world.choose(rng, world.NAMES))
            else:
                thing = replace(thing, tint=world.choose(rng, (None, *TINTS)))
            changed = replace(scene, things=(*scene.things[:i], thing, *scene.things[i + 1 :]))
        bad = any(
            world.held_out(t.name, t.tint, changed.background) or world.clashes(t.tint, changed.background)
            for t in changed.things
        )
        if changed != scene and not bad:
            return changed


def batch(step: int, tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """pictures [48, 3, 96, 96], ids [48, 32]"""
    rng = fresh(step, 13)
    scenes = []
    for _ in range(BATCH // 2):
        scene = world.sample_scene(rng)
        scenes += [scene, twin(scene, rng)]
    pictures = np.stack([world.render(scene, rng, free=rng.random() < FREE)[0] for scene in scenes])
    captions = [world.write_caption(scene, rng) for scene in scenes]
    return normalise(pictures), torch.from_numpy(tokens.encode(tokenizer, captions))


def start_from_masks(vision: torch.nn.Module) -> None:
    path = folder("masks") / "checkpoint.pt"
    if not path.exists():
        print("clip: no mask model yet, starting from nothing", flush=True)
        return
    weights, part = torch.load(path, weights_only=False)["ema"]["masks"], "clip.vision_model."
    vision.load_state_dict({key.removeprefix(part): value for key, value in weights.items() if key.startswith(part)})


def main() -> None:
    options = arguments(__doc__, 15)
    tokenizer = tokens.load()
    model = models.clip(tokenizer.get_vocab_size())
    model.set_attn_implementation("eager")  # its backward pass is far cheaper than that of the fused attention
    start_from_words(model.text_model)
    start_from_masks(model.vision_model)
    loop = Loop("clip", {"clip": model}, lr=1.5e-3, ema=0.995)

    def step(number: int) -> dict[str, torch.Tensor]:
        pictures, ids = batch(number, tokenizer)
        with torch.autocast("cpu", torch.bfloat16):
            out = model(input_ids=ids[:, :28], pixel_values=pictures)
        scale = model.logit_scale.clamp(max=4.6).exp()
        logits = scale * F.normalize(out.text_embeds.float(), dim=-1) @ F.normalize(out.image_embeds.float(), dim=-1).T
        labels = torch.arange(BATCH)
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
        return {"loss": loss, "right": (logits.argmax(0) == labels).float().mean()}

    loop.run(step, options.minutes, warmup=200, cooldown=options.cooldown)


if __name__ == "__main__":
    main()
