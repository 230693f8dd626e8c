"""What exporters leave behind, put in order.

names      dims and weights are called what they are called in the source
privacy    no stack traces, which hold paths of this machine
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.errors import OpsmithError
from opsmith.export.graph import Graph


def identifier(dim: str) -> str:
    """Exporters take identifiers only: `past + sequence` -> `dim_past_sequence`, renamed back by `tidy`."""
    return dim if dim.isidentifier() else "dim_" + re.sub(r"\W+", "_", dim)


def tidy(model: ir.Model, graph: Graph, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """`arrays` are one case's inputs and outputs; they tell the sizes of the dims that never vary."""
    for part in (model.graph, *(f.graph for f in model.functions.values())):
        part.metadata_props.clear()
        part.doc_string = None
        for node in part.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
    model.metadata_props.clear()
    model.doc_string = None
    for weight in list(model.graph.initializers.values()):
        weight.name = (weight.name or "").removeprefix("model.")  # the attribute of the traced wrapper

    names = {identifier(n): n for dims in graph.inputs.values() for n in dims.values() if not n.isidentifier()}
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.shape is not None:
                value.shape = ir.Shape([_renamed(dim, names) for dim in value.shape])
    for values, dims in ((model.graph.inputs, graph.inputs), (model.graph.outputs, graph.outputs)):
        for value in values:
            _declare(value, dims[value.name or ""], arrays[value.name or ""].shape)


def _renamed(dim: int | ir.SymbolicDim, names: Mapping[str, str]) -> int | str | None:
    """`dim_past_sequence` and `sequence + past` -> `past + sequence`, `(dim_8_height//2)` -> `4*height`."""
    if isinstance(dim, int) or dim.value is None:
        return dim if isinstance(dim, int) else None
    text = re.sub(r"\b[^\W\d]\w*", lambda word: f"({names[word[0]]})" if word[0] in names else word[0], dim.value)
    if dim.value.isidentifier() and text == dim.value:
        return text
    try:
        simple = _sympy(ast.parse(text, mode="eval").body)
    except KeyError:
        return text  # a function of torch's own, such as Max(1, n): left as it was written
    except SyntaxError:
        return None  # `Concatpresent.0.key_dim_0`: torchscript invents names for what it does not know
    return text if "floor" in str(simple) else str(simple)  # Python's // is the common notation


def _sympy(node: ast.expr) -> Any:
    """Arithmetic on positive integers, simplified."""
    import sympy

    if isinstance(node, ast.BinOp):
        return _ARITHMETIC[type(node.op)](_sympy(node.left), _sympy(node.right))
    if isinstance(node, ast.Name):
        return sympy.Symbol(node.id, integer=True, positive=True)
    if isinstance(node, ast.Constant):
        return sympy.Integer(node.value)
    raise KeyError(ast.dump(node))


_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


def _declare(value: ir.Value, names: Mapping[int, str], shape: Sequence[int]) -> None:
    """Dynamic dims by name, all others with their size, which torchscript forgets."""
    for axis, dim in enumerate(value.shape or ()):
        if isinstance(dim, int) and axis in names:
            raise OpsmithError(f"the exporter made dim {axis} ({names[axis]}) of {value.name} a constant")
    value.shape = ir.Shape([names.get(axis, size) for axis, size in enumerate(shape)])
