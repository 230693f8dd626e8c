"""Use what the analysis knows of sizes (opsmith/analysis): Shape, Gather, Concat, Mul ... on small vectors are symbolic there.

    Shape(x)[2] / 4  with x [batch, seq, 32]   ->  8
    Reshape(x, Concat(Shape(x)[0], Shape(x)[1], 4, 8))  ->  Reshape(x, [0, 0, 4, 8])

Exporters emit hundreds of such nodes for every dynamic dimension, and ONNX's own inference forgets the sizes on the
way. (1) A vector that turns out constant becomes a constant, (2) a Reshape whose target only copies or regroups
dimensions gets a constant target, (3) an Expand or Reshape to the shape that is there already goes, as does an Expand before an
elementwise operator that broadcasts by itself, (4) every value gets a shape in which equal sizes have equal names, which the rules
rely on, (5) a Softmax over rows that are its input's last dimension reads that, not the rows: before opset 13 it was over all
dimensions from its axis on, and onnx's converter, which often does not know the rank, flattens them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from opsmith.analysis import Facts, Symbols, analyse
from opsmith.dim_names import parse, spell
from opsmith.rewriter.rule import attribute, input_of, is_op, name_of, tensor_of
from opsmith.sizes import Size, names


def infer(model: ir.Model) -> bool:
    """Fold what the sizes make constant, also in branches; name all dimensions of the main graph. True if it changed nodes."""
    graph = model.graph
    opset = model.opset_imports.get("", 1)
    analysed = analyse(graph, opset, trust_declared=True).facts
    facts = {value: fact for value, fact in analysed.items() if not fact.squeezed}  # which has no shape to write
    changed = _fold_in_branches(graph, analysed, opset)
    for node in list(graph):
        if is_op(node, "Reshape", "Expand") and _drop(node, facts):
            changed = True
        elif is_op(node, "Reshape"):
            changed |= _constant_target(node, facts)
        elif is_op(node, "Expand"):
            changed |= _drop_before_broadcast(node, facts)
        elif is_op(node, "Softmax", "LogSoftmax", "Hardmax"):
            changed |= _over_last_dimension(node, facts)
    changed |= _fold(graph, facts)
    _write_shapes(graph, facts)
    return changed


def _fold_in_branches(graph: ir.Graph, outer: Facts, opset: int, prefix: str = "") -> bool:
    """(1) in the branches of If. What a loop carries may have another shape than its body declares: nothing is known there."""
    changed = False
    for node in list(graph):
        for name in ("then_branch", "else_branch") if is_op(node, "If") else ():
            branch, inner = node.attributes[name].as_graph(), f"{prefix}{name_of(node.outputs[0])}_{name}_"
            facts = analyse(branch, opset, outer, re.sub(r"\W", "_", inner)).facts
            changed |= _fold_in_branches(branch, facts, opset, inner)
            changed |= _fold(branch, facts)
    return changed


def _fold(graph: ir.Graph, facts: Facts) -> bool:
    """(1) A vector that turned out constant becomes a constant."""
    changed = False
    for node in list(graph):
        value = node.outputs[0] if node.outputs else None
        if value is None or is_op(node, "Constant") or value.is_graph_output() or not value.uses():
            continue
        fact = facts.get(value)
        if fact is None or fact.elements is None or fact.dtype != ir.DataType.INT64:
            continue
        values = (e.value for e in fact.elements if isinstance(e, Size))
        numbers = [v for v in values if v is not None and -(2**63) <= v < 2**63]
        if len(numbers) == len(fact.elements):
            value.replace_all_uses_with(_constant(node, np.array(numbers, np.int64).reshape([-1] * fact.rank)))
            changed = True
    return changed


def _constant(node: ir.Node, array: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> ir.Value:
    tensor = ir.tensor(array, name=f"{name_of(node.outputs[0])}_sizes")
    constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])
    value = constant.outputs[0]
    value.const_value, value.type, value.shape = tensor, ir.TensorType(tensor.dtype), ir.Shape(array.shape)
    assert node.graph is not None
    node.graph.insert_before(node, constant)
    return value


def _constant_target(node: ir.Node, facts: Facts) -> bool:
    """(2) Give a Reshape the target [0, -1, 8 ...]: 0 copies a dimension, one -1 is worked out at run time."""
    source, target = (facts.get(v) if (v := input_of(node, i)) is not None else None for i in (0, 1))
    if source is None or target is None or target.elements is None or tensor_of(input_of(node, 1)) is not None:
        return False
    sizes = [e for e in target.elements if isinstance(e, Size)]
    if attribute(node, "allowzero", 0) or any(s.value == 0 for s in sizes):
        return False  # a size of 0 is one here, not a place where a size is copied
    entries = [_target_entry(size, i, source.dims) for i, size in enumerate(sizes)]
    if entries.count(-1) > 1:
        return False
    node.replace_input_with(1, _constant(node, np.array(entries, np.int64)))
    return True


def _target_entry(size: Size, axis: int, source: Sequence[Size]) -> int:
    if size.value is not None:
        return size.value
    return 0 if axis < len(source) and source[axis] == size else -1


def _drop(node: ir.Node, facts: Facts) -> bool:
    """(3) Expand or Reshape to the shape that the value has already."""
    source, value = input_of(node, 0), node.outputs[0]
    if source is None or source not in facts or value not in facts or value.is_graph_output():
        return False
    if facts[source].dims != facts[value].dims:
        return False
    value.replace_all_uses_with(source)
    return True


def _drop_before_broadcast(node: ir.Node, facts: Facts) -> bool:
    """(3) Where(Expand(mask, Shape(scores)), ..., scores): whoever gets its shape from its other operands reads what was stretched."""
    source, stretched = input_of(node, 0), node.outputs[0]
    if source is None or source not in facts or stretched.is_graph_output():
        return False
    changed = False
    for user, place in list(stretched.uses()):
        if not is_op(user, *_BROADCASTING) or user.outputs[0] not in facts:
            continue
        operands = [source if i == place else v for i, v in enumerate(user.inputs)]
        if _broadcast_to(
            facts[user.outputs[0]].dims, [facts[v].dims for v in operands if v is not None and v in facts]
        ):
            user.replace_input_with(place, source)
            changed = True
    return changed


_BROADCASTING = ("Where", "Add", "Sub", "Mul", "Div", "And", "Or")


def _broadcast_to(dims: Sequence[Size], operands: Sequence[Sequence[Size]]) -> bool:
    """Whether in every dimension some operand has the size already."""
    rank = len(dims)
    return all(
        dims[axis].value == 1 or any(len(o) >= rank - axis and o[axis - rank] == dims[axis] for o in operands)
        for axis in range(rank)
    )


def _over_last_dimension(node: ir.Node, facts: Facts) -> bool:
    """(5) Reshape(Softmax(Flatten(x, last axis)), Shape(x)) -> Softmax(x)"""
    rows, result = input_of(node, 0), node.outputs[0]
    flatten = rows.producer() if rows is not None else None
    x = input_of(flatten, 0) if flatten is not None and is_op(flatten, "Flatten") else None
    if flatten is None or x is None or x not in facts or result.is_graph_output():
        return False
    rank, users = facts[x].rank, [user for user, _ in result.uses()]
    last = int(attribute(flatten, "axis", 1)) % max(rank, 1) == rank - 1 and attribute(node, "axis", -1) in (1, -1)
    back = all(
        is_op(u, "Reshape") and u.outputs[0] in facts and facts[u.outputs[0]].dims == facts[x].dims for u in users
    )
    if rank < 2 or not last or not back or any(u.outputs[0].is_graph_output() for u in users):
        return False
    node.replace_input_with(0, x)
    node.attributes["axis"] = ir.AttrInt64("axis", -1)
    facts[result] = facts[x]
    for user in users:
        user.outputs[0].replace_all_uses_with(result)
        user.outputs[0].name, result.name = result.name, user.outputs[0].name  # the source's name of what it is now
    return True


def _write_shapes(graph: ir.Graph, facts: Facts) -> None:
    """(4) Write the sizes into the values; inputs and outputs of the graph keep their declared names."""
    symbols = Symbols(graph)
    given = {name for fact in facts.values() for size in fact.dims for name in names(size)}
    invented: dict[Size, str] = {}

    def unused() -> str:
        name = str(symbols.fresh().name)
        return unused() if name in given else name  # the analysis gave names of the same kind

    def dim(size: Size) -> int | str:
        if size.value is not None or size.name is not None:
            return size.value if size.value is not None else str(size.name)
        text = spell(size)
        if parse(text) == size:
            return text
        if size not in invented:  # it holds what a dim's name cannot say
            invented[size] = unused()
        return invented[size]

    for node in graph:
        for value in node.outputs:
            if value in facts and not value.is_graph_output():
                value.shape = ir.Shape([dim(size) for size in facts[value].dims])
                if value.type is None:  # the results of an If or a Loop
                    value.type = ir.TensorType(facts[value].dtype)
