"""Elementwise fusion: which nodes run as one loop, and what that loop computes.

A group is one *root*, whose result is stored, and every node whose results are used only inside the group; diamonds such as
`x * sigmoid(x)` are one group. Since only the root leaves the group, groups are convex by construction. At the bottom of a
group may stand one *anchor* (a GEMM, convolution, norm): the group then runs as the anchor's epilogue, on its registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from opsmith import ops
from opsmith.analysis.quantized import QUANTIZED, one_scale
from opsmith.analysis.registry import Node, key_of
from opsmith.analysis.values import FLOATS, Abstract, DataType, Unsupported
from opsmith.compiler.kernel import BODY, GRID, Kernel
from opsmith.compiler.lower.builder import Builder, shape_text
from opsmith.compiler.lower.registry import ANCHORS
from opsmith.compiler.program import (
    Body,
    Epilogue,
    Let,
    RowOperand,
    ScalarOperand,
    View,
    channels_last_order,
    even,
    layout_order,
)
from opsmith.expressions import ACCUMULATOR, Expr, Literal, Var
from opsmith.sizes import ZERO, Number, Size, as_size, product

MAX_LEAVES = 10  # operands of one loop; more would spill registers and run out of load ports
MAX_NODES = 48

MAP = Kernel("map", "elementwise.hpp", [GRID, BODY])
MAP_SCALAR = Kernel("map_scalar", "elementwise.hpp", [GRID, BODY])


@dataclass
class Group:
    """Nodes that run as one loop. `root` is stored; `anchor`, if any, is the kernel they are an epilogue of."""

    root: Node
    nodes: list[Node] = field(default_factory=list)  # elementwise members, in topological order
    anchor: Node | None = None

    @property
    def value(self) -> ir.Value:
        return self.root.ir.outputs[0]

    def members(self) -> list[Node]:
        return [*([self.anchor] if self.anchor else []), *self.nodes]

    def leaves(self) -> list[ir.Value]:
        """Values that come from outside, each once, in order of first use."""
        inside = {o for n in self.nodes for o in n.ir.outputs}
        if self.anchor is not None:
            inside.add(self.anchor.ir.outputs[0])
        return list(dict.fromkeys(v for n in self.nodes for v in operands(n.ir) if v not in inside))


def operands(node: ir.Node) -> list[ir.Value]:
    """The inputs that an elementwise node reads; CastLike looks only at the type of its second one."""
    present = [v for v in node.inputs if v is not None]
    return present[:1] if node.op_type == "CastLike" else present


def operator_of(node: Node) -> ops.Operator | None:
    """What the node computes per element, if it is elementwise."""
    key = key_of(node.ir)
    if key in ops.QUANTIZERS and node.op in ("QuantizeLinear", "DequantizeLinear"):
        return ops.QUANTIZERS[key] if one_scale(node) else None
    return ops.TABLE.get(key)


def make_groups(
    nodes: Mapping[ir.Node, Node], facts: Mapping[ir.Value, Abstract], outputs: set[ir.Value]
) -> dict[ir.Node, Group]:
    """Node -> its group, for elementwise nodes and anchors; nodes known to shape arithmetic take no part."""
    group_of: dict[ir.Node, Group] = {}
    for node in reversed(list(nodes.values())):
        elementwise, anchor = operator_of(node) is not None, key_of(node.ir) in ANCHORS
        if not (elementwise or anchor) or not facts[node.ir.outputs[0]].runs:
            continue
        group = _shared_group(node.ir, facts, outputs, group_of)
        if group is not None and anchor and group.anchor is None:
            group.anchor = node
        elif group is not None and elementwise and _fits(group, node):
            group.nodes.insert(0, node)
        else:
            group = Group(node, [node] if elementwise else [], None if elementwise else node)
        group_of[node.ir] = group
    return group_of


def _shared_group(
    node: ir.Node, facts: Mapping[ir.Value, Abstract], outputs: set[ir.Value], group_of: Mapping[ir.Node, Group]
) -> Group | None:
    """The one group that all users of the node's result belong to, as elementwise members with the same dims."""
    value = node.outputs[0]
    if value in outputs or any(o.uses() or o in outputs for o in node.outputs[1:]):
        return None
    users = {u.node for u in value.uses()}
    if not users or any(u not in group_of for u in users):
        return None
    groups = {id(group_of[u]): group_of[u] for u in users}
    if len(groups) != 1:
        return None
    (group,) = groups.values()
    anchor = group.anchor
    if anchor is not None and (anchor.ir in users or group.root is anchor):
        return None
    return group if facts[value].dims == facts[group.value].dims else None


def _fits(group: Group, node: Node) -> bool:
    if len(group.nodes) >= MAX_NODES:
        return False
    return len(Group(group.root, [node, *group.nodes], group.anchor).leaves()) <= MAX_LEAVES


# --- what a group computes ---


@dataclass
class Expressions:
    """A group as named steps on named operands; the last one is its result."""

    lets: list[Let]
    leaves: list[tuple[str, ir.Value]]  # operand name, value, for values in memory
    scalars: list[ScalarOperand]
    result: Expr
    vector: bool
    cost: int


def express(group: Group, facts: Mapping[ir.Value, Abstract]) -> Expressions:
    accumulator = group.anchor.ir.outputs[0] if group.anchor else None
    leaves = group.leaves()
    values = [*leaves, *(n.ir.outputs[0] for n in group.nodes)]
    names: dict[ir.Value, Expr] = {} if accumulator is None else {accumulator: ACCUMULATOR}
    scales = _scales(group)
    steps = Expressions([], [], [], ACCUMULATOR, False, 0)
    steps.vector = all(facts[v].dtype in FLOATS or facts[v].dtype == DataType.BOOL for v in values) or (
        all(_on_lanes(n, facts, integer_sums=is_integer(group.anchor)) for n in group.nodes)
    )
    for value in leaves:
        fact = facts[value]
        number = fact.constant.scalar() if fact.constant is not None else None
        if number is not None and value in scales:
            names[value] = Var(f"s{len(steps.scalars)}")
            argument = Number(float(number)) if fact.dtype in FLOATS else as_size(int(number))
            steps.scalars.append(ScalarOperand(f"s{len(steps.scalars)}", fact.dtype, argument))
        elif number is not None:
            names[value] = Var(f"c{len(names)}")
            steps.lets.append(Let(f"c{len(names) - 1}", fact.dtype, Literal(number, fact.dtype)))
        elif fact.elements is not None and fact.rank == 0:
            names[value] = Var(f"s{len(steps.scalars)}")
            steps.scalars.append(ScalarOperand(f"s{len(steps.scalars)}", fact.dtype, fact.elements[0]))
        else:
            names[value] = Var(f"x{len(steps.leaves)}")
            steps.leaves.append((f"x{len(steps.leaves)}", value))
    for i, node in enumerate(group.nodes):
        operator = operator_of(node)
        assert operator is not None
        expression = operator.expression(node, [names[v] for v in operands(node.ir)])
        result = node.ir.outputs[0]
        names[result] = steps.result = Var(f"t{i}")
        steps.lets.append(Let(f"t{i}", facts[result].dtype, expression))
        steps.cost += operator.cost
    return steps


def _scales(group: Group) -> set[ir.Value]:
    """Scales and zero points, which differ from layer to layer: as arguments they leave the layers one kernel."""
    quantizers = (n.ir for n in group.nodes if n.op in ("QuantizeLinear", "DequantizeLinear"))
    scales = {v for n in quantizers for v in n.inputs[1:] if v is not None}
    if is_integer(group.anchor) or (group.anchor is None and all(d == 1 for d in group.root.outputs[0].dims)):
        scales |= {v for n in group.nodes if n.op == "Mul" for v in operands(n.ir)}
    return scales


def is_integer(anchor: Node | None) -> bool:
    """Whether the anchor's sums, which its epilogue gets, are INT32."""
    return anchor is not None and anchor.outputs[0].dtype == DataType.INT32


_WITH_WORDS = ("Add", "Sub", "Mul", "Cast")  # what vectors of int32, the sums of an integer product, go through


def _on_lanes(node: Node, facts: Mapping[ir.Value, Abstract], integer_sums: bool) -> bool:
    """Whether vectors can compute this node although it deals with integers."""
    types = {facts[v].dtype for v in (*operands(node.ir), node.ir.outputs[0])} - FLOATS - {DataType.BOOL}
    if node.op in ("QuantizeLinear", "DequantizeLinear"):
        return types <= QUANTIZED
    if node.op == "Cast" and facts[node.ir.outputs[0]].dtype not in FLOATS:
        return not types
    return not types or (types == {DataType.INT32} and integer_sums and node.op in _WITH_WORDS)


def slug(nodes: Sequence[Node]) -> str:
    names = [n.op.lower() for n in nodes[:4]]
    return "_".join(names) if len(nodes) <= 4 else "_".join(names) + f"_{len(nodes)}ops"


def comment(nodes: Sequence[Node]) -> str:
    return " -> ".join(n.op for n in nodes[:6]) + (" ..." if len(nodes) > 6 else "")


# --- a group without an anchor: one map ---


def lower_map(group: Group, builder: Builder) -> None:
    steps = express(group, builder.region.facts)
    views = [builder.tensor(v) for _, v in steps.leaves]
    target = builder.result(group.value, _preferred_order(builder.region.facts[group.value], views), strided=True)
    named = tuple((name, view.dtype) for (name, _), view in zip(steps.leaves, views))
    what = comment(group.nodes)
    builder.call(
        MAP if steps.vector else MAP_SCALAR,
        grid=builder.grid(target, views),
        body=Body(named, tuple(steps.scalars), tuple(steps.lets), steps.result, steps.vector, what),
        templates=(target.dtype, *(v.dtype for v in views)),
        label=f"map_{slug(group.nodes)}",
        comment=f"{what} {shape_text(target)}",
        flops=product(target.dims) * steps.cost,
    )


def lower_rest(group: Group, builder: Builder) -> None:
    """The elementwise nodes behind an anchor that stored its plain result."""
    if group.nodes:
        lower_map(Group(group.root, group.nodes), builder)


def _preferred_order(facts: Abstract, views: Sequence[View]) -> tuple[int, ...] | None:
    """Channels-last if an operand of full size lies so, for an image between convolutions stays as it is; else the order of the
    first operand of full size."""
    orders = [order for v in views if v.dims == facts.dims and (order := layout_order(v)) is not None]
    images = [o for o in orders if o == channels_last_order(len(o))] if len(facts.dims) > 2 else []
    return next(iter(images or orders), None)


# --- a group with an anchor: its epilogue ---


@dataclass(frozen=True)
class Extra:
    """What the anchor itself does to its sum before the group's nodes: add a bias, scale, activate."""

    expression: Callable[[Expr, Expr], Expr]  # accumulator, operand -> the new accumulator
    view: View | None = None


def plan_epilogue(
    group: Group, builder: Builder, order: Sequence[int], extras: Sequence[Extra] = (), outer: bool = True
) -> Epilogue | None:
    """The group as an epilogue on output rows; None if an operand cannot be addressed by (row, column).

    `order` lists the output's axes in memory order; the last one is the column, all others together are the row, the first
    one is Row::outer, if the kernel counts that (`outer`).
    """
    facts = builder.region.facts
    dims = facts[group.value].dims
    steps = express(group, facts) if group.nodes else None
    if steps is not None and not steps.vector:
        return None
    if facts[group.value].dtype == DataType.BOOL:
        return None  # the kernel writes numbers, and a mask is none
    tensors: list[RowOperand] = []
    lets: list[Let] = []
    sums = DataType.INT32 if is_integer(group.anchor) else DataType.FLOAT
    stored = facts[group.value].dtype if facts[group.value].dtype == DataType.INT32 else DataType.FLOAT

    def read(name: str, view: View) -> bool:
        operand = _by_row(name, view, dims, order, outer)
        if operand is None and view.dims == tuple(dims):
            operand = _by_row(name, builder.dense(view, order), dims, order, outer)
        if operand is not None:
            tensors.append(operand)
        return operand is not None

    for i, extra in enumerate(extras):
        if extra.view is not None and not read(f"e{i}", extra.view):
            return None
        lets.append(Let("acc", DataType.FLOAT, extra.expression(ACCUMULATOR, Var(f"e{i}"))))
    if steps is None:
        return Epilogue(tuple(tensors), (), tuple(lets), sums=sums, stored=stored)
    for name, value in steps.leaves:
        if not read(name, builder.tensor(value)):
            return None
    named = slug(group.nodes), comment(group.nodes)
    return Epilogue(tuple(tensors), tuple(steps.scalars), (*lets, *steps.lets), steps.result, *named, sums, stored)


def _by_row(name: str, view: View, dims: Sequence[Size], order: Sequence[int], outer: bool) -> RowOperand | None:
    """How an operand is read at (row, column), if it can be."""
    lead = len(dims) - len(view.dims)
    strides: list[Size] = []
    for axis in order:
        if axis < lead or view.dims[axis - lead] == 1:
            strides.append(ZERO)
        elif view.dims[axis - lead] == dims[axis]:
            strides.append(view.strides[axis - lead])
        else:
            return None
    *rows, column = strides
    row_dims = [dims[a] for a in order[:-1]]
    if dims[order[-1]] != 1 and column != 0 and column != 1:
        return None
    dense = column == 1
    used = [i for i, s in enumerate(rows) if s != 0 and row_dims[i] != 1]
    if not used:
        return RowOperand(name, view, dense, "", ZERO)
    if used == [0] and len([d for d in row_dims if d != 1]) > 1:
        return RowOperand(name, view, dense, "outer", rows[0]) if outer else None
    return RowOperand(name, view, dense, "index", rows[max(used)]) if even(rows, row_dims) else None


def anchored(
    node: Node,
    builder: Builder,
    group: Group,
    emit: Callable[[View, Epilogue], None],
    extras: Sequence[Extra] = (),
    outer: bool = True,
    order: Sequence[int] | None = None,
    strided: bool = False,
    *,
    apart: bool = False,
) -> None:
    """Run `emit(target, epilogue)` with the node's group as epilogue. Where it cannot be one, or is to stay APART, store the node's
    own result and run the group as a map behind it. What is stored lies in ORDER; STRIDED: perhaps as a part of the channels of
    a wider image."""
    order = order or tuple(range(len(builder.region.facts[node.ir.outputs[0]].dims)))
    epilogue = None if apart else plan_epilogue(group, builder, order, extras, outer)
    if epilogue is not None:
        emit(builder.result(group.value, order, strided), epilogue)
        return
    epilogue = plan_epilogue(Group(node, [], node), builder, order, extras, outer)
    if epilogue is None:
        raise Unsupported("an operand cannot be read row by row")
    emit(builder.result(node.ir.outputs[0], order, strided), epilogue)
    lower_rest(group, builder)
