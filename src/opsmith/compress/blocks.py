"""Weights in blocks of small integers, in the layout of com.microsoft.MatMulNBits.

    w (K, N)  ->  q (N, K / block, block) in 0 .. 2^bits - 1,  scale and zero point per (N, K / block)
    w ~ (q - zero) * scale

Rows are padded with zeros to whole blocks. Four-bit integers go two in a byte, the first in the low half.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Clipping a block's largest value a little makes all the others finer; the best of these shrinks wins per block.
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)
_CHUNK = 1 << 22  # elements quantized at a time, so that a large weight needs little memory beside itself


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A quantized (K, N) weight. `zeros` is None when the zero point is the middle, 2^(bits - 1)."""

    k: int
    n: int
    bits: int
    block: int
    packed: Array  # uint8 (N, blocks, block * bits / 8)
    scales: Array  # (N, blocks), of the weight's own float type
    zeros: Array | None  # uint8 (N, ceil(blocks * bits / 8)), or (N, blocks) of the scales' type

    @property
    def nbytes(self) -> int:
        return int(self.packed.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes))


def quantize_blocks(weight: Array, bits: int, block: int, symmetric: bool = True) -> Blocks:
    """WEIGHT is (K, N), float32 or float16."""
    k, n = weight.shape
    blocks = -(-k // block)
    packed = np.empty((n, blocks, block * bits // 8), np.uint8)
    scales = np.empty((n, blocks), weight.dtype)
    zeros = np.empty((n, blocks), np.uint8)
    step = max(1, _CHUNK // (blocks * block))
    for start in range(0, n, step):
        part = slice(start, min(n, start + step))
        w = np.zeros((part.stop - start, blocks * block), np.float32)
        w[:, :k] = weight[:, part].T
        q, scales[part], zeros[part] = _quantize(w.reshape(-1, blocks, block), bits, symmetric, weight.dtype)
        packed[part] = pack(q, bits)
    if symmetric:
        return Blocks(k, n, bits, block, packed, scales, None)
    even = np.full((n, blocks + blocks % 2), 1 << (bits - 1), np.uint8) if bits == 4 else zeros
    even[:, :blocks] = zeros
    return Blocks(k, n, bits, block, packed, scales, pack(even, bits))


def dequantize_blocks(blocks: Blocks) -> Array:
    """The (K, N) weight that the integers stand for."""
    count = blocks.scales.shape[1]
    q = unpack(blocks.packed, blocks.bits).astype(np.float32)  # (N, blocks, block)
    if blocks.zeros is None:
        q -= float(1 << (blocks.bits - 1))
    elif blocks.zeros.dtype == np.uint8:
        q -= unpack(blocks.zeros, blocks.bits)[:, :count, None]
    else:
        q -= blocks.zeros[:, :, None].astype(np.float32)
    q *= blocks.scales[:, :, None].astype(np.float32)
    whole = q.reshape(blocks.n, -1)[:, : blocks.k]
    return np.ascontiguousarray(whole.T, dtype=blocks.scales.dtype)


def _quantize(w: Array, bits: int, symmetric: bool, dtype: Any) -> tuple[Array, Array, Array]:
    """Integers, scales (rounded to DTYPE before they are used) and zero points of w (rows, blocks, block)."""
    top = (1 << bits) - 1
    middle = 1 << (bits - 1)
    if symmetric:
        low, high = w.min(axis=2), w.max(axis=2)
        # The value of largest magnitude takes the integer 0, which is one step further from the middle than 2^bits - 1.
        reach = np.where(-low >= high, low, high)
        base, zero = -reach / middle, np.full(low.shape, float(middle), np.float32)
    else:
        low, high = np.minimum(w.min(axis=2), 0), np.maximum(w.max(axis=2), 0)
        base = (high - low) / top
        zero = np.zeros_like(low)
    best: tuple[Array, Array, Array] | None = None
    least = np.full(low.shape, np.inf, np.float32)
    for shrink in _SHRINKS:
        scale = (base * shrink).astype(dtype).astype(np.float32)
        scale = np.where(scale == 0, np.float32(1), scale)
        if not symmetric:
            zero = np.clip(np.rint(-low * shrink / scale), 0, top)
        q = np.clip(np.rint(w / scale[:, :, None]) + zero[:, :, None], 0, top)
        error = np.square((q - zero[:, :, None]) * scale[:, :, None] - w).sum(axis=2)
        if best is None:
            best, least = (q, scale, zero.copy()), error
            continue
        better = error < least
        least = np.where(better, error, least)
        best = (
            np.where(better[:, :, None], q, best[0]),
            np.where(better, scale, best[1]),
            np.where(better, zero, best[2]),
        )
    assert best is not None
    return best[0].astype(np.uint8), best[1].astype(dtype), best[2].astype(np.uint8)


def pack(q: Array, bits: int) -> Array:
    return q if bits == 8 else (q[..., 0::2] | (q[..., 1::2] << 4)).astype(np.uint8)


def unpack(packed: Array, bits: int) -> Array:
    if bits == 8:
        return packed
    pairs = np.stack([packed & 15, packed >> 4], axis=-1)
    return pairs.reshape(*packed.shape[:-1], -1)
