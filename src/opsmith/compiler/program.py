"""A region as a program: typed kernel calls on buffers. It knows nothing of C++ or of an instruction set; emit.py prints it.

    Buffer    a piece of memory: an input or output of the region, packed weights, or a span of the arena
    View      where a value lies in a buffer: offset, dims, strides; Transpose, Slice and most Reshapes are views
    Call      a kernel (kernel.py) with named arguments; what happens to its result before it is stored is an Epilogue
    Program   calls in order, with the region's inputs, outputs, weights and run-time checks

`verify` holds a program against its own rules; `show` prints it for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from opsmith.analysis.values import Abstract, Array
from opsmith.compiler.geometry import InstructionSet
from opsmith.compiler.kernel import Kernel, Kind, Struct
from opsmith.compiler.precision import FP32, Precision
from opsmith.compiler.task import Candidate, Outcome
from opsmith.expressions import ACCUMULATOR, Expr, Literal, Op, Var
from opsmith.sizes import ZERO, AnyOf, Compare, Condition, Holds, Real, Scalar, Size, SizeLike, as_size, product

# --- memory ---


@dataclass(eq=False)
class Buffer:
    name: str  # readable and unique within the program
    dtype: ir.DataType
    elements: Size
    place: str  # "input" | "output" | "weight" | "arena"
    first: int = -1  # call that writes it first
    last: int = -1  # call that reads it last
    slot: int = -1  # arena slot, given by the planner; of a weight its offset in the file


@dataclass(frozen=True, eq=False)
class View:
    buffer: Buffer
    dims: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size
    dtype: ir.DataType

    def with_(self, dims: Sequence[Size], strides: Sequence[Size], offset: Size | None = None) -> View:
        return View(self.buffer, tuple(dims), tuple(strides), self.offset if offset is None else offset, self.dtype)

    def is_contiguous(self) -> bool:
        return dense(self.dims, self.strides)


def dense(dims: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether these dims lie row-major without gaps; the stride of a dim of size 1 does not matter."""
    step = as_size(1)
    for d, s in zip(reversed(dims), reversed(strides)):
        if d == 1:
            continue
        if s != step:
            return False
        step = step * d
    return True


def even(strides: Sequence[Size], dims: Sequence[Size]) -> bool:
    """Whether one stride walks over all of these dims in order."""
    step: Size | None = None
    for s, d in zip(reversed(strides), reversed(dims)):
        if d == 1:
            continue
        if step is not None and s != step:
            return False
        step = s * d
    return True


def permuted(view: View, perm: Sequence[int]) -> View:
    return view.with_([view.dims[p] for p in perm], [view.strides[p] for p in perm])


def memory_order(view: View) -> tuple[int, ...] | None:
    """The axes in the order in which they lie in memory, if the view is dense in some order."""
    rank = len(view.dims)
    likely = [tuple(range(rank)), *([(0, *range(2, rank), 1)] if rank >= 3 else [])]  # row-major, channels last
    for order in likely:
        if dense([view.dims[a] for a in order], [view.strides[a] for a in order]):
            return order
    return _search_order(view)


def channels_last_order(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)


def pixel_stride(view: View) -> Size | None:
    """Elements from one pixel of an image (N, C, spatial...) to the next, if its channels are contiguous and one stride walks
    over all its pixels; the channels may be a part of wider ones. None if it does not lie so."""
    if len(view.dims) < 3 or (view.dims[1] != 1 and view.strides[1] != 1):
        return None
    if not even(view.strides[2:], view.dims[2:]):
        return None
    return next((s for s, d in zip(reversed(view.strides[2:]), reversed(view.dims[2:])) if d != 1), view.dims[1])


def layout_order(view: View) -> tuple[int, ...] | None:
    """The order of the axes in memory: of a dense view, or of a part of the channels of a channels-last one."""
    order = memory_order(view)
    if order is None and pixel_stride(view) is not None and view.dims[1] != 1:
        return channels_last_order(len(view.dims))
    return order


def _search_order(view: View) -> tuple[int, ...] | None:
    """Chain axes from the innermost (stride 1) outwards."""
    order: list[int] = []
    ones = [a for a in range(len(view.dims)) if view.dims[a] == 1]
    left = [a for a in range(len(view.dims)) if view.dims[a] != 1]
    step = as_size(1)
    while left:
        inner = next((a for a in left if view.strides[a] == step), None)
        if inner is None:
            return None
        left.remove(inner)
        order.append(inner)
        step = step * view.dims[inner]
    return (*ones, *reversed(order))


# --- what is computed per element ---


@dataclass(frozen=True)
class Let:
    """`name = expression`; the accumulator may be given a new value, everything else is named once."""

    name: str
    dtype: ir.DataType
    expression: Expr


@dataclass(frozen=True)
class ScalarOperand:
    """A run-time number of shape arithmetic that a body uses."""

    name: str
    dtype: ir.DataType
    value: Scalar


@dataclass(frozen=True)
class RowOperand:
    """A tensor as an epilogue reads it: at the column if `dense`, else one number for the whole row; at `step` elements per
    row ("index"), per batch item or image ("outer"), or the same for all rows ("")."""

    name: str
    view: View
    dense: bool
    row: str
    step: Size


@dataclass(frozen=True)
class Body:
    """What a map computes from an element of each operand (x0, x1, ...)."""

    operands: tuple[tuple[str, ir.DataType], ...]
    scalars: tuple[ScalarOperand, ...]
    lets: tuple[Let, ...]
    result: Expr
    vector: bool  # on vector registers; else element by element, in the operands' own types
    comment: str = ""


@dataclass(frozen=True)
class Epilogue:
    """What happens to a kernel's result, `acc`, before it is stored. Kernels on bytes have sums of INT32."""

    operands: tuple[RowOperand, ...] = ()
    scalars: tuple[ScalarOperand, ...] = ()
    lets: tuple[Let, ...] = ()
    result: Expr = ACCUMULATOR
    slug: str = ""
    comment: str = ""
    sums: ir.DataType = ir.DataType.FLOAT  # the type of `acc`
    stored: ir.DataType = ir.DataType.FLOAT  # and of the result


IDENTITY = Epilogue()


# --- arguments ---


@dataclass(frozen=True)
class StructValue:
    struct: Struct
    fields: Mapping[str, Argument]
    dtype: ir.DataType | None = None  # its template argument, where no field tells it

    def ordered(self) -> list[Argument]:
        return [self.fields[f] for f in self.struct.fields if f in self.fields]


@dataclass(frozen=True)
class Enumerator:
    """A named constant of the kernel library: Border::reflect, or a template argument such as FoldSum."""

    name: str


@dataclass(frozen=True)
class Grid:
    """An output and the operands that are read for each of its elements; dims in the order of memory."""

    out: View
    inputs: tuple[View, ...]
    order: tuple[int, ...]


Argument: TypeAlias = "Size | Real | bool | int | float | View | Buffer | StructValue | Enumerator | Grid | Body | Epilogue | Sequence[Argument] | None"
Fixed: TypeAlias = ir.DataType | int | bool | Enumerator  # a template argument


# --- calls ---


@dataclass(frozen=True)
class Tunable:
    """What the tuner must know of a call: the kernel family, the kernel in use, and its sizes."""

    family: str
    kernel: str
    sizes: Mapping[str, SizeLike | str]
    limits: Candidate | None = None  # those in use; None: the kernel's own


@dataclass
class Call:
    """One step of the program."""

    kernel: Kernel
    arguments: Mapping[str, Argument]
    templates: tuple[Fixed, ...]
    label: str  # the kernel's name as profiles show it: with what its epilogue does
    node: str
    nodes: list[str]  # every node of the rewritten region that this call computes
    comment: str
    flops: Size = ZERO
    notes: tuple[str, ...] = ()  # algorithm choices, for opsmith.json
    loops: tuple[tuple[str, Size], ...] = ()  # the call runs for each value of these names, outermost first
    tunable: Tunable | None = None
    # A size that only this call knows: what the kernel returns. Only outputs of the region have it.
    binds: Size | None = None
    precision: Precision | None = None  # of a product

    @property
    def epilogue(self) -> Epilogue:
        epilogue = self.arguments.get("epilogue")
        return epilogue if isinstance(epilogue, Epilogue) else IDENTITY

    def reads(self) -> list[View | Buffer]:
        operands: list[View | Buffer] = [o.view for o in self.epilogue.operands]
        for p in self.kernel.parameters:
            if p.kind is not Kind.WRITE:
                operands += _memory_in(self.arguments.get(p.name))
        return operands

    def writes(self) -> list[View | Buffer]:
        written: list[View | Buffer] = []
        for p in self.kernel.of(Kind.WRITE, Kind.UPDATE):
            written += _memory_in(self.arguments.get(p.name))
        return written + [g.out for g in self.arguments.values() if isinstance(g, Grid)]

    def bytes(self) -> Size:
        """The bytes that are moved: every element of every operand once, not counting what is broadcast."""
        moved = ZERO
        for operand in (*self.reads(), *self.writes()):
            if isinstance(operand, View):
                touched = product(d for d, s in zip(operand.dims, operand.strides) if s != 0)
            else:
                touched = operand.elements
            moved = moved + touched * int(operand.dtype.itemsize)
        return moved


def _memory_in(argument: Argument) -> list[View | Buffer]:
    if isinstance(argument, (View, Buffer)):
        return [argument]
    if isinstance(argument, Grid):
        return list(argument.inputs)
    if isinstance(argument, StructValue):
        return [m for v in argument.fields.values() for m in _memory_in(v)]
    return []


def buffer_of(operand: View | Buffer) -> Buffer:
    return operand.buffer if isinstance(operand, View) else operand


# --- programs ---


@dataclass
class Weight:
    """Packed numbers in the region's weight file."""

    key: str
    offset: int
    bytes: int
    write: Callable[[], Array]  # gives the packed array; called once, when the file is written


@dataclass
class Port:
    """An input or output of the region."""

    value: ir.Value
    buffer: Buffer
    facts: Abstract


@dataclass
class Program:
    name: str
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)
    checks: list[tuple[str, Condition, str]] = field(default_factory=list)  # node, what must hold, message
    weight_bytes: int = 0
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # node -> those of the source it stands for

    def origins_of(self, nodes: Iterable[str]) -> list[str]:
        return list(dict.fromkeys(name for node in nodes for name in self.origins.get(node, (node,))))

    def verify(self) -> None:
        """Every rule that the printer and the planner rely on; an AssertionError is a bug of a lowering."""
        written = {p.buffer for p in self.inputs} | {b for b in self.buffers if b.place == "weight"}
        for call in self.calls:
            _check_arguments(call)
            assert call.kernel.counts == (call.binds is not None), f"{call.label}: what it counts"
            for operand in call.reads():
                assert buffer_of(operand) in written, (
                    f"{call.label} reads {buffer_of(operand).name} before it is written"
                )
                _check_operand(call, operand)
            for operand in call.writes():
                assert buffer_of(operand).place in ("arena", "output"), f"{call.label} writes {buffer_of(operand).name}"
                _check_operand(call, operand)
                written.add(buffer_of(operand))
        for port in self.outputs:
            assert port.buffer in written, f"the output {port.buffer.name} is never written"


def _check_operand(call: Call, operand: View | Buffer) -> None:
    if isinstance(operand, View):
        assert len(operand.dims) == len(operand.strides), f"{call.label}: rank of {operand.buffer.name}"
        assert operand.dtype == operand.buffer.dtype, f"{call.label}: type of {operand.buffer.name}"


_ACCEPTS: dict[Kind, tuple[type, ...]] = {
    Kind.SIZE: (Size, int),
    Kind.REAL: (float, int),
    Kind.DOUBLE: (float, int, Real),
    Kind.FLAG: (bool,),
    Kind.READ: (View, Buffer, type(None)),
    Kind.WRITE: (View, Buffer, type(None)),
    Kind.UPDATE: (View,),
    Kind.SIZES: (tuple,),
    Kind.STRUCT: (StructValue,),
    Kind.VALUE: (float, int, bool, Size, Real, View),
    Kind.VALUES: (tuple,),
    Kind.GRID: (Grid,),
    Kind.BODY: (Body,),
    Kind.EPILOGUE: (Epilogue,),
    Kind.SPACE: (Size, type(None)),
    Kind.FIXED: (Enumerator, bool, int, ir.DataType),
}


def _check_arguments(call: Call) -> None:
    for p in call.kernel.parameters:
        argument = call.arguments.get(p.name)
        if argument is None and (p.optional or p.kind is Kind.SPACE):
            continue
        assert isinstance(argument, _ACCEPTS[p.kind]), f"{call.label}: {p.name} is {argument!r}"
        if isinstance(argument, StructValue):
            given = [f for f in argument.struct.fields if f in argument.fields]
            assert given == list(argument.struct.fields[: len(given)]), f"{call.label}: fields of {p.name}"
            assert len(given) == len(argument.fields), f"{call.label}: unknown fields of {p.name}"
    unknown = set(call.arguments) - {p.name for p in call.kernel.parameters}
    assert not unknown, f"{call.label}: no parameter {unknown}"


@dataclass(frozen=True)
class Target:
    """The machine that code is made for, and what the user allows."""

    isa: InstructionSet
    strict: bool = False  # no algorithm that changes rounding beyond plain reordering (Winograd, ...)
    tuned: Mapping[str, Outcome] = field(default_factory=dict)  # node -> what was measured for its kernels
    sizes: Mapping[str, int] = field(default_factory=dict)  # dynamic dims of the inputs that the model is judged with
    precision: Precision = FP32  # of products
    precisions: Mapping[str, Precision] = field(default_factory=dict)  # node -> what was chosen for it alone

    @property
    def lanes(self) -> int:
        return self.isa.lanes

    def precision_of(self, node: str) -> Precision:
        """What a product is asked to compute in."""
        return self.precisions.get(node, self.precision)

    def chosen(self, node: str) -> bool:
        """Whether its precision was chosen for this node alone."""
        return node in self.precisions


# --- for people ---


def show(program: Program) -> str:
    """The program as text, one line per call: `y = softmax(outer=n, axis=m, inner=1, x=x)`."""
    lines = [f"program {program.name}"]
    lines += [f"  input  {p.buffer.name}: {_shape(p.buffer.dtype, p.facts.dims)}" for p in program.inputs]
    lines += [f"  output {p.buffer.name}: {_shape(p.buffer.dtype, p.facts.dims)}" for p in program.outputs]
    lines += [f"  weight {b.name}: {_shape(b.dtype, [b.elements])}" for b in program.buffers if b.place == "weight"]
    lines += [f"  where  {show_condition(c)}  else {m!r} in {n}" for n, c, m in dict.fromkeys(program.checks)]
    for call in program.calls:
        lines += ["", f"  # {', '.join(call.nodes) or call.node}", *(f"  {line}" for line in _show_call(call))]
    return "\n".join(lines) + "\n"


def _shape(dtype: ir.DataType, dims: Sequence[Size]) -> str:
    return f"{dtype.name.lower()}[{', '.join(map(str, dims))}]"


def show_condition(condition: Condition) -> str:
    if isinstance(condition, Compare):
        return f"{condition.left} {condition.relation} {condition.right}"
    if isinstance(condition, Holds):
        return f"{condition.function}({', '.join(map(str, condition.arguments))})"
    word = " or " if isinstance(condition, AnyOf) else " and "
    return word.join(show_condition(c) for c in condition.conditions)


def _show_call(call: Call) -> Iterator[str]:
    targets = ", ".join(buffer_of(w).name for w in call.writes())
    templates = f"<{', '.join(_show(t) for t in call.templates)}>" if call.templates else ""
    shown = [
        f"{p.name}={_show(a)}"
        for p in call.kernel.parameters
        if p.kind not in (Kind.WRITE, Kind.SPACE, Kind.EPILOGUE, Kind.BODY)
        and (a := call.arguments.get(p.name)) is not None
    ]
    if call.binds is not None:
        targets = f"{call.binds}, {targets}" if targets else str(call.binds)
    for name, count in call.loops:
        yield f"for {name} < {count}:"
    note = "" if call.precision in (None, FP32) else f"  in {call.precision.name}"
    yield f"{targets} = {call.kernel.name}{templates}({', '.join(shown)}){note}"
    body = call.arguments.get("body") or call.arguments.get("epilogue")
    if isinstance(body, (Body, Epilogue)) and (body.lets or body.result != Var("acc")):
        yield from (f"    {line}" for line in _show_body(body))


def _show_body(body: Body | Epilogue) -> Iterator[str]:
    for o in body.operands if isinstance(body, Epilogue) else ():
        at = [*([f"{o.row}*{o.step}"] if o.row else []), *(["col"] if o.dense else [])]
        yield f"{o.name} = {o.view.buffer.name}[{' + '.join(at) or 0}]"
    yield from (f"{s.name} = {s.value}" for s in body.scalars)
    yield from (f"{let.name} = {show_expression(let.expression)}" for let in body.lets)
    yield f"-> {show_expression(body.result)}"


def _show(argument: Argument | Fixed) -> str:
    if isinstance(argument, View):
        offset = "" if argument.offset == 0 else f" + {argument.offset}"
        return f"{argument.buffer.name}{offset}"
    if isinstance(argument, Buffer):
        return argument.name
    if isinstance(argument, StructValue):
        return f"{argument.struct.name}({', '.join(f'{f}={_show(argument.fields[f])}' for f in argument.fields)})"
    if isinstance(argument, Enumerator):
        return argument.name
    if isinstance(argument, Grid):
        dims = ", ".join(str(argument.out.dims[a]) for a in argument.order)
        return f"[{dims}] of {', '.join(_show(v) for v in argument.inputs)}"
    if isinstance(argument, (tuple, list)):
        return f"[{', '.join(_show(a) for a in argument)}]"
    return argument.name.lower() if isinstance(argument, ir.DataType) else str(argument)


def show_expression(expression: Expr) -> str:
    if isinstance(expression, Var):
        return expression.name
    if isinstance(expression, Literal):
        return str(expression.value)
    assert isinstance(expression, Op)
    arguments = [show_expression(a) for a in expression.arguments]
    if expression.function in "+-*/&|^~":
        return (
            f"{expression.function}{arguments[0]}"
            if len(arguments) == 1
            else f"({f' {expression.function} '.join(arguments)})"
        )
    target = f"<{expression.target.name.lower()}>" if expression.target is not None else ""
    return f"{expression.function}{target}({', '.join(arguments)})"
