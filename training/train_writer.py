"""GPT2LMHeadModel, the prompt writer: python -m training.train_writer --minutes 6

It learns to continue "keyword:" or "keyword keyword:" by a caption of this world that holds the keywords.
"""

from __future__ import annotations

import re

import numpy as np
import torch
from torch.nn import functional as F

from opsmith.starter.vocabulary import OBJECTS, PLAIN, TINTS
from training import models, tokens, world
from training.loop import Loop, arguments, fresh
from training.phrases import SIZES

BATCH, LENGTH = 64, 32
SETTINGS = {"sky", "clouds", "grass", "meadow", "field", "sea", "waves", "night", "stars"}
KEYWORDS = {*OBJECTS, *TINTS, *PLAIN, *SIZES["small"], *SIZES["big"], *SETTINGS}


def example(rng: np.random.Generator) -> str:
    """keyword[ keyword]: caption"""
    caption = world.write_caption(world.sample_scene(rng), rng)
    words = sorted(KEYWORDS & set(re.findall(r"\w+", caption)))
    objects = [word for word in words if word in OBJECTS]
    # Half of the keywords are things; a quarter are settings or, where there is none, anything that may be asked for.
    settings = [word for word in words if word in SETTINGS] or words
    first = world.choose(rng, world.choose(rng, (objects, objects, settings, words)))
    others = [word for word in words if word != first]
    if others and rng.random() < 0.3:
        return f"{first} {world.choose(rng, others)}: {caption}"
    return f"{first}: {caption}"


def asked_again(ids: torch.Tensor, colon: int) -> torch.Tensor:
    """Where a token behind the colon is one of those before it: bool [n, length]"""
    before = (ids == colon).cumsum(1) == 0
    same = ids[:, :, None] == torch.where(before, ids, -1)[:, None, :]
    return same.any(2) & ~before


def main() -> None:
    options = arguments(__doc__, 6)
    tokenizer = tokens.load("gpt2")
    end, colon = tokenizer.token_to_id(tokens.END), tokenizer.token_to_id(":")
    model = models.writer(tokenizer.get_vocab_size())
    loop = Loop("writer", {"writer": model}, lr=3e-3, ema=0.99)

    def step(number: int) -> dict[str, torch.Tensor]:
        rng = fresh(number)
        texts = [example(rng) for _ in range(BATCH)]
        ids = torch.from_numpy(tokens.encode(tokenizer, texts, LENGTH))  # [64, 32]
        labels = ids.clone()
        ended = (ids == end).cumsum(1) > 1  # the first end token is learnt, the padding after it is not
        labels[ended] = -100
        logits = model(input_ids=ids).logits[:, :-1]
        targets = labels[:, 1:]
        losses = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none")  # [64, 31]
        asked = asked_again(ids, colon)[:, 1:] & (targets != -100)
        # To take up the keyword is one token of many in the loss, and the one that matters most.
        weights = (targets != -100) + 2.0 * asked
        plain = losses.sum() / (targets != -100).sum()
        return {"loss": (losses * weights).sum() / weights.sum(), "plain": plain, "keyword": losses[asked].mean()}

    loop.run(step, options.minutes, cooldown=options.cooldown)
    loop.averaged()
    torch.manual_seed(0)
    for keyword in ("frog", "night", "purple castle"):
        prompt = torch.tensor([tokenizer.encode(keyword + ":").ids])
        written = model.generate(prompt, do_sample=True, max_new_tokens=30, num_return_sequences=4, pad_token_id=end)
        for row in written:
            print(tokenizer.decode(row.tolist()))


if __name__ == "__main__":
    main()
