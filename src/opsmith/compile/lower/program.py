"""A region as a short list of kernel calls on buffers, and the object that lowerings write it with."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.compile.dims import ONE, ZERO, Dim, DimLike, contiguous, dim, product
from opsmith.compile.lower.registry import INFER, LOWER, Node, key_of
from opsmith.compile.task import Candidate, Outcome
from opsmith.compile.values import (
    CPP,
    Abstract,
    Array,
    Buffer,
    Constant,
    FloatScalar,
    Unsupported,
    View,
    float_literal,
    memory_order,
)


@dataclasses.dataclass(frozen=True)
class Tunable:
    """What the tuner must know of a call: the kernel family, the kernel in use, and its sizes (numbers, text or dims)."""

    family: str
    kernel: str
    sizes: Mapping[str, DimLike | str]
    limits: Candidate | None = None  # those in use; None: the kernel's own


@dataclasses.dataclass(frozen=True)
class Instance:
    """One instantiation of a kernel template, in a source file of its own: shared by all calls that need it, by all
    regions, and through the build cache by all models."""

    name: str
    parameters: str
    includes: tuple[str, ...]
    body: str
    comment: str


@dataclasses.dataclass
class Call:
    """One line of the generated program."""

    kernel: str
    text: str
    node: str
    comment: str
    reads: list[Buffer]
    writes: list[Buffer]
    flops: Dim = ZERO
    bytes: Dim = ZERO
    nodes: list[str] = dataclasses.field(default_factory=list)  # every original node that this call computes
    notes: list[str] = dataclasses.field(default_factory=list)  # algorithm choices, for opsmith.json
    can_fail: bool = False  # it checks data (indices), and the run ends if the check fails
    tunable: Tunable | None = None


@dataclasses.dataclass
class Weight:
    """Packed numbers in the region's weight file."""

    key: str
    offset: int
    bytes: int
    write: Callable[[], Array]  # gives the packed array; called once, when the file is written


@dataclasses.dataclass
class Port:
    """An input or output of the region."""

    value: ir.Value
    buffer: Buffer
    facts: Abstract


WEIGHT_ALIGNMENT = 4096


@dataclasses.dataclass
class Program:
    """Everything that emission needs to know about one lowered region."""

    name: str
    inputs: list[Port] = dataclasses.field(default_factory=list)
    outputs: list[Port] = dataclasses.field(default_factory=list)
    calls: list[Call] = dataclasses.field(default_factory=list)
    buffers: list[Buffer] = dataclasses.field(default_factory=list)
    instances: dict[str, Instance] = dataclasses.field(default_factory=dict)
    weights: dict[str, Weight] = dataclasses.field(default_factory=dict)
    checks: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)  # node, C++ condition, message
    workspaces: list[str] = dataclasses.field(
        default_factory=list
    )  # C++ byte counts; one shared buffer holds the largest
    locals: dict[str, str] = dataclasses.field(default_factory=dict)  # atom -> name of the C++ local that holds it
    weight_bytes: int = 0
    instance_headers: set[str] = dataclasses.field(default_factory=set)  # declare types in instances' signatures
    headers: set[str] = dataclasses.field(default_factory=lambda: {"ort_abi.hpp", "memory.hpp"})


@dataclasses.dataclass(frozen=True)
class Target:
    """The machine that code is made for, and what the user allows."""

    lanes: int  # floats in a vector: 16 with AVX-512, 8 with AVX, 4 elsewhere
    strict: bool = False  # no algorithm that changes rounding beyond plain reordering (Winograd, ...)
    tuned: Mapping[str, Outcome] = dataclasses.field(default_factory=dict)  # node -> what was measured for its kernels


@dataclasses.dataclass
class Group:
    """Nodes that run as one loop: see fuse.py. `root` is stored; `anchor`, if any, is the kernel they are an epilogue of."""

    root: ir.Node
    nodes: list[ir.Node] = dataclasses.field(default_factory=list)  # elementwise members, in topological order
    anchor: ir.Node | None = None

    def leaves(self) -> list[ir.Value]:
        """Values that come from outside, each once, in order of first use."""
        inside = {o for n in self.nodes for o in n.outputs}
        if self.anchor is not None:
            inside.add(self.anchor.outputs[0])
        found: dict[ir.Value, None] = {}
        for node in self.nodes:
            for value in operands(node):
                if value not in inside:
                    found[value] = None
        return list(found)


def operands(node: ir.Node) -> list[ir.Value]:
    """The inputs that an elementwise node reads; CastLike looks only at the type of its second one."""
    present = [v for v in node.inputs if v is not None]
    return present[:1] if node.op_type == "CastLike" else present


class Lowering:
    """What a lowering function writes to: asks for its operands, allocates its results, adds calls."""

    def __init__(
        self, program: Program, facts: dict[ir.Value, Abstract], outputs: Sequence[ir.Value], target: Target
    ) -> None:
        self.program = program
        self.target = target
        self.facts = facts
        self.views: dict[ir.Value, View] = {}
        self._outputs = {v: i for i, v in enumerate(outputs)}
        self._weight_buffers: dict[str, Buffer] = {}
        self._copies: dict[tuple[Any, ...], View] = {}
        self._names: set[str] = {"run", "pool", "workspace", "arena", "watch", "weights"}
        self.node = ""
        self.nodes: list[str] = []
        self.group: Group = Group(ir.Node("", "Identity", []))  # the group of the anchor being lowered
        self.known: dict[ir.Node, Node] = {}
        self.inside: set[ir.Node] = set()  # the region's nodes
        self.algorithms: dict[ir.Node, Any] = {}  # conv node -> conv.Algorithm
        self.upsampled: dict[ir.Value, tuple[View, int]] = {}  # resized image that only convolutions read -> its source

    def bind_input(self, port: Port) -> None:
        """An input of the region lies dense in row-major order."""
        dims = port.facts.dims
        self._names.add(port.buffer.name)
        self.views[port.value] = View(port.buffer, dims, contiguous(dims), ZERO, port.facts.dtype)

    def finish(self, outputs: Sequence[ir.Value]) -> None:
        """Every output that does not lie in its own buffer yet is copied there."""
        for port, value in zip(self.program.outputs, outputs):
            self.node, self.nodes = value.name or "output", []
            source = self.tensor(value)
            if source.buffer is port.buffer:
                continue
            dims = port.facts.dims
            self.emit_copy(source, View(port.buffer, dims, contiguous(dims), ZERO, port.facts.dtype))

    # --- C++ text of sizes ---

    def cpp(self, value: DimLike) -> str:
        """C++ text of a size, with long atoms replaced by named locals."""
        d = dim(value)
        if not any("(" in a or "[" in a for a in d.atoms()):
            return d.cpp()
        renamed: dict[tuple[str, ...], int] = {}
        for monomial, coefficient in d.terms.items():
            renamed[tuple(sorted(self._local(a) for a in monomial))] = coefficient
        return Dim(renamed).cpp()

    def _local(self, atom: str) -> str:
        if "(" not in atom and "[" not in atom:
            return atom
        if atom not in self.program.locals:
            self.program.locals[atom] = f"n{len(self.program.locals)}"
        return self.program.locals[atom]

    def braces(self, values: Sequence[DimLike]) -> str:
        return "{" + ", ".join(self.cpp(v) for v in values) + "}"

    def pointer(self, view: View) -> str:
        if view.offset == 0:
            return view.buffer.name
        return f"{view.buffer.name} + {self.cpp(view.offset)}"

    # --- operands ---

    def tensor(self, value: ir.Value | None) -> View:
        """The value in memory, wherever and in whatever order it lies."""
        if value is None:
            raise Unsupported("a required input is missing")
        if value in self.views:
            return self.views[value]
        facts = self.facts[value]
        if facts.constant is not None:
            view = self.weight(facts.constant)
        elif facts.elements is not None:
            view = self._from_elements(facts, value.name or "elements")
        else:
            raise KeyError(f"{value.name} was not lowered before its use")
        self.views[value] = view
        return view

    def rows(self, value: ir.Value | None) -> View:
        """The value in row-major order without gaps; copied if it does not lie so already."""
        return self.dense(self.tensor(value))

    def dense(self, view: View, order: Sequence[int] | None = None) -> View:
        """The same value, dense with its axes in `order` (row-major by default)."""
        order = tuple(range(len(view.dims)) if order is None else order)
        strides = contiguous(view.dims, order)
        if all(a == b or d == 1 for a, b, d in zip(view.strides, strides, view.dims)):
            return view.with_(view.dims, strides)
        return self.copy(view, order)

    def copy(self, view: View, order: Sequence[int] | None = None) -> View:
        """A copy in another order, made once: values never change after they are written."""
        key = (view.buffer.name, view.offset, view.dims, view.strides, tuple(order or ()))
        if key not in self._copies:
            target = self.allocate(view.dims, view.dtype, order, hint=f"{view.buffer.name}_copy")
            self.emit_copy(view, target)
            self._copies[key] = target
        return self._copies[key]

    def emit_copy(self, source: View, target: View, order: Sequence[int] | None = None) -> None:
        """`order`: of the axes in memory, where the target is a part of something and cannot tell."""
        t, f = CPP[target.dtype], CPP[source.dtype]
        name = self.instance(
            f"copy_{f}" if t == f else f"cast_{f}_{t}",
            "const Pool& pool, const Grid<1>& grid",
            f"copy<{t}, {f}>(pool, grid);",
            ("memory.hpp",),
            "the same numbers in another order" if t == f else f"{f} to {t}",
        )
        self.call(
            name,
            f"{name}(pool, {self.grid(target, [source], order)});",
            reads=[source],
            writes=[target],
            comment=f"copy {_dims(source.dims)}",
        )

    def grid(self, out: View, inputs: Sequence[View], order: Sequence[int] | None = None) -> str:
        """C++ text of a Grid: dims in the output's memory order, strides of every operand (0 where broadcast)."""
        order = order or memory_order(out) or tuple(range(len(out.dims)))
        if len(out.dims) > 10:
            raise Unsupported(f"rank {len(out.dims)} is above 10")
        dims = [out.dims[a] for a in order]
        operands = [self._operand(self.pointer(out), [out.strides[a] for a in order])]
        for view in inputs:
            operands.append(self._operand(self.pointer(view), list(self._spread(view, out.dims, order))))
        return f"Grid<{len(inputs)}>{{{len(dims)}, {self.braces(dims)}, {operands[0]}, {{{', '.join(operands[1:])}}}}}"

    def _operand(self, pointer: str, strides: Sequence[str | Dim]) -> str:
        text = ", ".join(s if isinstance(s, str) else self.cpp(s) for s in strides)
        return f"{{{pointer}, {{{text}}}}}"

    def _spread(self, view: View, dims: Sequence[Dim], order: Sequence[int]) -> list[str]:
        """Strides of an operand under broadcasting to `dims`; decided at run time where names do not settle it."""
        lead = len(dims) - len(view.dims)
        strides: list[str] = []
        for axis in order:
            if axis < lead or view.dims[axis - lead] == 1:
                strides.append("0")
            elif view.dims[axis - lead] == dims[axis]:
                strides.append(self.cpp(view.strides[axis - lead]))
            else:
                d, s = self.cpp(view.dims[axis - lead]), self.cpp(view.strides[axis - lead])
                strides.append(f"spread({d}, {s})")
        return strides

    # --- results ---

    def name(self, wanted: str) -> str:
        """A C++ identifier that nothing else uses."""
        base = identifier(wanted)
        name, k = base, 2
        while name in self._names:
            name, k = f"{base}_{k}", k + 1
        self._names.add(name)
        return name

    def allocate(
        self, dims: Sequence[Dim], dtype: ir.DataType, order: Sequence[int] | None = None, hint: str = "t"
    ) -> View:
        buffer = Buffer(self.name(hint), dtype, product(dims), "arena")
        self.program.buffers.append(buffer)
        return View(buffer, tuple(dims), contiguous(dims, order), ZERO, dtype)

    def result(self, value: ir.Value, order: Sequence[int] | None = None) -> View:
        """Memory for a node's output: the region's own output buffer if that is where it belongs."""
        facts = self.facts[value]
        index = self._outputs.get(value)
        row_major = order is None or dense_order(order, facts.dims)
        if index is not None and row_major:
            buffer = self.program.outputs[index].buffer
            view = View(buffer, facts.dims, contiguous(facts.dims), ZERO, facts.dtype)
        else:
            dtype = ir.DataType.FLOAT if self._stays_wide(value) else facts.dtype
            view = self.allocate(facts.dims, dtype, order, hint=short_name(value))
        self.views[value] = view
        return view

    def is_output(self, value: ir.Value) -> bool:
        return value in self._outputs

    def _stays_wide(self, value: ir.Value, depth: int = 8) -> bool:
        """A half-precision value on its way into a product is kept in fp32: the kernel reads it so, and nothing is rounded twice."""
        producer = value.producer()
        if self.facts[value].dtype not in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) or self.is_output(value):
            return False
        if producer is None or not (self._elementwise(producer) or producer.op_type in ("Softmax", "MatMul")):
            return False
        for use in value.uses():
            node = use.node
            if depth == 0 or node not in self.inside:
                return False
            if node.op_type != "MatMul" and not (
                self._elementwise(node) and self._stays_wide(node.outputs[0], depth - 1)
            ):
                return False
        return True

    def _elementwise(self, node: ir.Node) -> bool:
        return key_of(node) in INFER and key_of(node) not in LOWER

    def alias(self, value: ir.Value, view: View) -> None:
        """The value is a view of something that exists already; nothing runs."""
        self.views[value] = view

    def weight(self, constant: Constant) -> View:
        """An unpacked constant in the weight file."""
        if constant.dtype not in CPP:
            raise Unsupported(f"element type {constant.dtype.name} has no C++ storage")
        view_dims = tuple(dim(d) for d in constant.dims)
        buffer = self.packed(constant.key, constant.dtype, constant.size, constant.dtype.itemsize, constant.read)
        return View(buffer, view_dims, contiguous(view_dims), ZERO, constant.dtype)

    def packed(self, key: str, dtype: ir.DataType, size: int, itemsize: float, write: Callable[[], Array]) -> Buffer:
        """A buffer in the weight file whose contents `write` gives; shared by everyone who asks for the same key."""
        if key in self._weight_buffers:
            return self._weight_buffers[key]
        count = max(1, int(size * itemsize))
        offset = self.program.weight_bytes
        alignment = WEIGHT_ALIGNMENT if count >= WEIGHT_ALIGNMENT else 64
        offset = -(-offset // alignment) * alignment
        self.program.weights[key] = Weight(key, offset, count, write)
        self.program.weight_bytes = offset + count
        buffer = Buffer(self.name(f"w{len(self._weight_buffers)}"), dtype, dim(size), "weight")
        buffer.slot = offset
        self._weight_buffers[key] = buffer
        self.program.buffers.append(buffer)
        return buffer

    def buffer(self, name: str) -> Buffer:
        """The buffer behind a C++ variable."""
        return next(b for b in self.program.buffers if b.name == name)

    def _from_elements(self, facts: Abstract, hint: str) -> View:
        """Write shape arithmetic into memory for a kernel that wants it there."""
        view = self.allocate(facts.dims, facts.dtype, hint=hint)
        cpp = CPP[facts.dtype]
        elements = facts.elements or ()
        texts = [f"({cpp})({e.text if isinstance(e, FloatScalar) else self.cpp(e)})" for e in elements]
        stores = " ".join(f"{view.buffer.name}[{i}] = {t};" for i, t in enumerate(texts))
        self.call("store", stores, reads=[], writes=[view], comment="shape arithmetic")
        return view

    # --- calls ---

    def instance(self, prefix: str, parameters: str, body: str, includes: Sequence[str], comment: str) -> str:
        digest = hashlib.sha256(f"{parameters}|{body}|{includes}".encode()).hexdigest()[:6]
        name = f"{identifier(prefix)}_{digest}"
        self.program.instances.setdefault(name, Instance(name, parameters, tuple(includes), body, comment))
        return name

    def workspace(self, byte_count: str, header: str) -> str:
        """Ask for scratch memory for one call; the argument is C++ text, `header` declares its functions."""
        self.program.workspaces.append(byte_count)
        self.program.headers.add(header)
        return "workspace"

    def call(
        self,
        kernel: str,
        text: str,
        *,
        reads: Sequence[View | Buffer],
        writes: Sequence[View | Buffer],
        comment: str = "",
        flops: DimLike = 0,
        notes: Sequence[str] = (),
        can_fail: bool = False,
        header: str | None = None,
        tunable: Tunable | None = None,
    ) -> None:
        index = len(self.program.calls)
        read = [r.buffer if isinstance(r, View) else r for r in reads]
        written = [w.buffer if isinstance(w, View) else w for w in writes]
        for buffer in written:
            if buffer.first < 0:
                buffer.first = index
        for buffer in (*read, *written):
            buffer.last = max(buffer.last, index)
        moved: Dim = ZERO
        for v in (*reads, *writes):
            if isinstance(v, View):
                touched = product(d for d, s in zip(v.dims, v.strides) if s != 0)
                moved = moved + touched * int(v.dtype.itemsize)
            else:
                moved = moved + v.elements * int(v.dtype.itemsize)
        self.program.calls.append(
            Call(
                kernel,
                text,
                self.node,
                comment,
                read,
                written,
                dim(flops),
                moved,
                list(self.nodes),
                list(notes),
                can_fail,
                tunable,
            )
        )
        if header is not None:
            self.program.headers.add(header)

    def limits(self, kernel: str) -> Candidate | None:
        """What the tuner found for this node's kernel, where it differs from the kernel's own choice."""
        outcome = self.target.tuned.get(self.node)
        found = outcome.best.get(kernel) if outcome is not None else None
        return found.candidate if found is not None and found.candidate.limited else None

    def check(self, condition: str, message: str) -> None:
        self.program.checks.append((self.node, condition, message))


def dense_order(order: Sequence[int], dims: Sequence[Dim]) -> bool:
    """Whether this order is row-major, ignoring dims of size 1."""
    axes = [a for a in order if dims[a] != 1]
    return axes == sorted(axes)


def identifier(text: str) -> str:
    name = re.sub(r"\W+", "_", text).strip("_") or "t"
    return f"t_{name}" if name[0].isdigit() else name


def input_name(index: int, value: ir.Value) -> str:
    """The C++ variable of a region's input."""
    return f"in{index}_{identifier(value.name or '')}"[:48]


def short_name(value: ir.Value) -> str:
    """A readable name for a value: the last parts of the exporter's path."""
    parts = [p for p in re.split(r"[^\w]+", value.name or "t") if p]
    text = "_".join(parts[-3:])[-40:].strip("_")
    return f"t_{text}" if not text or text[0].isdigit() else text


def _dims(dims: Sequence[Dim]) -> str:
    return "(" + ", ".join(d.cpp() for d in dims) + ")"


def describe(view: View) -> str:
    return _dims(view.dims)


__all__ = [
    "ONE",
    "Call",
    "Instance",
    "Lowering",
    "Port",
    "Program",
    "Tunable",
    "Weight",
    "describe",
    "float_literal",
    "np",
]
