"""Where Winograd's 3x3 convolution serves, and what it costs: asked by the lowering and by the tuner."""

from __future__ import annotations

from collections.abc import Sequence


def fits(weights: Sequence[int], strides: Sequence[int], dilations: Sequence[int], groups: int) -> bool:
    """Whether it can convolve with WEIGHTS (O, C, KH, KW), and has enough channels for its transforms to be worth it."""
    plain = groups == 1 and all(s == 1 for s in (*strides, *dilations))
    return plain and tuple(weights[2:]) == (3, 3) and min(weights[:2]) >= 16


def cost_bf16(tile: int | None, batch: int, height: int, width: int) -> int:
    """The same in bf16, whose products take half as long and whose weights are half as large."""
    byte = 5
    if tile is None:
        return max(9 * batch * height * width, byte * 9 * 2)
    assert tile == 2
    return max(TILE_BF16 * batch * -(-height // 2) * -(-width // 2), byte * 16 * 2)


TILE_BF16 = (
    18  # direct operations in fp32 in the time of a tile of 2 x 2: measured, half of the 36 that direct in bf16 takes
)


def cost(tile: int | None, batch: int, height: int, width: int) -> int:
    """What a pair of channels costs, in direct operations: the arithmetic, or reading the weights from memory if that takes
    longer. `tile` None: direct. winograd_pays in winograd.hpp makes the same estimate at run time (test_geometry.py)."""
    byte = 5  # direct operations in the time that a byte takes from memory
    if tile is None:
        return max(18 * batch * height * width, byte * 9 * 4)
    tiles = batch * -(-height // tile) * -(-width // tile)
    return max(104 * tiles, byte * 36 * 4) if tile == 4 else max(40 * tiles, byte * 16 * 4)
