"""What a lowering writes with: it asks for its operands, allocates its results, adds calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import onnx_ir as ir

from opsmith import ops
from opsmith.analysis.registry import Node, key_of
from opsmith.analysis.values import TYPES, Abstract, Array, Constant, DataType, Unsupported
from opsmith.compiler.kernel import GRID, Kernel, Kind, values, write
from opsmith.compiler.precision import FP32, Precision
from opsmith.compiler.program import (
    Argument,
    Buffer,
    Call,
    Fixed,
    Grid,
    Port,
    Program,
    Target,
    Tunable,
    View,
    Weight,
    buffer_of,
    channels_last_order,
    layout_order,
    pixel_stride,
)
from opsmith.compiler.task import Candidate
from opsmith.sizes import ONE, ZERO, Condition, Size, SizeLike, as_size, contiguous, product

COPY = Kernel("copy", "memory.hpp", [GRID])
PUT = Kernel("put", "memory.hpp", [write("y"), values("numbers", like="y")], pool=False, inline=True)

# between which half-precision images are kept in fp32
IMAGE_OPERATORS = frozenset(
    ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Resize", "Concat")
)
WEIGHT_ALIGNMENT = 4096
Made = TypeVar("Made")
MOST_DIMS = 10  # of a grid or a list of sizes: kGridRank and kSizesRank in the kernels


@dataclass(frozen=True)
class Place:
    """Where a value lies within another one: at channel `offset` of the Concat that reads it."""

    whole: ir.Value
    offset: Size


@dataclass(frozen=True)
class Region:
    """What lowerings may know of their surroundings; decided before the first of them runs."""

    nodes: frozenset[ir.Node]
    facts: Mapping[ir.Value, Abstract]
    outputs: Mapping[ir.Value, int]  # value -> its place among the region's outputs
    algorithms: Mapping[ir.Node, str] = field(default_factory=dict)  # convolution -> the kernel planned for it
    upsamples: Mapping[ir.Value, tuple[ir.Value, int]] = field(default_factory=dict)  # enlarged image -> source, factor
    places: Mapping[ir.Value, Place] = field(default_factory=dict)  # value -> where a Concat wants it written
    precisions: Mapping[ir.Node, Precision] = field(default_factory=dict)  # products that do not run in fp32
    narrow: Mapping[ir.Value, ir.DataType] = field(default_factory=dict)  # fp32 values that are stored in another type


class Builder:
    def __init__(self, program: Program, region: Region, target: Target) -> None:
        self.program = program
        self.region = region
        self.target = target
        self._views: dict[ir.Value, View] = {}
        self._weights: dict[str, Buffer] = {}
        self._copies: dict[tuple[object, ...], View] = {}
        self._made: dict[object, object] = {}
        self._names: set[str] = set()
        self._node = ""
        self._nodes: list[str] = []

    def begin(self, node: str, nodes: Sequence[str] = ()) -> None:
        """The calls that follow compute this node, and the others with it."""
        self._node, self._nodes = node, list(nodes)

    def bind_input(self, port: Port) -> None:
        """An input of the region lies dense in row-major order."""
        dims = port.facts.dims
        self._names.add(port.buffer.name)
        self._views[port.value] = View(port.buffer, dims, contiguous(dims), ZERO, port.facts.dtype)

    def finish(self) -> None:
        """Every output that does not lie in its own buffer yet is copied there."""
        for port in self.program.outputs:
            self.begin(port.value.name or "output")
            source = self.tensor(port.value)
            if source.buffer is not port.buffer:
                dims = port.facts.dims
                self.copy_into(source, View(port.buffer, dims, contiguous(dims), ZERO, port.facts.dtype))

    # --- operands ---

    def tensor(self, value: ir.Value | None) -> View:
        """The value in memory, wherever and in whatever order it lies."""
        if value is None:
            raise Unsupported("a required input is missing")
        if value not in self._views:
            self._views[value] = self._materialize(value, self.region.facts[value])
        return self._views[value]

    def _materialize(self, value: ir.Value, facts: Abstract) -> View:
        if facts.constant is not None:
            return self.weight(facts.constant)
        if facts.elements is None:
            raise KeyError(f"{value.name} was not lowered before its use")
        view = self.allocate(facts.dims, facts.dtype, hint=value.name or "elements")
        self.call(PUT, y=view, numbers=facts.elements, label="store", comment="shape arithmetic")
        return view

    def rows(self, value: ir.Value | None) -> View:
        """The value in row-major order without gaps; copied if it does not lie so already."""
        return self.dense(self.tensor(value))

    def inputs(self, node: Node, *indices: int) -> Iterator[View]:
        """Inputs of a node in row-major order."""
        return (self.rows(node.ir.inputs[i]) for i in indices)

    def optional(self, node: Node, index: int) -> View | None:
        """An input in row-major order; None where the node leaves it out."""
        return self.rows(node.ir.inputs[index]) if node.has(index) else None

    def dense(self, view: View, order: Sequence[int] | None = None) -> View:
        """The same value, dense with its axes in `order` (row-major by default)."""
        order = tuple(range(len(view.dims)) if order is None else order)
        strides = contiguous(view.dims, order)
        if all(a == b or d == 1 for a, b, d in zip(view.strides, strides, view.dims)):
            return view.with_(view.dims, strides)
        return self.copy(view, order)

    def copy(self, view: View, order: Sequence[int] | None = None) -> View:
        """A copy in another order, made once: values never change after they are written."""
        key = (view.buffer, view.offset, view.dims, view.strides, tuple(order or ()))
        if key not in self._copies:
            target = self.allocate(view.dims, view.dtype, order, hint=f"{view.buffer.name}_copy")
            self.copy_into(view, target)
            self._copies[key] = target
        return self._copies[key]

    def copy_into(self, source: View, target: View, order: Sequence[int] | None = None) -> None:
        """Copy and convert. `order` is that of the axes in memory, where the target is a part of something and cannot tell."""
        same = source.dtype == target.dtype
        self.call(
            COPY,
            grid=self.grid(target, [source], order),
            templates=(target.dtype, source.dtype),
            label="copy" if same else "cast",
            comment=f"copy {shape_text(source)}",
        )

    def grid(self, out: View, inputs: Sequence[View], order: Sequence[int] | None = None) -> Grid:
        if len(out.dims) > MOST_DIMS:
            raise Unsupported(f"rank {len(out.dims)} is above {MOST_DIMS}")
        return Grid(out, tuple(inputs), tuple(order or layout_order(out) or range(len(out.dims))))

    def as_float(self, view: View) -> View:
        """The value in fp32; kernels that compute in place on activations want that."""
        return self.as_type(view, DataType.FLOAT)

    def as_type(self, view: View, dtype: ir.DataType) -> View:
        """The value in another type, in the order in which it lies; converted once."""
        if view.dtype == dtype:
            return view
        key = (view.buffer, view.offset, view.dims, view.strides, dtype)
        if key not in self._copies:
            target = self.allocate(
                view.dims, dtype, layout_order(view), hint=f"{view.buffer.name}_{dtype.name.lower()}"
            )
            self.copy_into(view, target)
            self._copies[key] = target
        return self._copies[key]

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` gives, made the first time that this key is asked for: values never change after they are written."""
        if key not in self._made:
            self._made[key] = make()
        return cast("Made", self._made[key])

    # --- results ---

    def allocate(
        self, dims: Sequence[Size], dtype: ir.DataType, order: Sequence[int] | None = None, hint: str = "t"
    ) -> View:
        buffer = Buffer(self._unique(hint), dtype, product(dims), "arena")
        self.program.buffers.append(buffer)
        return View(buffer, tuple(dims), contiguous(dims, order), ZERO, dtype)

    def _unique(self, wanted: str) -> str:
        base = identifier(wanted)
        name, k = base, 2
        while name in self._names:
            name, k = f"{base}_{k}", k + 1
        self._names.add(name)
        return name

    def result(self, value: ir.Value, order: Sequence[int] | None = None, strided: bool = False) -> View:
        """Memory for a node's output: the region's own output buffer if that is where it belongs. `strided`: the caller can also
        write a part of the channels of a wider image."""
        facts = self.region.facts[value]
        if (
            strided
            and order == channels_last_order(len(facts.dims))
            and (part := self._part_of_whole(value)) is not None
        ):
            self._views[value] = part
            return part
        index = self.region.outputs.get(value)
        row_major = order is None or _row_major(order, facts.dims)
        if index is not None and row_major:
            buffer = self.program.outputs[index].buffer
            view = View(buffer, facts.dims, contiguous(facts.dims), ZERO, facts.dtype)
        else:
            dtype = DataType.FLOAT if self._stays_wide(value) else self.region.narrow.get(value, facts.dtype)
            view = self.allocate(facts.dims, dtype, order, hint=short_name(value))
        self._views[value] = view
        return view

    def _part_of_whole(self, value: ir.Value) -> View | None:
        """The place of a value inside the Concat that reads it; the first of its inputs brings the whole into being."""
        place = self.region.places.get(value)
        if place is None or self._stays_wide(value) != self._stays_wide(place.whole):
            return None
        if self.region.narrow.get(value) != self.region.narrow.get(place.whole):
            return None
        dims = self.region.facts[value].dims
        order = channels_last_order(len(dims))
        whole = self._views.get(place.whole) or self.result(place.whole, order, strided=True)
        pixel = pixel_stride(whole)
        assert pixel is not None
        # Its own sizes give the strides: they may be written in other terms than those of the whole, which a check holds equal.
        strides = [s * pixel for s in contiguous([dims[0], ONE, *dims[2:]], order)]
        return whole.with_(dims, [strides[0], ONE, *strides[2:]], whole.offset + place.offset)

    def begun(self, value: ir.Value) -> View | None:
        """The memory of a Concat, if one of its inputs was written there."""
        return self._views.get(value)

    def is_output(self, value: ir.Value) -> bool:
        return value in self.region.outputs

    def _stays_wide(self, value: ir.Value, depth: int = 8) -> bool:
        """A half-precision value on its way into a product is kept in fp32: the kernel reads it so, and nothing is rounded twice."""
        producer = value.producer()
        if self.region.facts[value].dtype not in (DataType.FLOAT16, DataType.BFLOAT16) or self.is_output(value):
            return False
        if self._is_wide_image(value):
            return True
        if producer is None or not (_elementwise(producer) or producer.op_type in ("Softmax", "MatMul")):
            return False
        for use in value.uses():
            if depth == 0 or use.node not in self.region.nodes:
                return False
            if use.node.op_type != "MatMul" and not (
                _elementwise(use.node) and self._stays_wide(use.node.outputs[0], depth - 1)
            ):
                return False
        return True

    def precision(self, node: Node) -> Precision:
        return self.region.precisions.get(node.ir, FP32)

    def operand(self, view: View, precision: Precision) -> View:
        """An activation as a product in this precision reads it; on CPUs without such products, in fp32."""
        narrow = precision is not FP32 and self.target.isa.multiplies_bf16
        return self.as_type(view, precision.stored if narrow else DataType.FLOAT)

    def _is_wide_image(self, value: ir.Value) -> bool:
        """An image between convolutions, and what stands between them: all of these read and write either type."""
        producer = value.producer()
        return (
            producer is not None
            and self.region.facts[value].rank > 3
            and (_elementwise(producer) or (producer.op_type in IMAGE_OPERATORS and not producer.domain))
            and self._read_in_either_type(value)
        )

    def _read_in_either_type(self, value: ir.Value) -> bool:
        for node, index in value.uses():
            if node not in self.region.nodes or self.is_output(value):
                return False
            if node.op_type == "Split" and not node.domain and all(map(self._read_in_either_type, node.outputs)):
                continue
            image = node.op_type in IMAGE_OPERATORS and not node.domain and (index == 0 or node.op_type == "Concat")
            if not (image or _elementwise(node)):
                return False
        return True

    def alias(self, value: ir.Value, view: View) -> None:
        """The value is a view of something that exists already; nothing runs."""
        self._views[value] = view

    # --- weights ---

    def weight(self, constant: Constant) -> View:
        """An unpacked constant in the weight file."""
        if constant.dtype not in TYPES:
            raise Unsupported(f"element type {constant.dtype.name} stays with ONNX Runtime")
        dims = tuple(as_size(d) for d in constant.dims)
        buffer = self.packed(constant.key, constant.dtype, constant.size, constant.read)
        return View(buffer, dims, contiguous(dims), ZERO, constant.dtype)

    def packed(self, key: str, dtype: ir.DataType, size: int, write: Callable[[], Array]) -> Buffer:
        """A buffer in the weight file whose contents `write` gives; shared by everyone who asks for the same key."""
        if key in self._weights:
            return self._weights[key]
        count = max(1, int(size * dtype.itemsize))
        alignment = WEIGHT_ALIGNMENT if count >= WEIGHT_ALIGNMENT else 64
        offset = -(-self.program.weight_bytes // alignment) * alignment
        self.program.weights[key] = Weight(key, offset, count, write)
        self.program.weight_bytes = offset + count
        buffer = Buffer(self._unique(f"w{len(self._weights)}"), dtype, as_size(size), "weight", slot=offset)
        self._weights[key] = buffer
        self.program.buffers.append(buffer)
        return buffer

    # --- calls ---

    def call(
        self,
        kernel: Kernel,
        some: Mapping[str, Argument] | None = None,
        /,
        *,
        label: str = "",
        comment: str = "",
        templates: Sequence[Fixed] = (),
        flops: SizeLike = 0,
        notes: Sequence[str] = (),
        loops: Sequence[tuple[str, Size]] = (),
        tunable: Tunable | None = None,
        binds: Size | None = None,
        precision: Precision | None = None,
        **arguments: Argument,
    ) -> None:
        """Append a call of the kernel. Its arguments come by name; those of `some` are given as a mapping. A label of its own
        replaces the kernel's name in profiles and in the generated source."""
        call = Call(
            kernel,
            {n: _normal(kernel, n, a) for n, a in {**(some or {}), **arguments}.items()},
            tuple(templates),
            label or kernel.name,
            self._node,
            list(self._nodes),
            comment or kernel.comment,
            as_size(flops),
            tuple(notes),
            tuple(loops),
            tunable,
            binds,
            precision=precision,
        )
        index = len(self.program.calls)
        self.program.calls.append(call)
        written = [buffer_of(w) for w in call.writes()]
        for buffer in written:
            if buffer.first < 0:
                buffer.first = index
        for buffer in (*written, *(buffer_of(r) for r in call.reads())):
            buffer.last = max(buffer.last, index)

    def limits(self, kernel: str) -> Candidate | None:
        """What the tuner found for this node's kernel, where it differs from the kernel's own choice."""
        outcome = self.target.tuned.get(self._node)
        measured = outcome.best.get(kernel) if outcome is not None else None
        return measured.candidate if measured is not None and measured.candidate.limited else None

    def check(self, condition: Condition, message: str) -> None:
        self.program.checks.append((self._node, condition, message))

    def check_all(self, nodes: Iterable[Node]) -> None:
        """What the analysis of these nodes left to be checked at run time."""
        self.program.checks += [(n.name, condition, message) for n in nodes for condition, message in n.checks]


def _normal(kernel: Kernel, name: str, argument: Argument) -> Argument:
    """Numbers become sizes, lists of sizes tuples."""
    kind = kernel.parameter(name).kind
    if kind is Kind.SIZE and isinstance(argument, int):
        return as_size(argument)
    if kind is Kind.SIZES and isinstance(argument, (list, tuple)):
        if len(argument) > MOST_DIMS:
            raise Unsupported(f"rank {len(argument)} is above {MOST_DIMS}")
        return tuple(as_size(a) for a in argument if isinstance(a, (Size, int)))
    return argument


def _elementwise(node: ir.Node) -> bool:
    return key_of(node) in ops.TABLE


def _row_major(order: Sequence[int], dims: Sequence[Size]) -> bool:
    """Whether this order is row-major, ignoring dims of size 1."""
    axes = [a for a in order if dims[a] != 1]
    return axes == sorted(axes)


def identifier(text: str) -> str:
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "t"
    return f"t_{name}" if name[0].isdigit() else name


def short_name(value: ir.Value) -> str:
    """A readable name for a value: the last parts of the exporter's path."""
    parts = [p for p in re.split(r"\W+", value.name or "t", flags=re.ASCII) if p]
    text = "_".join(parts[-3:])[-40:].strip("_")
    return f"t_{text}" if not text or text[0].isdigit() else text


def shape_text(view: View) -> str:
    return "(" + ", ".join(map(str, view.dims)) + ")"
