"""DiffusionApp: a pipeline folder that makes pictures."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from PIL import Image

from opsmith import store
from opsmith.machine import peak_memory
from opsmith.pipelines import pictures, schedulers
from opsmith.pipelines.clip_tokenizer import ClipTokenizer
from opsmith.pipelines.diffusion import geometry, noise, spoken
from opsmith.pipelines.diffusion.adapters import Adapters
from opsmith.pipelines.diffusion.canvas import Canvas
from opsmith.pipelines.diffusion.control import Controls
from opsmith.pipelines.diffusion.estimate import Clock, Estimate, estimated_steps, together
from opsmith.pipelines.diffusion.fast import Fast, explain, preset
from opsmith.pipelines.diffusion.loop import Callback, Loop, Watch, shifted
from opsmith.pipelines.diffusion.parts import Parts
from opsmith.pipelines.diffusion.request import Job, Request, check, requests
from opsmith.pipelines.diffusion.tokens import Tokens
from opsmith.pipelines.diffusion.unet import Unet
from opsmith.pipelines.diffusion.words import Words, embedded_guidance
from opsmith.pipelines.text import read_config

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(repr=False)
class Generated:
    """Pictures and, for each of them, all that is needed to make it again."""

    images: list[Image.Image]
    settings: list[dict[str, Any]]
    step_seconds: list[float]
    seconds: float
    remarks: list[str]

    def __repr__(self) -> str:
        return f"Generated({len(self.images)} pictures, {len(self.step_seconds)} steps, {self.seconds:.1f} s)"

    def _repr_html_(self) -> str:
        """The pictures, in a notebook."""
        return pictures.as_html(self.images, [str(s.get("prompt", "")) for s in self.settings])


class DiffusionApp:
    def __init__(
        self,
        folder: store.PathLike,
        *,
        variant: str | Mapping[str, str] | None = None,
        threads: int | None = None,
        low_memory: bool = False,
        savings: str = "auto",
        vae: store.PathLike | None = None,
        tiles: str = "auto",
    ) -> None:
        """FOLDER is a pipeline folder. VARIANT names one for all components that have it (the UNet must), or one for each
        component; otherwise the newest compiled one is taken, else the newest. LOW_MEMORY keeps one component at a time.
        SAVINGS (auto, on, off): run the UNet in pieces, so that what does not change is computed once; the picture is the same.
        VAE is a folder with another autoencoder's vae_decoder (and vae_encoder), used instead of the pipeline's own.
        TILES (auto, on, off): decode the picture in tiles that overlap, by itself where the whole does not fit into memory."""
        self.parts = Parts(folder, variant, threads, low_memory, vae)
        self.scheduler_config = schedulers.read_config(self.folder / "scheduler")
        self.geometry = self._read_geometry()
        self.words = Words(self.parts, self.geometry)
        self.adapters = Adapters(self.parts, Tokens(self.parts, self.words.tokenizers))
        self.canvas = Canvas(self.parts, self.geometry, tiles)
        self.unet = Unet(self.parts, self.geometry, savings)
        self.controls = Controls(self.parts)
        self.loop = Loop(self.unet, self.geometry, self.canvas, self.scheduler_config, self.controls)
        defaults = read_config(self.folder / "generation_config.json")
        self.guidance = float(defaults.get("guidance_scale", self._usual_guidance()))

    def _read_geometry(self) -> geometry.Geometry:
        unet, vae = self.parts.config("unet"), self.parts.config("vae_decoder") or self.parts.config("vae")
        if self.parts.vae is not None:
            geometry.check_vae(unet, read_config(self.folder / "vae_decoder" / "config.json"), vae)
        return geometry.read(unet, vae)

    def _usual_guidance(self) -> float:
        """diffusers' own defaults."""
        if self.geometry.guidance_channels:
            return 8.5
        return 5.0 if self.words.pooled else 7.5

    # --- what it is --------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return self.parts.folder

    @property
    def paths(self) -> dict[str, Path]:
        return self.parts.paths

    @property
    def variants(self) -> dict[str, str]:
        return self.parts.variants

    @property
    def hashes(self) -> dict[str, str]:
        return self.parts.hashes

    @property
    def tokenizer(self) -> ClipTokenizer:
        return self.words.tokenizer

    @property
    def native(self) -> tuple[int, int]:
        """Height and width of a picture where none is asked for."""
        return self.geometry.native

    @property
    def paints(self) -> bool:
        """Whether it can start from a picture, and so inpaint."""
        return self.canvas.paints

    @property
    def sees_masks(self) -> bool:
        """Whether the UNet takes the mask and the picture around it: made for inpainting."""
        return self.geometry.sees_masks

    def check_paints(self) -> None:
        self.canvas.check_paints()

    def component(self, name: str) -> ort.InferenceSession:
        """Loaded when it is first needed."""
        return self.parts.session(name)

    def release(self, name: str | None = None) -> None:
        """Drop one component's session, or all; the next call loads it again."""
        self.parts.release(name)

    # --- adapters ----------------------------------------------------------------------------------------

    def load_lora(self, path: store.PathLike, scale: float = 1.0, name: str | None = None) -> str:
        """Turn on a LoRA (.safetensors; kohya's or diffusers' keys); its name, by default the file's. Several can be on at once."""
        return self.adapters.load(path, scale, name)

    def set_scale(self, name: str, scale: float) -> None:
        """From the next picture on."""
        self.adapters.set_scale(name, scale)

    def unload(self, name: str | None = None) -> None:
        """Turn a LoRA off, or all: pictures are what they were, to the last bit."""
        self.adapters.unload(name)

    def load_textual_inversion(self, path: store.PathLike, token: str | None = None) -> str:
        """Teach the text encoder a word (.safetensors); the word, by default the file's own. Several can be on at once."""
        return self.adapters.load_word(path, token)

    def unload_textual_inversion(self, token: str | None = None) -> None:
        """Forget a word, or all."""
        self.adapters.unload_word(token)

    def unknown_remarks(self, prompt: str) -> list[str]:
        """A line if PROMPT has words that the pipeline was never shown, where that can be told."""
        return self.words.unknown_remarks(prompt)

    def step_feed(self, prompt: str) -> dict[str, Array]:
        """What the UNet reads in the middle of a guided picture of the pipeline's own size, for those who time it."""
        conditions = self.words.encode(["", prompt], self.native).feeds
        if count := self.geometry.guidance_channels:
            conditions["timestep_cond"] = np.repeat(embedded_guidance(self.guidance, count), 2, axis=0)
        shape = (2, self.geometry.unet_channels, *self.geometry.latent(*self.native)[1:])
        return {
            "sample": np.random.default_rng(0).standard_normal(shape, dtype=np.float32),
            "timestep": np.array([500]),
            **conditions,
        }

    # --- pictures ----------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[str] = "",
        negative_prompt: str | Sequence[str] = "",
        *,
        steps: int = 25,
        guidance: float | None = None,
        height: int | None = None,
        width: int | None = None,
        seed: int = 0,
        n: int = 1,
        batch: int = 1,
        scheduler: str | None = None,
        init: Image.Image | None = None,
        strength: float | None = None,
        mask: Image.Image | None = None,
        callback: Callback | None = None,
        torch_noise: bool = False,
        sigmas: str | None = None,
        eta: float = 0.0,
        guidance_rescale: float = 0.0,
        fast: int | Fast = 0,
        control: Image.Image | Sequence[Image.Image] = (),
        control_scale: float | Sequence[float] = 1.0,
        guess: bool = False,
        prompt_embeds: Array | None = None,
        negative_prompt_embeds: Array | None = None,
        plain_prompt: bool = False,
        clip_skip: int = 0,
    ) -> Generated:
        """N pictures, BATCH at a time. Guidance 1 or less skips the negative prompt and halves the work; by default it is the pipeline's own.

        INIT alone: picture to picture, STRENGTH (0.8) of its noise. INIT and MASK: white parts are painted anew (strength 1).
        CALLBACK(step, total, preview) is called after every step, counted over all batches; it returns False to cancel,
        and may call preview() for the picture so far. TORCH_NOISE draws from torch's generator, seeded seed + i for
        picture i, as diffusers does. SIGMAS: karras, exponential or beta. ETA: ddim's share of fresh noise. GUIDANCE_RESCALE:
        how much of the spread that guidance adds is taken back, 0 to 1. FAST: a preset of approximations, 0 (none) to 3, or
        a `Fast` of one's own. CONTROL: a picture for each ControlNet, each with its CONTROL_SCALE; GUESS is diffusers' guess mode.

        A list of prompts gives N pictures of each, one prompt after the other, numbered through. PROMPT_EMBEDS [S,X] or [1,S,X] are
        the text encoder's states, instead of a prompt. PLAIN_PROMPT: brackets are text, and 75 tokens are all, as in diffusers.
        CLIP_SKIP: how many of the text encoder's last layers the prompt leaves out (not the negative one, as in diffusers).
        """
        asked = self._asked(
            prompt,
            negative_prompt,
            steps=steps,
            guidance=guidance,
            height=height,
            width=width,
            seed=seed,
            n=n,
            batch=batch,
            scheduler=scheduler,
            init=init,
            strength=strength,
            mask=mask,
            torch_noise=torch_noise,
            sigmas=sigmas,
            eta=eta,
            guidance_rescale=guidance_rescale,
            fast=fast,
            control=control,
            control_scale=control_scale,
            guess=guess,
            prompt_embeds=prompt_embeds,
            negative_prompt_embeds=negative_prompt_embeds,
            plain_prompt=plain_prompt,
            clip_skip=clip_skip,
        )
        return self._each(asked, callback)

    def estimate(self, prompt: str | Sequence[str] = "", **words: Any) -> Estimate:
        """What `generate` with the same words would take in time and memory, from one step of each kind."""
        known = inspect.signature(self.generate).parameters
        options = {name: p.default for name, p in known.items()} | spoken.translated(self.generate, words, self)
        for name in ("prompt", "callback"):
            options.pop(name)
        asked = self._asked(prompt, options.pop("negative_prompt"), **options)
        return together([self._estimated(request) for request in asked])

    def _asked(
        self,
        prompt: str | Sequence[str],
        negative_prompt: str | Sequence[str],
        *,
        guidance: float | None,
        fast: int | Fast,
        control: Image.Image | Sequence[Image.Image],
        control_scale: float | Sequence[float],
        **others: Any,
    ) -> list[Request]:
        """One request for each prompt; OTHERS are as Request has them."""
        shown = (control,) if isinstance(control, Image.Image) else tuple(control)
        base = Request(
            prompt="",
            negative="",
            guidance=self.guidance if guidance is None else guidance,
            fast=fast if isinstance(fast, Fast) else preset(fast),
            control=shown,
            control_scale=tuple(control_scale)
            if isinstance(control_scale, Sequence)
            else (control_scale,) * len(shown),
            **others,
        )
        return requests(base, prompt, negative_prompt)

    def __call__(self, prompt: str | Sequence[str] = "", **words: Any) -> Generated:
        """The same in diffusers' words: num_inference_steps, guidance_scale, generator, num_images_per_prompt, image, ..."""
        return self.generate(prompt, **spoken.translated(self.generate, words, self))

    def _each(self, asked: Sequence[Request], callback: Callback | None) -> Generated:
        """Prompts one after the other; the steps of all are counted together."""
        if len(asked) == 1:
            return self.make(asked[0], callback)
        made = []
        for k, request in enumerate(asked):
            made.append(self.make(request, callback and shifted(callback, k, len(asked))))
        return Generated(
            [i for m in made for i in m.images],
            [s for m in made for s in m.settings],
            [s for m in made for s in m.step_seconds],
            sum(m.seconds for m in made),
            list(dict.fromkeys(r for m in made for r in m.remarks)),
        )

    def make(self, request: Request, callback: Callback | None = None) -> Generated:
        """Check, read the prompt, denoise, decode."""
        started = time.perf_counter()
        job = self._checked(request)
        conditions, remarks = self.words.conditions(job)
        remarks += self.unknown_remarks(job.prompt) + self._size_remarks(job) + self.adapters.remarks
        groups = self._groups(request, job)
        plan = self.loop.plan(job)
        watch = Watch(callback, len(groups) * (len(plan.timesteps) - job.first_step * plan.order))
        latents = [self.loop.denoise(job, conditions, sources, watch) for sources in groups]
        self._done_with_steps()
        images = [self.canvas.decode(z[None], job) for z in np.concatenate(latents)]
        self.parts.done_with("vae_decoder")
        remarks += self.canvas.remarks
        settings = [self._settings(job, request.seed, request.first + i) for i in range(request.n)]
        return Generated(images, settings, watch.seconds, time.perf_counter() - started, remarks)

    def _checked(self, request: Request) -> Job:
        """Components have the weights that are asked for."""
        self.canvas.remarks = []
        if request.init is not None:
            self.check_paints()
        self.controls.check(len(request.control))
        job = check(request, self.geometry)
        self.adapters.apply()
        self.unet.check(job.fast)
        return job

    def _groups(self, request: Request, job: Job) -> list[list[noise.Noise]]:
        """Where the noise of each picture comes from, by batch."""
        sources = [noise.source(request.seed, request.first + i, job.torch_noise) for i in range(request.n)]
        return [sources[i : i + request.batch] for i in range(0, request.n, request.batch)]

    def _done_with_steps(self) -> None:
        for name in ("unet", *self.controls.names):
            self.parts.done_with(name)

    def _estimated(self, request: Request) -> Estimate:
        clock = Clock()
        job = self._checked(request)
        conditions, _ = self.words.conditions(job)
        text_seconds = clock.lap()
        steps = estimated_steps(job, conditions, self._groups(request, job), self.loop, self.unet)
        self._done_with_steps()
        clock.lap()
        blank = np.zeros((1, *self.geometry.latent(*job.padded)), np.float32)
        decodings = []
        for _ in range(min(2, request.n)):  # the first one loads
            self.canvas.decode(blank, job)
            decodings.append(clock.lap())
        self.parts.done_with("vae_decoder")
        decode_seconds = decodings[0] + (request.n - 1) * decodings[-1]
        return dataclasses.replace(
            steps, text_seconds=text_seconds, decode_seconds=decode_seconds, memory=peak_memory()
        )

    def explain(self, fast: Fast, steps: int, guidance: float | None = None) -> list[str]:
        """What is computed once, reused or left out, a line each."""
        guided = (self.guidance if guidance is None else guidance) != 1
        return explain(self.unet.cut_or_why, fast, steps, guided)

    def _size_remarks(self, job: Job) -> list[str]:
        if job.padded == (job.height, job.width):
            return []
        return [
            f"the UNet halves its input {self.geometry.halved.bit_length() - 1} times, so the picture was made at "
            f"{job.padded[1]}x{job.padded[0]} and cut to {job.width}x{job.height}"
        ]

    def _settings(self, job: Job, seed: int, index: int) -> dict[str, Any]:
        return {
            "prompt": job.prompt,
            "negative_prompt": job.negative,
            "steps": job.steps,
            "guidance": job.guidance,
            "width": job.width,
            "height": job.height,
            "seed": seed,
            "index": index,
            "noise": f"torch, seed {seed + index}" if job.torch_noise else f"numpy default_rng([{seed}, {index}])",
            "scheduler": job.scheduler or str(self.scheduler_config.get("_class_name")),
            "sigmas": job.sigmas,
            "eta": job.eta,
            "guidance_rescale": job.guidance_rescale,
            "clip_skip": job.clip_skip,
            "strength": job.strength if job.init is not None else None,
            "mask": job.mask is not None,
            "fast": None if job.fast.exact else dataclasses.asdict(job.fast),
            "control_scale": [scale for _, scale in job.controls],
            "guess": job.guess,
            "pipeline": self.folder.name,
            "vae": self.parts.vae.name if self.parts.vae is not None else None,
            "loras": self.adapters.told,
            "embeddings": self.adapters.tokens.told,
            "variants": self.variants,
            "model_hashes": self.hashes,
        }
