"""torch's part in the picture pipeline. The only file of `pipelines` that imports torch, and only when it is used."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np

from opsmith.errors import OpsmithError

Array = np.ndarray[Any, Any]


class TorchNoise:
    """torch's generator in the shape of numpy's, so that a picture of diffusers can be made again."""

    def __init__(self, seed: int) -> None:
        if importlib.util.find_spec("torch") is None:
            raise OpsmithError("torch's noise needs torch", 'pip install "opsmith[export]"')
        import torch

        self._torch = torch
        self._generator = torch.Generator("cpu").manual_seed(seed)

    def standard_normal(self, size: tuple[int, ...], dtype: Any = np.float32) -> Array:
        # diffusers draws with a leading batch of one; from 16 numbers on torch fills blockwise, so the order is the same.
        drawn = self._torch.randn((1, *size), generator=self._generator, dtype=self._torch.float32)
        return np.asarray(drawn[0].numpy(), dtype)
