"""Stable Diffusion on ONNX components: text -> picture, picture -> picture, and inpainting. No torch.

app = DiffusionApp("models/sd")
made = app.generate("a red apple", steps=25, seed=7)
made.images[0]; made.settings[0]

request.py    what was asked for -> a Job, checked
parts.py      the folder's components: which variants, their sessions
adapters.py   LoRAs and new words: components with other weights
tokens.py     words of textual inversions, and their ids
geometry.py   sizes that the configs say
reading.py    weights and chunks of a prompt
spoken.py     diffusers' words for all of it
words.py      prompt -> Conditions: ids [B,77] -> states [B,77,X]
cut.py        where the UNet's graph is cut: what depends on the prompt, the time, both halves of guidance; what is deep
pieces.py     the pieces run, each as often as it must
split.py      the pieces as model folders of their own, to be compiled
merge.py      fewer keys and values in self-attention
unet.py       in pieces, or whole
noise.py      where each picture's random numbers come from
loop.py       latents, step by step: sample [2B,C,h,w], t [1], states [2B,77,X] -> [2B,4,h,w]
canvas.py     the VAE and masks: latent [1,4,h,w] / scaling factor -> picture [1,3,8h,8w]
tiles.py      the VAE tile by tile, where memory asks for it
estimate.py   what a picture will take
app.py        DiffusionApp: one line per station
"""

from __future__ import annotations

from opsmith.pipelines.diffusion.app import DiffusionApp, Generated
from opsmith.pipelines.diffusion.loop import Callback, Cancelled, Preview
from opsmith.pipelines.diffusion.parts import COMPONENTS
from opsmith.pipelines.diffusion.words import unknown_remark

__all__ = ["COMPONENTS", "Callback", "Cancelled", "DiffusionApp", "Generated", "Preview", "unknown_remark"]
