"""Stable Diffusion on ONNX components: text -> picture, picture -> picture, and inpainting. No torch.

    app = DiffusionApp("models/sd")
    made = app.generate("a red apple", steps=25, seed=7)
    made.images[0]; made.settings[0]

    text_encoder  ids [B,77] -> states [B,77,X]
    unet          sample [2B,C,h,w], t [1], states [2B,77,X] -> [2B,4,h,w], times the steps
    vae_decoder   latent [1,4,h,w] / scaling factor -> picture [1,3,8h,8w]

Noise: picture number i of seed s draws all its numbers from `numpy.random.default_rng([s, i])` (PCG64), first the
start latents [C,h,w] as float32 standard normals, then what the scheduler asks for, step by step. So a picture does not
depend on the batch that it was made in, nor on the variant.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import onnxruntime as ort
from PIL import Image

from opsmith import machine, session, store
from opsmith.errors import OpsmithError
from opsmith.pipelines import schedulers
from opsmith.pipelines.clip_tokenizer import ClipTokenizer
from opsmith.pipelines.text import choose_variant, read_config

Array = np.ndarray[Any, Any]
Preview = Callable[[], Image.Image]
Callback = Callable[[int, int, Preview], "bool | None"]

COMPONENTS = ("text_encoder", "unet", "vae_decoder", "vae_encoder")


class Cancelled(OpsmithError):
    """The callback returned False."""


class Noise(Protocol):
    """The part of numpy.random.Generator that is used."""

    def standard_normal(self, size: tuple[int, ...], dtype: Any = ...) -> Array: ...


@dataclasses.dataclass
class Generated:
    """Pictures and, for each of them, all that is needed to make it again."""

    images: list[Image.Image]
    settings: list[dict[str, Any]]
    step_seconds: list[float]
    seconds: float
    remarks: list[str]


@dataclasses.dataclass
class _Batch:
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


@dataclasses.dataclass(frozen=True)
class _Job:
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


class DiffusionApp:
    def __init__(
        self,
        folder: store.PathLike,
        *,
        variant: str | Mapping[str, str] | None = None,
        threads: int | None = None,
        low_memory: bool = False,
    ) -> None:
        """FOLDER is a pipeline folder. VARIANT names one for all components that have it (the UNet must), or one for each
        component; otherwise the newest compiled one is taken, else the newest. LOW_MEMORY keeps one component at a time."""
        self.folder = Path(folder)
        if not self.folder.is_dir():
            wrong = "is not a folder" if self.folder.exists() else "does not exist"
            raise OpsmithError(f"the pipeline folder {self.folder} {wrong}")
        if threads is not None and threads < 1:
            raise OpsmithError(f"{threads} threads are not possible", "give 1 or more")
        self.threads, self.low_memory = threads, low_memory
        self.paths = {name: self._find(name, variant) for name in COMPONENTS if name != "vae_encoder"}
        if (self.folder / "vae_encoder").is_dir():
            self.paths["vae_encoder"] = self._find("vae_encoder", variant)
        self._sessions: dict[str, ort.InferenceSession] = {}
        self.scheduler_config = schedulers.read_config(self.folder / "scheduler")
        self.tokenizer = ClipTokenizer(self.folder / "tokenizer")
        limits = [self.tokenizer.longest, self._config("text_encoder").get("max_position_embeddings")]
        self.text_length = min([int(n) for n in limits if n] or [77])
        defaults = read_config(self.folder / "generation_config.json")
        self.guidance = float(defaults.get("guidance_scale", 7.5))
        self._read_sizes(self._config("unet"), self._config("vae_decoder") or self._config("vae"))

    def _read_sizes(self, unet: Mapping[str, Any], vae: Mapping[str, Any]) -> None:
        """What the configs say; Stable Diffusion's where they do not."""
        self.scaling = float(vae.get("scaling_factor") or 0.18215)
        self.vae_channels = [int(c) for c in vae.get("block_out_channels") or (128, 256, 512, 512)]
        self.latent_channels = int(vae.get("latent_channels") or 4)
        self.factor = 2 ** (len(self.vae_channels) - 1)  # pixels per latent
        self.unet_channels = int(unet.get("in_channels") or 4)
        self.halved = 2 ** (len(unet.get("block_out_channels") or (0,) * 4) - 1)
        size = unet.get("sample_size") or 64
        self.native = tuple(self.factor * int(s) for s in (size if isinstance(size, list) else (size, size)))

    # --- components --------------------------------------------------------------------------------------

    def _find(self, name: str, variant: str | Mapping[str, str] | None) -> Path:
        folder = self.folder / name
        if not folder.is_dir():
            raise OpsmithError(
                f"the pipeline {self.folder} has no {name}", f"a pipeline folder holds {', '.join(COMPONENTS[:3])}"
            )
        wanted = variant.get(name) if isinstance(variant, Mapping) else variant
        if (
            wanted is not None
            and not isinstance(variant, Mapping)
            and name != "unet"
            and not (folder / wanted).is_dir()
        ):
            wanted = None  # a variant of the UNet alone; `variants` and the settings say what the others are
        if wanted is not None and not (folder / wanted).is_dir():
            there = ", ".join(v.name for v in store.variants(folder))
            raise OpsmithError(f"{folder} has no variant {wanted!r}", f"there are: {there or 'none'}")
        return choose_variant(folder, wanted)

    @property
    def variants(self) -> dict[str, str]:
        return {name: path.parent.name for name, path in self.paths.items()}

    @property
    def paints(self) -> bool:
        """Whether it can start from a picture, and so inpaint."""
        return "vae_encoder" in self.paths

    @property
    def sees_masks(self) -> bool:
        """Whether the UNet takes the mask and the picture around it: made for inpainting."""
        return self.unet_channels > self.latent_channels

    def check_paints(self) -> None:
        if not self.paints:
            raise OpsmithError(f"the pipeline {self.folder} has no vae_encoder", "it is needed to start from a picture")

    @functools.cached_property
    def hashes(self) -> dict[str, str]:
        """Of each component's .onnx file and the names and sizes of the files it points at."""
        return {name: _hash(path) for name, path in self.paths.items()}

    def _config(self, name: str) -> dict[str, Any]:
        return read_config(self.folder / name / "config.json")

    def component(self, name: str) -> ort.InferenceSession:
        """Loaded when it is first needed."""
        if name not in self._sessions:
            self._sessions[name] = session.load(self.paths[name], threads=self.threads)
        return self._sessions[name]

    def release(self, name: str | None = None) -> None:
        """Drop one component's session, or all; the next call loads it again."""
        for key in [name] if name else list(self._sessions):
            self._sessions.pop(key, None)

    def _run(self, name: str, feeds: Mapping[str, Array]) -> Array:
        loaded = self.component(name)
        kinds = {i.name: i.type for i in loaded.get_inputs()}
        typed = {k: np.ascontiguousarray(v, _DTYPES.get(kinds.get(k, ""), v.dtype)) for k, v in feeds.items()}
        try:
            return np.asarray(session.run(loaded, typed, [loaded.get_outputs()[0].name])[0])
        except MemoryError as error:
            raise _too_large(name) from error
        except OpsmithError as error:
            if any(word in str(error).lower() for word in ("bad_alloc", "failed to allocate", "bad allocation")):
                raise _too_large(name) from error
            raise

    def _done_with(self, name: str) -> None:
        if self.low_memory:
            self.release(name)

    # --- generation --------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str,
        negative_prompt: str = "",
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
    ) -> Generated:
        """N pictures, BATCH at a time. Guidance 1 skips the negative prompt and halves the work; by default it is the pipeline's own.

        INIT alone: picture to picture, STRENGTH (0.8) of its noise. INIT and MASK: white parts are painted anew (strength 1).
        CALLBACK(step, total, preview) is called after every step, counted over all batches; it returns False to cancel,
        and may call preview() for the picture so far. TORCH_NOISE draws from torch's generator, seeded seed + i for
        picture i, as diffusers does.
        """
        started = time.perf_counter()
        job = self._check(
            prompt,
            negative_prompt,
            steps,
            self.guidance if guidance is None else guidance,
            height,
            width,
            scheduler,
            init,
            strength,
            mask,
            torch_noise,
        )
        if n < 1 or batch < 1:
            raise OpsmithError(f"{n} pictures, {batch} at a time, are not possible", "both are 1 or more")
        if seed < 0:
            raise OpsmithError(f"the seed {seed} is negative", "give 0 or more")
        self._check_memory(job, min(batch, n))
        states, remarks = self._encode_text(job)
        remarks += self.unknown_remarks(prompt)
        if job.padded != (job.height, job.width):
            remarks.append(
                f"the UNet halves its input {self.halved.bit_length() - 1} times, so the picture was made at "
                f"{job.padded[1]}x{job.padded[0]} and cut to {job.width}x{job.height}"
            )
        indices = list(range(n))
        groups = [indices[i : i + batch] for i in range(0, n, batch)]
        first = self._first_step(job)
        total = len(groups) * (
            len(schedulers.make_scheduler(self.scheduler_config, steps, scheduler).timesteps) - first
        )
        latents, times = [], list[float]()
        for group in groups:
            sources = [self._noise(seed, i, torch_noise) for i in group]
            latents.append(self._denoise(job, first, states, sources, callback, total, times))
        self._done_with("unet")
        images = [self._decode(z[None], job) for z in np.concatenate(latents)]
        self._done_with("vae_decoder")
        settings = [self._settings(job, seed, i) for i in indices]
        return Generated(images, settings, times, time.perf_counter() - started, remarks)

    def _check(
        self,
        prompt: str,
        negative: str,
        steps: int,
        guidance: float,
        height: int | None,
        width: int | None,
        scheduler: str | None,
        init: Image.Image | None,
        strength: float | None,
        mask: Image.Image | None,
        torch_noise: bool,
    ) -> _Job:
        if steps < 1:
            raise OpsmithError(f"{steps} steps are not possible", "give 1 or more")
        if not np.isfinite(guidance) or guidance < 0:
            raise OpsmithError(f"a guidance of {guidance} is not possible", "1 is none, 7.5 is usual")
        self._check_pictures(init, mask)
        tall, wide = self._check_size(height, width, init)
        if strength is None:
            strength = 1.0 if mask is not None or init is None else 0.8
        if not 0 < strength <= 1:
            raise OpsmithError(f"a strength of {strength} is not possible", "above 0, at most 1")
        unit = self.factor * self.halved
        padded = (-(-tall // unit) * unit, -(-wide // unit) * unit)
        return _Job(
            prompt=prompt,
            negative=negative,
            steps=steps,
            guidance=guidance,
            height=tall,
            width=wide,
            padded=padded,
            strength=strength,
            scheduler=scheduler,
            init=None if init is None else _pixels(init, tall, wide, padded),
            mask=None if mask is None else _mask(mask, tall, wide, padded),
            torch_noise=torch_noise,
        )

    def _check_pictures(self, init: Image.Image | None, mask: Image.Image | None) -> None:
        if init is not None:
            self.check_paints()
        if mask is not None and init is None:
            raise OpsmithError("a mask needs a picture to paint in", "give --init as well")
        if self.sees_masks and mask is None:
            raise OpsmithError("this is an inpainting pipeline", "give a picture and a mask: --init and --mask")
        if self.unet_channels not in (self.latent_channels, 2 * self.latent_channels + 1):
            raise OpsmithError(f"a UNet with {self.unet_channels} input channels is not supported", "4 or 9 are")
        if mask is not None and init is not None and mask.size != init.size:
            raise OpsmithError(
                f"the mask is {mask.width}x{mask.height}, the picture {init.width}x{init.height}", "they must be equal"
            )

    def _check_size(self, height: int | None, width: int | None, init: Image.Image | None) -> tuple[int, int]:
        """(height, width) of the picture."""
        default = (self.native[0], self.native[1]) if init is None else tuple(s // 8 * 8 for s in init.size[::-1])
        tall, wide = height if height is not None else default[0], width if width is not None else default[1]
        if tall < 8 or wide < 8 or tall % 8 or wide % 8:
            raise OpsmithError(
                f"a picture of {wide}x{tall} is not possible", "both sides are multiples of 8, from 8 up"
            )
        return tall, wide

    def _check_memory(self, job: _Job, batch: int) -> None:
        """A lower bound: the VAE holds two maps of its second-widest block at full size, the UNet's input is there as well."""
        height, width = job.padded
        channels = self.vae_channels[min(1, len(self.vae_channels) - 1)]
        need = 2 * 4 * channels * height * width + 4 * batch * height * width
        have = machine.memory_bytes()
        if have and need > have:
            raise OpsmithError(
                f"a picture of {width}x{height} needs more than {need / 2**30:.0f} GiB, this machine has {have / 2**30:.0f}",
                "choose a smaller size",
            )

    def _encode_text(self, job: _Job) -> tuple[Array, list[str]]:
        """States [1,S,X] of the prompt, or [2,S,X] with the negative prompt first."""
        texts = [job.prompt] if job.guidance == 1 else [job.negative, job.prompt]
        rows, remarks = [], []
        for text in texts:
            ids, cut = self.tokenizer.padded(text, self.text_length)
            rows.append(ids)
            if cut:
                remarks.append(f"{text[:40]!r}... is longer than {self.text_length - 2} tokens and was cut")
        states = self._run("text_encoder", {"input_ids": np.array(rows, np.int64)})
        self._done_with("text_encoder")
        return states.astype(np.float32), remarks

    @staticmethod
    def _noise(seed: int, index: int, torch_noise: bool) -> Noise:
        if torch_noise:
            from opsmith.pipelines.accelerate import TorchNoise

            return TorchNoise(seed + index)
        return cast(Noise, np.random.default_rng([seed, index]))

    @staticmethod
    def _first_step(job: _Job) -> int:
        """How many steps are left out because the start is a picture."""
        return job.steps - max(1, min(int(job.steps * job.strength), job.steps)) if job.init is not None else 0

    def _denoise(
        self,
        job: _Job,
        first: int,
        states: Array,
        sources: list[Noise],
        callback: Callback | None,
        total: int,
        times: list[float],
    ) -> Array:
        """Latents [B,4,h,w] from noise, or from the picture with noise."""
        batch = self._start(job, first, sources)
        repeated = np.repeat(states, len(sources), axis=0)  # [B,S,X] or [2B,S,X]
        for i in range(first, len(batch.plans[0].timesteps)):
            began = time.perf_counter()
            output = self._predict(job, batch, i, repeated)
            batch.latents = [
                plan.step(i, o, z, cast(np.random.Generator, source)).astype(np.float32)
                for plan, o, z, source in zip(batch.plans, output, batch.latents, sources)
            ]
            if batch.mask is not None and batch.seen is None:
                batch.follow_picture(i)
            times.append(time.perf_counter() - began)
            if callback is not None:
                now = batch.latents[0][None]
                if callback(len(times), total, lambda now=now: self._decode(now, job)) is False:  # type: ignore[misc]
                    raise Cancelled(f"cancelled after step {len(times)} of {total}")
        return np.stack(batch.latents).astype(np.float32)

    def _start(self, job: _Job, first: int, sources: list[Noise]) -> _Batch:
        plans = [schedulers.make_scheduler(self.scheduler_config, job.steps, job.scheduler) for _ in sources]
        shape = (self.latent_channels, job.padded[0] // self.factor, job.padded[1] // self.factor)
        clean: list[Array] = []
        if job.init is not None and not (self.sees_masks and job.strength == 1):
            clean = [self._encode_picture(job.init, source, job) for source in sources]
        noise = [source.standard_normal(shape, dtype=np.float32) for source in sources]
        if clean and (job.strength < 1 or job.mask is None):
            latents = [plan.add_noise(first, c, z) for plan, c, z in zip(plans, clean, noise)]
        else:
            latents = [z * plan.initial_sigma for plan, z in zip(plans, noise)]
        mask = None if job.mask is None else _nearest(job.mask, shape[1], shape[2])
        seen = None
        if job.mask is not None and job.init is not None and mask is not None and self.sees_masks:
            around = [self._encode_picture(job.init * (job.mask < 0.5), source, job) for source in sources]
            seen = np.stack([np.concatenate([mask, a]) for a in around])
        return _Batch(plans, sources, noise, clean, latents, mask, seen)

    def _predict(self, job: _Job, batch: _Batch, step: int, states: Array) -> Array:
        """What the UNet says [B,4,h,w], guided away from the negative prompt."""
        sample = np.stack([plan.scaled(step, z) for plan, z in zip(batch.plans, batch.latents)])
        if batch.seen is not None:
            sample = np.concatenate([sample, batch.seen], axis=1)
        guided = job.guidance != 1
        feeds = {
            "sample": np.concatenate([sample, sample]) if guided else sample,
            "timestep": np.array([batch.plans[0].timesteps[step]]),
            "encoder_hidden_states": states,
        }
        output = self._run("unet", feeds).astype(np.float32)
        if guided:
            free, told = np.split(output, 2)
            output = free + job.guidance * (told - free)
        return np.asarray(output)

    def unknown_remarks(self, prompt: str) -> list[str]:
        """A line if PROMPT has words that the pipeline was never shown, where that can be told."""
        return [unknown_remark(words)] if (words := self.tokenizer.unknown(prompt)) else []

    def step_feed(self, prompt: str) -> dict[str, Array]:
        """What the UNet reads in the middle of a guided picture of the pipeline's own size, for those who time it."""
        source = np.random.default_rng(0)
        rows = [self.tokenizer.padded(text, self.text_length)[0] for text in ("", prompt)]
        shape = (2, self.unet_channels, self.native[0] // self.factor, self.native[1] // self.factor)
        return {
            "sample": source.standard_normal(shape, dtype=np.float32),
            "timestep": np.array([500]),
            "encoder_hidden_states": self._run("text_encoder", {"input_ids": np.array(rows, np.int64)}),
        }

    def _encode_picture(self, picture: Array, source: Noise, job: _Job) -> Array:
        """[3,H,W] -> the mean latent [4,h,w]; with torch noise a sample of the distribution, as diffusers takes."""
        moments = self._run("vae_encoder", {"sample": picture[None].astype(np.float32)}).astype(np.float32)
        self._done_with("vae_encoder")
        mean, log_variance = np.split(moments[0], 2)
        if job.torch_noise:
            deviation = np.exp(0.5 * np.clip(log_variance, -30, 20))
            mean = mean + deviation * source.standard_normal(mean.shape, dtype=np.float32)
        return np.asarray(mean * self.scaling, np.float32)

    def _decode(self, latent: Array, job: _Job) -> Image.Image:
        pixels = self._run("vae_decoder", {"latent_sample": (latent / self.scaling).astype(np.float32)})[0]
        if not np.isfinite(pixels).all():
            raise OpsmithError("the VAE gave values that are not numbers", "try a variant in full precision")
        shown = np.clip(pixels.astype(np.float32) / 2 + 0.5, 0, 1) * 255
        whole = shown.round().astype(np.uint8).transpose(1, 2, 0)  # [H,W,3]
        return Image.fromarray(whole[: job.height, : job.width])

    def _settings(self, job: _Job, seed: int, index: int) -> dict[str, Any]:
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
            "strength": job.strength if job.init is not None else None,
            "mask": job.mask is not None,
            "pipeline": self.folder.name,
            "variants": self.variants,
            "model_hashes": self.hashes,
        }


_DTYPES = {
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


def _too_large(name: str) -> OpsmithError:
    return OpsmithError(f"not enough memory for the {name} at this size", "choose a smaller size or a smaller batch")


def unknown_remark(words: Sequence[str]) -> str:
    return f"this model was never shown {_listed(words)}: the picture may show something else"


def _listed(words: Sequence[str]) -> str:
    quoted = [repr(word) for word in words[:6]] + (["more"] if len(words) > 6 else [])
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _hash(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes())
    for file in sorted(store.external_files(path)):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
    return digest.hexdigest()[:16]


def _pad(array: Array, padded: tuple[int, int]) -> Array:
    return np.pad(array, [(0, 0), (0, padded[0] - array.shape[1]), (0, padded[1] - array.shape[2])], mode="edge")


def _pixels(image: Image.Image, height: int, width: int, padded: tuple[int, int]) -> Array:
    """[3,H,W] in -1..1"""
    shown = image.convert("RGB")
    if shown.size != (width, height):
        shown = shown.resize((width, height), Image.Resampling.LANCZOS)
    return _pad(np.asarray(shown, np.float32).transpose(2, 0, 1) / 127.5 - 1, padded)


def _mask(image: Image.Image, height: int, width: int, padded: tuple[int, int]) -> Array:
    """[1,H,W] of 0 and 1"""
    shown = image.convert("L")
    if shown.size != (width, height):
        shown = shown.resize((width, height), Image.Resampling.NEAREST)
    return _pad((np.asarray(shown, np.float32)[None] >= 127.5).astype(np.float32), padded)


def _nearest(mask: Array, height: int, width: int) -> Array:
    rows = np.arange(height) * mask.shape[1] // height
    columns = np.arange(width) * mask.shape[2] // width
    return np.asarray(mask[:, rows][:, :, columns])
