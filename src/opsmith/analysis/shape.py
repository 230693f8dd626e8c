"""Operators that make shapes and other small integers: Shape, Size, Constant, ConstantOfShape, Range."""

from __future__ import annotations

import numpy as np

from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import (
    INTEGERS,
    SMALL,
    TYPES,
    Abstract,
    Constant,
    DataType,
    Unsupported,
    abstract,
    of_constant,
)
from opsmith.sizes import ONE, Name, Real, Size, apply, as_size, product


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
        if dtype not in TYPES:
            raise Unsupported(f"element type {dtype.name} stays with ONNX Runtime")
        return [of_constant(Constant(node.ir.outputs[0].name or node.name, dtype, array.shape, array.view))]
    raise Unsupported("Constant without a value")


@infers("ConstantOfShape")
def _constant_of_shape(node: Node) -> list[Abstract]:
    dims = node.elements(0, "the shape")
    value = node.attribute("value", np.zeros(1, np.float32))
    dtype = DataType.from_numpy(value.dtype)
    if dtype not in TYPES:
        raise Unsupported(f"element type {dtype.name} stays with ONNX Runtime")
    for d in dims:
        node.expect(d, ">=", 0, "a size is negative")
    result = abstract(dtype, dims)
    sizes = result.static_dims()
    if len(dims) > 1 or sizes is None or np.prod(sizes) > SMALL:
        return [result]
    number = value.reshape(-1)[0]
    return [of_constant(Constant(f"full:{number}:{dtype}:{sizes}", dtype, sizes, lambda: np.full(sizes, number)))]


@infers("Range")
def _range(node: Node) -> list[Abstract]:
    dtype = node.input(0).dtype
    if dtype not in INTEGERS:
        return [abstract(dtype, [_real_count(node)])]
    start, limit, step = (node.elements(i, "the range")[0] for i in range(3))
    if step == ONE:
        length = limit - start
        if any(c < 0 for c in length.terms.values()) or not all(isinstance(a, Name) for a in length.atoms()):
            length = apply("max", 0, length)
    elif start.value is not None and limit.value is not None and step.value:
        length = as_size(max(0, -(-(limit.value - start.value) // step.value)))
    else:
        length = apply("range_length", start, limit, step)
    elements = None
    if length.value is not None and length.value <= SMALL:
        elements = [start + step * i for i in range(length.value)]
    return [abstract(dtype, [length], elements)]


def _real_count(node: Node) -> Size:
    bounds = [node.input(i).elements for i in range(3)]
    if any(b is None for b in bounds):
        raise Unsupported("the range depends on computed data")
    reals = [b[0] for b in bounds if b is not None]
    if not all(isinstance(r, Real) for r in reals):
        raise Unsupported("the range mixes types")
    return apply("range_length", *reals)
