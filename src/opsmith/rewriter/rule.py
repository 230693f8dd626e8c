"""What a rule is: a function that starts at one node, walks outward, and either says why it does not apply (`Miss`) or
names the values it replaces.

    @rule("relu_twice", "Relu(Relu(x)) -> Relu(x)", roots=("Relu",))
    def relu_twice(site: Site) -> None:
        inner = site.input(site.root, 0, "Relu")
        site.replace(site.root.outputs[0], site.op("Relu", inner.inputs[0]))

A rule *takes* the nodes that it makes superfluous. A node that was taken but whose result someone else still needs
would be computed twice, so the site refuses such a match: this is the check that no rule has to write itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir

from opsmith.dim_names import parse
from opsmith.nodes import operator_name
from opsmith.sizes import SizeLike
from opsmith.sizes import name as symbol

DOMAIN = "opsmith"
SMALL = 4096  # constants up to this many elements are looked into; weights are not


class Miss(Exception):
    """This rule does not apply here: the reason, and the node where the walk stopped."""

    def __init__(self, reason: str, node: ir.Node | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.node = node


@dataclasses.dataclass(frozen=True)
class Rule:
    """One fusion. `level` is the -O level that turns it on; `targets` the runtimes that can use it."""

    name: str
    algebra: str
    roots: tuple[str, ...]
    apply: Callable[[Site], None]
    level: int = 2
    targets: tuple[str, ...] = ("portable", "ort-cpu", "ort-cuda")
    makes: tuple[str, ...] = ()  # the ops it emits, to be checked against the target's kernels


def rule(
    name: str,
    algebra: str,
    *,
    roots: Sequence[str],
    level: int = 2,
    targets: Sequence[str] = ("portable", "ort-cpu", "ort-cuda"),
    makes: Sequence[str] = (),
) -> Callable[[Callable[[Site], None]], Rule]:
    """Turn a function on a `Site` into a rule. `roots` are op types, "Softmax" or "opsmith.Gelu"."""

    def wrap(function: Callable[[Site], None]) -> Rule:
        return Rule(name, algebra, tuple(roots), function, level, tuple(targets), tuple(makes))

    return wrap


class Site:
    """One attempt of one rule at one node: what it took, what it built, what it replaces."""

    def __init__(self, model: ir.Model, graph: ir.Graph, root: ir.Node) -> None:
        self.model = model
        self.graph = graph
        self.root = root
        self.taken: list[ir.Node] = [root]
        self.built: list[ir.Node] = []
        self.weights: list[ir.Value] = []
        self.replacements: list[tuple[ir.Value, ir.Value]] = []
        self.place: ir.Node | None = None  # where the new nodes go; otherwise where the last replaced value was made

    # --- matching: every step either holds or is the reason for the miss ---------------------------------

    def miss(self, reason: str, node: ir.Node | None = None) -> NoReturn:
        raise Miss(reason, node or self.taken[-1])

    def need(self, condition: object, reason: str, node: ir.Node | None = None) -> None:
        if not condition:
            self.miss(reason, node)

    def take(self, *nodes: ir.Node) -> None:
        self.taken.extend(n for n in nodes if n not in self.taken)

    def producer(self, value: ir.Value | None, *op_types: str) -> ir.Node:
        """The node that computes VALUE, which must be one of OP_TYPES; it is taken."""
        node = value.producer() if value is not None else None
        if node is None:
            self.miss(f"expected {' or '.join(op_types)}, found a graph input or a weight ({name_of(value)})")
        self.need(is_op(node, *op_types), f"expected {' or '.join(op_types)}, found {node.op_type}", node)
        self.take(node)
        return node

    def input(self, node: ir.Node, index: int, *op_types: str) -> ir.Node:
        return self.producer(input_of(node, index), *op_types)

    def only_user(self, value: ir.Value, *op_types: str) -> ir.Node:
        """The one node that reads VALUE, which must be one of OP_TYPES; it is taken."""
        users = distinct_users(value)
        self.need(not value.is_graph_output(), f"{name_of(value)} is an output of the graph")
        self.need(len(users) == 1, f"{name_of(value)} is read by {len(users)} nodes, expected one")
        self.need(is_op(users[0], *op_types), f"expected {' or '.join(op_types)}, found {users[0].op_type}", users[0])
        self.take(users[0])
        return users[0]

    def other_input(self, node: ir.Node, value: ir.Value) -> ir.Value:
        """The second operand of a binary node."""
        a, b = input_of(node, 0), input_of(node, 1)
        other = b if a is value else a
        if other is None or (a is not value and b is not value):
            self.miss(f"{node.op_type} does not read {name_of(value)}", node)
        return other

    # --- building ----------------------------------------------------------------------------------------

    def op(self, op_type: str, *inputs: ir.Value | None, domain: str = "", outputs: int = 1, **attributes: Any) -> Any:
        """Build a node; its value, or the tuple of its values. Nothing enters the graph before the rule succeeds."""
        attrs = [ir.convenience.convert_attribute(k, v) for k, v in attributes.items()]
        node = ir.Node(domain, op_type, list(inputs), attrs, num_outputs=outputs)
        self.built.append(node)
        return node.outputs[0] if outputs == 1 else tuple(node.outputs)

    def call(self, function: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any) -> Any:
        """Call one of Opsmith's functions (see functions.py)."""
        return self.op(function, *inputs, domain=DOMAIN, outputs=outputs, **attributes)

    def constant(self, array: Any, dtype: Any = np.int64) -> ir.Value:
        """A small constant. The simplify pass turns it into an initializer and merges equal ones."""
        value: ir.Value = self.op("Constant", value=ir.tensor(np.asarray(array, dtype)))
        value.const_value = value.producer().attributes["value"].as_tensor()  # type: ignore[union-attr]
        value.type = ir.TensorType(value.const_value.dtype)
        value.shape = ir.Shape(np.asarray(array).shape)
        return value

    def weight(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """A new initializer of the main graph; it is registered when the rule succeeds."""
        sizes = [int(s) for s in tensor.shape]  # type: ignore[arg-type]
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(sizes), const_value=tensor)
        self.weights.append(value)
        return value

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        self.replacements.append((old, new))

    # --- finishing ---------------------------------------------------------------------------------------

    def check_taken(self) -> None:
        """Refuse the match if a taken node's result is needed outside of it, or if it belongs to another graph."""
        replaced = {old for old, _ in self.replacements}
        taken = set(self.taken)
        for node in self.taken:
            self.need(node.graph is self.graph, "it reaches into the body of an If or Loop, or out of it", node)
            for value in node.outputs:
                if value in replaced:
                    continue
                self.need(not value.is_graph_output(), f"{name_of(value)} is an output of the graph", node)
                outside = [u for u in distinct_users(value) if u not in taken]
                if outside:
                    self.miss(f"{name_of(value)} is also needed by {outside[0].op_type} {outside[0].name!r}", node)

    def commit(self, rule_name: str) -> None:
        """Put the built nodes in place of the taken ones."""
        for value in self.weights:
            register(self.model.graph, value)
        last = self.place or self.replacements[-1][0].producer()
        assert last is not None
        for node in self.built:
            if node.op_type != "Constant":
                node.name = f"{rule_name}_{name_of(self.replacements[-1][0])}"
        self.graph.insert_before(last, self.built)
        for old, new in self.replacements:
            new.shape = old.shape if old.shape is not None else new.shape
            new.type = old.type if old.type is not None else new.type
            name, was_output = old.name, old.is_graph_output()
            old.name = None if not was_output else f"{name}__replaced"
            if new.producer() in self.built:
                new.name = name
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        for node in reversed(self._in_order(self.taken)):
            if not any(v.uses() or v.is_graph_output() for v in node.outputs):
                self.graph.remove(node, safe=True)

    def _in_order(self, nodes: list[ir.Node]) -> list[ir.Node]:
        """Topological order among the taken nodes: a node before the readers of its results."""
        wanted, done, order = set(nodes), set(), []

        def visit(node: ir.Node) -> None:
            if node in done:
                return
            done.add(node)
            for value in node.inputs:
                source = value.producer() if value is not None else None
                if source in wanted:
                    visit(source)
            order.append(node)

        for node in nodes:
            visit(node)
        return order


def register(graph: ir.Graph, value: ir.Value) -> None:
    """Add an initializer under its name, or under the next one that is free."""
    name, i = value.name or "weight", 1
    unique = name
    while unique in graph.initializers:
        unique, i = f"{name}_{i}", i + 1
    value.name = unique
    if value.const_value is not None:
        value.const_value.name = unique
    graph.register_initializer(value)


# --- looking at nodes and values -------------------------------------------------------------------------


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether a node is one of "Softmax", "opsmith.Gelu", ..."""
    if node is None:
        return False
    name = operator_name(node)
    return name in op_types


def name_of(value: ir.Value | None) -> str:
    return (value.name or "?") if value is not None else "?"


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def distinct_users(value: ir.Value) -> list[ir.Node]:
    seen: dict[ir.Node, None] = {}
    for node, _ in value.uses():
        seen[node] = None
    return list(seen)


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    found = node.attributes.get(name)
    return default if found is None or found.value is None else found.value


def tensor_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The constant behind a value; None for everything that can change between runs."""
    if value is None or value.is_graph_input():
        return None
    return ir.convenience.get_const_tensor(value)


def array_of(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """A small constant as an array; weights are left alone."""
    tensor = tensor_of(value)
    if tensor is None or tensor.size > SMALL:
        return None
    return np.asarray(tensor.numpy())


def scalar_of(value: ir.Value | None) -> float | None:
    """The number behind a constant of one element that broadcasting cannot turn into a higher rank."""
    tensor = tensor_of(value)
    if tensor is None or tensor.size != 1 or len(tensor.shape) > 1:
        return None
    return float(np.asarray(tensor.numpy()).reshape(()))


def ints_of(value: ir.Value | None) -> list[int] | None:
    array = array_of(value)
    if array is None or array.dtype.kind not in "iu":
        return None
    return [int(i) for i in array.reshape(-1)]


def is_close(number: float | None, expected: float, dtype: ir.DataType | None = None) -> bool:
    """Whether a constant is this number: up to the digits that people write, and what its type can hold."""
    tolerance = _ROUNDING.get(dtype, 1e-6)
    return number is not None and abs(number - expected) <= tolerance * abs(expected)


_ROUNDING: dict[ir.DataType | None, float] = {ir.DataType.FLOAT16: 2**-10, ir.DataType.BFLOAT16: 2**-7}


def rank_of(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def size_of(value: ir.Value, axis: int) -> SizeLike | None:
    """One dimension, as a number or a symbolic size; None if nothing is known."""
    if value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    dim = value.shape[axis]
    if isinstance(dim, int):
        return dim
    return None if dim.value is None else parse(dim.value) or symbol(dim.value)


def sizes_of(value: ir.Value) -> list[SizeLike] | None:
    if value.shape is None:
        return None
    sizes = [size_of(value, i) for i in range(len(value.shape))]
    return None if any(s is None for s in sizes) else [s for s in sizes if s is not None]


def factors(
    value: ir.Value, stop: ir.Value | None, keep: ir.Value | None = None
) -> tuple[float, list[ir.Value], list[ir.Node]]:
    """Flatten a product: (constant factor, other factors, the Mul and Div nodes walked). STOP and KEEP stay whole."""
    node = value.producer()
    if value is stop or value is keep or node is None or not is_op(node, "Mul", "Div"):
        return 1.0, [value], []
    a, b = input_of(node, 0), input_of(node, 1)
    assert a is not None and b is not None
    number = scalar_of(b)
    if is_op(node, "Div"):
        if number is None or number == 0:
            return 1.0, [value], []
        constant, others, nodes = factors(a, stop, keep)
        return constant / number, others, [node, *nodes]
    if number is None and (number := scalar_of(a)) is not None:
        a = b
    elif number is None:
        left, right = factors(a, stop, keep), factors(b, stop, keep)
        return left[0] * right[0], left[1] + right[1], [node, *left[2], *right[2]]
    constant, others, nodes = factors(a, stop, keep)
    return constant * number, others, [node, *nodes]


def constant_factor(value: ir.Value) -> tuple[float, ir.Value | None]:
    """(c, x) if VALUE is c * x, x * c or x / c with a constant c, else (1, None)."""
    node = value.producer()
    if node is None or not is_op(node, "Mul", "Div"):
        return 1.0, None
    a, b = input_of(node, 0), input_of(node, 1)
    number = scalar_of(b)
    if is_op(node, "Div"):
        return (1.0, None) if not number else (1.0 / number, a)
    if number is not None:
        return number, a
    number = scalar_of(a)
    return (1.0, None) if number is None else (number, b)
