"""The text encoders, before they meet a picture: python -m training.train_words --minutes 3

A caption of this world says what its scene holds. Small heads, used here only, ask the encoder's last state for every
thing's name, tint and size, the background, place and relation. The UNet, the mask model and CLIP then start with words that
already mean something, instead of having to find out from noisy latents or masks.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from opsmith.starter.vocabulary import BACKGROUNDS, TINTS
from training import models, tokens, world
from training.loop import Loop, arguments, fresh
from training.paths import folder
from training.phrases import PLACES, RELATIONS, SIZES

BATCH = 96
THINGS = 3  # at most in a scene
# What is asked, and how many answers there are. Each list's last answer is "none".
QUESTIONS: tuple[tuple[str, ...], ...] = (
    *((*world.NAMES, ""),) * THINGS,
    *((*TINTS, ""),) * THINGS,
    *((*SIZES, ""),) * THINGS,
    (*BACKGROUNDS, ""),
    (*PLACES, ""),
    (*RELATIONS, ""),
)


def answers(scene: world.Scene) -> list[int]:
    """The number of the right answer to every question."""
    things = [*scene.things, *[None] * (THINGS - len(scene.things))]
    words = [thing.name if thing else "" for thing in things]
    words += [(thing.tint or "") if thing else "" for thing in things]
    words += [thing.size if thing else "" for thing in things]
    words += [scene.background, scene.place or "", scene.relation or ""]
    return [question.index(word) for question, word in zip(QUESTIONS, words, strict=True)]


class Heads(nn.Module):
    """[n, 128] -> one row of logits per question"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, len(question)) for question in QUESTIONS)

    def forward(self, state: torch.Tensor) -> list[torch.Tensor]:
        return [head(state) for head in self.heads]


def start_from_words(text: nn.Module) -> None:
    """Give a text encoder of the same shape what was learnt here, if it was."""
    path = folder("words") / "checkpoint.pt"
    if not path.exists():
        print("no pretrained text encoder (train_words): starting from nothing", flush=True)
        return
    learnt = torch.load(path, weights_only=False)["ema"]["text"]
    text.load_state_dict({key.removeprefix("text_model."): value for key, value in learnt.items()})


def main() -> None:
    options = arguments(__doc__, 3)
    tokenizer = tokens.load()
    text = models.text_encoder(tokenizer.get_vocab_size())
    heads = Heads(text.config.hidden_size)
    loop = Loop("words", {"text": text, "heads": heads}, lr=2e-3, ema=0.99)

    def step(number: int) -> dict[str, torch.Tensor]:
        rng = fresh(number, 23)
        scenes = [world.sample_scene(rng) for _ in range(BATCH)]
        ids = tokens.encode(tokenizer, [world.write_caption(scene, rng) for scene in scenes])
        right = torch.tensor([answers(scene) for scene in scenes])  # [batch, questions]
        with torch.autocast("cpu", torch.bfloat16):
            states = text(torch.from_numpy(ids)).last_hidden_state  # [batch, 32, 128]
            # The end token and the padding after it have read the whole caption.
            guesses = heads(states[:, -1])
        losses = [F.cross_entropy(guess.float(), row) for guess, row in zip(guesses, right.T, strict=True)]
        exact = torch.stack([guess.argmax(1) == row for guess, row in zip(guesses, right.T, strict=True)]).all(0)
        return {"loss": torch.stack(losses).mean(), "all right": exact.float().mean()}

    loop.run(step, options.minutes, warmup=50, cooldown=options.cooldown)


if __name__ == "__main__":
    main()
