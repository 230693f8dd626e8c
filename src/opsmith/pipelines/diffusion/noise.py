"""Where the random numbers of a picture come from.

Picture number i of seed s draws all its numbers from `numpy.random.default_rng([s, i])` (PCG64), first the
start latents [C,h,w] as float32 standard normals, then what the scheduler asks for, step by step. So a picture does not
depend on the batch that it was made in, nor on the variant.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np

Array = np.ndarray[Any, Any]


class Noise(Protocol):
    """The part of numpy.random.Generator that is used."""

    def standard_normal(self, size: tuple[int, ...], dtype: Any = ...) -> Array: ...


def source(seed: int, index: int, torch_noise: bool) -> Noise:
    if torch_noise:
        from opsmith.pipelines.accelerate import TorchNoise

        return TorchNoise(seed + index)
    return cast(Noise, np.random.default_rng([seed, index]))
