"""Analysis: what is known of every value before anything runs. One home for shape inference: rewriter and compiler use it.

    analyse(graph)     all values of a graph: type, symbolic sizes, elements of small values; and why nodes are not understood
    infer_node(node)   one node, from what is known of its inputs

Each family of operators has a file here; elementwise ones are rows of ops.py.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from opsmith import ops
from opsmith.analysis import elementwise
from opsmith.analysis.control import outputs_of_bodies
from opsmith.analysis.registry import INFER, Infer, Key, Node, key_of
from opsmith.analysis.values import (
    FLOATS8,
    INTEGERS,
    SMALL,
    TYPES,
    Abstract,
    Constant,
    DataType,
    Unsupported,
    of_constant,
)
from opsmith.dim_names import parse
from opsmith.sizes import NOTHING, Given, Name, RealElement, Scalar, Size, as_size, element, name, names, walk

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

Facts = dict[ir.Value, Abstract]


@dataclass
class Analysis:
    """What is known of a graph: facts of all values, and why nodes are left to ORT."""

    facts: Facts
    reasons: dict[ir.Node, str]
    opset: int


class Symbols:
    """The model's names of dynamic dims as sizes; the exporter's expressions (`past + sequence`) are understood."""

    def __init__(self, graph: ir.Graph, prefix: str = "") -> None:
        self._plain = {n for n in _dim_names(graph.inputs) if n.isidentifier()}
        self._taken = _dim_names(graph.inputs) | _dim_names(v for node in graph for v in node.outputs)
        self._prefix, self._fresh = prefix, 0

    def of(self, size: int | ir.SymbolicDim) -> Size:
        if isinstance(size, int):
            return as_size(size)
        if size.value is None:
            return self.fresh()
        text = str(size.value)
        spelled = parse(text)
        # an expression counts only if it is one of the graph's own input dims
        return spelled if spelled is not None and names(spelled) <= self._plain else name(text)

    def fresh(self) -> Size:
        """A dim of which nothing is known: a name that no other one has."""
        self._fresh += 1
        unused = f"{self._prefix}size{self._fresh}_"
        return self.fresh() if unused in self._taken else name(unused)


def _dim_names(values: Iterable[ir.Value]) -> set[str]:
    dims = (d for v in values if v.shape is not None for d in v.shape)
    return {str(d.value) for d in dims if isinstance(d, ir.SymbolicDim) and d.value is not None}


def analyse(
    graph: ir.Graph, opset: int, outer: Facts | None = None, prefix: str = "", *, trust_declared: bool = False
) -> Analysis:
    """Facts and reasons for the whole graph, as if everything supported ran in one region.

    OUTER: what is known around the body of an If or Loop; PREFIX keeps the names of its own sizes apart from those.
    `trust_declared`: a size that is not found as a number is taken from the shape that the model declares, where it has one.
    """
    symbols = Symbols(graph, prefix)
    facts: Facts = dict(outer or {})
    reasons: dict[ir.Node, str] = {}
    inputs = set(graph.inputs)
    for value in graph.inputs:
        if (fact := declared(value, symbols)) is not None:
            facts[value] = with_elements(value, fact)
    for value in graph.initializers.values():
        if value not in inputs and (constant := constant_of(value)) is not None:
            facts[value] = of_constant(constant)
    for node in graph:
        try:
            infer_node(node, facts, opset)
            if trust_declared:
                facts.update({v: _with_declared(v, facts[v], symbols) for v in node.outputs if v in facts})
        except Unsupported as reason:
            reasons[node] = str(reason)
            _add_what_is_said(node, facts, symbols)
    return Analysis(facts, reasons, opset)


def _add_what_is_said(node: ir.Node, facts: Facts, symbols: Symbols) -> None:
    """Facts about the results of a node that is not understood: what its bodies and the model declare."""
    bodies = outputs_of_bodies(node, symbols.fresh) or [None] * len(node.outputs)
    for value, said in zip(node.outputs, bodies):
        inferred = declared(value, symbols)  # also what ONNX infers, which takes it that a loop runs
        if (fact := said or inferred if node.op_type == "Loop" else inferred or said) is not None:
            facts[value] = fact
    if _keeps_shape(node) and node.inputs[0] in facts and node.outputs[0] in facts:
        first = facts[node.inputs[0]]
        facts[node.outputs[0]] = Abstract(facts[node.outputs[0]].dtype, first.dims, squeezed=first.squeezed)


def _keeps_shape(node: ir.Node) -> bool:
    """Whether the result is as large as the first input, even of a node that is left to ORT."""
    row = ops.TABLE.get(key_of(node))
    return key_of(node) == ("", "BatchNormalization") or (row is not None and row.arity == 1)


def declared(value: ir.Value, symbols: Symbols) -> Abstract | None:
    """What the model says about a value; None if its rank or type is not known."""
    if not isinstance(value.type, ir.TensorType) or value.shape is None or value.dtype not in TYPES | FLOATS8:
        return None
    return Abstract(value.dtype, tuple(symbols.of(d) for d in value.shape))


def _with_declared(value: ir.Value, fact: Abstract, symbols: Symbols) -> Abstract:
    """Declared numbers win over symbols, declared names over what only a run can tell."""
    if value.shape is None or len(value.shape) != fact.rank:
        return fact
    dims = tuple(
        symbols.of(d) if found.value is None and (isinstance(d, int) or (d.value and _is_opaque(found))) else found
        for d, found in zip(value.shape, fact.dims)
    )
    return fact if dims == fact.dims else dataclasses.replace(fact, dims=dims)


def _is_opaque(size: Size) -> bool:
    return any(not isinstance(a, Name) and getattr(a, "function", "") != "floor_div" for a in walk([size]))


def with_elements(value: ir.Value, fact: Abstract) -> Abstract:
    """A small input can be read while sizes are computed."""
    sizes = fact.static_dims()
    if sizes is None or len(sizes) > 1 or sum(sizes) > SMALL:
        return fact
    count = sizes[0] if sizes else 1
    elements: tuple[Scalar, ...]
    if fact.dtype in INTEGERS or fact.dtype == DataType.BOOL:
        elements = tuple(element(value.name or "", i) for i in range(count))
    elif fact.dtype in (DataType.FLOAT, DataType.DOUBLE):
        elements = tuple(RealElement(value.name or "", i) for i in range(count))
    else:
        return fact
    return Abstract(fact.dtype, fact.dims, elements)


def constant_of(value: ir.Value) -> Constant | None:
    tensor = value.const_value
    if tensor is None:
        return None
    return Constant(value.name or "constant", tensor.dtype, tuple(tensor.shape.numpy()), lambda: tensor.numpy())


def inference_of(key: Key) -> Infer | None:
    return INFER.get(key) or elementwise.find(key)


def infer_node(node: ir.Node, facts: Facts, opset: int, given: Given = NOTHING) -> Node:
    """Facts about one node's outputs, added to `facts`; Unsupported says why ORT keeps it.

    A malformed node (an attribute of the wrong length or type) is not understood. A bug of ours raises: it must not look like
    an operator that is not supported.
    """
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
        raise Unsupported("control flow stays with ONNX Runtime")
    infer = inference_of(key_of(node))
    if infer is None:
        raise Unsupported(f"no kernel for {node.op_type}" + (f" of domain {node.domain}" if node.domain else ""))
    view = Node(node, _inputs(node, facts), opset, given)
    try:
        view.outputs = infer(view)
    except (IndexError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise Unsupported(f"not understood: {error}") from error
    view.outputs = [_bounded(fact) for fact in view.outputs]
    facts.update(zip(node.outputs, view.outputs))
    return view


def _bounded(fact: Abstract) -> Abstract:
    """Shape arithmetic that has a budget: a hundred nodes can square a size a hundred times, or double a vector."""
    for size in fact.sizes():
        if len(size.terms) > _MOST_TERMS or any(len(m) > _MOST_FACTORS for m in size.terms):
            raise Unsupported("its sizes are too long a polynomial")
        if any(abs(c) >= 2**63 for c in size.terms.values()):
            raise Unsupported("its sizes do not fit into 64 bits")
        if any(len(atom.text) > _LONGEST_TEXT for atom in size.atoms()):
            raise Unsupported("its sizes are too long an expression")
    if fact.elements is not None and len(fact.elements) > _MOST_ELEMENTS:
        return dataclasses.replace(fact, elements=None)
    return fact


# Far above what models need (the longest seen have 9 terms, 4 factors, 120 characters and 8 elements), far below what hurts.
_MOST_TERMS, _MOST_FACTORS, _LONGEST_TEXT, _MOST_ELEMENTS = 64, 16, 4000, 16 * SMALL


def _inputs(node: ir.Node, facts: Mapping[ir.Value, Abstract]) -> list[Abstract | None]:
    inputs: list[Abstract | None] = []
    for value in node.inputs:
        if value is None:
            inputs.append(None)
        elif value in facts:
            inputs.append(facts[value])
        else:
            if value.dtype is not None and value.dtype not in TYPES | FLOATS8:
                raise Unsupported(f"element type {value.dtype.name} stays with ONNX Runtime")
            raise Unsupported(f"the rank or type of its input {value.name} is unknown")
    for fact in inputs:
        readable = TYPES | FLOATS8 if node.op_type in ("Cast", "CastLike") else TYPES
        if fact is not None and fact.constant is None and fact.dtype not in readable:
            raise Unsupported(f"element type {fact.dtype.name} stays with ONNX Runtime")
        if fact is not None and fact.squeezed and key_of(node) not in (*ops.TABLE, ("", "Reshape")):
            raise Unsupported("the rank of its input is known only when it runs")
    return inputs


def infer_nodes(nodes: Sequence[ir.Node], facts: Facts, opset: int, given: Given = NOTHING) -> dict[ir.Node, Node]:
    return {node: infer_node(node, facts, opset, given) for node in nodes}
