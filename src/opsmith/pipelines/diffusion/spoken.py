"""diffusers' own words: `app(prompt, num_inference_steps=25, guidance_scale=7.5, generator=...)` beside `app.generate(...)`.

What a word means is in `_MEANS`; words of `generate` itself are taken, too. One that neither knows is refused, with the nearest.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from opsmith.errors import OpsmithError

# diffusers' word -> that of `generate`
_MEANS = {
    "num_inference_steps": "steps",
    "guidance_scale": "guidance",
    "num_images_per_prompt": "n",
    "image": "init",
    "mask_image": "mask",
}
_OWN = ("generator", "callback_on_step_end", "callback_on_step_end_tensor_inputs", "output_type", "return_dict")


def translated(generate: Callable[..., Any], words: Mapping[str, Any], pipe: object) -> dict[str, Any]:
    """The arguments of GENERATE."""
    known = [p for p in inspect.signature(generate).parameters if p != "self"]
    options: dict[str, Any] = {}
    for word, value in words.items():
        name = _MEANS.get(word, word)
        if word in _OWN:
            continue
        if name not in known:
            raise OpsmithError(f"{word!r} is not known", _nearest(word, [*known, *_MEANS, *_OWN]))
        if name in options:
            raise OpsmithError(f"{name} is given twice", f"{word} means the same")
        if value is not None:
            options[name] = value
    if words.get("generator") is not None:
        options |= _noise(words["generator"], options)
    if words.get("callback_on_step_end") is not None:
        options["callback"] = _callback(words["callback_on_step_end"], pipe)
    for name in ("prompt_embeds", "negative_prompt_embeds"):
        if name in options:
            options[name] = _array(options[name])
    if words.get("output_type", "pil") != "pil" or words.get("return_dict", True) is not True:
        raise OpsmithError("other outputs than pictures are not possible", "leave output_type and return_dict away")
    return options


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"


def _noise(generator: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """torch's generators say what their seed was; picture i of seed s has the seed s + i here."""
    if "seed" in options:
        raise OpsmithError("seed and generator are not possible at once", "give one of them")
    each = list(generator) if isinstance(generator, (list, tuple)) else [generator]
    if any(not hasattr(g, "initial_seed") for g in each):
        raise OpsmithError("the generator is not torch's", "give torch.Generator().manual_seed(...), or seed=")
    seeds = [int(g.initial_seed()) for g in each]
    if seeds != list(range(seeds[0], seeds[0] + len(seeds))):
        raise OpsmithError(f"generators with the seeds {seeds} are not possible", "each is 1 more than the one before")
    for g in each:
        if not bool((g.get_state() == type(g)().manual_seed(int(g.initial_seed())).get_state()).all()):
            raise OpsmithError("the generator was used before", "give it a seed: generator.manual_seed(...)")
    return {"seed": seeds[0], "torch_noise": True}


def _callback(told: Callable[..., Any], pipe: object) -> Callable[..., bool | None]:
    """diffusers' callback(pipe, step, timestep, tensors); it ends the picture by setting pipe._interrupt."""

    def call(step: int, total: int, preview: Any) -> bool | None:
        told(pipe, step - 1, None, {})
        return False if getattr(pipe, "_interrupt", False) else None

    return call


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
