"""What is asked of a pipeline, and the same checked: a Job that can be run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from opsmith import machine
from opsmith.errors import OpsmithError
from opsmith.pipelines.diffusion import canvas
from opsmith.pipelines.diffusion.fast import EXACT, Fast
from opsmith.pipelines.diffusion.geometry import Geometry

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of `generate`, as they were given."""

    prompt: str
    negative: str
    steps: int
    guidance: float
    height: int | None
    width: int | None
    seed: int
    n: int
    batch: int
    scheduler: str | None
    init: Image.Image | None
    strength: float | None
    mask: Image.Image | None
    torch_noise: bool
    sigmas: str | None = None
    eta: float = 0.0
    guidance_rescale: float = 0.0
    fast: Fast = EXACT
    control: Sequence[Image.Image] = ()
    control_scale: Sequence[float] = ()  # one each
    guess: bool = False
    prompt_embeds: Array | None = None  # [S,X] or [1,S,X]
    negative_prompt_embeds: Array | None = None
    plain_prompt: bool = False  # no syntax, one chunk
    clip_skip: int = 0  # layers of the text encoder that are left out, from its end
    first: int = 0  # the number of the first picture


@dataclasses.dataclass(frozen=True)
class Job:
    """One call of `generate`, checked."""

    prompt: str
    negative: str
    steps: int
    guidance: float
    height: int  # of the picture
    width: int
    padded: tuple[int, int]  # height and width that the UNet can halve as often as it wants to
    strength: float
    scheduler: str | None
    init: Array | None  # [3,H,W] in -1..1, padded
    mask: Array | None  # [1,H,W] of 0 and 1, 1 is repainted, padded
    torch_noise: bool
    guided: bool  # the UNet runs for the negative prompt, too
    sigmas: str | None = None
    eta: float = 0.0
    guidance_rescale: float = 0.0
    fast: Fast = EXACT
    controls: Sequence[tuple[Array, float]] = ()  # [3,H,W] in 0..1, padded, and its scale: one for each ControlNet
    guess: bool = False  # ControlNets steer what the prompt leaves open
    embeds: Array | None = None  # [1|2,S,X], the negative one first
    plain_prompt: bool = False
    clip_skip: int = 0

    @property
    def first_step(self) -> int:
        """How many steps are left out because the start is a picture."""
        return self.steps - max(1, min(int(self.steps * self.strength), self.steps)) if self.init is not None else 0


def check(request: Request, geometry: Geometry) -> Job:
    """What cannot be done is one line, before anything is loaded."""
    if request.steps < 1:
        raise OpsmithError(f"{request.steps} steps are not possible", "give 1 or more")
    if not np.isfinite(request.guidance) or request.guidance < 0:
        raise OpsmithError(f"a guidance of {request.guidance} is not possible", "1 or less is none, 7.5 is usual")
    if not 0 <= request.guidance_rescale <= 1:
        raise OpsmithError(f"a guidance rescale of {request.guidance_rescale} is not possible", "0 to 1")
    _check_pictures(request, geometry)
    tall, wide = _size(request, geometry)
    strength = request.strength
    if strength is None:
        strength = 1.0 if request.mask is not None or request.init is None else 0.8
    if not 0 < strength <= 1:
        raise OpsmithError(f"a strength of {strength} is not possible", "above 0, at most 1")
    _check_numbers(request)
    padded = geometry.padded(tall, wide)
    guided = request.guidance > 1 and not geometry.guidance_channels
    _check_memory(geometry, padded, min(request.batch, request.n))
    return Job(
        prompt=request.prompt,
        negative=request.negative,
        steps=request.steps,
        guidance=request.guidance,
        height=tall,
        width=wide,
        padded=padded,
        strength=strength,
        scheduler=request.scheduler,
        init=None if request.init is None else canvas.pixels(request.init, tall, wide, padded),
        mask=None if request.mask is None else canvas.mask(request.mask, tall, wide, padded),
        torch_noise=request.torch_noise,
        sigmas=request.sigmas,
        eta=request.eta,
        guidance_rescale=request.guidance_rescale,
        fast=request.fast,
        controls=_controls(request, tall, wide, padded),
        guess=request.guess,
        guided=guided,
        embeds=_embeds(request, guided),
        plain_prompt=request.plain_prompt,
        clip_skip=request.clip_skip,
    )


def _controls(request: Request, height: int, width: int, padded: tuple[int, int]) -> list[tuple[Array, float]]:
    scales = request.control_scale
    if len(scales) != len(request.control):
        raise OpsmithError(f"{len(request.control)} pictures to follow, {len(scales)} scales", "give one each")
    if not all(np.isfinite(scale) for scale in scales):
        raise OpsmithError(f"control scales of {list(scales)} are not possible", "1 is usual")
    shown = [canvas.pixels(picture, height, width, padded) / 2 + np.float32(0.5) for picture in request.control]
    return list(zip(shown, map(float, scales)))


def requests(base: Request, prompt: str | Sequence[str], negative: str | Sequence[str]) -> list[Request]:
    """One for each prompt; the pictures of all are numbered through."""
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    against = [negative] * len(prompts) if isinstance(negative, str) else list(negative)
    if not prompts or len(against) != len(prompts):
        raise OpsmithError(f"{len(prompts)} prompts and {len(against)} negative prompts are not possible")
    return [
        dataclasses.replace(base, prompt=p, negative=q, first=k * base.n)
        for k, (p, q) in enumerate(zip(prompts, against))
    ]


def _embeds(request: Request, guided: bool) -> Array | None:
    """[1|2,S,X] if the text encoder's states were given."""
    told, free = request.prompt_embeds, request.negative_prompt_embeds
    if told is None:
        if free is not None:
            raise OpsmithError("negative_prompt_embeds need prompt_embeds")
        return None
    if request.prompt:
        raise OpsmithError("a prompt and prompt_embeds are not possible at once", "give one of them")
    if free is None and guided:
        raise OpsmithError("prompt_embeds with guidance need negative_prompt_embeds", "or a guidance of 1")
    rows = [r for r in ((free, told) if guided else (told,)) if r is not None]
    whole = [np.asarray(r, np.float32) for r in rows]
    whole = [r[None] if r.ndim == 2 else r for r in whole]
    if any(r.ndim != 3 or r.shape[0] != 1 or r.shape != whole[0].shape for r in whole):
        shapes = " and ".join(str(list(np.shape(r))) for r in rows)
        raise OpsmithError(f"prompt_embeds of {shapes} are not possible", "each is [tokens, size], both alike")
    return np.concatenate(whole)


def _check_numbers(request: Request) -> None:
    if request.n < 1 or request.batch < 1:
        raise OpsmithError(f"{request.n} pictures, {request.batch} at a time, are not possible", "both are 1 or more")
    if request.seed < 0:
        raise OpsmithError(f"the seed {request.seed} is negative", "give 0 or more")


def _check_pictures(request: Request, geometry: Geometry) -> None:
    init, mask = request.init, request.mask
    if mask is not None and init is None:
        raise OpsmithError("a mask needs a picture to paint in", "give --init as well")
    if geometry.sees_masks and mask is None:
        raise OpsmithError("this is an inpainting pipeline", "give a picture and a mask: --init and --mask")
    if geometry.unet_channels not in (geometry.latent_channels, 2 * geometry.latent_channels + 1):
        raise OpsmithError(f"a UNet with {geometry.unet_channels} input channels is not supported", "4 or 9 are")
    if mask is not None and init is not None and mask.size != init.size:
        raise OpsmithError(
            f"the mask is {mask.width}x{mask.height}, the picture {init.width}x{init.height}", "they must be equal"
        )


def _size(request: Request, geometry: Geometry) -> tuple[int, int]:
    """(height, width) of the picture."""
    init, height, width = request.init, request.height, request.width
    default = geometry.native if init is None else tuple(s // 8 * 8 for s in init.size[::-1])
    tall, wide = height if height is not None else default[0], width if width is not None else default[1]
    if tall < 8 or wide < 8 or tall % 8 or wide % 8:
        raise OpsmithError(f"a picture of {wide}x{tall} is not possible", "both sides are multiples of 8, from 8 up")
    return tall, wide


def _check_memory(geometry: Geometry, padded: tuple[int, int], batch: int) -> None:
    """A lower bound: the VAE holds two maps of its second-widest block at full size, the UNet's input is there as well."""
    height, width = padded
    channels = geometry.vae_channels[min(1, len(geometry.vae_channels) - 1)]
    need = 2 * 4 * channels * height * width + 4 * batch * height * width
    have = machine.memory_bytes()
    if have and need > have:
        raise OpsmithError(
            f"a picture of {width}x{height} needs more than {need / 2**30:.0f} GiB, this machine has {have / 2**30:.0f}",
            "choose a smaller size",
        )
