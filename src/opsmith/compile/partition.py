"""Partition: which nodes form which region; the rest stays with ORT.

Every node is either supported or has a reason why not. Supported nodes are numbered by how many unsupported ones lie behind
them on the longest path; nodes of one number that are connected form a region. No path can leave a region and come back, because
on the way it would pass an unsupported node and its number would rise: regions are convex.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Sequence

import onnx_ir as ir

from opsmith.compile.dims import Dim, atom, dim, floor_div
from opsmith.compile.lower.infer import infer_node
from opsmith.compile.lower.program import input_name
from opsmith.compile.values import (
    CPP,
    INTEGERS,
    SMALL,
    Abstract,
    Constant,
    Element,
    FloatScalar,
    Unsupported,
    of_constant,
)


@dataclasses.dataclass
class Region:
    name: str
    nodes: list[ir.Node]
    inputs: list[ir.Value]
    outputs: list[ir.Value]


@dataclasses.dataclass
class Analysis:
    """What is known of a graph before it is cut: facts of all values, and why nodes are left to ORT."""

    facts: dict[ir.Value, Abstract]
    reasons: dict[ir.Node, str]
    opset: int


class Symbols:
    """Names of dynamic dims as C++ identifiers; the exporter's expressions (`past + sequence`) are understood."""

    def __init__(self, graph: ir.Graph) -> None:
        self._names: dict[str, str] = {}
        self._plain = {
            d.value
            for v in graph.inputs
            if v.shape is not None
            for d in v.shape
            if isinstance(d, ir.SymbolicDim) and d.value is not None and str(d.value).isidentifier()
        }
        self._fresh = 0

    def of(self, size: int | ir.SymbolicDim) -> Dim:
        if isinstance(size, int):
            return dim(size)
        if size.value is None:
            return self.fresh()
        text = str(size.value)
        return self._expression(text) or atom(self._identifier(text))

    def fresh(self) -> Dim:
        self._fresh += 1
        return atom(f"size{self._fresh}_")

    def _identifier(self, text: str) -> str:
        if text not in self._names:
            base = re.sub(r"\W+", "_", text).strip("_") or "size"
            base = base if base[0].isalpha() else f"size_{base}"
            name, k = f"{base}_" if base in _RESERVED else base, 2
            while name in self._names.values():
                name, k = f"{base}_{k}", k + 1
            self._names[text] = name
        return self._names[text]

    def _expression(self, text: str) -> Dim | None:
        """`past + sequence` in terms of the graph's own input symbols, or None."""
        if text.isidentifier():
            return None
        try:
            tree = ast.parse(text, mode="eval").body
        except SyntaxError:
            return None
        return self._walk(tree)

    def _walk(self, tree: ast.expr) -> Dim | None:
        if isinstance(tree, ast.Name):
            return atom(self._identifier(tree.id)) if tree.id in self._plain else None
        if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
            return dim(tree.value)
        if isinstance(tree, ast.BinOp):
            left, right = self._walk(tree.left), self._walk(tree.right)
            if left is None or right is None:
                return None
            if isinstance(tree.op, ast.Add):
                return left + right
            if isinstance(tree.op, ast.Sub):
                return left - right
            if isinstance(tree.op, ast.Mult):
                return left * right
            if isinstance(tree.op, ast.FloorDiv):
                return floor_div(left, right)
        return None


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


def facts_of_input(value: ir.Value, symbols: Symbols) -> Abstract | None:
    """What the model declares about an input; None if its rank or type is not known."""
    if not isinstance(value.type, ir.TensorType) or value.shape is None or value.dtype not in CPP:
        return None
    return Abstract(value.dtype, tuple(symbols.of(d) for d in value.shape))


def constant_of(value: ir.Value) -> Constant | None:
    tensor = value.const_value
    if tensor is None:
        return None
    return Constant(value.name or "constant", tensor.dtype, tuple(tensor.shape.numpy()), lambda: tensor.numpy())


def analyse(graph: ir.Graph, opset: int) -> Analysis:
    """Facts and reasons for the whole graph, as if everything supported ran in one region."""
    symbols = Symbols(graph)
    facts: dict[ir.Value, Abstract] = {}
    reasons: dict[ir.Node, str] = {}
    inputs = set(graph.inputs)
    for i, value in enumerate(graph.inputs):
        if (fact := facts_of_input(value, symbols)) is not None:
            sizes = fact.static_dims()
            if sizes is not None and len(sizes) <= 1 and sum(sizes) <= SMALL:
                count = sizes[0] if sizes else 1
                fact = Abstract(fact.dtype, fact.dims, _elements_of_input(fact.dtype, input_name(i, value), count))
            facts[value] = fact
    for value in graph.initializers.values():
        if value not in inputs and (constant := constant_of(value)) is not None:
            facts[value] = of_constant(constant)
    for node in graph:
        try:
            infer_node(node, facts, opset)
        except Unsupported as reason:
            reasons[node] = str(reason)
            for value in node.outputs:
                if (fact := facts_of_input(value, symbols)) is not None:
                    facts[value] = fact
    return Analysis(facts, reasons, opset)


def make_regions(
    graph: ir.Graph, analysis: Analysis, wanted: Callable[[ir.Node], bool] = lambda _: True
) -> list[Region]:
    """Connected convex regions of the supported nodes that are wanted, in topological order."""
    level: dict[ir.Node, int] = {}
    chosen: dict[ir.Node, bool] = {}
    for node in graph:
        chosen[node] = node not in analysis.reasons and wanted(node)
        behind = 0
        for producer in _producers(node):
            step = 1 if chosen[node] and not chosen[producer] else 0
            behind = max(behind, level[producer] + step)
        level[node] = behind
    parent: dict[ir.Node, ir.Node] = {n: n for n in chosen if chosen[n]}

    def find(n: ir.Node) -> ir.Node:
        while parent[n] is not n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    for node in parent:
        for producer in _producers(node):
            if producer in parent and level[producer] == level[node]:
                parent[find(node)] = find(producer)
    members: dict[ir.Node, list[ir.Node]] = {}
    for node in parent:
        members.setdefault(find(node), []).append(node)
    groups = sorted(members.values(), key=lambda nodes: level[nodes[0]])
    return [finish_region(f"region{i}", nodes, graph, analysis) for i, nodes in enumerate(groups)]


def _producers(node: ir.Node) -> list[ir.Node]:
    found = [v.producer() for v in node.inputs if v is not None]
    for attribute in node.attributes.values():  # values that the bodies of If and Loop capture
        graphs = [attribute.value] if attribute.type == ir.AttributeType.GRAPH else []
        graphs = list(attribute.value) if attribute.type == ir.AttributeType.GRAPHS else graphs
        for graph in graphs:
            for inner in ir.traversal.RecursiveGraphIterator(graph):
                found += [v.producer() for v in inner.inputs if v is not None]
    return [p for p in found if p is not None and p.graph is node.graph]


def finish_region(name: str, nodes: Sequence[ir.Node], graph: ir.Graph, analysis: Analysis) -> Region:
    """Inputs and outputs of a set of nodes. Constants travel with the region."""
    inside = set(nodes)
    inputs: dict[ir.Value, None] = {}
    outputs: dict[ir.Value, None] = {}
    graph_outputs = set(graph.outputs)
    for node in nodes:
        for value in node.inputs:
            if value is None or value.producer() in inside:
                continue
            fact = analysis.facts.get(value)
            if fact is None or fact.constant is None or value.producer() is not None:
                inputs[value] = None
        for value in node.outputs:
            used_outside = any(u.node not in inside for u in value.uses())
            if value in graph_outputs or used_outside:
                outputs[value] = None
    return Region(name, list(nodes), list(inputs), list(outputs))


def region_facts(region: Region, analysis: Analysis) -> dict[ir.Value, Abstract]:
    """What lowering may assume: constants, and the inputs with sizes in terms of the region's own inputs.

    A size that needs symbols which no input of this region shows becomes a symbol of its own.
    """
    facts = {v: f for v, f in analysis.facts.items() if f.constant is not None and v.producer() is None}
    shown = {plain for v in region.inputs for d in analysis.facts[v].dims if (plain := plain_symbol(d)) is not None}
    fresh: dict[Dim, Dim] = {}
    for i, value in enumerate(region.inputs):
        known = analysis.facts[value]
        dims: list[Dim] = []
        for d in known.dims:
            if d.value is None and not d.atoms() <= shown:
                d = fresh.setdefault(d, atom(f"size{len(fresh)}_"))
            dims.append(d)
        elements = None
        count = [d.value for d in dims]
        if len(dims) <= 1 and None not in count and sum(c or 0 for c in count) <= SMALL:
            elements = _elements_of_input(known.dtype, input_name(i, value), count[0] if count else 1)
        facts[value] = Abstract(known.dtype, tuple(dims), elements)
    return facts


def _elements_of_input(dtype: ir.DataType, name: str, count: int | None) -> tuple[Element, ...] | None:
    """A small input can be read while sizes are computed."""
    if dtype in INTEGERS or dtype == ir.DataType.BOOL:
        return tuple(atom(f"i64({name}[{i}])") for i in range(count or 0))
    if dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return tuple(FloatScalar(f"double({name}[{i}])") for i in range(count or 0))
    return None


def plain_symbol(d: Dim) -> str | None:
    """The symbol, if the size is just one."""
    if len(d.terms) != 1:
        return None
    ((monomial, coefficient),) = d.terms.items()
    if coefficient != 1 or len(monomial) != 1 or not monomial[0].isidentifier():
        return None
    return monomial[0]
