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
