"""Every scheduler step by step against diffusers', on the same made-up model outputs."""

from __future__ import annotations

import diffusers
import numpy as np
import pytest
import torch

from opsmith.errors import OpsmithError
from opsmith.pipelines.schedulers import make_scheduler

SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "num_train_timesteps": 1000}
CASES = {
    "DDIMScheduler": [
        {"clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1},
        {"clip_sample": True, "timestep_spacing": "trailing"},
        {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing", "clip_sample": False},
    ],
    "PNDMScheduler": [{"skip_prk_steps": True, "steps_offset": 1, "set_alpha_to_one": False}],
    "EulerDiscreteScheduler": [{}, {"timestep_spacing": "leading", "steps_offset": 1}, {"use_karras_sigmas": True}],
    "EulerAncestralDiscreteScheduler": [{}],
    "DPMSolverMultistepScheduler": [
        {},
        {"use_karras_sigmas": True},
        {"beta_schedule": "linear", "timestep_spacing": "trailing"},
    ],
    "LCMScheduler": [{"clip_sample": False}],
}


def outputs(i, shape):
    return np.random.default_rng(100 + i).normal(size=shape).astype(np.float32)


class FixedNoise:
    """A generator that gives the same numbers to both sides."""

    def __init__(self):
        self.calls = 0

    def standard_normal(self, shape, dtype):
        self.calls += 1
        return np.random.default_rng(self.calls).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("name, extra", [(n, e) for n, cases in CASES.items() for e in cases])
@pytest.mark.parametrize("steps", [10, 25])
def test_latents_match_diffusers_at_every_step(name, extra, prediction, steps, monkeypatch):
    config = {**SD, **extra, "prediction_type": prediction}
    theirs = getattr(diffusers, name).from_config(config)
    theirs.set_timesteps(steps)
    ours = make_scheduler({"_class_name": name, **theirs.config}, steps)
    np.testing.assert_allclose(ours.timesteps, theirs.timesteps.numpy(), rtol=1e-6, atol=1e-3)
    assert float(ours.initial_sigma) == pytest.approx(float(theirs.init_noise_sigma), rel=1e-5)
    noise = FixedNoise()
    module = __import__(type(theirs).__module__, fromlist=["randn_tensor"])
    if hasattr(module, "randn_tensor"):
        shared = FixedNoise()
        monkeypatch.setattr(
            module,
            "randn_tensor",
            lambda shape, **_: torch.from_numpy(shared.standard_normal(tuple(shape), np.float32)),
        )
    shape = (1, 4, 8, 8)
    ours_x = np.random.default_rng(0).normal(size=shape).astype(np.float32) * float(ours.initial_sigma)
    theirs_x = torch.from_numpy(ours_x.copy())
    for i, t in enumerate(theirs.timesteps):
        scaled = theirs.scale_model_input(theirs_x, t)
        np.testing.assert_allclose(ours.scaled(i, ours_x), scaled.numpy(), rtol=1e-4, atol=1e-4)
        theirs_x = theirs.step(torch.from_numpy(outputs(i, shape)), t, theirs_x).prev_sample
        ours_x = ours.step(i, outputs(i, shape), ours_x, noise)
        scale = max(1.0, float(theirs_x.abs().max()))
        np.testing.assert_allclose(ours_x, theirs_x.numpy(), rtol=0, atol=1e-4 * scale)


def test_what_is_not_known_is_said():
    with pytest.raises(OpsmithError, match="is unknown"):
        make_scheduler({"_class_name": "MagicScheduler"}, 10)
    with pytest.raises(OpsmithError, match="0 steps"):
        make_scheduler({"_class_name": "DDIMScheduler"}, 0)
    with pytest.raises(OpsmithError, match="beta_schedule"):
        make_scheduler({"_class_name": "DDIMScheduler", "beta_schedule": "wavy"}, 10)
