"""Windows that slide over images: convolutions and their transposes, pooling, Col2Im, LRN.

x (N, C, spatial...) -> (N, C', spatial...). `resolve` turns attributes into numbers or sizes; lowering uses the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import REALS, Abstract, DataType, Unsupported, abstract
from opsmith.sizes import ONE, ZERO, Size, apply, as_size, compare, floor_div, holds, minimum, product

_SMALLER = "the image is smaller than the kernel"


@dataclass
class Window:
    """A window that slides over `sizes`, resolved to numbers where they are known; one entry per spatial dim."""

    sizes: list[Size]  # of the image it slides over
    kernel: list[Size]
    strides: list[int]
    dilations: list[int]
    before: list[Size]  # padding
    after: list[Size]
    out: list[Size]


def _attributes(node: Node, spatial: int) -> tuple[list[int], list[int], list[int]]:
    """strides, dilations, pads"""
    strides = [int(v) for v in node.attribute("strides") or [1] * spatial]
    dilations = [int(v) for v in node.attribute("dilations") or [1] * spatial]
    pads = [int(v) for v in node.attribute("pads") or [0] * (2 * spatial)]
    if any(len(v) != n for v, n in ((strides, spatial), (dilations, spatial), (pads, 2 * spatial))):
        raise Unsupported("its attributes do not fit the rank")
    if any(v < 1 for v in (*strides, *dilations)):
        raise Unsupported("a stride or dilation below 1")
    return strides, dilations, pads


_POOLS = ("MaxPool", "AveragePool", "LpPool")


def resolve(node: Node, image: Sequence[Size], kernel: Sequence[Size]) -> Window:
    """Strides, dilations, padding and output sizes as the attributes say."""
    spatial = len(image)
    if not 1 <= spatial <= 3:
        raise Unsupported(f"{node.op} over {spatial} spatial dims")
    if len(kernel) != spatial:
        raise Unsupported("its attributes do not fit the rank")
    strides, dilations, pads = _attributes(node, spatial)
    mode = node.attribute("auto_pad", "NOTSET")
    window = Window(list(image), list(kernel), strides, dilations, [], [], [])
    for i, size in enumerate(image):
        reach = (kernel[i] - 1) * dilations[i] + 1
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            count = floor_div(size + (strides[i] - 1), strides[i])
            undilated = node.op in _POOLS and dilations[i] > 1  # so ONNX Runtime pads: the image shrinks
            span = kernel[i] if undilated else reach
            first, last = _same_padding((count - 1) * strides[i] + span - size, mode)
            if undilated:
                count = _count(node, size, first, last, reach, strides[i])
        else:
            first, last = (ZERO, ZERO) if mode == "VALID" else (as_size(pads[i]), as_size(pads[spatial + i]))
            count = _count(node, size, first, last, reach, strides[i])
        window.out.append(count)
        window.before.append(first)
        window.after.append(last)
    return window


def _same_padding(total: Size, mode: str) -> tuple[Size, Size]:
    """Padding before and after, from what is missing in all."""
    total = as_size(max(0, total.value)) if total.value is not None else apply("max", 0, total)
    small = floor_div(total, 2)
    return (small, total - small) if mode == "SAME_UPPER" else (total - small, small)


def _count(node: Node, size: Size, first: Size, last: Size, reach: Size, stride: int) -> Size:
    ceil = bool(node.attribute("ceil_mode", 0))
    span = size + first + last - reach + (stride - 1 if ceil else 0)  # ceil: a window may end behind the padded image
    if span.value is not None and span.value < 0:
        raise Unsupported(_SMALLER)
    if span.value is None:
        node.require(compare(span, ">=", 0), _SMALLER)
        node.slides_over(span)
    count = floor_div(span, stride) + 1 if stride != 1 else span + 1
    # a last window that would start in the padding behind the image is left out
    return minimum(count, floor_div(size + first - 1, stride) + 1) if ceil else count


# --- pooling ---


def pool_window(node: Node, dims: Sequence[Size]) -> Window:
    kernel = [as_size(int(k)) for k in node.attribute("kernel_shape") or []]
    if any(k.value is None or k.value < 1 for k in kernel):
        raise Unsupported("an empty window")
    return resolve(node, dims[2:], kernel)


@infers(*_POOLS)
def _pool(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.rank < 3:
        raise Unsupported(f"pooling on rank {x.rank}")
    integers = node.op == "MaxPool" and x.dtype in (DataType.INT8, DataType.UINT8)
    if x.dtype not in REALS and not integers:
        raise Unsupported(f"{node.op} on {x.dtype.name} stays with ONNX Runtime")
    dims = [*x.dims[:2], *pool_window(node, x.dims).out]
    return [abstract(t, dims) for t in (x.dtype, DataType.INT64)[: len(node.ir.outputs)]]


@infers("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
def _global_pool(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.rank < 3 or x.dtype not in REALS:
        raise Unsupported(f"{node.op} on {x.dtype.name} of rank {x.rank} stays with ONNX Runtime")
    return [abstract(x.dtype, [*x.dims[:2], *[ONE] * (x.rank - 2)])]


# --- convolutions ---


def is_plain(node: Node) -> bool:
    """Computed weights, transposes over 3 spatial dims and types beyond float and its halves go through the plain kernel."""
    x, w = node.input(0), node.input(1)
    most = 4 if node.op == "ConvTranspose" else 5
    halves = (DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16)
    return w.constant is None or not 3 <= x.rank <= most or x.dtype not in halves or w.dtype != x.dtype


def conv_window(node: Node, x: Abstract, w: Abstract) -> tuple[Window, int]:
    """The window of a convolution with any weights, and its groups."""
    groups = int(node.attribute("group", 1))
    if x.rank != w.rank or x.rank < 3:
        raise Unsupported(f"a convolution of rank {x.rank} with weights of rank {w.rank}")
    given = node.attribute("kernel_shape")
    if given is not None and any(k.value is not None and k != g for k, g in zip(w.dims[2:], given)):
        raise Unsupported("kernel_shape differs from the weights' shape")
    window = resolve(node, x.dims[2:], w.dims[2:])
    if groups < 1:
        raise Unsupported("an empty kernel")
    node.expect(x.dims[1], "==", w.dims[1] * groups, "the channels do not fit the weights")
    node.expect(floor_div(w.dims[0], groups) * groups, "==", w.dims[0], "the outputs do not divide into groups")
    for k in w.dims[2:]:
        node.expect(k, ">", 0, "an empty kernel")
    return window, groups


@infers("Conv")
def _conv(node: Node) -> list[Abstract]:
    x, w = node.input(0), node.input(1)
    if is_plain(node):
        if x.dtype != w.dtype or x.dtype not in REALS:
            raise Unsupported(f"{node.op} on {x.dtype.name} stays with ONNX Runtime")
        window, _ = conv_window(node, x, w)
        _check_bias(node, 2, w.dims[0])
        return [abstract(x.dtype, [x.dims[0], w.dims[0], *window.out])]
    assert w.constant is not None
    if any(p < 0 for p in node.attribute("pads") or []):
        raise Unsupported("negative padding")
    channels = w.constant.dims[1] * int(node.attribute("group", 1))
    node.expect(x.dims[1], "==", channels, "the number of channels differs from the weights'")
    sizes = image_window(node, x.dims, list(w.constant.dims[2:])).out
    for s in sizes:
        node.expect(s, ">=", 0, _SMALLER)
    return [abstract(x.dtype, [x.dims[0], w.constant.dims[0], *sizes])]


@dataclass
class ImageWindow:
    """The window of a convolution whose weights are known: all numbers but the output sizes."""

    strides: list[int]
    dilations: list[int]
    pads: list[int]  # at the start
    out: list[Size]


def image_window(node: Node, dims: Sequence[Size], kernel: list[int]) -> ImageWindow:
    spatial = len(kernel)
    strides, dilations, pads = _attributes(node, spatial)
    mode = node.attribute("auto_pad", "NOTSET")
    window = ImageWindow(strides, dilations, [], [])
    for i in range(spatial):
        reach = (kernel[i] - 1) * dilations[i] + 1
        size = dims[2 + i]
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            if size.value is None and strides[i] != 1:
                raise Unsupported(f"auto_pad {mode} on a dynamic size")
            count = size if size.value is None else as_size(-(-size.value // strides[i]))
            total = max(0, ((count - 1) * strides[i] + reach - size).value or 0)
            window.pads.append(total // 2 if mode == "SAME_UPPER" else total - total // 2)
        else:
            begin, end = (0, 0) if mode == "VALID" else (pads[i], pads[spatial + i])
            span = size + (begin + end - reach)
            node.slides_over(span)
            count = span + 1 if strides[i] == 1 else floor_div(span, strides[i]) + 1
            window.pads.append(begin)
        window.out.append(count)
    return window


def _check_bias(node: Node, index: int, outputs: Size) -> None:
    if node.has(index):
        node.expect_all(node.input(index).dims, "==", [outputs], "the bias does not fit the weights")


# --- transposed convolutions ---


@infers("ConvTranspose")
def _conv_transpose(node: Node) -> list[Abstract]:
    x, w = node.input(0), node.input(1)
    if is_plain(node):
        return _plain_transposed(node, x, w)
    assert w.constant is not None
    node.expect(x.dims[1], "==", w.constant.dims[0], "the number of channels differs from the weights'")
    sizes = transposed_image_window(node, x.dims, list(w.constant.dims[2:])).out
    for s in sizes:
        node.expect(s, ">=", 0, "the output would be empty")
    return [abstract(x.dtype, [x.dims[0], w.constant.dims[1] * int(node.attribute("group", 1)), *sizes])]


def transposed_image_window(node: Node, dims: Sequence[Size], kernel: list[int]) -> ImageWindow:
    spatial = len(kernel)
    strides, dilations, given = _attributes(node, spatial)
    extra = node.attribute("output_padding") or [0] * spatial
    wanted, mode = node.attribute("output_shape"), node.attribute("auto_pad", "NOTSET")
    window = ImageWindow(strides, dilations, [], [])
    for i in range(spatial):
        full = (dims[2 + i] - 1) * strides[i] + (extra[i] + (kernel[i] - 1) * dilations[i] + 1)
        if wanted is None and mode in ("NOTSET", "VALID"):
            pad = (0, 0) if mode == "VALID" else (given[i], given[spatial + i])
            window.out.append(full - sum(pad))
            window.pads.append(pad[0])
            continue
        size = as_size(wanted[-spatial + i]) if wanted is not None else dims[2 + i] * strides[i]
        total = (full - size).value
        if total is None:
            raise Unsupported("the padding depends on a dynamic size")
        total = max(0, total)
        window.out.append(size if wanted is not None else full - total)  # a short kernel leaves nothing to cut off
        window.pads.append(total // 2 if mode == "SAME_UPPER" else total - total // 2)
    if any(p < 0 for p in window.pads):
        raise Unsupported("negative padding")
    return window


def transposed_window(node: Node) -> tuple[Window, int]:
    """As the forward convolution from the result to x: its image is the result, its output is x."""
    x, w = node.input(0), node.input(1)
    spatial = x.rank - 2
    if x.rank != w.rank or not 1 <= spatial <= 3:
        raise Unsupported(f"ConvTranspose of rank {x.rank}")
    strides, dilations, pads = _attributes(node, spatial)
    extra = [int(v) for v in node.attribute("output_padding") or [0] * spatial]
    mode = node.attribute("auto_pad", "NOTSET")
    shape = node.attribute("output_shape")
    kernel = list(w.dims[2:])
    window = Window([], kernel, strides, dilations, [], [], list(x.dims[2:]))
    for i in range(spatial):
        full = (x.dims[2 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + extra[i]
        if shape is not None or mode in ("SAME_UPPER", "SAME_LOWER"):
            size = as_size(int(shape[i - spatial])) if shape is not None else x.dims[2 + i] * strides[i]
            first, last = _same_padding(full - size, mode)
            size = size if shape is not None else full - first - last
        else:
            first, last = (ZERO, ZERO) if mode == "VALID" else (as_size(pads[i]), as_size(pads[spatial + i]))
            size = full - first - last
        node.expect(size, ">=", 0, "the result has a negative size")
        window.sizes.append(size)
        window.before.append(first)
        window.after.append(last)
    return window, int(node.attribute("group", 1))


def _plain_transposed(node: Node, x: Abstract, w: Abstract) -> list[Abstract]:
    if x.dtype != w.dtype or x.dtype not in REALS:
        raise Unsupported(f"{node.op} on {x.dtype.name} stays with ONNX Runtime")
    window, groups = transposed_window(node)
    node.expect(x.dims[1], "==", w.dims[0], "the channels do not fit the weights")
    if groups < 1 or (w.dims[0].value or groups) % groups:
        raise Unsupported("the channels do not divide into groups")
    if w.dims[0].value is None:
        node.require(holds("divides", groups, w.dims[0]), "the channels do not divide into groups")
    _check_bias(node, 2, w.dims[1] * groups)
    return [abstract(x.dtype, [x.dims[0], w.dims[1] * groups, *window.sizes])]


# --- Col2Im, LRN ---


def col2im_window(node: Node) -> tuple[Window, Size]:
    """The window, and the channels of the image."""
    x = node.input(0)
    image, block = node.elements(1, "the image's shape"), node.elements(2, "the block's shape")
    if x.rank != 3 or not 1 <= len(image) <= 3 or len(image) != len(block):
        raise Unsupported(f"Col2Im of rank {x.rank} into {len(image)} dims")
    window = resolve(node, image, block)
    channels = floor_div(x.dims[1], product(block))
    node.expect(channels * product(block), "==", x.dims[1], "the columns do not divide into blocks")
    node.expect(product(window.out), "==", x.dims[2], "the number of columns does not fit the image")
    for s in (*image, *block):
        node.expect(s, ">", 0, "an empty block or image")
    return window, channels


@infers("Col2Im")
def _col2im(node: Node) -> list[Abstract]:
    x = node.input(0)
    window, channels = col2im_window(node)
    if x.dtype == DataType.BOOL:
        raise Unsupported("Col2Im on BOOL stays with ONNX Runtime")
    return [abstract(x.dtype, [x.dims[0], channels, *window.sizes])]


@infers("LRN")
def _lrn(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.rank < 2 or x.dtype not in REALS or int(node.attribute("size", 0)) < 1:
        raise Unsupported(f"LRN on {x.dtype.name} of rank {x.rank}")
    return [Abstract(x.dtype, x.dims)]
