"""What the compiler knows of a value: its type and symbolic dims, and, where it has them, its elements.

Abstract   the result of inference: dtype, dims, and for small integer values (shapes, axes, indices) the elements as
           symbolic sizes, so that shape arithmetic becomes code instead of data
Constant   an initializer, read from its memory-mapped file only when somebody needs its numbers
View       where a value lies at run time: a buffer, an offset, strides; Transpose, Slice and most Reshapes are views
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from opsmith.compile.dims import Dim, dim, product

Array: TypeAlias = np.ndarray[Any, Any]
DataType = ir.DataType

# ONNX element type -> C++ storage type. Everything else (strings, complex, float8, int4) stays with ORT.
CPP: dict[ir.DataType, str] = {
    DataType.FLOAT: "float",
    DataType.FLOAT16: "half",
    DataType.BFLOAT16: "bfloat16",
    DataType.DOUBLE: "double",
    DataType.INT64: "int64_t",
    DataType.INT32: "int32_t",
    DataType.INT16: "int16_t",
    DataType.INT8: "int8_t",
    DataType.UINT64: "uint64_t",
    DataType.UINT32: "uint32_t",
    DataType.UINT16: "uint16_t",
    DataType.UINT8: "uint8_t",
    DataType.BOOL: "bool",
}
FLOATS = frozenset({DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16})  # computed as float vectors
INTEGERS = frozenset(t for t in CPP if CPP[t].endswith("_t"))


class Unsupported(Exception):
    """A node that the compiler leaves to ORT; the message is the reason shown to the user."""


@dataclasses.dataclass(frozen=True)
class FloatScalar:
    """A run-time float that shape arithmetic produced: C++ text, and its value when it is known already."""

    text: str
    value: float | None = None


Element: TypeAlias = Dim | FloatScalar


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A tensor whose numbers are known. `key` identifies it for sharing; `read` gives the numbers when needed."""

    key: str
    dtype: ir.DataType
    dims: tuple[int, ...]
    read: Callable[[], Array]
    stored: Constant | None = None  # the same numbers in a smaller type, if this is a widened copy of them

    @property
    def size(self) -> int:
        return int(np.prod(self.dims, dtype=np.int64))

    def map(
        self, name: str, dims: Sequence[int], f: Callable[[Array], Array], dtype: ir.DataType | None = None
    ) -> Constant:
        """A constant made of this one: computed when it is read, so nothing is copied before that."""
        stored = self.stored.map(name, dims, f) if self.stored is not None and dtype is None else None
        return Constant(f"{name}({self.key})", dtype or self.dtype, tuple(dims), lambda: f(self.read()), stored)

    def widened(self, dtype: ir.DataType) -> Constant:
        """Cast to a type that holds every number exactly; kernels that read the narrow type use `stored`."""
        target = dtype.numpy()
        return Constant(f"{dtype.name}({self.key})", dtype, self.dims, lambda: self.read().astype(target), self)


@dataclasses.dataclass(frozen=True, eq=False)
class Abstract:
    dtype: ir.DataType
    dims: tuple[Dim, ...]
    elements: tuple[Element, ...] | None = None  # row-major; only for small values
    constant: Constant | None = None

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def size(self) -> Dim:
        return product(self.dims)

    def static_dims(self) -> tuple[int, ...] | None:
        values = [d.value for d in self.dims]
        return None if any(v is None for v in values) else tuple(v for v in values if v is not None)


def abstract(dtype: ir.DataType, dims: Sequence[Dim | int], elements: Sequence[Element] | None = None) -> Abstract:
    return Abstract(dtype, tuple(dim(d) for d in dims), None if elements is None else tuple(elements))


SMALL = 64  # values of at most this many elements take part in shape arithmetic


def of_constant(constant: Constant) -> Abstract:
    elements: tuple[Element, ...] | None = None
    if constant.size <= SMALL and len(constant.dims) <= 1 and constant.dtype in CPP:
        numbers = constant.read().reshape(-1)
        if constant.dtype in INTEGERS or constant.dtype == DataType.BOOL:
            elements = tuple(dim(int(x)) for x in numbers)
        else:
            elements = tuple(float_element(float(x)) for x in numbers)
    return Abstract(constant.dtype, tuple(dim(d) for d in constant.dims), elements, constant)


def float_element(value: float) -> FloatScalar:
    return FloatScalar(float_literal(value, "double"), value)


def float_literal(value: float, cpp: str = "float") -> str:
    """A C++ literal that reads back as exactly this number."""
    suffix = "f" if cpp == "float" else ""
    if np.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if np.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    text = repr(float(np.float32(value))) if cpp == "float" else repr(float(value))
    if cpp == "float":
        text = str(np.float32(value))
    if "." not in text and "e" not in text:
        text += ".0"
    return text + suffix


@dataclasses.dataclass(eq=False)
class Buffer:
    """A piece of memory: an input or output of the region, packed weights, or a span of the arena."""

    name: str  # its C++ variable
    dtype: ir.DataType
    elements: Dim
    place: str  # "input" | "output" | "weight" | "arena"
    first: int = -1  # call that writes it first
    last: int = -1  # call that reads it last
    slot: int = -1  # arena slot, given by the planner


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    buffer: Buffer
    dims: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim
    dtype: ir.DataType

    def pointer(self) -> str:
        """C++ text of the address of the first element."""
        return self.buffer.name if self.offset == 0 else f"{self.buffer.name} + {self.offset.cpp()}"

    def with_(self, dims: Sequence[Dim], strides: Sequence[Dim], offset: Dim | None = None) -> View:
        return View(self.buffer, tuple(dims), tuple(strides), self.offset if offset is None else offset, self.dtype)

    def is_contiguous(self) -> bool:
        return dense(self.dims, self.strides)


def dense(dims: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Row-major without gaps; the stride of a dim of size 1 does not matter."""
    step: Dim = dim(1)
    for d, s in zip(reversed(dims), reversed(strides)):
        if d == 1:
            continue
        if s != step:
            return False
        step = step * d
    return True


def permuted(view: View, perm: Sequence[int]) -> View:
    return view.with_([view.dims[p] for p in perm], [view.strides[p] for p in perm])


def memory_order(view: View) -> tuple[int, ...] | None:
    """The axes in the order in which they lie in memory, if the view is dense in some order."""
    rank = len(view.dims)
    for order in _likely_orders(rank):
        if dense([view.dims[a] for a in order], [view.strides[a] for a in order]):
            return order
    return _search_order(view)


def _likely_orders(rank: int) -> list[tuple[int, ...]]:
    orders = [tuple(range(rank))]
    if rank >= 3:
        orders.append((0, *range(2, rank), 1))  # channels last
    return orders


def _search_order(view: View) -> tuple[int, ...] | None:
    """Chain axes from the innermost (stride 1) outwards."""
    order: list[int] = []
    ones = [a for a in range(len(view.dims)) if view.dims[a] == 1]
    left = [a for a in range(len(view.dims)) if view.dims[a] != 1]
    step: Dim = dim(1)
    while left:
        found = next((a for a in left if view.strides[a] == step), None)
        if found is None:
            return None
        left.remove(found)
        order.append(found)
        step = step * view.dims[found]
    return (*ones, *reversed(order))
