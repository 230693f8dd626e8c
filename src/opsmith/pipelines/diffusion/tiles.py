"""A picture decoded in tiles that overlap, where the whole does not fit into memory.

Within the overlap each tile's weight falls linearly to its edge, so no seam is left. The VAE's group norms see one tile at a time, so
the picture is near the one that is decoded whole, not the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def decoded(latent: Array, decode: Callable[[Array], Array], factor: int, side: int | tuple[int, int]) -> Array:
    """[3,H,W] of LATENT [1,C,h,w], from tiles of at most SIDE latents (or height and width of a tile), half of which overlap with the
    next; FACTOR pixels per latent."""
    rows, columns = side if isinstance(side, tuple) else (side, side)
    height, width = latent.shape[2:]
    total: Array | None = None
    weight = np.zeros((factor * height, factor * width), np.float32)
    for top in _starts(height, rows):
        for left in _starts(width, columns):
            tile = decode(latent[:, :, top : top + rows, left : left + columns]).astype(np.float32)  # [3,H',W']
            if total is None:
                total = np.zeros((len(tile), *weight.shape), np.float32)
            tall, wide = tile.shape[1:]
            share = _ramp(tall)[:, None] * _ramp(wide)[None]
            place = np.s_[factor * top : factor * top + tall, factor * left : factor * left + wide]
            total[(slice(None), *place)] += share * tile
            weight[place] += share
    assert total is not None
    return np.asarray(total / weight)


def _starts(length: int, side: int) -> list[int]:
    if length <= side:
        return [0]
    return [*range(0, length - side, max(1, side // 2)), length - side]


def _ramp(length: int) -> Array:
    """1 in the middle, falling to almost 0 at both ends."""
    from_edge = np.minimum(np.arange(length), np.arange(length)[::-1]) + 1
    return np.asarray(from_edge / from_edge.max(), np.float32)
