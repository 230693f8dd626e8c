"""The C++ printer: sizes, expressions, arguments and signatures as text. Nothing before this step knows C++.

CppTypes   element types, literals
Scope      the names of one generated function: dims, buffers, and locals for sizes that take more than a name
lambda     a Body or an Epilogue as a C++ lambda
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from opsmith.analysis.values import FLOATS, FLOATS8, TYPES, DataType, kind
from opsmith.compiler.kernel import Kind, Parameter
from opsmith.compiler.lower.builder import identifier
from opsmith.compiler.program import (
    Argument,
    Body,
    Buffer,
    Call,
    Enumerator,
    Epilogue,
    Fixed,
    Grid,
    Let,
    Program,
    RowOperand,
    ScalarOperand,
    StructValue,
    View,
)
from opsmith.expressions import Expr, Literal, Op, Var
from opsmith.sizes import (
    AllOf,
    AnyOf,
    Atom,
    Compare,
    Condition,
    Element,
    Name,
    Number,
    Real,
    RealApply,
    RealElement,
    Scalar,
    Size,
    spread,
    write,
    write_argument,
    write_call,
)

# --- types and numbers ---

CPP: dict[DataType, str] = {
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
    **{dtype: dtype.name.lower() for dtype in FLOATS8},
}
assert frozenset(CPP) == TYPES | FLOATS8


def float_literal(value: float, single: bool = True) -> str:
    """A C++ literal that reads back as exactly this number, as float or double."""
    suffix = "f" if single else ""
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    text = str(np.float32(value)) if single else repr(float(value))
    if "." not in text and "e" not in text:
        text += ".0"
    return text + suffix


def integer_literal(value: int, dtype: DataType) -> str:
    number = (
        f"{value}ull" if dtype == DataType.UINT64 else f"(-{-value - 1}ll - 1)" if value < -(2**62) else f"{value}ll"
    )
    return f"({CPP[dtype]})({number})"


def stored_literal(value: float, dtype: DataType) -> str:
    """A number in its storage type."""
    if dtype in (DataType.FLOAT16, DataType.BFLOAT16):
        return f"from_float<{CPP[dtype]}>({float_literal(float(value))})"
    return _computed_literal(value, dtype)


def _computed_literal(value: float, dtype: DataType) -> str:
    """A number in the type that it is computed in: half precision is computed as float."""
    if dtype in FLOATS:
        return float_literal(float(value))
    if dtype == DataType.DOUBLE:
        return float_literal(float(value), single=False)
    return boolean(bool(value)) if dtype == DataType.BOOL else integer_literal(int(value), dtype)


def boolean(value: bool) -> str:
    return "true" if value else "false"


# Names and symbols of the source stand in what is written, and anything may stand in them: a quote, a carriage return, which ends a
# line for some compilers, a backslash at its end.


def quoted(text: str) -> str:
    """A string literal of exactly these bytes."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(plain)}"'


def remark(text: str) -> str:
    """A comment of one line."""
    return f"// {''.join(c if c.isprintable() else ' ' for c in text)}".rstrip("\\ ")


# --- expressions ---


def value_type(dtype: DataType, vector: bool) -> str:
    if vector:  # bytes are computed as floats, which hold them exactly
        return "I" if dtype in (DataType.BOOL, DataType.INT32) else "F"
    return "float" if dtype in FLOATS else CPP[dtype]


_BINDS = {"|": 1, "^": 2, "&": 3, "+": 4, "-": 4, "*": 5, "/": 5}


def expression_text(expression: Expr, vector: bool) -> str:
    return _expression(expression, vector)[0]


def _expression(expression: Expr, vector: bool) -> tuple[str, int]:
    """The text, and how strongly its outermost operator binds."""
    if isinstance(expression, Var):
        return expression.name, 9
    if isinstance(expression, Literal):
        return _literal(expression, vector), 9
    assert isinstance(expression, Op)
    parts = [_expression(a, vector) for a in expression.arguments]
    strength = _BINDS.get(expression.function, 9)
    if expression.function in "-~" and len(parts) == 1:
        return f"{expression.function}{_wrapped(parts[0], 8)}", 8
    if expression.function in _BINDS:
        left, right = _wrapped(parts[0], strength), _wrapped(parts[1], strength + 1)
        return f"{left} {expression.function} {right}", strength
    arguments = ", ".join(text for text, _ in parts)
    if expression.function == "cast":
        assert expression.target is not None
        return f"to_float({arguments})" if vector else f"({CPP[expression.target]})({arguments})", 9
    target = f"<{CPP[expression.target]}>" if expression.target is not None else ""
    return f"{expression.function}{target}({arguments})", 9


def _wrapped(part: tuple[str, int], strength: int) -> str:
    text, binds = part
    return text if binds >= strength else f"({text})"


def _literal(literal: Literal, vector: bool) -> str:
    if vector and kind(literal.dtype) == "i" and literal.dtype != DataType.INT32:
        return f"splat({float_literal(float(literal.value))})"
    text = _computed_literal(literal.value, literal.dtype)
    if not vector:
        return text
    return f"mask_of({text})" if literal.dtype == DataType.BOOL else f"splat({text})"


def _statements(scalars: Sequence[ScalarOperand], lets: Sequence[Let], result: Expr, vector: bool) -> list[str]:
    lines = []
    for s in scalars:
        wrapped = (
            f"{s.name}_value"
            if not vector
            else f"mask_of({s.name}_value)"
            if kind(s.dtype) == "b"
            else f"splat_of({s.name}_value)"
            if kind(s.dtype) == "i"
            else f"splat({s.name}_value)"
        )
        lines.append(f"const {value_type(s.dtype, vector)} {s.name} = {wrapped};")
    for let in lets:
        text = expression_text(let.expression, vector)
        if let.name == "acc":
            lines.append(f"acc = {text};")
            continue
        if not vector and kind(let.dtype) == "i" and not isinstance(let.expression, Literal):
            text = f"({CPP[let.dtype]})({text})"  # small integers are computed as int by C++
        lines.append(f"const {value_type(let.dtype, vector)} {let.name} = {text};")
    return [*lines, f"return {expression_text(result, vector)};"]


def body_lambda(body: Body, target: DataType) -> str:
    parameters = ", ".join(f"{value_type(t, body.vector)} {n}" for n, t in body.operands)
    lines = "\n    ".join(_statements(body.scalars, body.lets, body.result, body.vector))
    capture = "=" if body.scalars else ""
    return f"[{capture}]({parameters}) -> {value_type(target, body.vector)} {{\n    {lines}\n  }}"


def epilogue_lambda(epilogue: Epilogue) -> str:
    sum_type = value_type(epilogue.sums, vector=True)
    if not epilogue.lets:
        return f"[]({sum_type} acc, Row, i64, auto) -> {sum_type} {{ return acc; }}"
    loads = [_load(o) for o in epilogue.operands]
    lines = "\n    ".join([*loads, *_statements(epilogue.scalars, epilogue.lets, epilogue.result, vector=True)])
    unused = "[[maybe_unused]]"
    parameters = f"{unused} {sum_type} acc, {unused} Row row, {unused} i64 col, {unused} auto lanes"
    result = value_type(epilogue.stored, vector=True)
    return f"[=]({parameters}) -> {result} {{\n    {lines}\n  }}"


def _load(operand: RowOperand) -> str:
    row = f"row.{operand.row} * {operand.name}_ld + " if operand.row else ""
    at = f"{operand.name}_at"
    load = {DataType.INT32: "load_words", DataType.BOOL: "lanes_from"}.get(operand.view.dtype, "load")
    text = f"{load}({at} + {row}col, lanes)" if operand.dense else f"splat_of({at}[{row}0])"
    return f"const {value_type(operand.view.dtype, True)} {operand.name} = {text};"


# --- names ---

# Names that the generated code or C++ uses itself.
_RESERVED = frozenset(
    [
        "run",
        "pool",
        "kernel",
        "context",
        "arena",
        "workspace",
        "watch",
        "weights",
        "min",
        "max",
        "map",
        "copy",
        "fill",
        "gather",
        "load",
        "store",
        "exp",
        "log",
        "sin",
        "cos",
        "tan",
        "pow",
        "abs",
        "sqrt",
        "floor",
        "ceil",
        "round",
        "int",
        "float",
        "double",
        "bool",
        "char",
        "long",
        "short",
        "auto",
        "new",
        "delete",
        "class",
        "struct",
        "union",
        "enum",
        "void",
        "if",
        "else",
        "for",
        "while",
        "do",
        "switch",
        "case",
        "default",
        "break",
        "continue",
        "return",
        "this",
        "true",
        "false",
        "const",
        "static",
        "inline",
        "template",
        "typename",
        "using",
        "namespace",
        "operator",
        "signed",
        "unsigned",
        "try",
        "catch",
        "throw",
        "goto",
        "and",
        "or",
        "not",
        "xor",
        "I",
        "F",
        "W",
        "Row",
        "Pool",
        "Full",
        "Tail",
        "Grid",
        "Run",
        "Kernel",
        "half",
        "export",
        "import",
        "module",
        "signal",
        "time",
        "index",
        "rand",
        "y0",
        "y1",
        "yn",
        "j0",
        "j1",
        "jn",
        "gamma",
    ]
)


class Scope:
    """What things are called in the function of one program. Sizes that take more than a name become locals as they are met."""

    def __init__(self, program: Program) -> None:
        self.locals: dict[Atom, str] = {}
        self._dims: dict[str, str] = {}
        self._taken: set[str] = set()
        self._inputs = {p.value.name: p.buffer for p in program.inputs}
        for d in (d for p in program.inputs for d in p.facts.dims):
            if d.name is not None:
                self.dim(d.name)
        self._buffers: dict[Buffer, str] = {}
        for buffer in (*(p.buffer for p in (*program.inputs, *program.outputs)), *program.buffers):
            self._buffers[buffer] = self._free(buffer.name)

    def _free(self, wanted: str) -> str:
        name, k = (f"{wanted}_" if wanted in _RESERVED else wanted), 2
        while name in self._taken:
            name, k = f"{wanted}_{k}", k + 1
        self._taken.add(name)
        return name

    def dim(self, dim: str) -> str:
        if dim not in self._dims:
            base = identifier(dim)
            self._dims[dim] = self._free(base if not dim[:1].isdigit() else f"size_{base[2:]}")
        return self._dims[dim]

    def buffer(self, buffer: Buffer) -> str:
        return self._buffers[buffer]

    # --- sizes ---

    def full(self, size: Size) -> str:
        """In terms of the region's inputs."""
        return write(size, self._full_atom)

    def _full_atom(self, atom: Atom) -> str:
        if isinstance(atom, Name):
            return self.dim(atom.name)
        if isinstance(atom, Element):
            return f"i64({self.buffer(self._inputs[atom.source])}[{atom.index}])"
        return write_call(atom.function, atom.arguments, self._full_atom, self.real)

    def size(self, size: Size) -> str:
        """With everything that is not a plain name as a local."""
        return write(size, self._local)

    def _local(self, atom: Atom) -> str:
        if isinstance(atom, Name):
            return self.dim(atom.name)
        if atom not in self.locals:
            self.locals[atom] = f"n{len(self.locals)}"
        return self.locals[atom]

    def local_definitions(self) -> list[str]:
        return [f"const i64 {name} = {self._full_atom(atom)};" for atom, name in self.locals.items()]

    def factors(self, size: Size) -> list[tuple[int, list[str]]]:
        """The terms: a coefficient and the texts of its atoms."""
        return [(c, [self._full_atom(a) for a in m]) for m, c in size.terms.items()]

    def real(self, value: Real) -> str:
        if isinstance(value, Number):
            return float_literal(value.value, single=False)
        if isinstance(value, RealElement):
            return f"double({self.buffer(self._inputs[value.source])}[{value.index}])"
        assert isinstance(value, RealApply)
        return self._rounded(value, self._real_operation(value))

    def _real_operation(self, value: RealApply) -> str:
        texts = [write_argument(a, self._full_atom, self.real) for a in value.arguments]
        if value.function == "size":
            return texts[0] if value.single is not None else f"double({texts[0]})"
        if value.function in "+-*/":
            first = f"({texts[0]})"
            return f"{value.function}{first}" if len(texts) == 1 else f"{first} {value.function} ({texts[1]})"
        return f"{value.function}({', '.join(texts)})"

    @staticmethod
    def _rounded(value: RealApply, text: str) -> str:
        if value.single is None:
            return text
        return f"(double)(float)({text})" if value.single else f"(double)({text})"

    def scalar(self, value: Scalar) -> str:
        return self.size(value) if isinstance(value, Size) else self.real(value)

    def condition(self, condition: Condition) -> str:
        if isinstance(condition, Compare):
            return f"{self.full(condition.left)} {condition.relation} {self.full(condition.right)}"
        if isinstance(condition, (AnyOf, AllOf)):
            parts = [self.condition(c) for c in condition.conditions]
            grouped = [p if isinstance(c, Compare) else f"({p})" for p, c in zip(parts, condition.conditions)]
            return (" || " if isinstance(condition, AnyOf) else " && ").join(grouped)
        return write_call(condition.function, condition.arguments, self._full_atom, self.real)

    # --- arguments ---

    def pointer(self, operand: View | Buffer) -> str:
        if isinstance(operand, Buffer):
            return self.buffer(operand)
        name = self.buffer(operand.buffer)
        return name if operand.offset == 0 else f"{name} + {self.size(operand.offset)}"

    def argument(self, call: Call, parameter: Parameter) -> str:
        value = call.arguments.get(parameter.name)
        if parameter.kind is Kind.SPACE:
            return "workspace"
        if parameter.kind is Kind.VALUE:
            return self.value(value, element_type(call, parameter))
        if parameter.kind is Kind.VALUES:
            assert isinstance(value, tuple)
            dtype = element_type(call, parameter)
            return f"{{{', '.join(self.value(v, dtype) for v in value)}}}"
        if parameter.kind is Kind.REAL:
            assert isinstance(value, (int, float))
            return float_literal(float(value))
        if parameter.kind is Kind.SIZES:
            assert isinstance(value, tuple)
            return f"Sizes{{{len(value)}, {self.plain(list(value))}}}"
        return self.plain(value)

    def value(self, value: Argument, dtype: DataType) -> str:
        """One number in a storage type."""
        if isinstance(value, View):
            return f"({CPP[dtype]})(*({self.pointer(value)}))"
        if isinstance(value, (Size, Real)):
            return f"to_storage<{CPP[dtype]}>({self.scalar(value)})"
        assert isinstance(value, (bool, int, float))
        return stored_literal(value, dtype)

    def plain(self, value: Argument) -> str:
        """An argument whose C++ type its own type tells."""
        if value is None:
            return "nullptr"
        if isinstance(value, bool):
            return boolean(value)
        if isinstance(value, (View, Buffer)):
            return self.pointer(value)
        if isinstance(value, Size):
            return self.size(value)
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float):
            return float_literal(value, single=False)
        if isinstance(value, Real):
            return self.real(value)
        if isinstance(value, Enumerator):
            return value.name
        if isinstance(value, (list, tuple)):
            return f"{{{', '.join(self.plain(v) for v in value)}}}"
        if isinstance(value, StructValue):
            return self._struct(value)
        assert isinstance(value, Grid)
        return self._grid(value)

    def _struct(self, value: StructValue) -> str:
        fields = [
            float_literal(v) if name in value.struct.singles and isinstance(v, float) else self.plain(v)
            for name, v in zip(value.struct.fields, value.ordered())
        ]
        return f"{struct_type(value)}{{{', '.join(fields)}}}"

    def _grid(self, grid: Grid) -> str:
        dims = [grid.out.dims[a] for a in grid.order]
        operands = [self._operand(grid.out, [grid.out.strides[a] for a in grid.order])]
        for view in grid.inputs:
            lead = len(grid.out.dims) - len(view.dims)
            strides = [
                spread(view.dims[a - lead], grid.out.dims[a], view.strides[a - lead]) if a >= lead else Size({})
                for a in grid.order
            ]
            operands.append(self._operand(view, strides))
        rest = f"{{{', '.join(operands[1:])}}}"
        return f"Grid<{len(grid.inputs)}>{{{len(dims)}, {self.plain(list(dims))}, {operands[0]}, {rest}}}"

    def _operand(self, view: View, strides: Sequence[Size]) -> str:
        return f"{{{self.pointer(view)}, {self.plain(list(strides))}}}"


# --- signatures ---


def element_type(call: Call, parameter: Parameter) -> DataType:
    """T of `const T*`: as the argument has it, or as the parameter it is like."""
    if parameter.dtype is not None:
        return parameter.dtype
    argument = call.arguments.get(parameter.name)
    if isinstance(argument, (View, Buffer)) and parameter.kind is not Kind.VALUE:
        return argument.dtype
    return element_type(call, call.kernel.parameter(parameter.like))


def struct_type(value: StructValue) -> str:
    if not value.struct.template:
        return value.struct.name
    operand = value.fields[value.struct.template]
    if isinstance(operand, (View, Buffer)):
        return f"{value.struct.name}<{CPP[operand.dtype]}>"
    assert value.dtype is not None
    return f"{value.struct.name}<{CPP[value.dtype]}>"


def declared(call: Call, parameter: Parameter) -> str:
    """`const float* x`"""
    name, argument = parameter.name, call.arguments.get(parameter.name)
    plain = {Kind.SIZE: "i64", Kind.REAL: "float", Kind.DOUBLE: "double", Kind.FLAG: "bool", Kind.SPACE: "void*"}
    if parameter.kind in plain:
        return f"{plain[parameter.kind]} {name}"
    if parameter.kind is Kind.SIZES:
        return f"const Sizes& {name}"
    if isinstance(argument, Grid):
        return f"const Grid<{len(argument.inputs)}>& {name}"
    if isinstance(argument, StructValue):
        return f"const {struct_type(argument)}& {name}"
    storage = CPP[element_type(call, parameter)]
    if parameter.kind is Kind.VALUE:
        return f"{storage} {name}"
    return f"const {storage}* {name}" if parameter.kind is Kind.READ else f"{storage}* {name}"


def template_text(templates: Sequence[Fixed]) -> str:
    return f"<{', '.join(fixed_text(t) for t in templates)}>" if templates else ""


def fixed_text(value: Fixed) -> str:
    if isinstance(value, DataType):
        return CPP[value]
    if isinstance(value, bool):
        return boolean(value)
    return value.name if isinstance(value, Enumerator) else str(value)
