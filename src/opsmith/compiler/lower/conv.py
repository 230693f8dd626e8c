"""Convolutions. Images lie channels-last inside a region, so that pixels are rows and channels are columns.

x (N, C, H, W), stored as (N, H, W, C); w (O, C/groups, KH, KW) packed at compile time -> (N, O, OH, OW), stored likewise
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opsmith.analysis.registry import Node
from opsmith.analysis.values import FLOATS, Constant, DataType
from opsmith.analysis.window import ImageWindow, image_window, is_plain, transposed_image_window
from opsmith.compiler.geometry import InstructionSet
from opsmith.compiler.kernel import EPILOGUE, SPACE, Kernel, Space, read, struct, write
from opsmith.compiler.lower import int8, window
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.convolution import (
    BY_SIZE,
    CONV_SHAPE,
    DEPTHWISE,
    DEPTHWISE_TRANSPOSED,
    DIRECT,
    DIRECT_BF16,
    JOINT,
    NARROW,
    PLANNED,
    STEM,
    TRANSPOSED,
    TUNED,
    WINOGRAD2_BF16,
    Algorithm,
    Convolution,
    as_image,
    channels_last,
    joint_elements,
    packed,
)
from opsmith.compiler.lower.fuse import Extra, Group, anchored, lower_rest
from opsmith.compiler.lower.precision import is_depthwise
from opsmith.compiler.lower.products import blocking_of, with_epilogue
from opsmith.compiler.lower.registry import anchors
from opsmith.compiler.precision import FP32, INT8
from opsmith.compiler.program import Argument, Epilogue, Tunable, View, channels_last_order, pixel_stride
from opsmith.compiler.task import Candidate
from opsmith.sizes import ONE, contiguous, product

MOST_JOINT = 192  # columns, of which its stack holds the sums of 85 blocks
ROWS_OF_PIXELS = (NARROW, JOINT)  # to one channel they write rows of pixels, and their epilogue runs along them


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
    """Call the kernel that suits the convolution. OUTER: the kernel's images are the items of the batch."""
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
    in_floats = conv.weights.stored is None and conv.weights.dtype == DataType.FLOAT  # as the tuner times them
    if tuned and in_floats:
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
        builder.call(
            kernel,
            weights,
            templates=templates,
            shape=conv.shape(target, fields),
            x=conv.x,
            y=target,
            epilogue=epilogue,
            label=algorithm.name,
            flops=conv.flops(),
            notes=algorithm.notes,
            tunable=tunable,
            precision=algorithm.precision,
            comment=with_epilogue(conv.comment, epilogue),
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
    """Call it in int8: pixels with a scale each where every one is multiplied alone (1x1), else an image with one scale. Neither is rotated:
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
        shape = conv.shape(target, {**conv.fields(), "pixel_stride": c})
        comment = with_epilogue(conv.comment, epilogue)
        if alone:
            builder.call(
                int8.GEMM_INT8,
                {**as_bytes.operands(channels), **weights},
                m=rows,
                n=o,
                k=channels,
                c=target,
                ldc=shape.fields["out_pixel_stride"],
                epilogue=epilogue,
                rows_per_item=product(image),
                comment=comment,
                flops=conv.flops(),
                precision=INT8,
            )
            return
        builder.call(
            CONV_INT8,
            weights,
            shape=shape,
            x=as_bytes.values,
            x_scale=as_bytes.scales,
            x_zero=as_bytes.zeros,
            y=target,
            epilogue=epilogue,
            comment=comment,
            flops=conv.flops(),
            precision=INT8,
        )

    order = channels_last_order(node.input(0).rank)
    anchored(node, builder, group, emit, _bias(node, builder), order=order, strided=True)


def _algorithm(node: Node, builder: Builder, conv: Convolution) -> Algorithm:
    if node.op == "ConvTranspose":
        joint = _is_joint(conv, builder.target.isa)
        return DEPTHWISE_TRANSPOSED if conv.depthwise else JOINT if joint else TRANSPOSED
    if conv.depthwise and len(conv.x.dims) < 5:
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
    return sh * sw * o <= MOST_JOINT and joint_elements(conv, isa) < kh * kw * c * isa.padded(o)


def _is_narrow(conv: Convolution, isa: InstructionSet) -> bool:
    """Whether lanes over what is summed take fewer vector operations than lanes over outputs, most of them empty."""
    o, c, kh, kw = conv.weights.dims
    add_up = 8  # operations to add the lanes of a vector
    return conv.groups == 1 and o <= 4 and o * (kh * -(-kw * c // isa.lanes) + add_up) < kh * kw * c
