"""ControlNets: pictures of edges, depth or poses that the UNet follows.

    down_block_residual.i, mid_block_residual  [kB,C,h,w]   added to the UNet's skip connections

Scale and guess mode are as in diffusers: with guess mode the residuals of the outer skip connections count less (0.1 to
1), and the negative half is not controlled at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from opsmith import store
from opsmith.errors import OpsmithError
from opsmith.pipelines.diffusion.parts import CONTROL, Parts
from opsmith.pipelines.diffusion.request import Job

Array = np.ndarray[Any, Any]
Residuals = dict[str, Array]

_SAME = ("block_out_channels", "layers_per_block", "cross_attention_dim")


class Controls:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.names = [name for name in parts.paths if name.startswith(CONTROL)]
        self._check_base()
        self._pooled = [bool(parts.config(name).get("global_pool_conditions")) for name in self.names]

    def _check_base(self) -> None:
        """A ControlNet is a copy of its UNet's first half, so the sizes of both are the same."""
        unet = self._parts.config("unet")
        for name in self.names:
            net = self._parts.config(name)
            for key in _SAME:
                if key in unet and key in net and unet[key] != net[key]:
                    raise OpsmithError(
                        f"the {name} does not fit: its {key} is {net[key]}, the UNet's {unet[key]}",
                        "it was made for another model",
                    )
            if not self._takes_residuals():
                raise OpsmithError(
                    f"the UNet takes no {name}: it was exported without one", "export the pipeline with its ControlNets"
                )

    def _takes_residuals(self) -> bool:
        inputs = store.read_proto(self._parts.paths["unet"]).graph.input
        return any(i.name.startswith("down_block_residual") for i in inputs)

    def check(self, count: int) -> None:
        """COUNT pictures were given."""
        if count and not self.names:
            raise OpsmithError(
                f"the pipeline {self._parts.folder} has no {CONTROL}", "export one that has: see docs/imagine.md"
            )
        if count != len(self.names):
            raise OpsmithError(
                f"the pipeline has {len(self.names)} ControlNets, {count} pictures to follow were given",
                "give --control once for each",
            )

    def residuals(self, job: Job, sample: Array, timestep: float, told: Mapping[str, Array]) -> Residuals:
        """For SAMPLE [B,C,h,w] and what the UNet is TOLD [kB,...]; nothing without ControlNets."""
        if not self.names:
            return {}
        halves = len(told["encoder_hidden_states"]) // len(sample)
        guess = job.guess or self._pooled[0]
        if guess and halves > 1:
            told = {name: rows[-len(sample) :] for name, rows in told.items()}
        copies = 1 if guess else halves
        total: Residuals = {}
        for i in range(len(self.names)):
            made = self._run(i, job, np.concatenate([sample] * copies), timestep, told)
            made = scaled(made, job.controls[i][1], guess=guess, pooled=self._pooled[i])
            total = {key: total[key] + value if total else value for key, value in made.items()}
        if copies < halves:
            total = {key: np.concatenate([np.zeros_like(value), value]) for key, value in total.items()}
        return total

    def _run(self, index: int, job: Job, sample: Array, timestep: float, told: Mapping[str, Array]) -> Residuals:
        name = self.names[index]
        picture = np.repeat(job.controls[index][0][None], len(sample), axis=0)
        feeds = {**told, "sample": sample, "timestep": np.array([timestep]), f"{CONTROL}_cond": picture}
        reads = self._parts.inputs(name)
        outputs = [o.name for o in self._parts.session(name).get_outputs()]
        made = self._parts.run_for(name, {key: feeds[key] for key in reads}, outputs)
        return dict(zip(outputs, made))


def scaled(made: Residuals, scale: float, *, guess: bool, pooled: bool) -> Residuals:
    """Residuals as they are added: outermost first, the middle's last. POOLED: only their mean over the picture counts."""
    weights = np.logspace(-1, 0, len(made)) * scale if guess and not pooled else np.full(len(made), scale)
    weighted = {key: value * np.float32(w) for (key, value), w in zip(made.items(), weights)}
    if not pooled:
        return weighted
    return {k: np.broadcast_to(v.mean(axis=(2, 3), keepdims=True), v.shape) for k, v in weighted.items()}


def parse(text: str) -> tuple[str, float]:
    """FILE or FILE:scale."""
    found = re.fullmatch(r"(.+):([0-9]*\.?[0-9]+)", text)
    return (found[1], float(found[2])) if found else (text, 1.0)
