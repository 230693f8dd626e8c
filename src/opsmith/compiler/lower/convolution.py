"""What a convolution is to its kernels: images, weights, window; and the kernels themselves, each with the packing of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from opsmith.analysis.values import FLOATS, Array, Constant, DataType
from opsmith.analysis.window import ImageWindow
from opsmith.compiler import pack
from opsmith.compiler.geometry import InstructionSet
from opsmith.compiler.kernel import EPILOGUE, SPACE, Kernel, Micro, Space, Struct, read, struct, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.precision import is_depthwise
from opsmith.compiler.precision import BF16, FP32, Precision
from opsmith.compiler.program import Argument, Buffer, StructValue, View, channels_last_order, pixel_stride
from opsmith.compiler.winograd import WAYS, Way
from opsmith.sizes import ONE, Size, as_size, product

CONV_SHAPE = Struct(
    "ConvShape",
    "conv.hpp",
    (
        "batch",
        "height",
        "width",
        "channels",
        "out_height",
        "out_width",
        "out_channels",
        "kernel_h",
        "kernel_w",
        "stride_h",
        "stride_w",
        "pad_top",
        "pad_left",
        "dilation_h",
        "dilation_w",
        "groups",
        "pixel_stride",
        "out_pixel_stride",
        "upsample",
        "blocking",
        *(DEPTH := ("depth", "out_depth", "kernel_d", "stride_d", "pad_front", "dilation_d")),
    ),
)
TUNED = tuple(f for f in CONV_SHAPE.fields if f not in ("pixel_stride", "out_pixel_stride", "blocking", *DEPTH))


@dataclass(frozen=True)
class Algorithm:
    """One way to convolve: a kernel, and how its weights are packed."""

    kernel: Kernel
    elements: Callable[[Convolution, InstructionSet], int]  # of the packed weights
    pack: Callable[[Array, Convolution, InstructionSet], Array]
    way: Way | None = None  # of Winograd's
    reads_half: bool = False  # it reads weights in the half precision that they are stored in
    precision: Precision = FP32

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def writes(self) -> frozenset[DataType]:
        """The types in which it can store its result."""
        any_float = self.kernel.name in ("conv2d", "conv2d_depthwise") or self.precision is BF16
        return FLOATS if any_float else frozenset({DataType.FLOAT})

    @property
    def notes(self) -> list[str]:
        in_bf16 = " in bf16" if self.precision is BF16 else ""
        if self.way is None:
            return []
        tile, stride = self.way.tile, " stride 2" if self.way.stride == 2 else ""
        return [f"winograd F({tile}x{tile},3x3){stride}{in_bf16}"]


PLAIN, PAIRS = Micro("x", "weights"), Micro("x", "bf16x2")
OF_WINOGRAD = (Micro("float", "weights"), Micro("float", "weights", blocked=True))


def _kernel(
    name: str, header: str, comment: str, *micros: Micro, second: bool = False, templated: bool = False
) -> Kernel:
    weights = [read("weights"), *([read("direct")] if second else [])]
    return Kernel(
        name,
        header,
        [struct("shape", CONV_SHAPE), read("x"), *weights, write("y"), SPACE, EPILOGUE],
        comment,
        Space(f"{name}_workspace", ("shape",), templated=second or templated),
        micros=micros,
    )


@dataclass
class Convolution:
    """A convolution of images, as all its kernels see it."""

    x: View
    weights: Constant  # (O, C/groups, KH, KW); transposed convolutions (C, O/groups, KH, KW) under the same dims
    window: ImageWindow
    groups: int
    upsample: int = 1

    def fields(self) -> dict[str, Size]:
        """The fields of ConvShape."""
        n, c, *_, h, w = self.x.dims
        o, _, *_, kh, kw = self.weights.dims
        view = self.window
        flat = (view.strides, view.pads, view.dilations)
        numbers: list[int] = [o, kh, kw, *(v for values in flat for v in values[-2:]), self.groups]
        sizes = [n, h, w, c, *view.out[-2:], *map(as_size, numbers), pixel_stride(self.x) or c]
        return dict(zip(CONV_SHAPE.fields, [*sizes, as_size(o), as_size(self.upsample)]))

    def deep_fields(self) -> dict[str, Size]:
        """The fields of a third spatial dim."""
        if len(self.x.dims) < 5:
            return {}
        view = self.window
        numbers = [self.weights.dims[2], *(v[0] for v in (view.strides, view.pads, view.dilations))]
        return dict(zip(DEPTH, [self.x.dims[2], view.out[0], *map(as_size, numbers)]))

    def flops(self) -> Size:
        return self.x.dims[0] * product(self.window.out) * (2 * int(np.prod(self.weights.dims)))

    def shape(self, target: View, fields: Mapping[str, Argument]) -> StructValue:
        """FIELDS, and how far the pixels of the result lie apart."""
        pixel = pixel_stride(target)
        assert pixel is not None  # results of convolutions are allocated so
        return StructValue(CONV_SHAPE, {**fields, "out_pixel_stride": pixel})

    @property
    def comment(self) -> str:
        """`3x3 64 -> 128`"""
        o, _, *taps = self.weights.dims
        return f"{'x'.join(map(str, taps))} {self.x.dims[1]} -> {o}"

    @property
    def depthwise(self) -> bool:
        return is_depthwise(self.groups, self.weights.dims)

    def static(self) -> bool:
        return all(d.value is not None for d in (self.x.dims[0], *self.window.out))


def _gemm_elements(conv: Convolution, isa: InstructionSet) -> int:
    o, c, *kernel = conv.weights.dims
    return conv.groups * c * int(np.prod(kernel)) * isa.padded(o // conv.groups)


def _pairs(conv: Convolution) -> int:
    """Numbers that one output channel is a sum over, the channels of each kernel position filled up to whole pairs."""
    _, c, *kernel = conv.weights.dims
    return (c + c % 2) * int(np.prod(kernel))


def _pack_transposed(w: Array, conv: Convolution, isa: InstructionSet) -> Array:
    (sh, sw), (dh, dw) = conv.window.strides, conv.window.dilations
    return pack.pack_conv_transposed(w, conv.groups, (sh, sw), (dh, dw), isa)


def joint_elements(conv: Convolution, isa: InstructionSet) -> int:
    o, c, kh, kw = conv.weights.dims
    sh, sw = conv.window.strides
    return -(-kh // sh) * -(-kw // sw) * c * isa.padded(sh * sw * o)


def _winograd(name: str, way: Way) -> Algorithm:
    return Algorithm(
        _kernel(name, "winograd.hpp", f"3x3 convolution by Winograd F({way.tile}x{way.tile},3x3)", *OF_WINOGRAD),
        lambda conv, isa: way.filters**2 * conv.weights.dims[1] * isa.padded(conv.weights.dims[0]),
        lambda w, conv, isa: pack.pack_winograd(w, way, isa),
        way,
    )


DIRECT = Algorithm(
    _kernel("conv2d", "conv.hpp", "convolution as an implicit matrix product", PLAIN),
    _gemm_elements,
    lambda w, conv, isa: pack.pack_conv2d(w, conv.groups, isa),
    reads_half=True,
)
DIRECT_BF16 = Algorithm(
    _kernel("conv2d_bf16", "conv.hpp", "convolution as an implicit matrix product in bf16", PAIRS),
    lambda conv, isa: conv.groups * _pairs(conv) * isa.padded(conv.weights.dims[0] // conv.groups),
    lambda w, conv, isa: pack.pack_conv_pairs(w, conv.groups, isa),
    precision=BF16,
)
WINOGRAD2_BF16 = Algorithm(
    _kernel("conv2d_winograd2_bf16", "winograd.hpp", "3x3 convolution by Winograd F(2x2,3x3) in bf16"),
    lambda conv, isa: 16 * (conv.weights.dims[1] + conv.weights.dims[1] % 2) * isa.padded(conv.weights.dims[0]),
    lambda w, conv, isa: pack.pack_winograd_pairs(w, isa),
    WAYS["conv2d_winograd2"],
    precision=BF16,
)
DEPTHWISE = Algorithm(
    _kernel("conv2d_depthwise", "depthwise.hpp", "depthwise convolution"),
    lambda conv, isa: int(np.prod(conv.weights.dims)),
    lambda w, conv, isa: pack.pack_depthwise(w),
)
NARROW = Algorithm(
    _kernel("conv2d_narrow", "conv_narrow.hpp", "convolution to few channels"),
    lambda conv, isa: int(np.prod(conv.weights.dims)),
    lambda w, conv, isa: pack.pack_narrow(w),
)
STEM = Algorithm(
    _kernel("conv2d_stem", "conv_stem.hpp", "convolution of few channels", templated=True),
    _gemm_elements,
    lambda w, conv, isa: pack.pack_stem(w, isa),
)
DEPTHWISE_TRANSPOSED = Algorithm(
    _kernel("conv2d_depthwise_transposed", "depthwise.hpp", "transposed depthwise convolution"),
    DEPTHWISE.elements,
    DEPTHWISE.pack,
)
TRANSPOSED = Algorithm(
    _kernel("conv2d_transposed", "conv_transpose.hpp", "transposed convolution, phase by phase", PLAIN),
    _gemm_elements,
    _pack_transposed,
)
JOINT = Algorithm(
    _kernel("conv2d_joint", "conv_transpose.hpp", "transposed convolution, all phases at once"),
    joint_elements,
    lambda w, conv, isa: pack.pack_conv_joint(w, (conv.window.strides[0], conv.window.strides[1]), isa),
)
# What plan_winograd.py chooses from; everything else is direct.
PLANNED = {name: _winograd(name, way) for name, way in WAYS.items()}
# Small images go the direct way, which needs its own weights.
BY_SIZE = {
    a.name: _kernel("conv2d_by_size", "winograd.hpp", a.kernel.comment, *OF_WINOGRAD, Micro("x", "direct"), second=True)
    for a in PLANNED.values()
}


def as_image(x: View, weights: Constant, view: ImageWindow, groups: int, upsample: int = 1) -> Convolution:
    """The convolution on an image, wherever that lies. Signals (N, C, W) are images of height 1."""
    if len(x.dims) == 3:
        n, c, w = x.dims
        x = x.with_((n, c, ONE, w), (x.strides[0], x.strides[1], ONE, x.strides[2]))
        o, channels, taps = weights.dims
        weights = weights.map("flat", (o, channels, 1, taps), lambda w: w[:, :, None, :])
        view = ImageWindow([1, *view.strides], [1, *view.dilations], [0, *view.pads], [ONE, *view.out])
    return Convolution(x, weights, view, groups, upsample)


def channels_last(view: View, builder: Builder) -> View:
    """Pixels that one stride walks over, channels contiguous: as it lies, or copied."""
    pixel = pixel_stride(view)
    images = pixel is not None and (view.dims[0] == 1 or view.strides[0] == pixel * product(view.dims[2:]))
    return view if images else builder.dense(view, channels_last_order(len(view.dims)))


def packed(algorithm: Algorithm, conv: Convolution, builder: Builder) -> Buffer:
    """The weights as the kernel reads them. Only the direct kernel reads half precision as it is stored: rounding the
    transformed weights of Winograd's as well would add an error of its own."""
    source = (conv.weights.stored or conv.weights) if algorithm.reads_half else conv.weights
    dtype = source.dtype if algorithm.reads_half else algorithm.precision.operands
    isa = builder.target.isa

    def write() -> Array:
        return algorithm.pack(
            np.asarray(source.read(), source.dtype.numpy() if algorithm.reads_half else np.float32), conv, isa
        )

    return builder.packed(f"{algorithm.name}({source.key})", dtype, algorithm.elements(conv, isa), write)
