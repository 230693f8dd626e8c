"""UNet2DConditionModel and its CLIPTextModel, trained together: python -m training.train_pictures --minutes 90

v-prediction on cached latents, cosine schedule (its last step is pure noise, so background colours do not leak into
training and miss at sampling), every tenth caption dropped for classifier-free guidance. The text encoder starts from
train_words.py.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from diffusers import DDIMScheduler
from diffusers.models.attention_processor import AttnProcessor

from training import models, tokens
from training.latents import load_chunks
from training.loop import Loop, arguments, fresh
from training.paths import folder
from training.train_words import start_from_words

DROPPED = 0.1
# Times are drawn as 1000 u^0.5: what a caption asks for is decided where there is much noise, the rest is cleaning up.
LATE = 0.5


def scheduler() -> DDIMScheduler:
    return DDIMScheduler(
        num_train_timesteps=1000,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=True,
    )


def main() -> None:
    options = arguments(__doc__, 90, batch=48, things=4.0)
    count = options.batch // options.processes
    tokenizer = tokens.load()
    unet, text = models.unet(), models.text_encoder(tokenizer.get_vocab_size())
    unet.set_attn_processor(AttnProcessor())  # on so few positions a third faster than the fused attention
    text.set_attn_implementation("eager")
    start_from_words(text)
    loop = Loop("pictures", {"unet": unet, "text": text}, lr=2e-3, ema=0.996)
    print(
        "parameters", sum(p.numel() for p in unet.parameters()), sum(p.numel() for p in text.parameters()), flush=True
    )

    scale = json.loads((folder("latents") / "latents.json").read_text())["scaling_factor"]
    latents, captions, coverages = load_chunks()
    empty = torch.from_numpy(tokens.encode(tokenizer, [""]))
    alphas = scheduler().alphas_cumprod.float()

    def step(number: int) -> dict[str, torch.Tensor]:
        nonlocal latents, captions, coverages
        if number % 200 == 0:
            latents, captions, coverages = load_chunks()  # there may be more by now
        rng = fresh(number, 19)
        rows = rng.integers(0, len(latents), count)
        clean = torch.from_numpy(latents[rows].astype(np.float32)) * scale  # [batch, 4, 12, 12]
        ids = torch.from_numpy(captions[rows, rng.integers(0, captions.shape[1], count)].astype(np.int64))
        ids = torch.where(torch.from_numpy(rng.random((count, 1)) < DROPPED), empty, ids)
        noise = torch.from_numpy(rng.standard_normal(clean.shape, np.float32))
        # One u from each of as many equal strata: the same distribution as uniform, with less variance.
        even = (np.arange(count) + rng.random(count)) / count
        times = torch.from_numpy((1000 * even**LATE).astype(np.int64))
        signal, spread = alphas[times].sqrt().view(-1, 1, 1, 1), (1 - alphas[times]).sqrt().view(-1, 1, 1, 1)
        noisy, target = signal * clean + spread * noise, signal * noise - spread * clean
        with torch.autocast("cpu", torch.bfloat16):
            states = text(ids).last_hidden_state  # [batch, 32, 128]
            guess = unet(noisy, times, states).sample
        # Things are the smaller part of a picture and the harder one: their cells count more.
        covered = torch.from_numpy(coverages[rows].astype(np.float32))[:, None]  # [batch, 1, 12, 12]
        weights = 1 + options.things * covered
        squared = (guess.float() - target).square()
        loss = (squared * weights).mean() / weights.mean()
        things = (squared * covered).mean() / covered.mean()
        return {"loss": loss, "plain": squared.mean(), "things": things}

    loop.run(step, options.minutes, warmup=200, cooldown=options.cooldown)


if __name__ == "__main__":
    main()
