"""Diffusion schedulers in numpy, configured by diffusers' scheduler_config.json as it is.

Noise schedule: x_t = a_t x_0 + s_t noise with a_t^2 + s_t^2 = 1 ("variance preserving"); Euler and DPM-Solver work with
sigma = s_t / a_t. A scheduler is made for a number of steps; `step(i, output, sample)` goes from timestep i to the next.

    DDIM            Song et al., "Denoising Diffusion Implicit Models"
    PNDM            Liu et al., "Pseudo Numerical Methods for Diffusion Models on Manifolds" (the PLMS part, as Stable Diffusion uses it)
    Euler, Euler a  Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models"
    Heun            the same, second order: every step but the last looks twice
    DPM++ 2M        Lu et al., "DPM-Solver++", second order, multistep; "SDE": with fresh noise at every step
    UniPC           Zhao et al., "UniPC: A Unified Predictor-Corrector Framework", multistep
    LCM             Luo et al., "Latent Consistency Models"
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from opsmith.errors import OpsmithError, no_such
from opsmith.pipelines.sigmas import SPACINGS

Array: TypeAlias = "np.ndarray[Any, Any]"


class Scheduler:
    """What all of them share: the noise schedule, the spacing of timesteps, and how a model's output is read."""

    spacing = "leading"  # where the config does not say
    order = 1  # timesteps for each step that was asked for
    eta = 0.0  # DDIM's: how much of the noise is fresh, 0 to 1

    def __init__(self, config: Mapping[str, Any], steps: int) -> None:
        self.config = config
        self.train_steps = int(config.get("num_train_timesteps", 1000))
        if not 1 <= steps <= self.train_steps:
            raise OpsmithError(f"{steps} steps are not possible", f"between 1 and {self.train_steps}")
        self.steps = steps
        self.prediction = str(config.get("prediction_type", "epsilon"))
        if self.prediction not in ("epsilon", "v_prediction", "sample"):
            raise OpsmithError(
                f"the scheduler's prediction_type {self.prediction!r} is unknown", "epsilon, v_prediction or sample"
            )
        self.alphas = _alphas(config, self.train_steps)  # products of alpha, one per training step
        self.initial_sigma = 1.0
        self.timesteps = self._timesteps()

    def _timesteps(self) -> Array:
        return self._spaced(self.steps)[::-1].copy()

    def _spaced(self, count: int) -> Array:
        """`count` training steps in rising order, as the config spaces them."""
        spacing = self.config.get("timestep_spacing", self.spacing)
        if spacing == "linspace":
            return np.linspace(0, self.train_steps - 1, count).round().astype(np.int64)
        if spacing == "leading":
            return np.arange(count, dtype=np.int64) * (self.train_steps // count) + int(
                self.config.get("steps_offset", 0)
            )
        if spacing == "trailing":
            return np.round(np.arange(self.train_steps, 0, -self.train_steps / count)).astype(np.int64)[::-1] - 1
        raise OpsmithError(f"the scheduler's timestep_spacing {spacing!r} is unknown", "linspace, leading or trailing")

    def scaled(self, i: int, sample: Array) -> Array:
        """The sample as the model wants to see it at step i."""
        return sample

    def add_noise(self, i: int, clean: Array, noise: Array) -> Array:
        """A clean latent as it would be at the start of step i."""
        alpha = self.alphas[int(self.timesteps[i])]
        return np.asarray(np.sqrt(alpha) * clean + np.sqrt(1 - alpha) * noise)

    def step(self, i: int, output: Array, sample: Array, rng: np.random.Generator | None = None) -> Array:
        raise NotImplementedError

    def _clean_and_noise(self, output: Array, sample: Array, alpha: float) -> tuple[Array, Array]:
        """The x_0 and the noise that the model's output means, given the product of alphas at this step."""
        a, s = np.sqrt(alpha), np.sqrt(1 - alpha)
        if self.prediction == "epsilon":
            return (sample - s * output) / a, output
        if self.prediction == "sample":
            return output, (sample - a * output) / s
        return a * sample - s * output, a * output + s * sample

    def _final_alpha(self) -> float:
        return 1.0 if self.config.get("set_alpha_to_one", True) else float(self.alphas[0])


def _alphas(config: Mapping[str, Any], count: int) -> Array:
    start, end = float(config.get("beta_start", 0.0001)), float(config.get("beta_end", 0.02))
    kind = config.get("beta_schedule", "linear")
    if config.get("trained_betas") is not None:
        betas = np.asarray(config["trained_betas"], np.float32)
    elif kind == "linear":
        betas = np.linspace(start, end, count, dtype=np.float32)
    elif kind == "scaled_linear":
        betas = np.linspace(start**0.5, end**0.5, count, dtype=np.float32) ** 2
    elif kind == "squaredcos_cap_v2":
        bar = np.cos((np.arange(count + 1) / count + 0.008) / 1.008 * np.pi / 2) ** 2
        betas = np.minimum(1 - bar[1:] / bar[:-1], 0.999).astype(np.float32)
    else:
        raise OpsmithError(
            f"the scheduler's beta_schedule {kind!r} is unknown", "linear, scaled_linear or squaredcos_cap_v2"
        )
    if config.get("rescale_betas_zero_snr"):
        betas = _zero_terminal_snr(betas)
    return np.cumprod(1 - betas.astype(np.float32), dtype=np.float32)


def _zero_terminal_snr(betas: Array) -> Array:
    """Lin et al., "Common Diffusion Noise Schedules and Sample Steps are Flawed": the last step is pure noise."""
    roots = np.sqrt(np.cumprod(1 - betas, dtype=np.float32))
    roots = (roots - roots[-1]) * (roots[0] / (roots[0] - roots[-1]))
    products = roots**2
    alphas = np.concatenate([products[:1], products[1:] / products[:-1]])
    return np.asarray(1 - alphas)


class DDIM(Scheduler):
    def step(self, i: int, output: Array, sample: Array, rng: np.random.Generator | None = None) -> Array:
        t = int(self.timesteps[i])
        before = t - self.train_steps // self.steps
        alpha = float(self.alphas[t])
        next_alpha = float(self.alphas[before]) if before >= 0 else self._final_alpha()
        clean, noise = self._clean_and_noise(output, sample, alpha)
        if self.config.get("clip_sample", True):
            limit = float(self.config.get("clip_sample_range", 1.0))
            clean = np.clip(clean, -limit, limit)
        spread = self.eta * ((1 - next_alpha) / (1 - alpha) * (1 - alpha / next_alpha)) ** 0.5
        moved = np.sqrt(next_alpha) * clean + np.sqrt(1 - next_alpha - spread**2) * noise
        return np.asarray(moved + spread * fresh_noise(rng, sample.shape) if self.eta else moved)


class PNDM(Scheduler):
    """The first step is taken twice (a half step of order two), then Adams-Bashforth of rising order."""

    _WEIGHTS = ((1.0,), (3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12), (55 / 24, -59 / 24, 37 / 24, -9 / 24))

    def __init__(self, config: Mapping[str, Any], steps: int) -> None:
        if not config.get("skip_prk_steps", False):
            raise OpsmithError(
                "PNDM with Runge-Kutta steps is not supported", "set skip_prk_steps in scheduler_config.json"
            )
        super().__init__(config, steps)
        self._history: list[Array] = []
        self._first: Array | None = None

    def _timesteps(self) -> Array:
        rising = self._spaced(self.steps)
        return np.concatenate([rising[:-1], rising[-2:-1], rising[-1:]])[::-1].copy()

    def _final_alpha(self) -> float:
        return 1.0 if self.config.get("set_alpha_to_one", False) else float(self.alphas[0])

    def step(self, i: int, output: Array, sample: Array, rng: np.random.Generator | None = None) -> Array:
        t, stride = int(self.timesteps[i]), self.train_steps // self.steps
        start, end = t, t - stride
        if self._first is not None and len(self._history) == 1:  # the second look at the first step
            start, end = t + stride, t
            combined = (output + self._history[-1]) / 2
            sample, self._first = self._first, None
        else:
            if not self._history:
                self._first = sample
            self._history = [*self._history[-3:], output]
            weights = self._WEIGHTS[len(self._history) - 1]
            combined = np.asarray(sum(w * h for w, h in zip(weights, reversed(self._history))))
        return self._transfer(sample, start, end, combined)

    def _transfer(self, sample: Array, start: int, end: int, output: Array) -> Array:
        alpha = float(self.alphas[start])
        after = float(self.alphas[end]) if end >= 0 else self._final_alpha()
        if self.prediction == "v_prediction":
            output = np.sqrt(alpha) * output + np.sqrt(1 - alpha) * sample
        divisor = alpha * np.sqrt(1 - after) + np.sqrt(alpha * (1 - alpha) * after)
        return np.asarray(np.sqrt(after / alpha) * sample - (after - alpha) * output / divisor)


class _Sigmas(Scheduler):
    """Schedulers that work with sigma = s / a, largest first, ending in 0."""

    spacing = "linspace"

    def _all_sigmas(self) -> Array:
        return np.sqrt((1 - self.alphas) / self.alphas)

    def _finish(self, sigmas: Array) -> Array:
        last = float(self._all_sigmas()[0]) if self.config.get("final_sigmas_type", "zero") == "sigma_min" else 0.0
        return np.concatenate([sigmas, [last]]).astype(np.float32)

    @property
    def _chosen(self) -> str | None:
        """The spacing of sigmas that the config asks for, if any."""
        return next((kind for kind in SPACINGS if self.config.get(f"use_{kind}_sigmas")), None)

    def _respaced(self, kind: str, low: float, high: float) -> Array:
        return SPACINGS[kind](float(low), float(high), self.steps)

    def _time_of(self, sigma: Array) -> Array:
        """Where a sigma lies on the training steps, by its logarithm."""
        logs = np.log(self._all_sigmas())
        wanted = np.log(sigma)
        below = np.clip(np.searchsorted(logs, wanted, side="right") - 1, 0, len(logs) - 2)
        share = np.clip((logs[below] - wanted) / (logs[below] - logs[below + 1]), 0, 1)
        return np.asarray((1 - share) * below + share * (below + 1))

    def _multistep_times(self, karras_rounds: bool) -> Array:
        """Timesteps of DPM-Solver and UniPC, which leave out the last of one more; sets the sigmas, too."""
        every = self._all_sigmas()
        spacing, kind = self.config.get("timestep_spacing", self.spacing), self._chosen
        if kind is not None:
            sigmas = self._respaced(kind, every[0], every[-1])
            times = self._time_of(sigmas)
            if kind == "karras" and karras_rounds:
                times = times.round()
        else:
            if spacing == "linspace":
                times = np.linspace(0, self.train_steps - 1, self.steps + 1).round()[::-1][:-1].astype(np.int64)
            elif spacing == "leading":
                ratio, offset = self.train_steps // (self.steps + 1), int(self.config.get("steps_offset", 0))
                times = (np.arange(self.steps + 1) * ratio)[::-1][:-1].astype(np.int64) + offset
            else:
                times = self._spaced(self.steps)[::-1]
            sigmas = np.interp(times, np.arange(len(every)), every)
        self.sigmas = self._finish(sigmas)
        return np.asarray(times).astype(np.int64)

    @staticmethod
    def _parts(sigma: float) -> tuple[float, float, float]:
        """a, s, and lambda = log(a / s)."""
        a = 1 / (sigma**2 + 1) ** 0.5
        return a, sigma * a, -np.log(sigma) if sigma > 0 else np.inf


class Euler(_Sigmas):
    def _timesteps(self) -> Array:
        every = self._all_sigmas()
        if self.config.get("timestep_spacing", self.spacing) == "linspace":
            times = np.linspace(0, self.train_steps - 1, self.steps, dtype=np.float32)[::-1]
        else:
            times = self._spaced(self.steps)[::-1].astype(np.float32)
        sigmas = np.interp(times, np.arange(len(every)), every)
        if (kind := self._chosen) is not None:
            sigmas = self._respaced(kind, sigmas[-1], sigmas[0])
            times = self._time_of(sigmas)
        self.sigmas = self._finish(sigmas)
        top = float(self.sigmas.max())
        spacing = self.config.get("timestep_spacing", self.spacing)
        self.initial_sigma = top if spacing in ("linspace", "trailing") else (top**2 + 1) ** 0.5
        return np.asarray(times, np.float32)

    def scaled(self, i: int, sample: Array) -> Array:
        return np.asarray(sample / (self.sigmas[i] ** 2 + 1) ** 0.5)

    def add_noise(self, i: int, clean: Array, noise: Array) -> Array:
        return np.asarray(clean + self.sigmas[i] * noise)

    def _clean(self, i: int, output: Array, sample: Array) -> Array:
        sigma = float(self.sigmas[i])
        if self.prediction == "epsilon":
            return sample - sigma * output
        if self.prediction == "sample":
            return output
        return np.asarray(sample / (sigma**2 + 1) - output * (sigma / (sigma**2 + 1) ** 0.5))

    def step(self, i: int, output: Array, sample: Array, rng: np.random.Generator | None = None) -> Array:
        sigma, after = float(self.sigmas[i]), float(self.sigmas[i + 1])
        slope = (sample - self._clean(i, output, sample)) / sigma
        return np.asarray(sample + slope * (after - sigma))


class EulerAncestral(Euler):
    """Each step goes a little too far down and then adds fresh noise."""

    def step(self, i: int, output: Array, sample: Array, rng: np.random.Generator | None = None) -> Array:
        sigma, after = float(self.sigmas[i]), float(self.sigmas[i + 1])
        up = (after**2 * (sigma**2 - after**2) / sigma**2) ** 0.5
        down = (after**2 - up**2) ** 0.5
        slope = (sample - self._clean(i, output, sample)) / sigma
        moved = sample + slope * (down - sigma)
        return np.asarray(moved + up * fresh_noise(rng, sample.shape)) if up > 0 else np.asarray(moved)


class Heun(Euler):
    """Every step but the last is taken twice: down, and again with the mean of both slopes."""

    order = 2

    def _timesteps(self) -> Array:
        times = super()._timesteps()
        self.sigmas = np.concatenate([self.sigmas[:1], np.repeat(self.sigmas[1:-1], 2), self.sigmas[-1:]])
        self._first: tuple[Array, Array] | None = None  # sample and slope of a step's first half
        return np.concatenate([times[:1], np.repeat(times[1:], 2)])

    def _finish(self, sigmas: Array) -> Array:
        return np.concatenate([sigmas, [0.0]]).astype(np.float32)

    def step(self, i: int, output: Array, sample: Array, rng: np.random.Generator | None = None) -> Array:
        clean = self._clean(i, output, sample)
        if self.config.get("clip_sample"):
            limit = float(self.config.get("clip_sample_range", 1.0))
            clean = np.clip(clean, -limit, limit)
        slope = (sample - clean) / float(self.sigmas[i])
        if self._first is None:
            start, end = float(self.sigmas[i]), float(self.sigmas[i + 1])
            self._first = (sample, slope) if i + 1 < len(self.timesteps) else None
            return np.asarray(sample + slope * (end - start))
        before, first = self._first
        self._first = None
        return np.asarray(before + (first + slope) / 2 * float(self.sigmas[i] - self.sigmas[i - 1]))


class DPMSolver(_Sigmas):
    """DPM-Solver++ 2M: a first-order step, then second order with the previous prediction of x_0; "sde-" adds fresh noise."""

    def _timesteps(self) -> Array:
        algorithm = self.config.get("algorithm_type", "dpmsolver++")
        if (
            algorithm not in ("dpmsolver++", "sde-dpmsolver++")
            or self.config.get("solver_type", "midpoint") != "midpoint"
        ):
            raise OpsmithError("only DPM-Solver++ with the midpoint method is supported", "see scheduler_config.json")
        self._noisy = algorithm.startswith("sde-")
        self._before: Array | None = None
        return self._multistep_times(self.config.get("beta_schedule", "linear") != "squaredcos_cap_v2")

    def add_noise(self, i: int, clean: Array, noise: Array) -> Array:
        a, s, _ = self._parts(float(self.sigmas[i]))
        return np.asarray(a * clean + s * noise)

    def step(self, i: int, output: Array, sample: Array, rng: np.random.Generator | None = None) -> Array:
        a, s, here = self._parts(float(self.sigmas[i]))
        clean, _ = self._clean_and_noise(output, sample, a**2)
        next_a, next_s, there = self._parts(float(self.sigmas[i + 1]))
        shrunk = np.exp(here - there)  # e^-h
        kept = shrunk if self._noisy else 1.0
        weight = next_a * (1 - shrunk * kept)
        moved = (next_s / s * kept) * sample + weight * clean
        if self._before is not None and int(self.config.get("solver_order", 2)) >= 2 and not self._lowered(i):
            _, _, earlier = self._parts(float(self.sigmas[i - 1]))
            ratio = (here - earlier) / (there - here)
            moved = moved + 0.5 * weight * (clean - self._before) / ratio
        if self._noisy:
            moved = moved + next_s * (1 - shrunk**2) ** 0.5 * fresh_noise(rng, sample.shape)
        self._before = clean
        return np.asarray(moved)

    def _lowered(self, i: int) -> bool:
        """Whether step i is of first order because it is the last."""
        return i == self.steps - 1 and (
            bool(self.config.get("euler_at_final"))
            or self.config.get("final_sigmas_type", "zero") == "zero"
            or (bool(self.config.get("lower_order_final", True)) and self.steps < 15)
        )


class UniPC(_Sigmas):
    """A multistep predictor; what the model then says at the new place corrects it before the next step."""

    def _timesteps(self) -> Array:
        if not self.config.get("predict_x0", True) or self.config.get("thresholding"):
            raise OpsmithError(
                "UniPC is supported where it predicts x_0, without thresholding", "see scheduler_config.json"
            )
        self._told: list[Array] = []  # predictions of x_0, newest last
        self._start: Array | None = None  # the sample that the last step started from
        self._order = 0  # of the last step
        return self._multistep_times(karras_rounds=True)

    add_noise = DPMSolver.add_noise

    def step(self, i: int, output: Array, sample: Array, rng: np.random.Generator | None = None) -> Array:
        a, _, _ = self._parts(float(self.sigmas[i]))
        clean, _ = self._clean_and_noise(output, sample, a**2)
        if self._start is not None and i - 1 not in (self.config.get("disable_corrector") or ()):
            sample = self._move(i - 1, self._start, self._order, clean)
        highest = int(self.config.get("solver_order", 2))
        self._told = [*self._told, clean][-highest:]
        room = self.steps - i if self.config.get("lower_order_final", True) else highest
        self._order = min(highest, room, len(self._told))
        self._start = sample
        return self._move(i, sample, self._order)

    def _move(self, i: int, sample: Array, order: int, corrected: Array | None = None) -> Array:
        """From sigma i to the next by the last ORDER predictions; CORRECTED is what the model says there, if that is known."""
        _, s, here = self._parts(float(self.sigmas[i]))
        next_a, next_s, there = self._parts(float(self.sigmas[i + 1]))
        newest, step = self._told[-1], here - there
        gone = np.expm1(step)
        moved = next_s / s * sample - next_a * gone * newest
        ratios, slopes = list[float](), list[Array]()
        for k in range(1, order):
            ratio = (self._parts(float(self.sigmas[i - k]))[2] - here) / -step
            ratios.append(ratio)
            slopes.append((self._told[-1 - k] - newest) / ratio)
        if corrected is not None:
            ratios.append(1.0)
            slopes.append(corrected - newest)
        if not slopes:
            return np.asarray(moved)
        scale = step if self.config.get("solver_type", "bh2") == "bh1" else gone
        weights = self._weights(ratios, step, scale)
        return np.asarray(moved - next_a * scale * sum(w * d for w, d in zip(weights, slopes)))

    @staticmethod
    def _weights(ratios: list[float], step: float, scale: float) -> Array:
        """How much each slope counts: 1/2 where there is one, else what is exact for polynomials."""
        if len(ratios) == 1:
            return np.array([0.5])
        phi, factorial, right = np.expm1(step) / step - 1, 1, []
        for k in range(1, len(ratios) + 1):
            right.append(phi * factorial / scale)
            factorial *= k + 1
            phi = phi / step - 1 / factorial
        left = np.array([[r**k for r in ratios] for k in range(len(ratios))])
        return np.asarray(np.linalg.solve(left, np.array(right)))


class LCM(Scheduler):
    def _timesteps(self) -> Array:
        original = int(self.config.get("original_inference_steps", 50))
        if self.steps > original:
            raise OpsmithError(f"LCM was trained for at most {original} steps, {self.steps} were asked for")
        falling = (np.arange(1, original + 1) * (self.train_steps // original) - 1)[::-1]
        picked = np.floor(np.linspace(0, len(falling), num=self.steps, endpoint=False)).astype(np.int64)
        return falling[picked]

    def step(self, i: int, output: Array, sample: Array, rng: np.random.Generator | None = None) -> Array:
        t = int(self.timesteps[i])
        clean, _ = self._clean_and_noise(output, sample, float(self.alphas[t]))
        if self.config.get("clip_sample", False):
            limit = float(self.config.get("clip_sample_range", 1.0))
            clean = np.clip(clean, -limit, limit)
        scaled = t * float(self.config.get("timestep_scaling", 10.0))
        denoised = clean * scaled / (scaled**2 + 0.25) ** 0.5 + sample * 0.25 / (scaled**2 + 0.25)
        if i == self.steps - 1:
            return np.asarray(denoised)
        after = float(self.alphas[int(self.timesteps[i + 1])])
        return np.asarray(np.sqrt(after) * denoised + np.sqrt(1 - after) * fresh_noise(rng, sample.shape))


def fresh_noise(rng: np.random.Generator | None, shape: tuple[int, ...]) -> Array:
    if rng is None:
        raise OpsmithError("this scheduler adds noise at every step and needs a generator")
    return rng.standard_normal(shape, dtype=np.float32)


SCHEDULERS: dict[str, type[Scheduler]] = {
    "ddim": DDIM,
    "pndm": PNDM,
    "euler": Euler,
    "euler_a": EulerAncestral,
    "dpm++": DPMSolver,
    "dpm++_karras": DPMSolver,
    "dpm++_sde": DPMSolver,
    "heun": Heun,
    "unipc": UniPC,
    "lcm": LCM,
}
_CLASSES = {
    "DDIMScheduler": "ddim",
    "PNDMScheduler": "pndm",
    "EulerDiscreteScheduler": "euler",
    "EulerAncestralDiscreteScheduler": "euler_a",
    "DPMSolverMultistepScheduler": "dpm++",
    "LCMScheduler": "lcm",
    "HeunDiscreteScheduler": "heun",
    "UniPCMultistepScheduler": "unipc",
}
_CHOICES: dict[str, dict[str, Any]] = {  # what a name means beside its class
    "dpm++": {"algorithm_type": "dpmsolver++"},
    "dpm++_karras": {"algorithm_type": "dpmsolver++", "use_karras_sigmas": True},
    "dpm++_sde": {"algorithm_type": "sde-dpmsolver++"},
    "pndm": {"skip_prk_steps": True},
    "unipc": {"solver_type": "bh2"},
}


def make_scheduler(
    config: Mapping[str, Any], steps: int, name: str | None = None, *, sigmas: str | None = None, eta: float = 0.0
) -> Scheduler:
    """The config's own scheduler, or another one by NAME on the same noise schedule. SIGMAS: karras, exponential or beta."""
    kind = name or _CLASSES.get(str(config.get("_class_name", "DDIMScheduler")))
    if kind not in SCHEDULERS:
        raise no_such("scheduler", name or config.get("_class_name"), SCHEDULERS)
    settings = dict(config) | (_CHOICES.get(name, {}) if name else {})
    if sigmas is not None:
        _choose_sigmas(settings, sigmas, kind)
    if not 0 <= eta <= 1:
        raise OpsmithError(f"an eta of {eta} is not possible", "0 to 1")
    if eta and kind != "ddim":
        raise OpsmithError(f"eta is a setting of ddim, and the scheduler is {kind}", "choose the scheduler ddim")
    made = SCHEDULERS[kind](settings, steps)
    made.eta = eta
    return made


def _choose_sigmas(settings: dict[str, Any], sigmas: str, kind: str) -> None:
    if sigmas not in SPACINGS:
        raise no_such("spacing of sigmas", sigmas, SPACINGS)
    if not issubclass(SCHEDULERS[kind], _Sigmas):
        able = [n for n, c in SCHEDULERS.items() if issubclass(c, _Sigmas)]
        raise OpsmithError(f"the scheduler {kind} has no sigmas to space", f"choose one of {', '.join(able)}")
    settings |= {f"use_{other}_sigmas": other == sigmas for other in SPACINGS}


def read_config(folder: Path) -> dict[str, Any]:
    file = folder / "scheduler_config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise OpsmithError(f"the pipeline has no {file.name} in {folder}") from error
    except ValueError as error:
        raise OpsmithError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise OpsmithError(f"{file} does not hold a JSON object")
    return config
