"""Convolutions. Images lie channels-last inside a region, so that pixels are rows and channels are columns.

x (N, C, H, W), stored as (N, H, W, C); w (O, C/groups, KH, KW) packed at compile time -> (N, O, OH, OW), stored likewise
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from opsmith.analysis.registry import Node
from opsmith.analysis.values import FLOATS, Array, Constant, DataType
from opsmith.analysis.window import ImageWindow, image_window, is_plain, transposed_image_window
from opsmith.compiler import pack, winograd
from opsmith.compiler.geometry import InstructionSet
from opsmith.compiler.kernel import EPILOGUE, SPACE, Kernel, Micro, Space, Struct, read, struct, write
from opsmith.compiler.lower import int8, window
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.fuse import Extra, Group, anchored, lower_rest
from opsmith.compiler.lower.matmul import blocking_of, with_epilogue
from opsmith.compiler.lower.precision import is_depthwise
from opsmith.compiler.lower.registry import anchors
from opsmith.compiler.precision import BF16, FP32, INT8, Precision
from opsmith.compiler.program import (
    Argument,
    Buffer,
    Epilogue,
    StructValue,
    Target,
    Tunable,
    View,
    channels_last_order,
    pixel_stride,
)
from opsmith.compiler.task import Candidate
from opsmith.compiler.winograd import WAYS, Way
from opsmith.sizes import ONE, Size, as_size, contiguous, estimate, product

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
        """Of ConvShape."""
        n, c, *_, h, w = self.x.dims
        o, _, *_, kh, kw = self.weights.dims
        view = self.window
        flat = (view.strides, view.pads, view.dilations)
        numbers: list[int] = [o, kh, kw, *(v for values in flat for v in values[-2:]), self.groups]
        sizes = [n, h, w, c, *view.out[-2:], *map(as_size, numbers), pixel_stride(self.x) or c]
        return dict(zip(CONV_SHAPE.fields, [*sizes, as_size(o), as_size(self.upsample)]))

    def deep_fields(self) -> dict[str, Size]:
        """Those of a third spatial dim."""
        if len(self.x.dims) < 5:
            return {}
        view = self.window
        numbers = [self.weights.dims[2], *(v[0] for v in (view.strides, view.pads, view.dilations))]
        return dict(zip(DEPTH, [self.x.dims[2], view.out[0], *map(as_size, numbers)]))

    def flops(self) -> Size:
        return self.x.dims[0] * product(self.window.out) * (2 * int(np.prod(self.weights.dims)))

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


def _joint_elements(conv: Convolution, isa: InstructionSet) -> int:
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
    _joint_elements,
    lambda w, conv, isa: pack.pack_conv_joint(w, (conv.window.strides[0], conv.window.strides[1]), isa),
)
MOST_JOINT = 192  # columns, of which its stack holds the sums of 85 blocks
ROWS_OF_PIXELS = (NARROW, JOINT)  # to one channel they write rows of pixels, and their epilogue runs along them
PLANNED = {
    name: _winograd(name, way) for name, way in WAYS.items()
}  # what `plan_algorithms` chooses from; everything else is direct
# small images go the direct way, which needs its own weights
BY_SIZE = {
    a.name: _kernel("conv2d_by_size", "winograd.hpp", a.kernel.comment, *OF_WINOGRAD, Micro("x", "direct"), second=True)
    for a in PLANNED.values()
}


@anchors("Conv")
def _conv(node: Node, builder: Builder, group: Group) -> None:
    if is_plain(node):
        window.lower_conv(node, builder)
        lower_rest(group, builder)
        return
    value, upsample = node.ir.inputs[0], 1
    assert value is not None
    if value in builder.region.upsamples:  # a resize that nobody else reads: the kernel repeats the pixels itself
        value, upsample = builder.region.upsamples[value]
    constant = node.input(1).constant
    assert constant is not None
    view = image_window(node, node.input(0).dims, list(constant.dims[2:]))
    x, precision = builder.tensor(value), builder.precision(node)
    if precision is INT8 and upsample == 1:
        _convolve_bytes(node, builder, group, as_image(x, constant, view, int(node.attribute("group", 1))))
        return
    depthwise = is_depthwise(node.attribute("group", 1), constant.dims)  # it reads any float as it lies
    if not (depthwise and len(constant.dims) < 5 and x.dtype in FLOATS):
        x = builder.operand(x, precision)
    _convolve_image(node, builder, group, x, constant, view, upsample)


@anchors("ConvTranspose")
def _conv_transpose(node: Node, builder: Builder, group: Group) -> None:
    if is_plain(node):
        window.lower_transposed(node, builder)
        lower_rest(group, builder)
        return
    constant = node.input(1).constant
    assert constant is not None
    groups = int(node.attribute("group", 1))
    dims = (constant.dims[1] * groups, constant.dims[0] // groups, *constant.dims[2:])
    weights = Constant(constant.key, constant.dtype, dims, constant.read)
    view = transposed_image_window(node, node.input(0).dims, list(constant.dims[2:]))
    _convolve_image(node, builder, group, builder.as_float(builder.tensor(node.ir.inputs[0])), weights, view)


def _convolve_image(
    node: Node, builder: Builder, group: Group, x: View, weights: Constant, view: ImageWindow, upsample: int = 1
) -> None:
    order, flat = channels_last_order(len(x.dims)), _is_flat(x, weights, view)
    if flat:
        x, weights, view = _planes(channels_last(x, builder), weights, view)
    conv = as_image(x, weights, view, int(node.attribute("group", 1)), upsample)
    convolve(node, builder, group, conv, _bias(node, builder), order, outer=not flat)


def _is_flat(x: View, weights: Constant, view: ImageWindow) -> bool:
    """Whether a kernel over three dims sees one plane at a time."""
    deep = len(weights.dims) == 5 and weights.dims[2] == 1
    return deep and (view.strides[0], view.pads[0], view.out[0]) == (1, 0, x.dims[2])


def _planes(x: View, weights: Constant, view: ImageWindow) -> tuple[View, Constant, ImageWindow]:
    """The planes of a channels-last volume as so many images."""
    n, c, d, h, w = x.dims
    pixel = pixel_stride(x)
    assert pixel is not None
    o, channels, _, kh, kw = weights.dims
    images = x.with_((n * d, c, h, w), (pixel * h * w, ONE, pixel * w, pixel))
    kernel = weights.map("plane", (o, channels, kh, kw), lambda v: v[:, :, 0])
    return images, kernel, ImageWindow(view.strides[1:], view.dilations[1:], view.pads[1:], view.out[1:])


def _bias(node: Node, builder: Builder) -> list[Extra]:
    if not node.has(2):
        return []
    return [Extra(lambda acc, b: acc + b, _per_channel(builder.tensor(node.ir.inputs[2]), node.input(0).rank - 2))]


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


def _per_channel(view: View, spatial: int) -> View:
    """A bias (C,) as an operand of the logical output (N, C, ...)."""
    return view.with_((ONE, *view.dims, *(ONE,) * spatial), (ONE, *view.strides, *(ONE,) * spatial))


def convolve(
    node: Node,
    builder: Builder,
    group: Group,
    conv: Convolution,
    bias: Sequence[Extra],
    order: Sequence[int],
    outer: bool = True,
) -> None:
    """OUTER: the kernel's images are the items of the batch."""
    algorithm = _algorithm(node, builder, conv)
    if algorithm in ROWS_OF_PIXELS and conv.weights.dims[0] == 1:
        order = range(len(order))
    kernel: Kernel = algorithm.kernel
    templates: tuple[int, ...] = ()
    planar = algorithm is STEM and conv.x.strides == contiguous(conv.x.dims)
    if algorithm is STEM:
        templates = (int(planar),)
    if not planar:
        conv = replace(conv, x=channels_last(conv.x, builder))
    weights: dict[str, Argument] = {"weights": packed(algorithm, conv, builder)}
    if algorithm.way and algorithm.name in BY_SIZE and not conv.static():
        kernel, templates = BY_SIZE[algorithm.name], (algorithm.way.tile, algorithm.way.stride)
        weights["direct"] = packed(DIRECT, conv, builder)
    sizes = conv.fields()
    fields: dict[str, Argument] = dict(sizes)
    limits = builder.limits(algorithm.name)
    tunable = None
    tuned = (algorithm is DIRECT or algorithm.name in PLANNED) and len(conv.x.dims) < 5
    if (
        tuned and conv.weights.stored is None and conv.weights.dtype == DataType.FLOAT
    ):  # the tuner times weights of floats
        strict = int(builder.target.strict)
        tunable = Tunable("conv", algorithm.name, {**{f: sizes[f] for f in TUNED}, "strict": strict}, limits)
    if limits is not None or len(conv.x.dims) > 4:
        fields |= {"blocking": blocking_of(limits or Candidate(algorithm.name)), **conv.deep_fields()}

    def emit(target: View, epilogue: Epilogue) -> None:
        if target.dtype not in algorithm.writes:
            wide = builder.allocate(target.dims, DataType.FLOAT, order, hint=f"{target.buffer.name}_wide")
            emit(wide, epilogue)
            builder.copy_into(wide, target, order)
            return
        o, _, *taps = conv.weights.dims
        pixel = pixel_stride(target)
        assert pixel is not None
        builder.call(
            kernel,
            weights,
            templates=templates,
            shape=StructValue(CONV_SHAPE, {**fields, "out_pixel_stride": pixel}),
            x=conv.x,
            y=target,
            epilogue=epilogue,
            label=algorithm.name,
            flops=conv.flops(),
            notes=algorithm.notes,
            tunable=tunable,
            precision=algorithm.precision,
            comment=with_epilogue(f"{'x'.join(map(str, taps))} {conv.x.dims[1]} -> {o}", epilogue),
        )

    anchored(node, builder, group, emit, bias, outer, order, strided=True)


CONV_INT8 = Kernel(
    "conv_int8",
    "conv_int8.hpp",
    [
        struct("shape", CONV_SHAPE),
        read("x", dtype=DataType.UINT8),
        read("x_scale", dtype=DataType.FLOAT),
        read("x_zero", dtype=DataType.UINT8),
        *int8.COLUMNS,
        write("y"),
        SPACE,
        EPILOGUE,
    ],
    "convolution in int8 as an implicit matrix product",
    Space("conv_bytes_workspace", ("shape",)),
)


def _convolve_bytes(node: Node, builder: Builder, group: Group, conv: Convolution) -> None:
    """In int8: pixels with a scale each where every one is multiplied alone (1x1), else an image with one scale. Neither is rotated:
    over a trained diffusion UNet that made the error a quarter larger, over a detector a quarter smaller."""
    conv = replace(conv, x=channels_last(conv.x, builder))
    (n, c, *image), (o, _, *taps) = conv.x.dims, conv.weights.dims
    pixel = pixel_stride(conv.x) or c
    rows, channels = n * product(image), conv.weights.dims[1] * conv.groups
    view = conv.window
    alone = all(t == 1 for t in taps) and conv.groups == 1 and tuple(view.out) == tuple(image) and not any(view.pads)
    as_bytes = (int8.quantized_rows if alone else int8.quantized_image)(builder, conv.x, rows, channels, pixel)
    weights = int8.channels(builder, conv.weights, conv.groups)

    def emit(target: View, epilogue: Epilogue) -> None:
        out_pixel = pixel_stride(target)
        assert out_pixel is not None
        told = with_epilogue(f"{'x'.join(map(str, taps))} {c} -> {o}", epilogue)
        if alone:
            builder.call(
                int8.GEMM_INT8,
                weights,
                m=rows,
                n=o,
                k=channels,
                a=as_bytes.values,
                lda=channels,
                a_scales=as_bytes.scales,
                a_zeros=as_bytes.zeros,
                c=target,
                ldc=out_pixel,
                epilogue=epilogue,
                rows_per_item=product(image),
                comment=told,
                flops=conv.flops(),
                precision=INT8,
            )
            return
        shape = {**conv.fields(), "pixel_stride": c, "out_pixel_stride": out_pixel}
        builder.call(
            CONV_INT8,
            weights,
            shape=StructValue(CONV_SHAPE, shape),
            x=as_bytes.values,
            x_scale=as_bytes.scales,
            x_zero=as_bytes.zeros,
            y=target,
            epilogue=epilogue,
            comment=told,
            flops=conv.flops(),
            precision=INT8,
        )

    order = channels_last_order(node.input(0).rank)
    anchored(node, builder, group, emit, _bias(node, builder), order=order, strided=True)


def _algorithm(node: Node, builder: Builder, conv: Convolution) -> Algorithm:
    depthwise = is_depthwise(conv.groups, conv.weights.dims)
    if node.op == "ConvTranspose":
        joint = _is_joint(conv, builder.target.isa)
        return DEPTHWISE_TRANSPOSED if depthwise else JOINT if joint else TRANSPOSED
    if depthwise and len(conv.x.dims) < 5:
        return DEPTHWISE
    if builder.precision(node) is not FP32:
        return WINOGRAD2_BF16 if node.ir in builder.region.algorithms else DIRECT_BF16
    if (planned := builder.region.algorithms.get(node.ir)) is not None:
        return PLANNED[planned]
    if conv.upsample > 1 or len(conv.x.dims) > 4:
        return DIRECT
    isa = builder.target.isa
    return NARROW if _is_narrow(conv, isa) else STEM if _is_stem(conv) else DIRECT


def _is_stem(conv: Convolution) -> bool:
    """Whether a row of the product would be so short that finding its values costs more than multiplying them; and what
    48 pixels see must fit (conv_stem.hpp)."""
    _, c, kh, kw = conv.weights.dims
    line = 47 * conv.window.strides[1] + (kw - 1) * conv.window.dilations[1] + 1
    return conv.groups == 1 and c <= 4 and kh * kw > 1 and kw <= 16 and c * kh * line <= 12 * 1024


def _is_joint(conv: Convolution, isa: InstructionSet) -> bool:
    """Whether the phases of a transposed convolution side by side leave fewer lanes empty than one after the other."""
    if conv.groups > 1 or len(conv.x.dims) != 4 or conv.window.dilations != [1, 1]:
        return False
    o, c, kh, kw = conv.weights.dims
    sh, sw = conv.window.strides
    return sh * sw * o <= MOST_JOINT and _joint_elements(conv, isa) < kh * kw * c * isa.padded(o)


def _is_narrow(conv: Convolution, isa: InstructionSet) -> bool:
    """Whether lanes over what is summed take fewer vector operations than lanes over outputs, most of them empty."""
    o, c, kh, kw = conv.weights.dims
    add_up = 8  # operations to add the lanes of a vector
    return conv.groups == 1 and o <= 4 and o * (kh * -(-kw * c // isa.lanes) + add_up) < kh * kw * c


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


# --- which layers go through Winograd ---

# Transformed weights are 4 times (F4) or 16/9 times (F2) as large. They lie beside the direct ones where sizes are dynamic, but
# of a layer's two forms only one is read. What a model reads may grow by this share, or by this many bytes if that is more.
GROWTH, FREE_BYTES = 0.75, 768 << 20
# In bf16 a layer's weights lie in one form only, and the file stays small: transformed ones are 16/9 times as large.
GROWTH_BF16, FREE_BYTES_BF16 = 0.15, 96 << 20
CHANNELS_BF16 = 16  # on both sides: with fewer the transforms are not worth it
DIRECT_SPEED = 200e9  # operations per second; only the order of the options depends on it


@dataclass(frozen=True)
class Option:
    """A faster way to convolve, and what it costs."""

    node: ir.Node
    algorithm: str
    saved: float  # seconds per run
    growth: int  # bytes
    worth: float  # seconds per byte that it adds to the next smaller way


def plan_algorithms(
    nodes: Iterable[Node], target: Target, precisions: Mapping[ir.Node, Precision]
) -> dict[ir.Node, str]:
    """Winograd where it saves most for the memory it costs; everything else is direct."""
    nodes = list(nodes)
    if target.strict:
        return {}
    # A folded node (the Cast of weights stored in half precision) is no user of its own: they would count twice.
    users = [n for n in nodes if any(o.constant is None for o in n.outputs)]
    total = sum(v.constant.size for n in users for v in n.inputs if v is not None and v.constant is not None) * 4
    narrow, wide = (
        [o for n in nodes if (n.ir in precisions) == low for o in options(n, target)]
        for low, options in ((True, _options_bf16), (False, _options))
    )
    chosen = _affordable(wide, max(GROWTH * total, FREE_BYTES))
    chosen |= _affordable(narrow, max(GROWTH_BF16 * total / 2, FREE_BYTES_BF16))
    return {node: option.algorithm for node, option in chosen.items()}


def _affordable(options: Iterable[Option], budget: float) -> dict[ir.Node, Option]:
    chosen: dict[ir.Node, Option] = {}
    for option in sorted(options, key=lambda o: -o.worth):
        before = chosen.get(option.node)
        more = option.growth - (before.growth if before else 0)
        if more <= budget and (before is None or option.saved > before.saved):
            budget -= more
            chosen[option.node] = option
    return chosen


def _options_bf16(node: Node, target: Target) -> list[Option]:
    if target.isa.multiplies_tiles or "conv2d_winograd2" not in _ways(node):  # tiles multiply faster than it transforms
        return []
    o, c = _weight_dims(node)[:2]
    if min(o, c) < CHANNELS_BF16:
        return []
    batch, height, width = (max(1, estimate(d)) for d in (node.outputs[0].dims[0], *node.outputs[0].dims[2:]))
    gain = winograd.cost_bf16(None, batch, height, width)
    gain -= winograd.cost_bf16(2, batch, height, width, _pair(node, "dilations"))
    growth = o * c * 2 * (16 - 9)
    saved = gain * o * c / DIRECT_SPEED
    return [Option(node.ir, WINOGRAD2_BF16.name, saved, growth, saved / growth)] if gain > 0 else []


def _options(node: Node, target: Target) -> list[Option]:
    """The ways of one layer. A larger one that saves less per byte is a step up from the smaller one, and worth that step."""
    if not (ways := _ways(node)):
        return []
    weights = node.input(1).constant
    assert weights is not None
    o, c = weights.dims[:2]
    stored = int((weights.stored or weights).dtype.itemsize)
    growth = {name: o * c * (4 * way.filters**2 - 9 * stored) for name, way in ways.items()}  # bytes
    saved = _saved(node, target, o * c, ways)
    options: list[Option] = []
    for way in sorted(saved, key=lambda a: growth[a]):
        worth = saved[way] / max(1, growth[way])
        if options and worth < options[-1].worth:
            worth = (saved[way] - options[-1].saved) / (growth[way] - options[-1].growth)
        options.append(Option(node.ir, way, saved[way], growth[way], worth))
    return options


def _ways(node: Node) -> Mapping[str, Way]:
    """Winograd's ways that fit a convolution."""
    if node.op != "Conv" or node.ir.domain not in ("", "ai.onnx") or is_plain(node):
        return {}
    dims = _weight_dims(node)
    if len(dims) != 4:
        return {}
    return winograd.fitting(dims, _pair(node, "strides"), _pair(node, "dilations"), int(node.attribute("group", 1)))


def _pair(node: Node, attribute: str) -> list[int]:
    """Strides or dilations of an image."""
    return list(node.attribute(attribute) or [1, 1])


def _weight_dims(node: Node) -> tuple[int, ...]:
    weights = node.input(1).constant
    assert weights is not None
    return weights.dims


def _saved(node: Node, target: Target, channels: int, ways: Mapping[str, Way]) -> Mapping[str, float]:
    """Seconds that each way saves against the direct one: measured, or estimated at the judged or else typical sizes."""
    measured = target.tuned.get(node.name)
    if measured is not None and DIRECT.name in measured.best:
        direct = measured.best[DIRECT.name].seconds
        times = {a: measured.best[a].seconds for a in ways if a in measured.best}
        return {a: direct - t for a, t in times.items() if t < direct * 0.98}
    seen = (node.outputs[0].dims[0], *node.outputs[0].dims[2:])
    batch, height, width = (max(1, estimate(d, target.sizes)) for d in seen)
    plain = winograd.direct_cost(batch, height, width)
    costs = {name: way.cost(batch, height, width, _pair(node, "dilations")) for name, way in ways.items()}
    return {a: (plain - c) * channels / DIRECT_SPEED for a, c in costs.items() if c < plain}
