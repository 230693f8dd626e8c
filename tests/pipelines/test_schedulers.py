"""Every scheduler step by step against diffusers', on the same made-up model outputs."""

from __future__ import annotations

import diffusers
import numpy as np
import pytest
import torch

from opsmith.errors import OpsmithError
from opsmith.pipelines.schedulers import make_scheduler
from opsmith.pipelines.sigmas import beta_quantile

SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "num_train_timesteps": 1000}
CASES = {
    "DDIMScheduler": [
        {"clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1},
        {"clip_sample": True, "timestep_spacing": "trailing"},
        {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing", "clip_sample": False},
    ],
    "PNDMScheduler": [{"skip_prk_steps": True, "steps_offset": 1, "set_alpha_to_one": False}],
    "EulerDiscreteScheduler": [
        {},
        {"timestep_spacing": "leading", "steps_offset": 1},
        *({f"use_{kind}_sigmas": True} for kind in ("karras", "exponential", "beta")),
    ],
    "EulerAncestralDiscreteScheduler": [{}],
    "DPMSolverMultistepScheduler": [
        {},
        {"use_karras_sigmas": True},
        {"beta_schedule": "linear", "timestep_spacing": "trailing"},
        {"use_exponential_sigmas": True},
        {"use_beta_sigmas": True},
        {"algorithm_type": "sde-dpmsolver++"},
        {"algorithm_type": "sde-dpmsolver++", "use_karras_sigmas": True},
    ],
    "HeunDiscreteScheduler": [
        {},
        {"timestep_spacing": "trailing", "clip_sample": True},
        *({f"use_{kind}_sigmas": True} for kind in ("karras", "exponential", "beta")),
    ],
    "UniPCMultistepScheduler": [
        {},
        {"solver_type": "bh1", "disable_corrector": [0, 1], "final_sigmas_type": "sigma_min"},
        {"solver_order": 3, "timestep_spacing": "leading", "steps_offset": 1},
        {"final_sigmas_type": "sigma_min", "lower_order_final": False},
        *({f"use_{kind}_sigmas": True} for kind in ("karras", "exponential", "beta")),
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
        np.testing.assert_allclose(ours.scaled(i, theirs_x.numpy()), scaled.numpy(), rtol=1e-5, atol=1e-5)
        theirs_x = theirs.step(torch.from_numpy(outputs(i, shape)), t, theirs_x).prev_sample
        ours_x = ours.step(i, outputs(i, shape), ours_x, noise)
        scale = max(1.0, float(theirs_x.abs().max()))
        np.testing.assert_allclose(ours_x, theirs_x.numpy(), rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize("eta", [0.3, 1.0])
def test_eta_adds_the_noise_that_ddim_adds(eta, monkeypatch):
    theirs = diffusers.DDIMScheduler.from_config({**SD, "clip_sample": False})
    theirs.set_timesteps(10)
    ours = make_scheduler({"_class_name": "DDIMScheduler", **theirs.config}, 10, eta=eta)
    noise, shared = FixedNoise(), FixedNoise()
    module = __import__(type(theirs).__module__, fromlist=["randn_tensor"])
    made = lambda shape, **_: torch.from_numpy(shared.standard_normal(tuple(shape), np.float32))  # noqa: E731
    monkeypatch.setattr(module, "randn_tensor", made)
    ours_x = outputs(50, (1, 4, 8, 8))
    theirs_x = torch.from_numpy(ours_x.copy())
    for i, t in enumerate(theirs.timesteps):
        told = outputs(i, ours_x.shape)
        theirs_x = theirs.step(torch.from_numpy(told), t, theirs_x, eta=eta).prev_sample
        ours_x = ours.step(i, told, ours_x, noise)
        np.testing.assert_allclose(ours_x, theirs_x.numpy(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["euler", "heun", "dpm++", "dpm++_sde", "unipc"])
def test_sigmas_by_name_are_those_of_the_config(name):
    config = {"_class_name": "DDIMScheduler", **SD}
    for kind in ("karras", "exponential", "beta"):
        asked = make_scheduler(config, 8, name, sigmas=kind)
        told = make_scheduler({**config, f"use_{kind}_sigmas": True}, 8, name)
        np.testing.assert_array_equal(asked.sigmas, told.sigmas)
        assert not np.array_equal(asked.sigmas, make_scheduler(config, 8, name).sigmas)


@pytest.mark.parametrize("p", [1e-6, 0.01, 0.3, 0.5, 0.77, 0.999999])
def test_quantiles_of_the_beta_distribution(p):
    from scipy import stats

    assert beta_quantile(p) == pytest.approx(stats.beta.ppf(p, 0.6, 0.6), rel=1e-12)


def test_what_is_not_known_is_said():
    with pytest.raises(OpsmithError, match="no spacing of sigmas 'wavy'"):
        make_scheduler({"_class_name": "EulerDiscreteScheduler"}, 10, sigmas="wavy")
    with pytest.raises(OpsmithError, match="ddim has no sigmas"):
        make_scheduler({"_class_name": "DDIMScheduler"}, 10, sigmas="karras")
    with pytest.raises(OpsmithError, match="eta is a setting of ddim"):
        make_scheduler({"_class_name": "EulerDiscreteScheduler"}, 10, eta=0.5)
    with pytest.raises(OpsmithError, match="there is no scheduler"):
        make_scheduler({"_class_name": "MagicScheduler"}, 10)
    with pytest.raises(OpsmithError, match="0 steps"):
        make_scheduler({"_class_name": "DDIMScheduler"}, 0)
    with pytest.raises(OpsmithError, match="beta_schedule"):
        make_scheduler({"_class_name": "DDIMScheduler", "beta_schedule": "wavy"}, 10)
