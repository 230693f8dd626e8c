"""Signals and small numerics: DFT, STFT, MelWeightMatrix, Det."""

from __future__ import annotations

from dataclasses import dataclass

from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import FLOATS, REALS, Abstract, DataType, Unsupported, abstract
from opsmith.sizes import Real, Size, as_size, floor_div


@infers("Det")
def _det(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.rank < 2 or x.dtype not in REALS:
        raise Unsupported(f"Det on {x.dtype.name} of rank {x.rank}")
    node.expect(x.dims[-1], "==", x.dims[-2], "the matrix is not square")
    return [abstract(x.dtype, x.dims[:-2])]


def mel_sizes(node: Node) -> tuple[Size, Size, Size]:
    """bands, length of the transform, sample rate"""
    bands, length, rate = (node.elements(i, "a size")[0] for i in range(3))
    return bands, length, rate


def frequency(node: Node, index: int) -> Real:
    elements = node.input(index).elements
    if elements is None or not isinstance(elements[0], Real):
        raise Unsupported("a frequency depends on computed data")
    return elements[0]


@infers("MelWeightMatrix")
def _mel_weights(node: Node) -> list[Abstract]:
    dtype = DataType(int(node.attribute("output_datatype", DataType.FLOAT)))
    bands, length, rate = mel_sizes(node)
    if dtype not in REALS:
        raise Unsupported(f"MelWeightMatrix in {dtype.name}")
    for i in (3, 4):
        frequency(node, i)
    for s, least in ((bands, 0), (length, 0), (rate, 1)):
        node.expect(s, ">=", least, "a size is too small")
    return [abstract(dtype, [floor_div(length, 2) + 1, bands])]


# --- Fourier transforms, in fp32 ---


@dataclass(frozen=True)
class Spectrum:
    axis: int
    length: Size  # of the transform
    bins: Size  # of it that are wanted


def dft_of(node: Node) -> Spectrum:
    """x (..., n, ..., 1 or 2): the last axis holds real and imaginary part."""
    x = node.input(0)
    if x.dtype not in FLOATS or x.rank < 2 or x.dims[-1].value not in (1, 2):
        raise Unsupported(f"{node.op} on {x.dtype.name} of rank {x.rank}")
    if node.opset < 20:
        axis = int(node.attribute("axis", 1))
    else:
        axis = node.integers(2, "the axis")[0] if node.has(2) else -2
    axis = axis + x.rank if axis < 0 else axis
    if not 0 <= axis < x.rank - 1:
        raise Unsupported(f"axis {axis} is outside rank {x.rank}")
    length = node.elements(1, "the length")[0] if node.has(1) else x.dims[axis]
    node.expect(length, ">", 0, "a transform of length 0")
    if node.flag("inverse"):
        raise Unsupported("inverse transforms stay with ONNX Runtime")
    onesided = node.flag("onesided")
    if onesided and x.dims[-1] != 1:
        raise Unsupported("a one-sided transform of complex numbers")
    return Spectrum(axis, length, floor_div(length, 2) + 1 if onesided else length)


@infers("DFT")
def _dft(node: Node) -> list[Abstract]:
    x, spectrum = node.input(0), dft_of(node)
    return [abstract(x.dtype, [*x.dims[: spectrum.axis], spectrum.bins, *x.dims[spectrum.axis + 1 : -1], 2])]


def stft_parts(node: Node) -> Size:
    """1 for real and 2 for complex samples; ONNX Runtime also takes real ones without an axis for it."""
    x = node.input(0)
    return x.dims[-1] if x.rank == 3 else as_size(1)


def stft_of(node: Node) -> tuple[Size, Size, Spectrum]:
    """Frames, their distance, and the transform of each."""
    x, parts = node.input(0), stft_parts(node)
    if x.dtype not in FLOATS or x.rank not in (2, 3) or parts.value not in (1, 2):
        raise Unsupported(f"STFT on {x.dtype.name} of rank {x.rank}")
    step = node.elements(1, "the distance of frames")[0]
    if node.has(3):
        length = node.elements(3, "the length of frames")[0]
    elif node.has(2):
        length = node.input(2).dims[0]
    else:
        raise Unsupported("STFT without a length of frames")
    if node.has(2):
        node.expect_all(node.input(2).dims, "==", [length], "the window is not as long as a frame")
    node.expect(step, ">", 0, "frames that do not move")
    node.expect(length, ">", 0, "a transform of length 0")
    node.expect(length, "<=", x.dims[1], "the signal is shorter than a frame")
    onesided = node.flag("onesided", True)
    if onesided and parts != 1:
        raise Unsupported("a one-sided transform of complex numbers")
    frames = floor_div(x.dims[1] - length, step) + 1
    return frames, step, Spectrum(1, length, floor_div(length, 2) + 1 if onesided else length)


@infers("STFT")
def _stft(node: Node) -> list[Abstract]:
    x = node.input(0)
    frames, _, spectrum = stft_of(node)
    return [abstract(x.dtype, [x.dims[0], frames, spectrum.bins, 2])]
