"""Simplify: the same graph with less in it, before anything is matched or cut.

Order: functions are inlined first, since nothing else sees into them (high-level `opsmith` functions are kept: the compiler knows
them); constants become initializers, so that folding sees them; large weights that the graph computes are folded after the small
constants they are made of; folding comes before CSE, which then merges what became equal;
dead code goes last.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir
import onnx_ir.passes.common as common

from opsmith import bounds, ops
from opsmith.analysis.registry import INFER
from opsmith.check.inputs import dim_name
from opsmith.check.origins import made_up_name
from opsmith.compiler.partition import bodies
from opsmith.errors import OpsmithError
from opsmith.rewriter import passes
from opsmith.rewriter.passes.computed_weights import fold_computed_weights


def simplify(model: ir.Model) -> None:
    inline(model)
    try:
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        with passes.defaults_hidden(model):
            passes.fold(model)
            fold_computed_weights(model)
            name_nodes(model.graph)  # before `tidy`, which calls all that have none "node"
            passes.tidy(model)
        _infer_shapes(model)  # ranks and types behind nodes that stay with ORT
    except Exception as error:
        raise OpsmithError(f"the graph could not be simplified: {' '.join(str(error).split())[:300]}") from error


def inline(model: ir.Model) -> None:
    """Functions become their bodies; those of our own that have a kernel stay."""
    if not model.functions:
        return
    with_kernel = {key for key in (*INFER, *ops.TABLE) if key[0] == "opsmith"}
    calls = {v.name: n.name or v.name for n in model.graph for v in n.outputs if n.op_identifier() in model.functions}
    own = {node.name for node in model.graph}
    try:
        common.InlinePass(criteria=lambda f: (f.domain, f.name) not in with_kernel)(model)
    except Exception as error:
        raise OpsmithError(f"its functions cannot be inlined: {' '.join(str(error).split())[:300]}") from error
    name_after_calls(model.graph, calls, own)


def _infer_shapes(model: ir.Model) -> None:
    """As bounds.infer_shapes, on an ir.Model: the elements of vectors are followed unless there are too many of them."""
    with passes.quiet(), passes.without_maps(model):
        common.ShapeInferencePass(data_prop=False)(model)
        shapes = (v.shape for n in model.graph for v in n.outputs if v.shape is not None and len(v.shape) == 1)
        if sum(s[0] for s in shapes if isinstance(s[0], int)) <= bounds.FOLLOWED:
            common.ShapeInferencePass()(model)


def name_after_calls(graph: ir.Graph, calls: Mapping[str | None, str | None], own: Collection[str | None]) -> None:
    """Inlined nodes are named after the call they come from ("linear_3/MatMul"), so that counters lead back to it."""
    names: dict[ir.Node, str] = {}
    for node in reversed(graph):
        if node.name in own:
            continue
        call = next((calls[v.name] for v in node.outputs if v.name in calls), None)
        readers = (names[user] for v in node.outputs for user in v.consumers() if user in names)
        if call := call or next(readers, None):
            names[node] = call
            node.name = f"{call}/{node.op_type}"


def name_nodes(graph: ir.Graph) -> None:
    """Every node gets a unique name, those of bodies too: tables, counters and errors refer to it."""
    taken: set[str] = set()
    for node in ir.traversal.RecursiveGraphIterator(graph):
        name = node.name or made_up_name(node.op_type, [v.name or "" for v in node.outputs])
        unique, k = name, 2
        while unique in taken:
            unique, k = f"{name}_{k}", k + 1
        taken.add(unique)
        node.name = unique


def name_apart(graph: ir.Graph) -> dict[str, str]:
    """A value of a body that has the name of one around it, as the outputs of a decoder's two branches have, gets a name of its own.

    Gives new name -> the one it had: passes over a model make names unique, and would do it in the working copy alone.
    """
    taken = {v.name for n in ir.traversal.RecursiveGraphIterator(graph) for v in n.outputs} | _own_names(graph)
    renamed: dict[str, str] = {}

    def rename(inner: ir.Graph, around: set[str | None]) -> None:
        for value in _own_values(inner):
            if value.name and value.name in around:
                name, k = value.name, 2
                while f"{name}_{k}" in taken:
                    k += 1
                value.name = f"{name}_{k}"
                taken.add(value.name)
                renamed[value.name] = name
        for body in [b for n in inner for _, _, b in bodies(n)]:
            around = around | _own_names(inner)
            rename(body, around)

    rename(graph, set())
    return renamed


def _own_values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *list(graph.initializers.values()), *(v for n in graph for v in n.outputs)]


def _own_names(graph: ir.Graph) -> set[str | None]:
    return {v.name for v in _own_values(graph)}


def fix_dims(model: ir.Model, shapes: Mapping[str, int | Sequence[int]]) -> None:
    """`--shape name=1x4x64x64`: the input gets these dims, and their symbols these values wherever they occur.

    `--shape symbol=32` gives one symbol its value.
    """
    by_name = {v.name: v for v in model.graph.inputs}
    named = {name: _symbols(value) for name, value in by_name.items()}
    symbols = {d for dims in named.values() for d in dims if isinstance(d, str)}
    values = {name: size for name, size in shapes.items() if isinstance(size, int) and name in symbols}
    for name, given in shapes.items():
        if name in values:
            continue
        dims = (given,) if isinstance(given, int) else given
        if name not in by_name:
            raise OpsmithError(
                f"--shape names {name!r}, which is neither an input nor a dim of the model",
                f"it has the inputs {', '.join(map(str, by_name))} and the dims {', '.join(sorted(symbols)) or 'none'}",
            )
        _bind(name, named[name], dims, values)
        by_name[name].shape = ir.Shape(dims)
    for value in model.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([values.get(str(s), d) for s, d in zip(named[value.name], value.shape)])


def _symbols(value: ir.Value) -> list[int | str]:
    return [dim_name(d, value.name or "", axis) for axis, d in enumerate(value.shape or ())]


def _bind(name: str, shape: Sequence[int | str], dims: Sequence[int], values: dict[str, int]) -> None:
    """Enter into VALUES what DIMS make of the symbols of an input's shape."""
    if len(shape) != len(dims):
        raise OpsmithError(f"--shape {name}: {len(dims)} dims given, the model has {list(shape)}")
    for have, want in zip(shape, dims):
        if isinstance(have, int):
            if have != want:
                raise OpsmithError(f"--shape {name}: the model fixes a dim at {have}, not {want}")
        elif values.setdefault(have, want) != want:
            raise OpsmithError(f"--shape gives {have} two values, {values[have]} and {want}")
