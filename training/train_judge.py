"""The independent judge of generated pictures: python -m training.train_judge --minutes 8

A small CNN that shares nothing with the shipped models: it ranks the 40 things by how surely they are in a picture and
tells which of the 14 backgrounds it has. It sees only "free" renderings (off the grid, other sizes), with blur,
noise, brightness and contrast changed, mirrored at times, so that it judges what is shown and not how. Not shipped.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from opsmith.starter.vocabulary import BACKGROUNDS
from training import world
from training.loop import Loop, arguments, fresh

BATCH = 32


class Judge(nn.Module):
    """[n, 3, 96, 96] in 0..1 -> things [n, 40], backgrounds [n, 14] (logits)"""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        widths = (3, 24, 48, 96, 160)
        for i, (before, after) in enumerate(itertools.pairwise(widths)):
            layers += [nn.Conv2d(before, after, 5 if i == 0 else 3, stride=2, padding=2 if i == 0 else 1)]
            layers += [nn.BatchNorm2d(after), nn.ReLU()]
            if i:
                layers += [nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        self.body = nn.Sequential(*layers)  # [n, 160, 6, 6]
        self.things = nn.Linear(160, len(world.NAMES))
        self.backgrounds = nn.Linear(320, len(BACKGROUNDS))

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(pictures * 2 - 1)
        # A thing is where its evidence is strongest; a background is everywhere.
        things = self.things(features.permute(0, 2, 3, 1)).float().flatten(1, 2).logsumexp(1)
        pooled = torch.cat([features.mean((2, 3)), features.amax((2, 3))], 1)
        return things, self.backgrounds(pooled)


def disturb(pictures: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """What a decoder may do to a picture without changing what is in it."""
    n = len(pictures)
    blurred = F.avg_pool2d(F.pad(pictures, (1, 1, 1, 1), mode="replicate"), 3, 1)
    share = torch.from_numpy(rng.uniform(0, 1, (n, 1, 1, 1)).astype(np.float32))
    pictures = pictures * (1 - share) + blurred * share
    coarse = F.interpolate(F.avg_pool2d(pictures, 2), scale_factor=2, mode="bilinear", align_corners=False)
    share = torch.from_numpy(rng.uniform(0, 1, (n, 1, 1, 1)).astype(np.float32))
    pictures = pictures * (1 - share) + coarse * share
    gain = torch.from_numpy(rng.uniform(0.92, 1.08, (n, 1, 1, 1)).astype(np.float32))
    noise = torch.from_numpy(rng.normal(0, 0.02, pictures.shape).astype(np.float32))
    pictures = (pictures * gain + noise).clamp(0, 1)
    mirrored = torch.from_numpy(rng.random(n) < 0.25)
    pictures[mirrored] = pictures[mirrored].flip(-1)
    return pictures


def as_tensor(pictures: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255


def labels(scenes: list[world.Scene]) -> tuple[torch.Tensor, torch.Tensor]:
    things = torch.zeros(len(scenes), len(world.NAMES))
    for row, scene in zip(things, scenes, strict=True):
        for thing in scene.things:
            row[world.NAMES.index(thing.name)] = 1
    return things, torch.tensor([BACKGROUNDS.index(scene.background) for scene in scenes])


def main() -> None:
    options = arguments(__doc__, 8)
    judge = Judge()
    loop = Loop("judge", {"judge": judge}, lr=2e-3, ema=0.995)

    def step(number: int) -> dict[str, torch.Tensor]:
        rng = fresh(number, 17)
        # All combinations: a judge must know the held-out ones too, or it would be blind where it is needed.
        scenes = [world.sample_scene(rng, "held-out" if rng.random() < 0.1 else "train") for _ in range(BATCH)]
        pictures = np.stack([world.render(scene, rng, free=True)[0] for scene in scenes])
        wanted, backgrounds = labels(scenes)
        with torch.autocast("cpu", torch.bfloat16):
            things, grounds = judge(disturb(as_tensor(pictures), rng))
        # One softmax over all things, shared equally by those present: rare positives of 40 separate yes-or-no
        # questions taught it nothing in the same time.
        shares = wanted / wanted.sum(1, keepdim=True)
        loss = F.cross_entropy(things, shares) + 0.3 * F.cross_entropy(grounds.float(), backgrounds)
        first = wanted.gather(1, things.argmax(1, keepdim=True)).mean()
        return {"loss": loss, "first": first, "background": (grounds.argmax(1) == backgrounds).float().mean()}

    loop.run(step, options.minutes, cooldown=options.cooldown)


if __name__ == "__main__":
    main()
