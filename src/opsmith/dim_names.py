"""Sizes as the names of a model's dims: `past + sequence` read, and written as exporters write it."""

from __future__ import annotations

import ast
from collections.abc import Callable

from opsmith.sizes import Apply, Atom, Size, as_size, floor_div, maximum, minimum, modulo, name, product


def parse(text: str) -> Size | None:
    """The size that a dim's name spells, `past + sequence` or `4*height//2`; None if it is not arithmetic on names.

    A dim is a whole number, so `height/8` is `height//8`; by anything but a number it is part of a name (`Reshape/model_dim_0`).
    """
    if text.isidentifier():
        return name(text)
    try:
        return _read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _read(tree: ast.expr) -> Size | None:
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return as_size(tree.value)
    if isinstance(tree, ast.Name):
        return name(tree.id)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        inner = _read(tree.operand)
        return None if inner is None else -inner
    if isinstance(tree, ast.BinOp):
        operation, operands = _OPERATIONS.get(type(tree.op)), [tree.left, tree.right]
    elif isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        operation, operands = _CALLS.get(tree.func.id), tree.args
    else:
        return None
    sizes = [s for operand in operands if (s := _read(operand)) is not None]
    return operation(*sizes) if operation is not None and len(sizes) == len(operands) == 2 else None


def _quotient(a: Size, b: Size) -> Size | None:
    return None if b == 0 else floor_div(a, b)


def _power(a: Size, b: Size) -> Size | None:
    return product([a] * b.value) if b.value is not None and 0 <= b.value <= 4 else None


_OPERATIONS: dict[type[ast.operator], Callable[[Size, Size], Size | None]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: _quotient,
    ast.Div: lambda a, b: None if b.value is None else _quotient(a, b),
    ast.Mod: lambda a, b: None if b == 0 else modulo(a, b),
    ast.Pow: _power,
}


_CALLS: dict[str, Callable[[Size, Size], Size | None]] = {"Max": maximum, "Min": minimum}  # as torch writes them


def spell(size: Size) -> str:
    """The size as a dim's name in a model, as exporters write it: what `parse` reads, if only divisions and Max or Min are in it."""
    terms = sorted(size.terms.items(), key=lambda term: (-len(term[0]), sorted(_spell_atom(a) for a in term[0])))
    parts = []
    for monomial, coefficient in terms:
        factors = sorted(_spell_atom(a) for a in monomial)
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        parts.append(f" {'-' if coefficient < 0 else '+'} " + "*".join(factors))
    text = "".join(parts) or " + 0"
    return text[3:] if text.startswith(" + ") else f"-{text[3:]}"


def _spell_atom(atom: Atom) -> str:
    if not isinstance(atom, Apply) or not all(isinstance(a, Size) for a in atom.arguments):
        return atom.text
    inside = [spell(a) for a in atom.arguments if isinstance(a, Size)]
    if atom.function in ("floor_div", "modulo"):
        dividend, divisor = (t if t.isalnum() else f"({t})" for t in inside)
        return f"({dividend}{'//' if atom.function == 'floor_div' else '%'}{divisor})"
    return f"{atom.function.capitalize()}({', '.join(inside)})" if atom.function in ("min", "max") else atom.text
