"""Sliding windows: pooling, convolutions whose weights are computed or have 3 spatial dims, their transposes, Col2Im.

x (N, C, spatial...) -> (N, C', spatial...), all row-major; window.hpp says what each kernel computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from opsmith.compile.dims import ONE, ZERO, Dim, DimLike, call, dim, floor_div, minimum, product
from opsmith.compile.lower.axes import sizes
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import CPP, FLOATS, Abstract, DataType, Unsupported, View, abstract, float_literal


@dataclasses.dataclass
class Window:
    """A window that slides over `sizes`, resolved to numbers where they are known; one entry per spatial dim."""

    sizes: list[Dim]  # of the image it slides over
    kernel: list[Dim]
    strides: list[int]
    dilations: list[int]
    before: list[Dim]  # padding
    after: list[Dim]
    out: list[Dim]

    def text(self, out: Lowering, batch: DimLike, channels: DimLike) -> str:
        columns: list[Sequence[DimLike]] = [
            self.sizes,
            self.out,
            self.kernel,
            self.strides,
            self.before,
            self.dilations,
        ]
        missing = 3 - len(self.sizes)
        fills = [ONE, ONE, ONE, ONE, ZERO, ONE]
        lists = [out.braces([f] * missing + list(c)) for c, f in zip(columns, fills)]
        return f"Window{{{out.cpp(batch)}, {out.cpp(channels)}, {', '.join(lists)}}}"


def resolve(node: Node, image: Sequence[Dim], kernel: Sequence[Dim]) -> Window:
    """Strides, dilations, padding and output sizes as the attributes say."""
    spatial = len(image)
    if not 1 <= spatial <= 3:
        raise Unsupported(f"{node.ir.op_type} over {spatial} spatial dims")
    strides = [int(v) for v in node.attribute("strides") or [1] * spatial]
    dilations = [int(v) for v in node.attribute("dilations") or [1] * spatial]
    pads = [int(v) for v in node.attribute("pads") or [0] * (2 * spatial)]
    mode = node.attribute("auto_pad", "NOTSET")
    if any(len(v) != n for v, n in ((strides, spatial), (dilations, spatial), (pads, 2 * spatial), (kernel, spatial))):
        raise Unsupported("its attributes do not fit the rank")
    if any(v < 1 for v in (*strides, *dilations)):
        raise Unsupported("a stride or dilation below 1")
    before, after, sizes_out = [], [], []
    for i, size in enumerate(image):
        reach = (kernel[i] - 1) * dilations[i] + 1
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            wanted = floor_div(size + (strides[i] - 1), strides[i])
            total = call("max<i64>", 0, (wanted - 1) * strides[i] + reach - size)
            if size.value is not None and reach.value is not None and wanted.value is not None:
                total = dim(max(0, (wanted.value - 1) * strides[i] + reach.value - size.value))
            small = floor_div(total, 2)
            first, last = (small, total - small) if mode == "SAME_UPPER" else (total - small, small)
            sizes_out.append(wanted)
        else:
            first, last = (ZERO, ZERO) if mode == "VALID" else (dim(pads[i]), dim(pads[spatial + i]))
            span = size + first + last - reach
            if span.value is not None and span.value < 0:
                raise Unsupported("the image is smaller than the kernel")
            if span.value is None:
                node.checks.append((f"{span.cpp()} >= 0", "the image is smaller than the kernel"))
                node.slides_over(span)
            if node.attribute("ceil_mode", 0):
                count = floor_div(span + (strides[i] - 1), strides[i]) + 1
                # a last window that would start in the padding behind the image is left out
                limit = floor_div(size + first - 1, strides[i]) + 1
                count = minimum(count, limit)
            else:
                count = floor_div(span, strides[i]) + 1 if strides[i] != 1 else span + 1
            sizes_out.append(count)
        before.append(first)
        after.append(last)
    return Window(list(image), list(kernel), strides, dilations, before, after, sizes_out)


# --- pooling ---


def _pool_window(node: Node, dims: Sequence[Dim]) -> Window:
    kernel = [dim(int(k)) for k in node.attribute("kernel_shape") or []]
    if any(k.value is None or k.value < 1 for k in kernel):
        raise Unsupported("an empty window")
    return resolve(node, dims[2:], kernel)


@infers("MaxPool", "AveragePool", "LpPool")
def _pool(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.rank < 3:
        raise Unsupported(f"pooling on rank {x.rank}")
    integers = node.ir.op_type == "MaxPool" and x.dtype in (DataType.INT8, DataType.UINT8)
    if x.dtype not in FLOATS and x.dtype != DataType.DOUBLE and not integers:
        raise Unsupported(f"{node.ir.op_type} on {x.dtype.name} stays with ONNX Runtime")
    dims = [*x.dims[:2], *_pool_window(node, x.dims).out]
    return [abstract(t, dims) for t in (x.dtype, DataType.INT64)[: len(node.ir.outputs)]]


@infers("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
def _global_pool(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.rank < 3 or (x.dtype not in FLOATS and x.dtype != DataType.DOUBLE):
        raise Unsupported(f"{node.ir.op_type} on {x.dtype.name} of rank {x.rank} stays with ONNX Runtime")
    return [abstract(x.dtype, [*x.dims[:2], *[ONE] * (x.rank - 2)])]


@lowers("MaxPool", "AveragePool", "LpPool")
def _lower_pool(node: Node, out: Lowering) -> None:
    x = out.rows(node.ir.inputs[0])
    emit_pool(node, out, x, _pool_window(node, x.dims))


@lowers("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
def _lower_global_pool(node: Node, out: Lowering) -> None:
    x = out.rows(node.ir.inputs[0])
    count = product(x.dims[2:])  # one window over the whole image
    emit_pool(node, out, x, Window([count], [count], [1], [1], [ZERO], [ZERO], [ONE]))


def emit_pool(node: Node, out: Lowering, x: View, window: Window) -> None:
    target = out.result(node.ir.outputs[0])
    t = CPP[x.dtype]
    op = node.ir.op_type.removeprefix("Global")
    writes = [target]
    text = window.text(out, x.dims[0], x.dims[1])
    if op == "MaxPool":
        parameters, body = f"const {t}* x, {t}* y, i64* indices, bool column_major", "x, y, indices, column_major"
        where = "nullptr"
        if len(node.ir.outputs) > 1:
            writes.append(out.result(node.ir.outputs[1]))
            where = out.pointer(writes[1])
        arguments = [out.pointer(x), out.pointer(target), where, str(bool(node.attribute("storage_order", 0))).lower()]
        kernel = "max_pool"
    elif op == "AveragePool":
        parameters, body = f"const Sizes& after, bool include, const {t}* x, {t}* y", "after, include, x, y"
        behind = sizes(out, [ZERO] * (3 - len(window.after)) + window.after)
        include = str(bool(node.attribute("count_include_pad", 0))).lower()
        arguments, kernel = [behind, include, out.pointer(x), out.pointer(target)], "average_pool"
    else:
        parameters, body = f"double power, const {t}* x, {t}* y", "power, x, y"
        power = float_literal(float(node.attribute("p", 2)), "double")
        arguments, kernel = [power, out.pointer(x), out.pointer(target)], "lp_pool"
    emit(out, kernel, parameters, body, text, arguments, [x], writes, product(target.dims) * product(window.kernel))


def emit(
    out: Lowering, kernel: str, parameters: str, body: str, window: str, arguments: Sequence[str], reads: Sequence[View],
    writes: Sequence[View], flops: Dim,
) -> None:  # fmt: skip
    name = out.instance(
        kernel, f"const Pool& pool, const Window& window, {parameters}", f"{kernel}(pool, window, {body});", ("window.hpp",),
        f"{kernel.replace('_', ' ')}, plain loops",
    )  # fmt: skip
    out.program.instance_headers.add("window.hpp")
    out.call(
        name, f"{name}(pool, {window}, {', '.join(arguments)});", reads=reads, writes=writes,
        comment=kernel.replace("_", " "), flops=flops, header="window.hpp",
    )  # fmt: skip


# --- convolutions with computed weights ---


def conv_shape(node: Node, x: Abstract, w: Abstract) -> tuple[Window, int]:
    groups = int(node.attribute("group", 1))
    if x.rank != w.rank or x.rank < 3:
        raise Unsupported(f"a convolution of rank {x.rank} with weights of rank {w.rank}")
    given = node.attribute("kernel_shape")
    if given is not None and any(k.value is not None and k != g for k, g in zip(w.dims[2:], given)):
        raise Unsupported("kernel_shape differs from the weights' shape")
    window = resolve(node, x.dims[2:], w.dims[2:])
    for a, b, what in (
        (x.dims[1], w.dims[1] * groups, "the channels do not fit the weights"),
        (floor_div(w.dims[0], groups) * groups, w.dims[0], "the outputs do not divide into groups"),
    ):
        if a != b:
            if a.value is not None and b.value is not None:
                raise Unsupported(what)
            node.checks.append((f"{a.cpp()} == {b.cpp()}", what))
    node.checks += [(f"{k.cpp()} > 0", "an empty kernel") for k in w.dims[2:] if k.value is None]
    if any(k == 0 for k in w.dims[2:]) or groups < 1:
        raise Unsupported("an empty kernel")
    return window, groups


def infer_plain_conv(node: Node) -> list[Abstract]:
    x, w = node.input(0), node.input(1)
    if x.dtype != w.dtype or (x.dtype not in FLOATS and x.dtype != DataType.DOUBLE):
        raise Unsupported(f"{node.ir.op_type} on {x.dtype.name} stays with ONNX Runtime")
    window, _ = conv_shape(node, x, w)
    _check_bias(node, 2, w.dims[0])
    return [abstract(x.dtype, [x.dims[0], w.dims[0], *window.out])]


def _check_bias(node: Node, index: int, outputs: Dim) -> None:
    if not node.has(index):
        return
    bias = node.input(index)
    if bias.rank != 1 or (bias.dims[0] != outputs and None not in (bias.dims[0].value, outputs.value)):
        raise Unsupported("the bias does not fit the weights")
    if bias.dims[0] != outputs:
        node.checks.append((f"{bias.dims[0].cpp()} == {outputs.cpp()}", "the bias does not fit the weights"))


def lower_plain_conv(node: Node, out: Lowering) -> None:
    x, w = out.rows(node.ir.inputs[0]), out.rows(node.ir.inputs[1])
    window, groups = conv_shape(node, node.input(0), node.input(1))
    bias = out.rows(node.ir.inputs[2]) if node.has(2) else None
    target = out.result(node.ir.outputs[0])
    emit_conv(out, window, groups, x, w, bias, target)


def emit_conv(
    out: Lowering, window: Window, groups: int, x: View, w: View, bias: View | None, target: View,
    x_zero: str = "0", w_zero: View | None = None,
) -> None:  # fmt: skip
    tx, tw, ty = CPP[x.dtype], CPP[w.dtype], CPP[target.dtype]
    views = [v for v in (x, w, bias, w_zero) if v is not None]
    emit(
        out,
        "conv_plain",
        f"i64 outputs, i64 groups, const {tx}* x, const {tw}* weights, const {ty}* bias, {ty}* y, i64 x_zero, const {tw}* w_zero, i64 w_zeros",
        "outputs, groups, x, weights, bias, y, x_zero, w_zero, w_zeros",
        window.text(out, x.dims[0], x.dims[1]),
        [
            out.cpp(w.dims[0]), str(groups), out.pointer(x), out.pointer(w), out.pointer(bias) if bias is not None else "nullptr",
            out.pointer(target), x_zero, out.pointer(w_zero) if w_zero is not None else "nullptr",
            out.cpp(product(w_zero.dims)) if w_zero is not None else "0",
        ],
        views,
        [target],
        product(target.dims) * product(w.dims[1:]) * 2,
    )  # fmt: skip


# --- ConvTranspose ---


def _transposed(node: Node) -> tuple[Window, int]:
    """As the forward convolution from the result to x: its image is the result, its output is x."""
    x, w = node.input(0), node.input(1)
    groups = int(node.attribute("group", 1))
    spatial = x.rank - 2
    if x.rank != w.rank or not 1 <= spatial <= 3:
        raise Unsupported(f"ConvTranspose of rank {x.rank}")
    strides = [int(v) for v in node.attribute("strides") or [1] * spatial]
    dilations = [int(v) for v in node.attribute("dilations") or [1] * spatial]
    pads = [int(v) for v in node.attribute("pads") or [0] * (2 * spatial)]
    extra = [int(v) for v in node.attribute("output_padding") or [0] * spatial]
    mode = node.attribute("auto_pad", "NOTSET")
    shape = node.attribute("output_shape")
    kernel = list(w.dims[2:])
    before: list[Dim] = []
    after: list[Dim] = []
    result: list[Dim] = []
    for i in range(spatial):
        full = (x.dims[2 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + extra[i]
        if shape is not None or mode in ("SAME_UPPER", "SAME_LOWER"):
            size = dim(int(shape[i])) if shape is not None else x.dims[2 + i] * strides[i]
            total = full - size
            total = dim(max(0, total.value)) if total.value is not None else call("max<i64>", 0, total)
            small = floor_div(total, 2)
            first = small if mode == "SAME_UPPER" else total - small
            result.append(size)
        else:
            first = ZERO if mode == "VALID" else dim(pads[i])
            total = ZERO if mode == "VALID" else dim(pads[i] + pads[spatial + i])
            result.append(full - total)
        before.append(first)
        after.append(total - first)
    for r in result:
        if r.value is None:
            node.checks.append((f"{r.cpp()} >= 0", "the result has a negative size"))
        elif r.value < 0:
            raise Unsupported("the result has a negative size")
    return Window(result, kernel, strides, dilations, before, after, list(x.dims[2:])), groups


def infer_transposed(node: Node) -> list[Abstract]:
    x, w = node.input(0), node.input(1)
    if x.dtype != w.dtype or (x.dtype not in FLOATS and x.dtype != DataType.DOUBLE):
        raise Unsupported(f"{node.ir.op_type} on {x.dtype.name} stays with ONNX Runtime")
    window, groups = _transposed(node)
    if x.dims[1] != w.dims[0]:
        if x.dims[1].value is not None and w.dims[0].value is not None:
            raise Unsupported("the channels do not fit the weights")
        node.checks.append((f"{x.dims[1].cpp()} == {w.dims[0].cpp()}", "the channels do not fit the weights"))
    if groups < 1 or (w.dims[0].value or groups) % groups:
        raise Unsupported("the channels do not divide into groups")
    if w.dims[0].value is None:
        node.checks.append((f"{w.dims[0].cpp()} % {groups} == 0", "the channels do not divide into groups"))
    _check_bias(node, 2, w.dims[1] * groups)
    return [abstract(x.dtype, [x.dims[0], w.dims[1] * groups, *window.sizes])]


def lower_transposed(node: Node, out: Lowering) -> None:
    x, w = out.rows(node.ir.inputs[0]), out.rows(node.ir.inputs[1])
    window, groups = _transposed(node)
    bias = out.rows(node.ir.inputs[2]) if node.has(2) else None
    target = out.result(node.ir.outputs[0])
    t = CPP[x.dtype]
    space = out.workspace(f"{out.cpp(product(target.dims) * 8)}", "window.hpp")
    emit(
        out,
        "conv_transposed_plain",
        f"i64 outputs, i64 groups, const {t}* x, const {t}* weights, const {t}* bias, {t}* y, void* workspace",
        "outputs, groups, x, weights, bias, y, workspace",
        window.text(out, x.dims[0], x.dims[1]),
        [
            out.cpp(target.dims[1]), str(groups), out.pointer(x), out.pointer(w),
            out.pointer(bias) if bias is not None else "nullptr", out.pointer(target), space,
        ],
        [x, w, *([bias] if bias is not None else [])],
        [target],
        product(x.dims) * product(w.dims[1:]) * 2,
    )  # fmt: skip


# --- Col2Im ---


def _col2im(node: Node) -> tuple[Window, Dim]:
    x = node.input(0)
    image, block = node.elements(1, "the image's shape"), node.elements(2, "the block's shape")
    if x.rank != 3 or not 1 <= len(image) <= 3 or len(image) != len(block):
        raise Unsupported(f"Col2Im of rank {x.rank} into {len(image)} dims")
    window = resolve(node, image, block)
    channels = floor_div(x.dims[1], product(block))
    for a, b, what in (
        (channels * product(block), x.dims[1], "the columns do not divide into blocks"),
        (product(window.out), x.dims[2], "the number of columns does not fit the image"),
    ):
        if a != b:
            if a.value is not None and b.value is not None:
                raise Unsupported(what)
            node.checks.append((f"{a.cpp()} == {b.cpp()}", what))
    node.checks += [(f"{s.cpp()} > 0", "an empty block or image") for s in (*image, *block) if s.value is None]
    return window, channels


@infers("Col2Im")
def _infer_col2im(node: Node) -> list[Abstract]:
    x = node.input(0)
    window, channels = _col2im(node)
    if x.dtype == DataType.BOOL:
        raise Unsupported("Col2Im on BOOL stays with ONNX Runtime")
    return [abstract(x.dtype, [x.dims[0], channels, *window.sizes])]


@lowers("Col2Im")
def _lower_col2im(node: Node, out: Lowering) -> None:
    x = out.rows(node.ir.inputs[0])
    window, channels = _col2im(node)
    target = out.result(node.ir.outputs[0])
    t = CPP[x.dtype]
    emit(
        out, "col2im", f"const {t}* columns, {t}* y", "columns, y", window.text(out, x.dims[0], channels),
        [out.pointer(x), out.pointer(target)], [x], [target], product(x.dims),
    )  # fmt: skip


# --- LRN: a window over channels ---


@infers("LRN")
def _lrn(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.rank < 2 or (x.dtype not in FLOATS and x.dtype != DataType.DOUBLE) or int(node.attribute("size", 0)) < 1:
        raise Unsupported(f"LRN on {x.dtype.name} of rank {x.rank}")
    return [Abstract(x.dtype, x.dims)]


@lowers("LRN")
def _lower_lrn(node: Node, out: Lowering) -> None:
    x = out.rows(node.ir.inputs[0])
    target = out.result(node.ir.outputs[0])
    t = CPP[x.dtype]
    name = out.instance(
        "lrn",
        f"const Pool& pool, i64 batch, i64 channels, i64 inner, i64 size, double alpha, double beta, double bias, const {t}* x, {t}* y",
        "lrn(pool, batch, channels, inner, size, alpha, beta, bias, x, y);",
        ("window.hpp",),
        "local response normalization",
    )
    numbers = [float(node.attribute(a, d)) for a, d in (("alpha", 0.0001), ("beta", 0.75), ("bias", 1.0))]
    arguments = [
        *(out.cpp(d) for d in (x.dims[0], x.dims[1], product(x.dims[2:]))), str(int(node.attribute("size"))),
        *(float_literal(v, "double") for v in numbers), out.pointer(x), out.pointer(target),
    ]  # fmt: skip
    out.call(
        name, f"{name}(pool, {', '.join(arguments)});", reads=[x], writes=[target], comment="local response norm",
        flops=product(x.dims) * 8,
    )  # fmt: skip
