"""What is known of a value before anything runs: its type and symbolic sizes, and, where it has them, its elements.

Abstract   type, dims, and for small values (shapes, axes, indices) the elements as sizes, so that shape arithmetic becomes
           code instead of data
Constant   an initializer, read from its memory-mapped file only when somebody needs its numbers
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from opsmith.sizes import Number, Scalar, Size, as_size, product

Array: TypeAlias = np.ndarray[Any, Any]
DataType = ir.DataType

# The element types that compiled code works on. Everything else (strings, complex, int4) stays with ORT.
HALVES = frozenset({DataType.FLOAT16, DataType.BFLOAT16})
FLOATS = HALVES | {DataType.FLOAT}  # computed as float vectors
INTEGERS = frozenset(
    {
        *(DataType.INT64, DataType.INT32, DataType.INT16, DataType.INT8),
        *(DataType.UINT64, DataType.UINT32, DataType.UINT16, DataType.UINT8),
    }
)
REALS = FLOATS | {DataType.DOUBLE}
TYPES = REALS | INTEGERS | {DataType.BOOL}
FLOATS8 = frozenset(  # read by Cast, and by nothing else
    {DataType.FLOAT8E4M3FN, DataType.FLOAT8E4M3FNUZ, DataType.FLOAT8E5M2, DataType.FLOAT8E5M2FNUZ}
)

SMALL = 64  # values of at most this many elements take part in shape arithmetic


class Unsupported(Exception):
    """A node that the compiler leaves to ORT; the message is the reason shown to the user."""

    node: ir.Node | None = None  # which one, where the one who raised it did not know


def kind(dtype: DataType) -> str:
    """f float, half or bfloat16; d double; i integer; b bool; 8 float of 8 bits; ? anything else."""
    if dtype in FLOATS:
        return "f"
    if dtype == DataType.DOUBLE:
        return "d"
    if dtype == DataType.BOOL:
        return "b"
    return "i" if dtype in INTEGERS else "8" if dtype in FLOATS8 else "?"


@dataclass(frozen=True, eq=False)
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

    def scalar(self) -> float | int | bool | None:
        """The number, if there is just one."""
        return self.read().reshape(-1)[0].item() if self.size == 1 else None

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


@dataclass(frozen=True, eq=False)
class Abstract:
    dtype: ir.DataType
    dims: tuple[Size, ...]
    elements: tuple[Scalar, ...] | None = None  # row-major; only for small values of one axis at most
    constant: Constant | None = None
    squeezed: bool = False  # dims that turn out to be 1 are left out when it runs: its rank is known only then
    folded: tuple[Scalar, ...] | None = (
        None  # of such a value that was given more axes: what `elements` is once they are gone
    )

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def size(self) -> Size:
        return product(self.dims)

    @property
    def runs(self) -> bool:
        """Whether it is computed when the program runs, and lies in memory then."""
        return self.elements is None and self.constant is None

    @property
    def numbers(self) -> tuple[Scalar, ...] | None:
        """What is known of its elements, row-major, however many axes it has."""
        return self.folded if self.elements is None else self.elements

    def static_dims(self) -> tuple[int, ...] | None:
        values = [d.value for d in self.dims]
        return None if any(v is None for v in values) else tuple(v for v in values if v is not None)

    def sizes(self) -> list[Size]:
        """Every size that is part of what is known."""
        return [*self.dims, *(e for e in self.elements or () if isinstance(e, Size))]


def abstract(dtype: ir.DataType, dims: Sequence[Size | int], elements: Sequence[Scalar] | None = None) -> Abstract:
    return Abstract(dtype, tuple(as_size(d) for d in dims), None if elements is None else tuple(elements))


def with_numbers(
    dtype: ir.DataType, dims: Sequence[Size], numbers: tuple[Scalar, ...] | None, constant: Constant | None = None
) -> Abstract:
    """A value with these elements, row-major, which take part in shape arithmetic as long as it has one axis at most.

    Exporters pair the amounts of a Pad in a matrix to bring them into another order: Reshape, Slice, Transpose, Reshape.
    """
    flat = len(dims) <= 1
    return Abstract(dtype, tuple(dims), numbers if flat else None, constant, folded=None if flat else numbers)


def of_constant(constant: Constant) -> Abstract:
    elements: tuple[Scalar, ...] | None = None
    if constant.size <= SMALL and len(constant.dims) <= 1 and constant.dtype in TYPES:
        numbers = constant.read().reshape(-1)
        if constant.dtype in INTEGERS or constant.dtype == DataType.BOOL:
            elements = tuple(as_size(int(x)) for x in numbers)
        else:
            elements = tuple(Number(float(x)) for x in numbers)
    return Abstract(constant.dtype, tuple(as_size(d) for d in constant.dims), elements, constant)
