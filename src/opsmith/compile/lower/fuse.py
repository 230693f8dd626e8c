"""Elementwise fusion: which nodes run as one loop, and that loop's C++.

A group is one *root*, whose result is stored, and every node whose results are used only inside the group; diamonds such as
`x * sigmoid(x)` are one group. Since only the root leaves the group, groups are convex by construction. At the bottom of a
group may stand one *anchor* (a GEMM, convolution, norm): the group then runs as the anchor's epilogue, on its registers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from opsmith.compile.dims import ZERO, Dim, product
from opsmith.compile.lower.elementwise import SPECS, kind
from opsmith.compile.lower.program import Group, Lowering, operands
from opsmith.compile.lower.registry import ANCHORS, Node, key_of
from opsmith.compile.values import CPP, FLOATS, Abstract, DataType, FloatScalar, View, float_literal, memory_order

MAX_LEAVES = 10  # operands of one loop; more would spill registers and run out of load ports
MAX_NODES = 48
IDENTITY = "[](F acc, Row, i64, auto) -> F { return acc; }"


def make_groups(
    nodes: Sequence[ir.Node], facts: dict[ir.Value, Abstract], outputs: Iterable[ir.Value]
) -> dict[ir.Node, Group]:
    """Node -> its group, for elementwise nodes and anchors; nodes known to shape arithmetic take no part."""
    kept = set(outputs)
    inside = set(nodes)
    group_of: dict[ir.Node, Group] = {}
    for node in reversed(nodes):
        elementwise, anchor = key_of(node) in SPECS, key_of(node) in ANCHORS
        fact = facts[node.outputs[0]]
        if not (elementwise or anchor) or fact.elements is not None or fact.constant is not None:
            continue
        target = _shared_group(node, facts, kept, inside, group_of)
        if target is not None and anchor and target.anchor is None:
            target.anchor = node
        elif target is not None and elementwise and _fits(target, node):
            target.nodes.insert(0, node)
        else:
            target = Group(node, [node] if elementwise else [], None if elementwise else node)
        group_of[node] = target
    return group_of


def _shared_group(
    node: ir.Node,
    facts: dict[ir.Value, Abstract],
    kept: set[ir.Value],
    inside: set[ir.Node],
    group_of: dict[ir.Node, Group],
) -> Group | None:
    """The one group that all users of the node's result belong to, as elementwise members with the same dims."""
    out = node.outputs[0]
    if out in kept or any(o.uses() or o in kept for o in node.outputs[1:]):
        return None
    users = {u.node for u in out.uses()}
    groups = {id(group_of[u]): group_of[u] for u in users if u in group_of and u in inside}
    if len(groups) != 1 or any(u not in group_of for u in users):
        return None
    (group,) = groups.values()
    if any(u is group.anchor for u in users):
        return None
    if facts[out].dims != facts[group.root.outputs[0]].dims or group.root is group.anchor:
        return None
    return group


def _fits(group: Group, node: ir.Node) -> bool:
    if len(group.nodes) >= MAX_NODES:
        return False
    trial = Group(group.root, [node, *group.nodes], group.anchor)
    return len(trial.leaves()) <= MAX_LEAVES


# --- expressions ---


@dataclasses.dataclass
class Expression:
    """A group as C++ statements on named operands, ending in `return tN;`."""

    lines: list[str]
    leaves: list[tuple[str, ir.Value]]  # operand name, value, for values in memory
    scalars: list[tuple[str, str, str]]  # parameter name, C++ type, argument text, for run-time scalars
    comment: str
    vector: bool
    flops: int


def write_expression(
    group: Group, out: Lowering, nodes: dict[ir.Node, Node], accumulator: ir.Value | None = None
) -> Expression:
    facts = out.facts
    members = group.nodes
    leaves = [v for v in group.leaves() if v is not accumulator]
    values = [*leaves, *(n.outputs[0] for n in members)]
    vector = all(facts[v].dtype in FLOATS or facts[v].dtype == DataType.BOOL for v in values)
    names: dict[ir.Value, str] = {} if accumulator is None else {accumulator: "acc"}
    lines: list[str] = []
    in_memory: list[tuple[str, ir.Value]] = []
    scalars: list[tuple[str, str, str]] = []
    for value in leaves:
        fact = facts[value]
        literal = _literal(fact, vector)
        if literal is not None:
            names[value] = f"c{len(names)}"
            lines.append(f"const {_type(fact.dtype, vector)} {names[value]} = {literal};")
        elif fact.elements is not None and len(fact.elements) == 1 and fact.rank == 0:
            names[value] = f"s{len(scalars)}"
            element = fact.elements[0]
            text = element.text if isinstance(element, FloatScalar) else out.cpp(element)
            storage = "float" if fact.dtype in FLOATS else CPP[fact.dtype]
            scalars.append((f"{names[value]}_value", storage, f"({storage})({text})"))
            wrapped = (
                f"mask_of({names[value]}_value)" if fact.dtype == DataType.BOOL else f"splat({names[value]}_value)"
            )
            lines.append(
                f"const {_type(fact.dtype, vector)} {names[value]} = {wrapped if vector else names[value] + '_value'};"
            )
        else:
            names[value] = f"x{len(in_memory)}"
            in_memory.append((names[value], value))
    cost = 0
    for i, node in enumerate(members):
        spec = SPECS[key_of(node)]
        text = spec.text(nodes[node], [names[v] for v in operands(node)])
        result = facts[node.outputs[0]].dtype
        names[node.outputs[0]] = f"t{i}"
        lines.append(f"const {_type(result, vector)} t{i} = {_narrow(text, result, vector)};")
        cost += spec.cost
    result_name = names[members[-1].outputs[0]] if members else "acc"
    lines.append(f"return {result_name};")
    comment = " -> ".join(n.op_type for n in members[:6]) + (" ..." if len(members) > 6 else "")
    return Expression(lines, in_memory, scalars, comment, vector, cost)


def _type(dtype: DataType, vector: bool) -> str:
    if vector:
        return "I" if dtype == DataType.BOOL else "F"
    return "float" if dtype in FLOATS else CPP[dtype]


def _narrow(text: str, dtype: DataType, vector: bool) -> str:
    """Small integers are computed as int by C++; bring the result back to its own type."""
    return text if vector or kind(dtype) in "fdb" else f"({CPP[dtype]})({text})"


def _literal(fact: Abstract, vector: bool) -> str | None:
    """C++ text of a constant with a single element."""
    if fact.constant is None or fact.constant.size != 1:
        return None
    value = fact.constant.read().reshape(-1)[0]
    if fact.dtype in FLOATS:
        text = float_literal(float(value))
        return f"splat({text})" if vector else text
    if fact.dtype == DataType.DOUBLE:
        return float_literal(float(value), "double")
    if fact.dtype == DataType.BOOL:
        return (f"mask_of({str(bool(value)).lower()})") if vector else str(bool(value)).lower()
    number = int(value)
    text = (
        f"{number}ull"
        if fact.dtype == DataType.UINT64
        else f"(-{-number - 1}ll - 1)"
        if number < -(2**62)
        else f"{number}ll"
    )
    return f"({CPP[fact.dtype]})({text})"


def storage(dtype: DataType) -> str:
    return CPP[dtype]


# --- a group without an anchor: one map ---


def lower_map(group: Group, out: Lowering, nodes: dict[ir.Node, Node]) -> None:
    value = group.root.outputs[0]
    expression = write_expression(group, out, nodes)
    views = [out.tensor(v) for _, v in expression.leaves]
    target = out.result(value, _preferred_order(out.facts[value], views))
    emit_map(expression, views, target, group, out)


def emit_map(expression: Expression, views: Sequence[View], target: View, group: Group, out: Lowering) -> None:
    types = [CPP[v.dtype] for v in views]
    if expression.vector:
        parameters = [f"{'I' if t == 'bool' else 'F'} {n}" for t, (n, _) in zip(types, expression.leaves)]
        result, function = ("I" if target.dtype == DataType.BOOL else "F"), "map"
    else:
        parameters = [
            f"{'float' if v.dtype in FLOATS else CPP[v.dtype]} {n}" for v, (n, _) in zip(views, expression.leaves)
        ]
        result, function = ("float" if target.dtype in FLOATS else CPP[target.dtype]), "map_scalar"
    extra = "".join(f", {t} {n}" for n, t, _ in expression.scalars)
    lines = "\n    ".join(expression.lines)
    capture = "=" if expression.scalars else ""
    body = (
        f"{function}<{', '.join([CPP[target.dtype], *types])}>(pool, grid, [{capture}]({', '.join(parameters)}) -> {result} {{\n"
        f"    {lines}\n  }});"
    )
    name = out.instance(
        f"map_{_slug(group.nodes)}",
        f"const Pool& pool, const Grid<{len(views)}>& grid{extra}",
        body,
        ("elementwise.hpp",),
        expression.comment,
    )
    arguments = "".join(f", {a}" for _, _, a in expression.scalars)
    out.call(
        name,
        f"{name}(pool, {out.grid(target, views)}{arguments});",
        reads=views,
        writes=[target],
        comment=f"{expression.comment} {_shape(target)}",
        flops=product(target.dims) * expression.flops,
    )


def _shape(view: View) -> str:
    return "(" + ", ".join(d.cpp() for d in view.dims) + ")"


def _slug(nodes: Sequence[ir.Node]) -> str:
    names = [n.op_type.lower() for n in nodes[:4]]
    return "_".join(names) if len(nodes) <= 4 else "_".join(names) + f"_{len(nodes)}ops"


def _preferred_order(facts: Abstract, views: Sequence[View]) -> tuple[int, ...] | None:
    """The memory order of the first operand of full size: an image that came in channels-last stays so."""
    for view in views:
        if view.dims == facts.dims:
            order = memory_order(view)
            if order is not None:
                return order
    return None


# --- a group with an anchor: its epilogue ---


@dataclasses.dataclass
class Epilogue:
    """What an anchor adds to its kernel call: a lambda, its parameters and their arguments."""

    lambda_text: str
    parameters: str  # ", const float* x0, i64 x0_ld"
    arguments: str
    views: list[View]
    slug: str
    comment: str
    flops: int


@dataclasses.dataclass(frozen=True)
class ExtraLeaf:
    """An operand that the anchor itself brings (the bias of a Conv), applied before the group's own nodes."""

    view: View
    template: str  # e.g. "acc + {0}"


def plan_epilogue(
    group: Group,
    out: Lowering,
    nodes: dict[ir.Node, Node],
    order: Sequence[int],
    extra: Sequence[ExtraLeaf] = (),
    outer: bool = True,
) -> Epilogue | None:
    """The group as an epilogue on output rows; None if an operand cannot be addressed by (row, column).

    `order` lists the output's axes in memory order; the last one is the column, all others together are the row, the first
    one is Row::outer, if the kernel counts that (`outer`).
    """
    accumulator = group.anchor.outputs[0] if group.anchor else None
    dims = out.facts[group.root.outputs[0]].dims
    lines: list[str] = []
    parameters: list[str] = []
    arguments: list[str] = []
    views: list[View] = []

    def leaf(name: str, view: View) -> bool:
        access = _access(view, dims, order, outer)
        if access is None and view.dims == tuple(dims):
            view = out.dense(view, order)
            access = _access(view, dims, order, outer)
        if access is None:
            return False
        text, ld = access
        cpp = CPP[view.dtype]
        parameters.append(f", const {cpp}* {name}_at, i64 {name}_ld")
        arguments.append(f", {out.pointer(view)}, {out.cpp(ld)}")
        views.append(view)
        lines.append(f"const {'I' if cpp == 'bool' else 'F'} {name} = {text.format(p=f'{name}_at', ld=f'{name}_ld')};")
        return True

    for i, item in enumerate(extra):
        if not leaf(f"e{i}", item.view):
            return None
        lines.append(f"acc = {item.template.format(f'e{i}')};")
    slug, comment, flops = "", "", len(extra)
    if group.nodes:
        expression = write_expression(group, out, nodes, accumulator)
        if not expression.vector:
            return None
        for name, value in expression.leaves:
            if not leaf(name, out.tensor(value)):
                return None
        parameters += [f", {t} {n}" for n, t, _ in expression.scalars]
        arguments += [f", {a}" for _, _, a in expression.scalars]
        lines += expression.lines
        slug, comment, flops = _slug(group.nodes), expression.comment, flops + expression.flops
    else:
        lines.append("return acc;")
    needed = "\n    ".join(lines)
    text = f"[=]([[maybe_unused]] F acc, [[maybe_unused]] Row row, [[maybe_unused]] i64 col, [[maybe_unused]] auto lanes) -> F {{\n    {needed}\n  }}"
    return Epilogue(text, "".join(parameters), "".join(arguments), views, slug, comment, flops)


def _access(view: View, dims: Sequence[Dim], order: Sequence[int], outer: bool) -> tuple[str, Dim] | None:
    """C++ to read an operand at (row, col), and its leading dimension."""
    lead = len(dims) - len(view.dims)
    strides: list[Dim] = []
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
    dense_column = column == 1
    used = [i for i, s in enumerate(rows) if s != 0 and row_dims[i] != 1]
    read = "load({p} + {at}col, lanes)" if dense_column else "splat_of({p}[{at}0])"
    if not used:
        return read.replace("{at}", ""), ZERO
    if used == [0] and len([d for d in row_dims if d != 1]) > 1:
        if not outer:
            return None
        return read.replace("{at}", "row.outer * {ld} + "), rows[0]
    if _even(rows, row_dims):
        ld = rows[max(used)]
        return read.replace("{at}", "row.index * {ld} + "), ld
    return None


def _even(strides: Sequence[Dim], dims: Sequence[Dim]) -> bool:
    """Whether one stride walks over all rows in order."""
    step: Dim | None = None
    for s, d in zip(reversed(strides), reversed(dims)):
        if d == 1:
            continue
        if step is not None and s != step:
            return False
        step = s * d
    return True
