"""Operators that make shapes and other small integers: they become expressions in the generated code."""

from __future__ import annotations

import numpy as np

from opsmith.compile.dims import ONE, Dim, call, dim, product
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import (
    CPP,
    INTEGERS,
    Abstract,
    Constant,
    DataType,
    FloatScalar,
    Unsupported,
    abstract,
    float_literal,
    of_constant,
)


@infers("Shape")
def _shape(node: Node) -> list[Abstract]:
    dims = node.input(0).dims
    rank = len(dims)
    start, end = int(node.attribute("start", 0)), node.attribute("end")
    first = max(0, min(rank, start + rank if start < 0 else start))
    last = rank if end is None else max(0, min(rank, int(end) + rank if end < 0 else int(end)))
    taken = dims[first:last]
    return [abstract(DataType.INT64, [len(taken)], taken)]


@infers("Size")
def _size(node: Node) -> list[Abstract]:
    return [abstract(DataType.INT64, [], [product(node.input(0).dims)])]


@infers("Constant")
def _constant(node: Node) -> list[Abstract]:
    for name, value in node.ir.attributes.items():
        if name == "value":
            array = value.value.numpy()
            dtype = value.value.dtype
        elif name in ("value_float", "value_floats"):
            array, dtype = np.asarray(node.attribute(name), np.float32), DataType.FLOAT
        elif name in ("value_int", "value_ints"):
            array, dtype = np.asarray(node.attribute(name), np.int64), DataType.INT64
        else:
            raise Unsupported(f"Constant with {name} stays with ONNX Runtime")
        if dtype not in CPP:
            raise Unsupported(f"element type {dtype.name} stays with ONNX Runtime")
        return [of_constant(Constant(node.ir.outputs[0].name or node.name, dtype, array.shape, array.view))]
    raise Unsupported("Constant without a value")


@infers("ConstantOfShape")
def _constant_of_shape(node: Node) -> list[Abstract]:
    dims = node.elements(0, "the shape")
    value = node.attribute("value", np.zeros(1, np.float32))
    dtype = DataType.from_numpy(value.dtype)
    if dtype not in CPP:
        raise Unsupported(f"element type {dtype.name} stays with ONNX Runtime")
    node.checks += [(f"{d.cpp()} >= 0", "a size is negative") for d in dims if d.value is None]
    result = abstract(dtype, dims)
    sizes = result.static_dims()
    if len(dims) <= 1 and sizes is not None and np.prod(sizes) <= 64:
        return [
            of_constant(
                Constant(
                    f"full:{value.reshape(-1)[0]}:{dtype}:{sizes}",
                    dtype,
                    sizes,
                    lambda: np.full(sizes, value.reshape(-1)[0]),
                )
            )
        ]
    return [result]


@lowers("ConstantOfShape")
def _lower_constant_of_shape(node: Node, out: Lowering) -> None:
    value = node.attribute("value", np.zeros(1, np.float32)).reshape(-1)[0]
    view = out.result(node.ir.outputs[0])
    fill(out, view, value)


def fill(out: Lowering, view: object, value: object) -> None:
    from opsmith.compile.values import View

    assert isinstance(view, View)
    cpp = CPP[view.dtype]
    number = float(value)  # type: ignore[arg-type]
    if view.dtype in INTEGERS:
        text = f"({cpp})({int(value)}ll)"  # type: ignore[call-overload]
    elif view.dtype == DataType.BOOL:
        text = "true" if number else "false"
    else:
        text = f"{cpp}({float_literal(number, 'double' if cpp == 'double' else 'float')})"
    out.call(
        "fill",
        f"fill(pool, {out.pointer(view)}, {out.cpp(product(view.dims))}, {text});",
        reads=[],
        writes=[view],
        comment="fill",
    )


@infers("Range")
def _range(node: Node) -> list[Abstract]:
    dtype = node.input(0).dtype
    if dtype not in INTEGERS:
        values = [node.input(i).elements for i in range(3)]
        if any(v is None for v in values):
            raise Unsupported("the range depends on computed data")
        texts = [v[0] for v in values if v is not None]
        if not all(isinstance(t, FloatScalar) for t in texts):
            raise Unsupported("the range mixes types")
        count = Dim({(f"range_length({', '.join(t.text for t in texts if isinstance(t, FloatScalar))})",): 1})
        return [abstract(dtype, [count])]
    start, limit, step = (node.elements(i, "the range")[0] for i in range(3))
    if step == ONE:
        length = limit - start
        if any(c < 0 for c in length.terms.values()) or not _sizes_only(length):
            length = call("max<i64>", 0, length)
    elif start.value is not None and limit.value is not None and step.value:
        length = dim(max(0, -(-(limit.value - start.value) // step.value)))
    else:
        length = call("range_length", start, limit, step)
    elements = None
    if length.value is not None and length.value <= 64:
        elements = [start + step * i for i in range(length.value)]
    return [abstract(dtype, [length], elements)]


def _sizes_only(value: Dim) -> bool:
    return all("(" not in a and "[" not in a for a in value.atoms())


@lowers("Range")
def _lower_range(node: Node, out: Lowering) -> None:
    view = out.result(node.ir.outputs[0])
    cpp = CPP[view.dtype]
    texts = []
    for i in (0, 2):
        element = (node.input(i).elements or ())[0]
        texts.append(element.text if isinstance(element, FloatScalar) else out.cpp(element))
    out.call(
        "iota",
        f"iota<{cpp}>({out.pointer(view)}, {out.cpp(view.dims[0])}, ({cpp})({texts[0]}), ({cpp})({texts[1]}));",
        reads=[],
        writes=[view],
        comment="range",
    )
