"""Signals and small numerics: DFT, STFT, MelWeightMatrix, Det."""

from __future__ import annotations

from opsmith.analysis.registry import Node
from opsmith.analysis.signal import dft_of, frequency, mel_sizes, stft_of, stft_parts
from opsmith.compiler.kernel import SPACE, Kernel, Space, doubles, read, sizes, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.registry import lowers
from opsmith.sizes import product

DET = Kernel(
    "det",
    "det.hpp",
    [*sizes("batch", "n"), read("x"), write("y"), SPACE],
    "determinants",
    Space("det_workspace", ("n",)),
    pool=False,
)
MEL_WEIGHTS = Kernel(
    "mel_weights",
    "mel.hpp",
    [*sizes("bands", "length", "rate"), *doubles("low", "high"), write("y")],
    pool=False,
    inline=True,
    check="the bands leave the spectrum",
)

DFT = Kernel(
    "dft",
    "fft.hpp",
    [*sizes("outer", "axis", "inner", "parts", "length", "bins"), read("x"), write("y"), SPACE],
    "Fourier transforms",
    Space("fft_workspace", ("length",)),
)
STFT = Kernel(
    "stft",
    "fft.hpp",
    [
        *sizes("batch", "total", "parts", "frames", "step", "length", "bins"),
        read("x"),
        read("window", like="x"),
        write("y"),
        SPACE,
    ],
    "Fourier transforms of frames",
    Space("fft_workspace", ("length",)),
)


@lowers("Det")
def _det(node: Node, builder: Builder) -> None:
    x = builder.rows(node.ir.inputs[0])
    builder.call(DET, batch=product(x.dims[:-2]), n=x.dims[-1], x=x, y=builder.result(node.ir.outputs[0]))


@lowers("MelWeightMatrix")
def _mel_weights(node: Node, builder: Builder) -> None:
    bands, length, rate = mel_sizes(node)
    builder.call(
        MEL_WEIGHTS,
        bands=bands,
        length=length,
        rate=rate,
        low=frequency(node, 3),
        high=frequency(node, 4),
        y=builder.result(node.ir.outputs[0]),
        comment=f"{bands} mel bands",
    )


@lowers("DFT")
def _dft(node: Node, builder: Builder) -> None:
    x, spectrum = builder.rows(node.ir.inputs[0]), dft_of(node)
    axis = spectrum.axis
    builder.call(
        DFT,
        outer=product(x.dims[:axis]),
        axis=x.dims[axis],
        inner=product(x.dims[axis + 1 : -1]),
        parts=x.dims[-1],
        length=spectrum.length,
        bins=spectrum.bins,
        x=x,
        y=builder.result(node.ir.outputs[0]),
        comment=f"of length {spectrum.length} along axis {axis}",
    )


@lowers("STFT")
def _stft(node: Node, builder: Builder) -> None:
    x = builder.rows(node.ir.inputs[0])
    frames, step, spectrum = stft_of(node)
    builder.call(
        STFT,
        batch=x.dims[0],
        total=x.dims[1],
        parts=stft_parts(node),
        frames=frames,
        step=step,
        length=spectrum.length,
        bins=spectrum.bins,
        x=x,
        window=builder.optional(node, 2),
        y=builder.result(node.ir.outputs[0]),
        comment=f"{frames} frames of {spectrum.length}",
    )
