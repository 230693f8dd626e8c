"""A kernel's signature, declared once, beside the lowering that uses it.

    SOFTMAX = Kernel("softmax", "softmax.hpp", [*sizes("outer", "axis", "inner"), read("x"), write("y")])

A call names its arguments. What a call reads and writes, its workspace, its C++ declaration, its argument list and its headers
follow from the declaration, which the C++ compiler checks against the header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from onnx_ir import DataType


class Kind(Enum):
    SIZE = auto()  # i64
    REAL = auto()  # float
    DOUBLE = auto()
    FLAG = auto()  # bool
    READ = auto()  # const T*, T as the view has it
    WRITE = auto()  # T*
    UPDATE = auto()  # T*, read and written
    SIZES = auto()  # const Sizes&
    STRUCT = auto()
    VALUE = auto()  # T: one number in the type of another parameter
    VALUES = auto()  # const T (&)[N]: several
    GRID = auto()  # Grid<N>: an output and its operands, over which a map runs
    BODY = auto()  # what a map computes per element
    EPILOGUE = auto()  # what happens to a result before it is stored
    SPACE = auto()  # void*: scratch memory
    FIXED = auto()  # known when compiling: part of the instance, not an argument of it


@dataclass(frozen=True)
class Struct:
    """A C++ struct that a kernel takes; the fields in the order in which it declares them. The last ones may be left out."""

    name: str
    header: str
    fields: tuple[str, ...]
    template: str = ""  # the field whose element type is its template argument
    singles: tuple[str, ...] = ()  # fields that are float, not double


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: Kind
    like: str = ""  # the parameter whose element type this one has: always (VALUE), or where it is absent (READ)
    dtype: DataType | None = None  # a fixed element type
    struct: Struct | None = None
    optional: bool = False  # left out of the call where its argument is None


@dataclass(frozen=True)
class Space:
    """The C++ function that says how many bytes of workspace a call needs, and which of its arguments it takes."""

    function: str
    arguments: tuple[str, ...]
    templated: bool = False  # it takes the call's template arguments


@dataclass(frozen=True)
class Micro:
    """A microkernel of gemm_micro.hpp that a kernel ends in, for rows and panels of these types: each the name of a parameter that
    has it, or a C++ type. No epilogue is in it, so it is compiled once for all instances that share it: most of their code."""

    rows: str
    panels: str
    blocked: bool = False


@dataclass(frozen=True)
class Kernel:
    name: str
    header: str
    parameters: Sequence[Parameter]
    comment: str = ""
    space: Space | None = None  # None where the call itself gives the bytes
    pool: bool = True  # takes the thread pool first
    inline: bool = False  # called in the region's own file, without an instance in a file of its own
    check: str = ""  # it returns whether its data was right; the message if not
    counts: bool = False  # it returns how many results there are; see Call.binds
    micros: tuple[Micro, ...] = ()

    def parameter(self, name: str) -> Parameter:
        return next(p for p in self.parameters if p.name == name)

    def of(self, *kinds: Kind) -> list[Parameter]:
        return [p for p in self.parameters if p.kind in kinds]


# --- parameters ---


def sizes(*names: str) -> list[Parameter]:
    return [Parameter(n, Kind.SIZE) for n in names]


def size(name: str) -> Parameter:
    return Parameter(name, Kind.SIZE)


def real(name: str) -> Parameter:
    return Parameter(name, Kind.REAL)


def doubles(*names: str) -> list[Parameter]:
    return [Parameter(n, Kind.DOUBLE) for n in names]


def flag(name: str) -> Parameter:
    return Parameter(name, Kind.FLAG)


def read(name: str, like: str = "", dtype: DataType | None = None) -> Parameter:
    return Parameter(name, Kind.READ, like, dtype)


def write(name: str, like: str = "", dtype: DataType | None = None) -> Parameter:
    return Parameter(name, Kind.WRITE, like, dtype)


def update(name: str) -> Parameter:
    return Parameter(name, Kind.UPDATE)


def size_list(name: str) -> Parameter:
    return Parameter(name, Kind.SIZES)


def struct(name: str, kind: Struct | None = None, optional: bool = False) -> Parameter:
    """`kind` None: the argument says which struct it is."""
    return Parameter(name, Kind.STRUCT, struct=kind, optional=optional)


def value(name: str, like: str) -> Parameter:
    return Parameter(name, Kind.VALUE, like)


def values(name: str, like: str) -> Parameter:
    return Parameter(name, Kind.VALUES, like)


def fixed(name: str) -> Parameter:
    return Parameter(name, Kind.FIXED)


EPILOGUE = Parameter("epilogue", Kind.EPILOGUE)
SPACE = Parameter("workspace", Kind.SPACE)
GRID = Parameter("grid", Kind.GRID)
BODY = Parameter("body", Kind.BODY)
