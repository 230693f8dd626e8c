"""Where Winograd's 3x3 convolution serves, and what it costs: asked by the lowering and by the tuner."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

BYTE = 5  # direct operations in the time that a byte takes from memory


def _tiles(tile: int, size: int, dilation: int) -> int:
    """Along a side: with dilation d every d-th line is an image of its own."""
    lines = -(-size // dilation)
    return min(size, dilation) * -(-lines // tile)


@dataclasses.dataclass(frozen=True)
class Way:
    """One of the transforms of winograd.hpp. Costs are direct operations of a pair of channels."""

    tile: int  # output pixels a side
    stride: int
    points: tuple[float, ...]  # of interpolation; infinity comes on top
    per_tile: int
    fixed: int = 0  # what reading the transformed weights adds where few pixels share it
    channels: int = 8  # on both sides: with fewer the transforms are not worth it

    @property
    def filters(self) -> int:
        """Transformed weights of a filter, a side: one for each point, and with stride 2 the middle weight as it is."""
        return len(self.points) + self.stride

    def cost(self, batch: int, height: int, width: int, dilations: Sequence[int] = (1, 1)) -> int:
        """The arithmetic, or reading the weights from memory if that takes longer. winograd_pays in winograd.hpp makes the same
        estimate at run time (test_geometry.py)."""
        tiles = batch * _tiles(self.tile, height, dilations[0]) * _tiles(self.tile, width, dilations[1])
        return max(self.per_tile * tiles + self.fixed, BYTE * self.filters**2 * 4)


WAYS = {
    "conv2d_winograd4": Way(4, 1, (0.0, 0.625, -0.625, 1.5, -1.5), 104),
    "conv2d_winograd2": Way(2, 1, (0.0, 1.0, -1.0), 40),
    "conv2d_winograd4_stride2": Way(4, 2, (0.5, -0.5, 1.125, -1.125), 190, 250, channels=16),
}


def fitting(weights: Sequence[int], strides: Sequence[int], dilations: Sequence[int], groups: int) -> dict[str, Way]:
    """The ways that can convolve with WEIGHTS (O, C, KH, KW) and have enough channels for it."""
    square = groups == 1 and tuple(weights[2:]) == (3, 3)
    stride = strides[0] if all(s == strides[0] for s in strides) else 0
    dense = all(d == 1 for d in dilations)
    ways = {name: way for name, way in WAYS.items() if square and way.stride == stride and (dense or stride == 1)}
    return {name: way for name, way in ways.items() if min(weights[:2]) >= way.channels}


def direct_cost(batch: int, height: int, width: int) -> int:
    return max(18 * batch * height * width, BYTE * 9 * 4)


def cost_bf16(tile: int | None, batch: int, height: int, width: int, dilations: Sequence[int] = (1, 1)) -> int:
    """The same in bf16, whose products take half as long and whose weights are half as large."""
    if tile is None:
        return max(9 * batch * height * width, BYTE * 9 * 2)
    assert tile == 2
    tiles = batch * _tiles(2, height, dilations[0]) * _tiles(2, width, dilations[1])
    return max(TILE_BF16 * tiles, BYTE * 16 * 2)


TILE_BF16 = (
    18  # direct operations in fp32 in the time of a tile of 2 x 2: measured, half of the 36 that direct in bf16 takes
)
