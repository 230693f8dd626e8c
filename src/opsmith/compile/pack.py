"""Weights in the order in which the kernels read them. Each function mirrors the layout of one kernel header.

`lanes` is the number of floats in a vector of the target CPU (16 AVX-512, 8 AVX2, 4 NEON), W in base.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opsmith.errors import OpsmithError

Array = npt.NDArray[np.generic]

# Columns per panel: gemm_nr in gemm_micro.hpp.
_PANEL = {16: 48, 8: 16, 4: 12}


def panel_columns(lanes: int) -> int:
    """How many columns of B the GEMM microkernel takes at a time."""
    if lanes not in _PANEL:
        raise OpsmithError(f"no kernels for vectors of {lanes} floats", "the kernel library knows 4, 8 and 16")
    return _PANEL[lanes]


def pack_gemm(b: Array, lanes: int) -> Array:
    """B [K, N] -> panels of columns, each [K][width]; flat. gemm.hpp: gemm.

    Width is `panel_columns(lanes)`; the last panel is as wide as it must be in whole vectors, padded with zeros.
    """
    if b.ndim != 2:
        raise OpsmithError(f"a GEMM weight has 2 dims, this one has shape {list(b.shape)}")
    k, n = b.shape
    width = panel_columns(lanes)
    whole = n // width * width
    panels = b[:, :whole].reshape(k, whole // width, width).transpose(1, 0, 2).reshape(-1)
    if whole == n:
        return np.ascontiguousarray(panels)
    rest = np.zeros((k, -(-(n - whole) // lanes) * lanes), dtype=b.dtype)
    rest[:, : n - whole] = b[:, whole:]
    return np.concatenate([panels, rest.reshape(-1)])


def pack_conv2d(w: Array, groups: int, lanes: int) -> Array:
    """Conv weight [O, C/groups, KH, KW] -> one packed B [KH*KW*C/groups, O/groups] per group. conv.hpp: conv2d."""
    o, c, kh, kw = w.shape
    per_group = w.reshape(groups, o // groups, c, kh, kw).transpose(0, 3, 4, 2, 1)  # [G, KH, KW, C/G, O/G]
    return np.concatenate([pack_gemm(g.reshape(kh * kw * c, o // groups), lanes) for g in per_group])


# Interpolation points of the Winograd transforms by output tile size; infinity comes on top. winograd.hpp: Winograd.
_WINOGRAD_POINTS = {4: (0.0, 0.625, -0.625, 1.5, -1.5), 2: (0.0, 1.0, -1.0)}


def pack_winograd(w: Array, tile: int, lanes: int) -> Array:
    """Conv weight [O, C, 3, 3] -> G g G^T in panels, each [n*n][C][width], n = tile + 2; flat. winograd.hpp.

    The transform is done in double precision; `tile` is 4 or 2 output pixels a side.
    """
    o, c, kh, kw = w.shape
    if (kh, kw) != (3, 3) or tile not in _WINOGRAD_POINTS:
        raise OpsmithError(f"no Winograd transform for a {kh}x{kw} kernel with tiles of {tile}", "3x3 with 4 or 2")
    points = np.array(_WINOGRAD_POINTS[tile])
    norms = [np.prod([p - q for q in points if q != p]) for p in points]
    g = np.array([[1 / n, p / n, p * p / n] for p, n in zip(points, norms, strict=True)] + [[0, 0, 1]])
    size = len(g) ** 2
    packed = np.zeros(size * c * (-(-o // lanes) * lanes), np.float32)
    width = panel_columns(lanes)
    for start in range(0, o, width):  # panel by panel, so that only one is ever held in double precision
        part = w[start : start + width].astype(np.float64)
        u = np.einsum("ij,ocjk,lk->ilco", g, part, g, optimize=True).reshape(size, c, len(part))
        columns = -(-len(part) // lanes) * lanes
        target = packed[size * c * start : size * c * (start + columns)].reshape(size, c, columns)
        target[:, :, : len(part)] = u
    return packed


def pack_depthwise(w: Array) -> Array:
    """Conv weight [C, 1, KH, KW] of a depthwise convolution -> [KH, KW, C]; flat. depthwise.hpp."""
    return np.ascontiguousarray(w[:, 0].transpose(1, 2, 0)).reshape(-1)


def pack_conv_transposed(
    w: Array, groups: int, strides: tuple[int, int], dilations: tuple[int, int], lanes: int
) -> Array:
    """ConvTranspose weight [C, O/groups, KH, KW] -> per group, per phase a packed B of its taps. conv_transpose.hpp.

    The phases are (row, column) with row < strides[0], column < strides[1]; a kernel position belongs to the phase
    (position * dilation) mod stride.
    """
    c, per_group, kh, kw = w.shape
    (sh, sw), (dh, dw) = strides, dilations
    parts = []
    for g in w.reshape(groups, c // groups, per_group, kh, kw).transpose(0, 3, 4, 1, 2):  # [KH, KW, C/G, O/G]
        for row in range(sh):
            for column in range(sw):
                rows = [k for k in range(kh) if k * dh % sh == row]
                columns = [k for k in range(kw) if k * dw % sw == column]
                parts.append(pack_gemm(g[rows][:, columns].reshape(-1, per_group), lanes))
    return np.concatenate(parts)


@dataclass(frozen=True)
class BlockQuantized:
    """A weight [K, N] in blocks of `block` rows: value = (q - zero) * scale of its block and column."""

    q: npt.NDArray[np.int8]  # [K, N], signed: -8..7 or -128..127
    scales: Array  # [ceil(K / block), N]
    zeros: npt.NDArray[np.int8] | None  # [ceil(K / block), N], signed like q; None: 0
    bits: int
    block: int

    def dequantized(self) -> npt.NDArray[np.float32]:
        """The weight [K, N] in fp32."""
        rows = np.arange(self.q.shape[0]) // self.block
        q = self.q.astype(np.float32)
        if self.zeros is not None:
            q = q - self.zeros[rows]
        return q * self.scales.astype(np.float32)[rows]


def unpack_matmul_nbits(
    b: Array, scales: Array, zero_points: Array | None, *, k: int, n: int, bits: int, block: int
) -> BlockQuantized:
    """The inputs of com.microsoft.MatMulNBits, whose B is [N, ceil(K / block), block * bits / 8] unsigned."""
    if bits not in (4, 8):
        raise OpsmithError(f"MatMulNBits with {bits} bits is not supported", "4 and 8 are")
    blocks, middle = -(-k // block), 1 << (bits - 1)
    values = _unpack_bits(b.reshape(n, -1), bits)[:, :k]
    q = (values.astype(np.int16) - middle).astype(np.int8).T
    zeros = None
    if zero_points is not None and zero_points.dtype == np.uint8:
        unsigned = _unpack_bits(zero_points.reshape(n, -1), bits)[:, :blocks]
        zeros = (unsigned.astype(np.int16) - middle).astype(np.int8).T
    elif zero_points is not None:
        raise OpsmithError("MatMulNBits with zero points of a floating type is not supported", "they must be uint8")
    return BlockQuantized(np.ascontiguousarray(q), scales.reshape(n, blocks).T, zeros, bits, block)


def _unpack_bits(packed: Array, bits: int) -> Array:
    """uint8 [N, B] -> [N, B * 8 / bits], lowest bits first."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)  # type: ignore[operator]


def pack_quantized(w: BlockQuantized, lanes: int) -> npt.NDArray[np.uint8]:
    """Per panel, per block: scales, zero points, q; flat bytes. quant.hpp: Quantized."""
    k, n = w.q.shape
    if w.block % 8 or not 16 <= w.block <= 256:
        raise OpsmithError(f"blocks of {w.block} rows are not supported", "16 to 256, a multiple of 8")
    blocks, columns = -(-k // w.block), -(-n // lanes) * lanes
    q = np.zeros((blocks * w.block, columns), np.int8)
    q[:k, :n] = w.q
    scales = np.zeros((blocks, columns), w.scales.dtype)
    scales[:, :n] = w.scales
    parts = [scales]
    if w.zeros is not None:
        zeros = np.zeros((blocks, columns), np.int8)
        zeros[:, :n] = w.zeros
        parts.append(zeros)
    if w.bits == 8:
        data: Array = q.reshape(blocks, w.block, columns)
    else:
        nibbles = (q.view(np.uint8) & 15).astype(np.uint32).reshape(blocks, w.block // 8, 8, columns)
        shifts = np.arange(0, 32, 4, dtype=np.uint32).reshape(8, 1)
        data = np.bitwise_or.reduce(nibbles << shifts, axis=2)
    panels = []
    for start in range(0, columns, panel_columns(lanes)):
        stop = min(columns, start + panel_columns(lanes))
        pieces = [np.ascontiguousarray(p[..., start:stop]).reshape(blocks, -1).view(np.uint8) for p in [*parts, data]]
        panels.append(np.concatenate(pieces, axis=1).reshape(-1))
    return np.concatenate(panels) if panels else np.zeros(0, np.uint8)
