"""Quantized tensors: QuantizeLinear, DequantizeLinear, and the integer products and convolutions (linear_quant.hpp)."""

from __future__ import annotations

from opsmith.compile.dims import ONE, ZERO, Dim, dim, product
from opsmith.compile.lower.elementwise import broadcast_dims
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.lower.window import conv_shape, emit_conv
from opsmith.compile.values import CPP, FLOATS, Abstract, DataType, Unsupported, View, abstract

_BYTES = (DataType.INT8, DataType.UINT8)
_QUANTIZED = (*_BYTES, DataType.INT16, DataType.UINT16)


# --- QuantizeLinear, DequantizeLinear ---


def _layout(node: Node) -> list[Dim]:
    """The fields of ScaleLayout."""
    x, scale = node.input(0), node.input(1)
    if product(scale.dims) == 1 and scale.rank <= 1:
        return [ONE, ONE, x.size, ONE, ZERO, ZERO, ZERO]
    axis = node.axis(x.rank, 1)
    outer, size, inner = product(x.dims[:axis]), x.dims[axis], product(x.dims[axis + 1 :])
    block = int(node.attribute("block_size", 0))
    if scale.rank == 1:
        if scale.dims[0] != size:
            raise Unsupported("the scales do not fit the axis")
        return [outer, size, inner, ONE, ZERO, ONE, ZERO]
    if block < 1 or scale.rank != x.rank or size.value is None:
        raise Unsupported("the scales do not fit the tensor")
    blocks = -(-size.value // block)
    if scale.dims != (*x.dims[:axis], dim(blocks), *x.dims[axis + 1 :]):
        raise Unsupported("the scales do not fit the blocks")
    return [outer, size, inner, dim(block), inner * blocks, inner, ONE]


def _check_zero(node: Node) -> None:
    if node.has(2) and node.input(2).dims != node.input(1).dims:
        if product(node.input(2).dims) == 1 and product(node.input(1).dims) == 1:
            return
        raise Unsupported("zero points and scales differ in shape")


@infers("QuantizeLinear")
def _quantize(node: Node) -> list[Abstract]:
    x = node.input(0)
    wanted = DataType(int(node.attribute("output_dtype", 0))) if node.attribute("output_dtype", 0) else None
    dtype = node.input(2).dtype if node.has(2) else wanted or DataType.UINT8
    if dtype not in _QUANTIZED or (x.dtype not in FLOATS and x.dtype != DataType.INT32):
        raise Unsupported(f"QuantizeLinear from {x.dtype.name} to {dtype.name}")
    if node.input(1).dtype not in FLOATS or node.attribute("precision", 0) not in (0, int(DataType.FLOAT)):
        raise Unsupported("a scale or precision other than float")
    _check_zero(node)
    _layout(node)
    return [Abstract(dtype, x.dims)]


@infers("DequantizeLinear")
def _dequantize(node: Node) -> list[Abstract]:
    x, scale = node.input(0), node.input(1)
    if x.dtype not in (*_QUANTIZED, DataType.INT32) or scale.dtype not in FLOATS:
        raise Unsupported(f"DequantizeLinear of {x.dtype.name}")
    if node.has(2) and node.input(2).dtype != x.dtype:
        raise Unsupported("a zero point of another type")
    _check_zero(node)
    _layout(node)
    wanted = int(node.attribute("output_dtype", 0))
    if wanted and DataType(wanted) not in FLOATS:
        raise Unsupported(f"DequantizeLinear to {DataType(wanted).name}")
    return [Abstract(DataType(wanted) if wanted else scale.dtype, x.dims)]


@lowers("QuantizeLinear", "DequantizeLinear")
def _lower_linear(node: Node, out: Lowering) -> None:
    x, scale = out.rows(node.ir.inputs[0]), out.rows(node.ir.inputs[1])
    zero = out.rows(node.ir.inputs[2]) if node.has(2) else None
    target = out.result(node.ir.outputs[0])
    kernel = "quantize" if node.ir.op_type == "QuantizeLinear" else "dequantize"
    tz = CPP[target.dtype] if kernel == "quantize" else CPP[x.dtype]
    name = out.instance(
        kernel,
        f"const Pool& pool, const ScaleLayout& layout, const {CPP[x.dtype]}* x, const {CPP[scale.dtype]}* scales, const {tz}* zeros, "
        f"{CPP[target.dtype]}* y",
        f"{kernel}(pool, layout, x, scales, zeros, y);",
        ("linear_quant.hpp",),
        f"{kernel} linearly",
    )
    out.program.instance_headers.add("linear_quant.hpp")
    fields = ", ".join(out.cpp(f) for f in _layout(node))
    zeros = out.pointer(zero) if zero is not None else "nullptr"
    arguments = [f"ScaleLayout{{{fields}}}", out.pointer(x), out.pointer(scale), zeros, out.pointer(target)]
    out.call(
        name, f"{name}(pool, {', '.join(arguments)});", reads=[x, scale, *([zero] if zero is not None else [])],
        writes=[target], comment=kernel, flops=product(x.dims) * 3, header="linear_quant.hpp",
    )  # fmt: skip


# --- integer products ---


def _product_dims(node: Node, a: Abstract, b: Abstract) -> tuple[list[Dim], list[Dim]]:
    """Batch dims and (M, N, K) of a product of quantized matrices."""
    if a.dtype not in _BYTES or b.dtype not in _BYTES or a.rank < 2 or b.rank < 2:
        raise Unsupported(f"{node.ir.op_type} of {a.dtype.name} and {b.dtype.name}, rank {a.rank} and {b.rank}")
    if a.dims[-1] != b.dims[-2]:
        if a.dims[-1].value is not None and b.dims[-2].value is not None:
            raise Unsupported("the inner sizes differ")
        node.checks.append((f"{a.dims[-1].cpp()} == {b.dims[-2].cpp()}", "the inner sizes of the product differ"))
    lead = list(broadcast_dims(node, a.dims[:-2], b.dims[:-2]))
    for side in (a, b):
        if product(side.dims[:-2]) != 1 and list(side.dims[:-2]) != lead:
            raise Unsupported("the batch dims broadcast in part")
    return lead, [a.dims[-2], b.dims[-1], a.dims[-1]]


def _zero_step(node: Node, index: int, count: Dim) -> Dim:
    """0 for one zero point, 1 for one per row or column."""
    if not node.has(index):
        return ZERO
    zero = node.input(index)
    if product(zero.dims) == 1:
        return ZERO
    if product(zero.dims) != count or zero.rank > 2:
        raise Unsupported("the zero points do not fit")
    return ONE


@infers("MatMulInteger")
def _matmul_integer(node: Node) -> list[Abstract]:
    lead, (m, n, _) = _product_dims(node, node.input(0), node.input(1))
    _zero_step(node, 2, m)
    _zero_step(node, 3, n)
    return [abstract(DataType.INT32, [*lead, m, n])]


def _emit_product(out: Lowering, node: Node, indices: tuple[int, int, int, int], target: View) -> None:
    """target (int32) = (a - za) @ (b - zb); the indices are those of a, za, b, zb."""
    a, b = (out.rows(node.ir.inputs[i]) for i in (indices[0], indices[2]))
    lead, (m, n, k) = _product_dims(node, node.input(indices[0]), node.input(indices[2]))
    zeros, texts = [], []
    for index, count, t in ((indices[1], m, CPP[a.dtype]), (indices[3], n, CPP[b.dtype])):
        step = _zero_step(node, index, count)
        view = out.rows(node.ir.inputs[index]) if node.has(index) else None
        if view is not None:
            zeros.append(view)
        texts.append(f"ZeroPoints<{t}>{{{out.pointer(view) if view is not None else 'nullptr'}, {out.cpp(step)}}}")
    ta, tb = CPP[a.dtype], CPP[b.dtype]
    name = out.instance(
        "matmul_integer",
        f"const Pool& pool, i64 batch, i64 m, i64 n, i64 k, const {ta}* a, i64 a_batch, ZeroPoints<{ta}> a_zero, const {tb}* b, i64 b_batch, "
        f"ZeroPoints<{tb}> b_zero, int32_t* c",
        "matmul_integer(pool, batch, m, n, k, a, a_batch, a_zero, b, b_batch, b_zero, c);",
        ("linear_quant.hpp",),
        "product of quantized matrices in int32",
    )
    out.program.instance_headers.add("linear_quant.hpp")
    steps = [ZERO if product(v.dims[:-2]) == 1 else v.dims[-2] * v.dims[-1] for v in (a, b)]
    arguments = [
        out.cpp(product(lead)), out.cpp(m), out.cpp(n), out.cpp(k), out.pointer(a), out.cpp(steps[0]), texts[0],
        out.pointer(b), out.cpp(steps[1]), texts[1], out.pointer(target),
    ]  # fmt: skip
    out.call(
        name, f"{name}(pool, {', '.join(arguments)});", reads=[a, b, *zeros], writes=[target],
        comment=f"({m}, {k}) @ ({k}, {n})", flops=product(lead) * m * n * k * 2, header="linear_quant.hpp",
    )  # fmt: skip


@lowers("MatMulInteger")
def _lower_matmul_integer(node: Node, out: Lowering) -> None:
    _emit_product(out, node, (0, 2, 1, 3), out.result(node.ir.outputs[0]))


def _scalars(node: Node, *indices: int) -> None:
    for i in indices:
        if product(node.input(i).dims) != 1:
            raise Unsupported("a scale or zero point per channel")


@infers("QLinearMatMul")
def _qlinear_matmul(node: Node) -> list[Abstract]:
    lead, (m, n, _) = _product_dims(node, node.input(0), node.input(3))
    _scalars(node, 1, 2, 6, 7)
    _zero_step(node, 5, n)
    if product(node.input(4).dims) not in (ONE, n):
        raise Unsupported("the scales do not fit")
    _same_scales(node, 1, 4, 6)
    if node.input(7).dtype not in _BYTES:
        raise Unsupported(f"a result of {node.input(7).dtype.name}")
    return [abstract(node.input(7).dtype, [*lead, m, n])]


def _same_scales(node: Node, *indices: int) -> None:
    types = {node.input(i).dtype for i in indices}
    if len(types) != 1 or not types <= FLOATS:
        raise Unsupported("scales of different types")


def _emit_requantize(
    out: Lowering, node: Node, indices: tuple[int, int, int, int], x: View, target: View, split: list[Dim]
) -> None:
    """target = round(x * x_scale * w_scale / y_scale) + y_zero; the indices are those of x_scale, w_scale, y_scale, y_zero."""
    views = [out.rows(node.ir.inputs[i]) for i in indices]
    ts, ty = CPP[views[0].dtype], CPP[target.dtype]
    name = out.instance(
        "requantize",
        f"const Pool& pool, i64 outer, i64 channels, i64 inner, const int32_t* x, const {ts}* x_scale, const {ts}* w_scales, i64 w_step, "
        f"const {ts}* y_scale, const {ty}* y_zero, {ty}* y",
        "requantize(pool, outer, channels, inner, x, x_scale, w_scales, w_step, y_scale, y_zero, y);",
        ("linear_quant.hpp",),
        "int32 sums back to quantized numbers",
    )
    step = "0" if product(views[1].dims) == 1 else "1"
    pointers = [out.pointer(v) for v in views]
    arguments = [*(out.cpp(s) for s in split), out.pointer(x), *pointers[:2], step, *pointers[2:], out.pointer(target)]
    out.call(
        name, f"{name}(pool, {', '.join(arguments)});", reads=[x, *views], writes=[target], comment="requantize",
        flops=product(x.dims) * 2,
    )  # fmt: skip


@lowers("QLinearMatMul")
def _lower_qlinear_matmul(node: Node, out: Lowering) -> None:
    target = out.result(node.ir.outputs[0])
    sums = out.allocate(target.dims, DataType.INT32, hint="sums")
    _emit_product(out, node, (0, 2, 3, 5), sums)
    rows, columns = product(target.dims[:-1]), target.dims[-1]
    _emit_requantize(out, node, (1, 4, 6, 7), sums, target, [rows, columns, ONE])


# --- integer convolutions ---


def _conv_inputs(node: Node, x: int, w: int, x_zero: int, w_zero: int) -> None:
    a, b = node.input(x), node.input(w)
    if a.dtype not in _BYTES or b.dtype not in _BYTES:
        raise Unsupported(f"{node.ir.op_type} of {a.dtype.name} and {b.dtype.name}")
    if node.has(x_zero) and product(node.input(x_zero).dims) != 1:
        raise Unsupported("a zero point per channel of the image")
    if node.has(w_zero) and product(node.input(w_zero).dims) not in (ONE, b.dims[0]):
        raise Unsupported("the zero points do not fit the weights")


@infers("ConvInteger")
def _conv_integer(node: Node) -> list[Abstract]:
    _conv_inputs(node, 0, 1, 2, 3)
    x, w = node.input(0), node.input(1)
    window, _ = conv_shape(node, x, w)
    return [abstract(DataType.INT32, [x.dims[0], w.dims[0], *window.out])]


@lowers("ConvInteger")
def _lower_conv_integer(node: Node, out: Lowering) -> None:
    _emit_conv(node, out, (0, 1, 2, 3), None, out.result(node.ir.outputs[0]))


def _emit_conv(node: Node, out: Lowering, indices: tuple[int, int, int, int], bias: View | None, target: View) -> None:
    x, w = out.rows(node.ir.inputs[indices[0]]), out.rows(node.ir.inputs[indices[1]])
    window, groups = conv_shape(node, node.input(indices[0]), node.input(indices[1]))
    zeros = [out.rows(node.ir.inputs[i]) if node.has(i) else None for i in indices[2:]]
    x_zero = f"i64(*({out.pointer(zeros[0])}))" if zeros[0] is not None else "0"
    emit_conv(out, window, groups, x, w, bias, target, x_zero, zeros[1])


@infers("QLinearConv")
def _qlinear_conv(node: Node) -> list[Abstract]:
    _conv_inputs(node, 0, 3, 2, 5)
    _scalars(node, 1, 6, 7)
    _same_scales(node, 1, 4, 6)
    x, w = node.input(0), node.input(3)
    if product(node.input(4).dims) not in (ONE, w.dims[0]) or node.input(7).dtype not in _BYTES:
        raise Unsupported("the scales do not fit the weights")
    if node.has(8) and (node.input(8).dtype != DataType.INT32 or node.input(8).dims != (w.dims[0],)):
        raise Unsupported("the bias does not fit the weights")
    window, _ = conv_shape(node, x, w)
    return [abstract(node.input(7).dtype, [x.dims[0], w.dims[0], *window.out])]


@lowers("QLinearConv")
def _lower_qlinear_conv(node: Node, out: Lowering) -> None:
    target = out.result(node.ir.outputs[0])
    sums = out.allocate(target.dims, DataType.INT32, hint="sums")
    _emit_conv(node, out, (0, 3, 2, 5), out.rows(node.ir.inputs[8]) if node.has(8) else None, sums)
    split = [target.dims[0], target.dims[1], product(target.dims[2:])]
    _emit_requantize(out, node, (1, 4, 6, 7), sums, target, split)
