"""Weights in the order in which the kernels read them. Each function mirrors the layout of one kernel header.

`lanes` is the number of floats in a vector of the target CPU (16 AVX-512, 8 AVX2, 4 NEON), W in base.hpp.
"""

from __future__ import annotations

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
