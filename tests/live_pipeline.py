"""A tiny live diffusers pipeline, and a picture of it."""

from __future__ import annotations

from typing import Any

import models
import numpy as np


def pipeline() -> Any:
    from diffusers import StableDiffusionPipeline

    pipe = StableDiffusionPipeline.from_pretrained(models.tiny_source("stable-diffusion"), safety_checker=None)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def picture(pipe: Any, **options: Any) -> np.ndarray[Any, Any]:
    import torch

    generator = torch.Generator("cpu").manual_seed(4)
    made = pipe("a red apple", num_inference_steps=4, guidance_scale=4.0, generator=generator, **options)
    return np.asarray(made.images[0])
