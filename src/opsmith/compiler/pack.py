"""Weights in the order in which the kernels read them. Each function mirrors the layout of one kernel header.

The width of vectors and panels is that of the instruction set: geometry.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx_ir import DataType

from opsmith.compiler.geometry import InstructionSet
from opsmith.compiler.winograd import WAYS, Way
from opsmith.errors import OpsmithError

Array = npt.NDArray[np.generic]
BF16 = DataType.BFLOAT16.numpy()  # numbers are rounded to nearest even


def pack_gemm(b: Array, isa: InstructionSet) -> Array:
    """B [K, N] -> panels of columns, each [K][width]; flat. gemm.hpp: gemm.

    Width is `isa.panel_columns`; the last panel is as wide as it must be in whole vectors, padded with zeros.
    """
    if b.ndim != 2:
        raise OpsmithError(f"a GEMM weight has 2 dims, this one has shape {list(b.shape)}")
    k, n = b.shape
    width = isa.panel_columns
    whole = n // width * width
    panels = b[:, :whole].reshape(k, whole // width, width).transpose(1, 0, 2).reshape(-1)
    if whole == n:
        return np.ascontiguousarray(panels)
    rest = np.zeros((k, isa.padded(n - whole)), dtype=b.dtype)
    rest[:, : n - whole] = b[:, whole:]
    return np.concatenate([panels, rest.reshape(-1)])


def pack_recurrent(r: Array, isa: InstructionSet) -> Array:
    """R [D, G, H, H] -> per direction, per block of units, a panel per gate; flat. recurrent.hpp."""
    width = isa.panel_columns
    blocks = range(0, r.shape[2], width)
    return np.concatenate([pack_gemm(gate[at : at + width].T, isa) for d in r for at in blocks for gate in d])


def signed_bytes(b: Array) -> npt.NDArray[np.int8]:
    """uint8 or int8 as gemm_bytes.hpp multiplies them: unsigned ones are moved by 128."""
    return b.view(np.int8) if b.dtype == np.int8 else (b.view(np.uint8) ^ np.uint8(0x80)).view(np.int8)


def signed_zeros(zeros: Array | None, dtype: npt.DTypeLike, columns: int) -> npt.NDArray[np.int32]:
    """The zero point of each column, moved as its bytes are; `zeros` is one for all, one per column, or none."""
    zero = np.zeros(1, np.int32) if zeros is None else zeros.reshape(-1).astype(np.int32)
    return np.broadcast_to(zero - (128 if dtype == np.uint8 else 0), (columns,)).astype(np.int32)


def column_sums(q: npt.NDArray[np.int8], zeros: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """[K, N] -> sum over k of q - zero, wrapping at 32 bits."""
    total: npt.NDArray[np.int64] = q.sum(axis=0, dtype=np.int64) - zeros.astype(np.int64) * len(q)
    return total.astype(np.int32)


def pack_bytes(q: npt.NDArray[np.int8], isa: InstructionSet) -> npt.NDArray[np.int8]:
    """[K, N] -> panels of columns, each [K / 4][width][4], K filled up with zeros; flat. gemm_bytes.hpp: gemm_bytes."""
    k, n = q.shape
    filled = np.zeros((-(-k // 4) * 4, isa.padded(n)), np.int8)
    filled[:k, :n] = q
    words = np.ascontiguousarray(filled.reshape(-1, 4, filled.shape[1]).transpose(0, 2, 1)).view(np.int32)[:, :, 0]
    return pack_gemm(words, isa).view(np.int8)


def rotation_block(columns: int) -> int:
    """The rows of the Hadamard matrix that rows of activations are rotated by: quantize_rows.hpp. Larger ones than 64 gain nothing."""
    return min(64, columns & -columns)


def rotated(w: npt.NDArray[np.float32], block: int) -> npt.NDArray[np.float32]:
    """[K, N] -> what gives, times rotated rows, the product of w with rows as they are. quantize_rows.hpp."""
    hadamard: npt.NDArray[np.floating[Any]] = np.ones((1, 1))
    while len(hadamard) < block:
        hadamard = np.kron(np.array([[1.0, 1.0], [1.0, -1.0]]), hadamard)
    turned = (hadamard / block).astype(np.float32) @ w.reshape(block, -1)
    return turned.reshape(w.shape).astype(np.float32, copy=False)


def row_factors(w: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """[K, N] -> what activations are multiplied by before they become bytes, and the rows of w divided by: the root of a row's size, so
    that channels with large activations and small weights are balanced. quantize_rows.hpp."""
    sizes = np.sqrt(np.square(w, dtype=np.float64).mean(axis=1))
    return np.sqrt(np.where(sizes > 0, sizes, 1)).astype(np.float32)


def int8_columns(w: npt.NDArray[np.float32], block: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """[K, N] -> int8 in -127 .. 127, and the scale of each column, for rows that were multiplied by `row_factors` and rotated."""
    w = rotated(w / row_factors(w)[:, None], block)
    q, scales = int8_channels(w.T)
    return q.T, scales


def int8_channels(w: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Conv weight [O, C/groups, ...] -> int8 in -127 .. 127, and the scale of each output channel."""
    largest = np.abs(w).reshape(len(w), -1).max(axis=1, initial=0.0)
    scales = np.where(largest > 0, largest / np.float32(127), np.float32(1)).astype(np.float32)
    return np.rint(w / scales.reshape(-1, *(1,) * (w.ndim - 1))).astype(np.int8), scales


def pack_pairs(b: Array, isa: InstructionSet) -> Array:
    """B [K, N] -> panels of columns of bf16, each [K / 2][width][2], K filled up with a zero; flat. gemm.hpp: gemm_bf16."""
    k, n = b.shape
    filled = np.zeros((k + k % 2, isa.padded(n)), BF16)
    filled[:k, :n] = b
    pairs = np.ascontiguousarray(filled.reshape(-1, 2, filled.shape[1]).transpose(0, 2, 1)).view(np.uint32)[:, :, 0]
    return pack_gemm(pairs, isa).view(BF16)


def conv_matrices(w: Array, groups: int) -> list[Array]:
    """Conv weight [O, C/groups, KH, KW] -> per group [KH*KW, C/groups, O/groups]."""
    o, c, kh, kw = w.shape
    return list(w.reshape(groups, o // groups, c, kh * kw).transpose(0, 3, 2, 1))


def pack_conv_pairs(w: Array, groups: int, isa: InstructionSet) -> Array:
    """Conv weight [O, C/groups, (KD,) KH, KW] in bf16 -> one packed B per group, the channels of every kernel position filled up to
    whole pairs. conv.hpp: conv2d_bf16, for images whose rows are not merged."""
    o, c, *kernel = w.shape
    packed = []
    for g in w.reshape(groups, o // groups, c, int(np.prod(kernel))).transpose(0, 3, 2, 1):  # [taps, C/G, O/G]
        filled = np.zeros((g.shape[0], c + c % 2, g.shape[2]), BF16)
        filled[:, :c] = g
        packed.append(pack_pairs(filled.reshape(-1, g.shape[2]), isa))
    return np.concatenate(packed)


def pack_conv_bytes(w: Array, groups: int, isa: InstructionSet) -> npt.NDArray[np.int8]:
    """Conv weight of bytes -> one packed B per group, the channels of every kernel position filled up to a multiple of 4 with
    zeros. conv_bytes.hpp: conv_bytes."""
    packed = []
    for g in conv_matrices(signed_bytes(w), groups):
        taps, c, n = g.shape
        filled = np.zeros((taps, -(-c // 4) * 4, n), np.int8)
        filled[:, :c] = g
        packed.append(pack_bytes(filled.reshape(-1, n), isa))
    return np.concatenate(packed)


def conv_column_sums(w: Array, zeros: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Of every output channel: the sum of its weights less their zero point."""
    return column_sums(signed_bytes(w).reshape(len(w), -1).T, zeros)


def pack_conv2d(w: Array, groups: int, isa: InstructionSet) -> Array:
    """Conv weight [O, C/groups, (KD,) KH, KW] -> one packed B [taps*C/groups, O/groups] per group. conv.hpp: conv2d."""
    o, c, *kernel = w.shape
    taps = int(np.prod(kernel))
    per_group = w.reshape(groups, o // groups, c, taps).transpose(0, 3, 2, 1)  # [G, taps, C/G, O/G]
    return np.concatenate([pack_gemm(g.reshape(taps * c, o // groups), isa) for g in per_group])


def pack_winograd(w: Array, way: Way, isa: InstructionSet) -> Array:
    """Conv weight [O, C, 3, 3] -> G g G^T in panels, each [filters^2][C][width]; flat. winograd.hpp.

    The transform is done in double precision.
    """
    o, c, kh, kw = w.shape
    if (kh, kw) != (3, 3):
        raise OpsmithError(f"no Winograd transform for a {kh}x{kw} kernel", "3x3")
    points = np.array(way.points)
    norms = [np.prod([p - q for q in points if q != p]) for p in points]
    rows = [[1 / n, p / n, p * p / n] for p, n in zip(points, norms, strict=True)]
    if way.stride == 2:  # the outer weights are a filter of their own
        rows = [[first, 0, second] for first, second, _ in rows]
    g = np.array([*rows, [0, 0, 1], *([[0, 1, 0]] if way.stride == 2 else [])])
    size = len(g) ** 2
    packed = np.zeros(size * c * isa.padded(o), np.float32)
    width = isa.panel_columns
    for start in range(0, o, width):  # panel by panel, so that only one is ever held in double precision
        part = w[start : start + width].astype(np.float64)
        u = np.einsum("ij,ocjk,lk->ilco", g, part, g, optimize=True).reshape(size, c, len(part))
        columns = isa.padded(len(part))
        target = packed[size * c * start : size * c * (start + columns)].reshape(size, c, columns)
        target[:, :, : len(part)] = u
    return packed


def pack_winograd_pairs(w: Array, isa: InstructionSet) -> Array:
    """The same in bf16 for tiles of 2: panels, each [16][C / 2][width][2], C filled up with a zero. winograd.hpp."""
    o, c = w.shape[:2]
    plain = pack_winograd(w, WAYS["conv2d_winograd2"], isa)
    parts = []
    for start in range(0, o, isa.panel_columns):
        columns = isa.padded(min(isa.panel_columns, o - start))
        panel = np.zeros((16, c + c % 2, columns), BF16)
        panel[:, :c] = plain[16 * c * start : 16 * c * (start + columns)].reshape(16, c, columns)
        parts.append(panel.reshape(-1, 2, columns).transpose(0, 2, 1).reshape(-1))
    return np.concatenate(parts)


def pack_depthwise(w: Array) -> Array:
    """Conv weight [C, 1, KH, KW] of a depthwise convolution -> [KH, KW, C]; flat. depthwise.hpp."""
    return np.ascontiguousarray(w[:, 0].transpose(1, 2, 0)).reshape(-1)


def pack_narrow(w: Array) -> Array:
    """Conv weight [O, C, KH, KW] -> [O, KH, KW, C]; flat. conv_narrow.hpp."""
    return np.ascontiguousarray(w.transpose(0, 2, 3, 1)).reshape(-1)


def pack_conv_transposed(
    w: Array, groups: int, strides: tuple[int, int], dilations: tuple[int, int], isa: InstructionSet
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
                parts.append(pack_gemm(g[rows][:, columns].reshape(-1, per_group), isa))
    return np.concatenate(parts)


def pack_stem(w: Array, isa: InstructionSet) -> Array:
    """Conv weight [O, C, KH, KW] -> a packed B [C*KH*KW, O]. conv_stem.hpp."""
    return pack_gemm(w.reshape(len(w), -1).T, isa)


def pack_conv_joint(w: Array, strides: tuple[int, int], isa: InstructionSet) -> Array:
    """ConvTranspose weight [C, O, KH, KW] -> a packed B [TH*TW*C, SH*SW*O] that computes all phases at once, with zeros where a
    phase has no tap. conv_transpose.hpp: conv2d_joint."""
    c, o, kh, kw = w.shape
    sh, sw = strides
    th, tw = -(-kh // sh), -(-kw // sw)
    whole = np.zeros((c, o, th * sh, tw * sw), w.dtype)
    whole[:, :, :kh, :kw] = w
    taps = whole.reshape(c, o, th, sh, tw, sw).transpose(2, 4, 0, 3, 5, 1)  # [TH, TW, C, SH, SW, O]
    return pack_gemm(taps.reshape(th * tw * c, sh * sw * o), isa)


@dataclass(frozen=True)
class BlockQuantized:
    """A weight [K, N] in blocks of `block` rows: value = (q - zero) * scale of its block and column."""

    q: npt.NDArray[np.int8]  # [K, N], signed: -8..7 or -128..127
    scales: Array  # [ceil(K / block), N]
    zeros: Array | None  # [ceil(K / block), N], signed like q, or of the scales' type; None: 0
    bits: int
    block: int

    def dequantized(self) -> npt.NDArray[np.float32]:
        """The weight [K, N] in fp32."""
        rows = np.arange(self.q.shape[0]) // self.block
        q = self.q.astype(np.float32)
        if self.zeros is not None:
            q = q - self.zeros.astype(np.float32)[rows]
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
    zeros: Array | None = None
    if zero_points is not None and zero_points.dtype == np.uint8:
        unsigned = _unpack_bits(zero_points.reshape(n, -1), bits)[:, :blocks]
        zeros = (unsigned.astype(np.int16) - middle).astype(np.int8).T
    elif zero_points is not None:
        zeros = np.subtract(zero_points.reshape(n, blocks), middle, dtype=zero_points.dtype).T
    return BlockQuantized(np.ascontiguousarray(q), scales.reshape(n, blocks).T, zeros, bits, block)


def _unpack_bits(packed: Array, bits: int) -> Array:
    """uint8 [N, B] -> [N, B * 8 / bits], lowest bits first."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)  # type: ignore[operator]


def pack_quantized(w: BlockQuantized, isa: InstructionSet) -> npt.NDArray[np.uint8]:
    """Per panel, per block: scales, zero points, q; flat bytes. quant.hpp: Quantized."""
    return _pack_blocks(w, isa, _bytes_in_rows if w.bits == 8 else _nibbles_in_order)


def pack_block_bytes(w: BlockQuantized, isa: InstructionSet, scales: np.dtype[Any]) -> npt.NDArray[np.uint8]:
    """The same for products of bytes, gemm_blocks.hpp: q as words, and instead of zero points that are floats zero * scale, of half bytes
    from 0 to 15. Both in the type SCALES."""
    zeros = w.zeros
    if zeros is not None and zeros.dtype != np.int8:
        zeros = _shifts(w.scales, zeros.astype(np.float32) + (8 if w.bits == 4 else 0)).astype(scales)
    stored = replace(w, scales=w.scales.astype(scales), zeros=zeros)
    return _pack_blocks(stored, isa, _bytes_in_words if w.bits == 8 else _nibbles_in_words)


def _shifts(scales: Array, zeros: Array) -> npt.NDArray[np.float32]:
    return np.asarray(zeros, np.float32) * np.asarray(scales, np.float32)


def halves_hold(scales: Array, zeros: Array | None) -> bool:
    """Whether the scales of a MatMulNBits, and its zeros * scales if those are floats, are halves to the last bits of a float. Those of
    llama.cpp's blocks are."""
    numbers = [np.asarray(scales, np.float32)]
    if zeros is not None and zeros.dtype != np.uint8:
        numbers.append(_shifts(scales, zeros))
    with np.errstate(over="ignore"):
        return all(bool((np.abs(x - x.astype(np.float16)) <= np.abs(x) * 2.0**-22).all()) for x in numbers)


def _bytes_in_rows(q: npt.NDArray[np.int8]) -> Array:
    """q (blocks, block, columns) as it is."""
    return q


def _bytes_in_words(q: npt.NDArray[np.int8]) -> Array:
    """(blocks, block / 4, columns, 4)"""
    blocks, block, columns = q.shape
    return np.ascontiguousarray(q.reshape(blocks, block // 4, 4, columns).swapaxes(2, 3))


def _nibbles_in_order(q: npt.NDArray[np.int8]) -> Array:
    """(blocks, block / 8, columns) words of eight, the first in the lowest bits, as two's complement."""
    return _nibbles(q, range(0, 32, 4))


def _nibbles_in_words(q: npt.NDArray[np.int8]) -> Array:
    """The same, q + 8, so that the low halves of the bytes of a word are the first four and the high halves the others."""
    return _nibbles(q + np.int8(8), (0, 8, 16, 24, 4, 12, 20, 28))


def _nibbles(q: npt.NDArray[np.int8], shifts: Iterable[int]) -> Array:
    """Words of the lowest four bits of eight numbers, each moved by its own of SHIFTS."""
    blocks, block, columns = q.shape
    eight = (q.astype(np.uint32) & np.uint32(15)).reshape(blocks, block // 8, 8, columns)
    moved = eight << np.array([*shifts], np.uint32).reshape(8, 1)
    return np.asarray(np.bitwise_or.reduce(moved, axis=2))


def _pack_blocks(
    w: BlockQuantized, isa: InstructionSet, layout: Callable[[npt.NDArray[np.int8]], Array]
) -> npt.NDArray[np.uint8]:
    k, n = w.q.shape
    if w.block % 8 or not 16 <= w.block <= 256:
        raise OpsmithError(f"blocks of {w.block} rows are not supported", "16 to 256, a multiple of 8")
    blocks, columns = -(-k // w.block), isa.padded(n)
    q = np.zeros((blocks * w.block, columns), np.int8)
    q[:k, :n] = w.q
    scales = np.zeros((blocks, columns), w.scales.dtype)
    scales[:, :n] = w.scales
    parts = [scales]
    if w.zeros is not None:
        zeros = np.zeros((blocks, columns), w.zeros.dtype)
        zeros[:, :n] = w.zeros
        parts.append(zeros)
    panels = []
    for start in range(0, columns, isa.panel_columns):
        stop = min(columns, start + isa.panel_columns)
        data = layout(q[:, start:stop].reshape(blocks, w.block, stop - start))
        pieces = [*(p[:, start:stop] for p in parts), data]
        flat = [np.ascontiguousarray(p).reshape(blocks, -1).view(np.uint8) for p in pieces]
        panels.append(np.concatenate(flat, axis=1).reshape(-1))
    return np.concatenate(panels) if panels else np.zeros(0, np.uint8)
