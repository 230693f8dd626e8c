"""The rows of a KV cache in bytes with a scale each (compiler/cache_type.py): new ones are made of floats; attention reads them as they
lie (attention.py), anything else as floats."""

from __future__ import annotations

import onnx_ir as ir

from opsmith import ops
from opsmith.analysis.registry import Node
from opsmith.analysis.values import DataType
from opsmith.compiler.kernel import Kernel, Struct, read, size, struct, write
from opsmith.compiler.lower.attention import bytes_and_scales, in_bytes, unit_inner
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.program import StructValue, View
from opsmith.sizes import product

ROWS_SHAPE = Struct("CacheRowsShape", "cache.hpp", ("batch", "heads", "rows", "size", "x_batch", "x_head", "x_row"))
QUANTIZE = Kernel(
    "cache_quantize",
    "cache.hpp",
    [struct("shape", ROWS_SHAPE), read("x"), write("y", dtype=DataType.INT8), write("scale", dtype=DataType.FLOAT)],
    "rows as bytes, each with a scale",
)
DEQUANTIZE = Kernel(
    "cache_dequantize",
    "cache.hpp",
    [
        struct("shape", ROWS_SHAPE),
        read("x", dtype=DataType.INT8),
        read("scale", dtype=DataType.FLOAT),
        size("scale_batch"),
        size("scale_head"),
        write("y", dtype=DataType.FLOAT),
    ],
    "rows of bytes as floats",
)


@lowers("opsmith::CacheQuantize")
def _quantize(node: Node, builder: Builder) -> None:
    x = unit_inner(builder.as_float(builder.tensor(node.ir.inputs[0])), builder)
    y, scale = (builder.result(v) for v in node.ir.outputs)
    builder.call(QUANTIZE, shape=_shape(x), x=x, y=y, scale=scale, comment=f"{product(x.dims[:3])} rows")


@lowers("opsmith::CacheRowsScaled")
def _rows(node: Node, builder: Builder) -> None:
    value = node.ir.outputs[0]
    if not builder.is_output(value) and all(_reads_bytes(user, builder) for user in value.consumers()):
        return
    x, scale = bytes_and_scales(node.ir, builder)
    y = builder.allocate(x.dims, DataType.FLOAT, hint=value.name or "rows")
    first, second = scale.strides[:2]
    builder.call(DEQUANTIZE, shape=_shape(x), x=x, scale=scale, scale_batch=first, scale_head=second, y=y)
    builder.alias(value, y)


def _reads_bytes(user: ir.Node, builder: Builder) -> bool:
    return user.op_type in ops.ATTENTIONS and user in builder.region.nodes and in_bytes(user, builder) is not None


def _shape(x: View) -> StructValue:
    return StructValue(ROWS_SHAPE, dict(zip(ROWS_SHAPE.fields, [*x.dims, *x.strides[:3]])))
