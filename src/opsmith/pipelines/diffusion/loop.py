"""The denoising loop: from noise, or from a picture with noise, to latents."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from PIL import Image

from opsmith.errors import OpsmithError
from opsmith.pipelines import schedulers
from opsmith.pipelines.diffusion.canvas import Canvas, nearest
from opsmith.pipelines.diffusion.control import Controls
from opsmith.pipelines.diffusion.geometry import Geometry
from opsmith.pipelines.diffusion.noise import Noise
from opsmith.pipelines.diffusion.pieces import Steps
from opsmith.pipelines.diffusion.request import Job
from opsmith.pipelines.diffusion.unet import Unet, WholeSteps
from opsmith.pipelines.diffusion.words import Conditions

Array = np.ndarray[Any, Any]
Preview = Callable[[], Image.Image]
Callback = Callable[[int, int, Preview], "bool | None"]


class Cancelled(OpsmithError):
    """The callback returned False."""


@dataclasses.dataclass
class Batch:
    """Pictures that are made together."""

    plans: list[schedulers.Scheduler]  # one per picture: some keep a history, and each draws from its own source
    sources: list[Noise]
    noise: list[Array]  # [4,h,w]
    clean: list[Array]  # [4,h,w] the picture to start from, or none
    latents: list[Array]  # [4,h,w]
    mask: Array | None  # [1,h,w]
    seen: Array | None  # [B,5,h,w] what an inpainting UNet reads beside the latents

    def follow_picture(self, step: int) -> None:
        """What is not painted anew gets the picture's latents, with the noise that is left after STEP."""
        assert self.mask is not None
        outside = self.clean
        if step + 1 < len(self.plans[0].timesteps):
            outside = [p.add_noise(step + 1, c, z) for p, c, z in zip(self.plans, self.clean, self.noise)]
        self.latents = [(1 - self.mask) * k + self.mask * z for k, z in zip(outside, self.latents)]


class Watch:
    """Who is told of every step, counted over all batches, and how long each took."""

    def __init__(self, callback: Callback | None, total: int) -> None:
        self._callback, self._total = callback, total
        self.seconds: list[float] = []

    def stepped(self, seconds: float, preview: Preview) -> None:
        self.seconds.append(seconds)
        done = len(self.seconds)
        if self._callback is not None and self._callback(done, self._total, preview) is False:
            raise Cancelled(f"cancelled after step {done} of {self._total}")


def shifted(callback: Callback, prompt: int, prompts: int) -> Callback:
    """The callback of the PROMPT-th of PROMPTS that are made one after the other, with the steps of all counted."""
    return lambda step, total, preview: callback(prompt * total + step, prompts * total, preview)


class Loop:
    def __init__(
        self,
        unet: Unet,
        geometry: Geometry,
        canvas: Canvas,
        scheduler_config: Mapping[str, Any],
        controls: Controls,
    ) -> None:
        self._unet, self._geometry, self._canvas, self._controls = unet, geometry, canvas, controls
        self._scheduler_config = scheduler_config

    def plan(self, job: Job) -> schedulers.Scheduler:
        return schedulers.make_scheduler(
            self._scheduler_config, job.steps, job.scheduler, sigmas=job.sigmas, eta=job.eta
        )

    def denoise(self, job: Job, conditions: Conditions, sources: list[Noise], watch: Watch) -> Array:
        """Latents [B,4,h,w] from noise, or from the picture with noise; one picture per source."""
        batch = self.start(job, sources)
        told = conditions.repeated(len(sources))  # [B,...] or [2B,...]
        unet = self._unet.steps(told, len(sources), stride=job.fast.merge)
        first, last = job.first_step * batch.plans[0].order, len(batch.plans[0].timesteps)
        for i, kind in zip(range(first, last), job.fast.kinds(last - first)):
            began = time.perf_counter()
            if not kind.guided:
                unet = unet.unguided()
            output = self.predict(job, batch, i, unet, fresh=kind.fresh)
            batch.latents = [
                plan.step(i, o, z, cast(np.random.Generator, source)).astype(np.float32)
                for plan, o, z, source in zip(batch.plans, output, batch.latents, sources)
            ]
            if batch.mask is not None and batch.seen is None:
                batch.follow_picture(i)
            now = batch.latents[0][None]
            watch.stepped(time.perf_counter() - began, lambda now=now: self._canvas.decode(now, job))  # type: ignore[misc]
        return np.stack(batch.latents).astype(np.float32)

    def start(self, job: Job, sources: list[Noise]) -> Batch:
        """What a batch begins with; random numbers are drawn in the order in which diffusers draws them."""
        plans = [self.plan(job) for _ in sources]
        shape = self._geometry.latent(*job.padded)
        clean: list[Array] = []
        if job.init is not None and not (self._geometry.sees_masks and job.strength == 1):
            clean = [self._canvas.encode(job.init, source, job) for source in sources]
        noise = [source.standard_normal(shape, dtype=np.float32) for source in sources]
        if clean and (job.strength < 1 or job.mask is None):
            latents = [plan.add_noise(job.first_step * plan.order, c, z) for plan, c, z in zip(plans, clean, noise)]
        else:
            latents = [z * plan.initial_sigma for plan, z in zip(plans, noise)]
        mask = None if job.mask is None else nearest(job.mask, shape[1], shape[2])
        seen = None
        if job.mask is not None and job.init is not None and mask is not None and self._geometry.sees_masks:
            around = [self._canvas.encode(job.init * (job.mask < 0.5), source, job) for source in sources]
            seen = np.stack([np.concatenate([mask, a]) for a in around])
        return Batch(plans, sources, noise, clean, latents, mask, seen)

    def predict(self, job: Job, batch: Batch, step: int, unet: Steps | WholeSteps, fresh: bool = True) -> Array:
        """What the UNet says [B,4,h,w], guided away from the negative prompt. Unless FRESH, with its last deep features."""
        sample = np.stack([plan.scaled(step, z) for plan, z in zip(batch.plans, batch.latents)])
        when = batch.plans[0].timesteps[step]
        residuals = self._controls.residuals(job, sample, when, unet.once)
        if batch.seen is not None:
            sample = np.concatenate([sample, batch.seen], axis=1)
        again = not fresh and unet.can_reuse
        output = unet.predict(sample, when, fresh=not again, changing=residuals).astype(np.float32)
        if len(output) > len(sample):
            free, told = np.split(output, 2)
            output = free + job.guidance * (told - free)
            if job.guidance_rescale:
                output = rescaled(output, told, job.guidance_rescale)
        return np.asarray(output)


def rescaled(guided: Array, told: Array, share: float) -> Array:
    """SHARE of the GUIDED output gets the spread of what the prompt alone said (Lin et al., "Common Diffusion Noise Schedules and
    Sample Steps are Flawed", section 3.4): strong guidance else burns out."""
    spread = [np.std(x, axis=(1, 2, 3), keepdims=True, ddof=1) for x in (told, guided)]
    return np.asarray(guided * (share * spread[0] / spread[1] + (1 - share)), np.float32)
