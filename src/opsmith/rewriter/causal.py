"""Is a mask causal? Decided by computing it.

Exporters spell "query i sees the keys j <= i + T - S" in dozens of ways. A mask whose graph reads nothing of the inputs
but their sizes is a function of those sizes: it is computed here for several of them and compared with the
definition. A constant mask is compared as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from opsmith.nodes import ONNX
from opsmith.rewriter.rule import is_op, sizes_of, tensor_of
from opsmith.sizes import as_size, at, names

_LOWEST = -1e30  # a number below this, added to a score, hides the key as long as one other key is seen
_LARGEST = 2000  # nodes; a mask that takes more is not looked at
_SIZES = (5, 7, 6, 9, 8, 11)  # all different, so that no two dimensions are mixed up


def is_causal(
    graph: ir.Graph, *, bias: ir.Value | None, keep: ir.Value | None = None, drop: ir.Value | None = None
) -> bool:
    """Whether a mask (added to the scores, or true for the keys to keep or to drop) is causal for all sizes."""
    value = next(v for v in (bias, keep, drop) if v is not None)
    masks = _evaluate(graph, value)
    if not masks:
        return False
    return all(_matches(m if bias is not None else (m if keep is not None else ~m), bias is not None) for m in masks)


def _matches(mask: np.ndarray[Any, Any], added: bool) -> bool:
    if mask.ndim < 2 or mask.size == 0 or mask.shape[-1] < 2:
        return False
    queries, keys = mask.shape[-2:]
    if queries == 1 or keys < queries:
        return False  # one row says nothing: it could be a broadcast
    wanted = np.tril(np.ones((queries, keys), bool), keys - queries)
    if not added:
        return bool((mask.astype(bool) == wanted).all())
    return bool((np.where(wanted, mask == 0, mask <= _LOWEST)).all())


def _evaluate(graph: ir.Graph, value: ir.Value) -> list[np.ndarray[Any, Any]]:
    """The mask for several sizes of the inputs; empty if it depends on more than sizes or cannot be computed."""
    tensor = tensor_of(value)
    if tensor is not None:
        return [np.asarray(tensor.numpy())]
    part = _slice_of_graph(graph, value)
    if part is None:
        return []
    nodes, shaped = part
    shapes = {v: [as_size(s) for s in sizes] for v in shaped if (sizes := sizes_of(v)) is not None}
    if len(shapes) < len(shaped):
        return []
    symbols = sorted({n for sizes in shapes.values() for s in sizes for n in names(s)})
    masks = []
    for first in range(3 if symbols else 1):
        chosen = {s: _SIZES[(first + i) % len(_SIZES)] for i, s in enumerate(symbols)}
        numbers = {v: [n for s in sizes if (n := at(s, chosen)) is not None] for v, sizes in shapes.items()}
        known = all(len(numbers[v]) == len(sizes) for v, sizes in shapes.items())
        mask = _run(graph, value, nodes, numbers) if known else None
        if mask is None:
            return []
        masks.append(mask)
    return masks


def _slice_of_graph(graph: ir.Graph, value: ir.Value) -> tuple[list[ir.Node], list[ir.Value]] | None:
    """The nodes that compute VALUE, with every Shape cut off from its input; None if it reads anything else.

    The second list holds the values of which only the shape is read: any numbers will do for them.
    """
    shaped: dict[ir.Value, None] = {}
    seen: set[ir.Node] = set()
    todo = [value]
    while todo:
        current = todo.pop()
        node = current.producer()
        if node is None:
            if tensor_of(current) is None:
                return None
            continue
        if node in seen:
            continue
        seen.add(node)
        if len(seen) > _LARGEST or node.domain not in ONNX or node.graph is not graph:
            return None
        if is_op(node, "Shape"):
            source = node.inputs[0]
            if source is None or source.shape is None:
                return None
            shaped[source] = None
            continue
        todo.extend(i for i in node.inputs if i is not None)
    return [n for n in graph if n in seen], list(shaped)


def _run(
    graph: ir.Graph, value: ir.Value, nodes: list[ir.Node], shapes: Mapping[ir.Value, list[int]]
) -> np.ndarray[Any, Any] | None:
    """Compute VALUE with onnx's reference evaluator, giving every shape-only value zeros of the chosen sizes."""
    names = {source: f"shaped_{i}" for i, source in enumerate(shapes)}
    feeds = {names[source]: np.zeros(shape, np.float32) for source, shape in shapes.items()}
    inputs = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in feeds]
    constants: dict[str, onnx.TensorProto] = {}
    protos = []
    for node in nodes:
        proto = ir.to_proto(node)
        if is_op(node, "Shape"):
            proto.input[0] = names[node.inputs[0]]  # type: ignore[index]
        for source in node.inputs:
            tensor = tensor_of(source) if source is not None and source.producer() is None else None
            if tensor is not None and source is not None and source not in shapes:
                constants[str(source.name)] = onnx.numpy_helper.from_array(np.asarray(tensor.numpy()), source.name)
        protos.append(proto)
    output = onnx.helper.make_tensor_value_info(str(value.name), onnx.TensorProto.UNDEFINED, None)
    built = onnx.helper.make_graph(protos, "mask", inputs, [output], list(constants.values()))
    model = onnx.helper.make_model(built, opset_imports=[onnx.helper.make_opsetid("", graph.opset_imports.get("", 18))])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])
    except Exception:  # sizes that do not fit together, or an op that the evaluator lacks: then nothing is known
        return None
