"""A KV cache that can grow in place: Concat(past, new) -> CacheRows(CacheAppend(past, new, total), total)

Where the mask says how long the sequence is, the cache need not say it too, and may have room for more rows than it holds:

    past (B,H,X,D), new (B,H,S,D), attention_mask (B,total)     P = total - S rows are cached
    X == P      as before: present (B,H,total,D) is a new tensor, the past and the new rows
    X >= total  a buffer with room: present (B,H,X,D) is the same buffer with S more rows. If the caller binds it to the memory
                of past, only the new rows are written, else the P cached rows are copied too. Rows beyond total are not touched.

One compiled model serves both kinds of caller, so it still replaces its source everywhere.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.rewrite import functions

DECLARED = "opsmith.declared"  # shapes that inputs and outputs had, by name, and have again in the saved model
IN_PLACE = "opsmith.in_place_cache"
TOTAL = "total_rows"


def grow_in_place(model: ir.Model) -> bool:
    """Rewrite every cache of the model, or none."""
    graph = model.graph
    inputs = {v.name: v for v in graph.inputs}
    mask, ids = inputs.get("attention_mask"), inputs.get("input_ids")
    appends = [n for n in graph if _appends(n)]
    if mask is None or ids is None or not appends or model.opset_imports.get("", 0) < 13:
        return False
    pasts = {n.inputs[0]: _length(n.inputs[0]) for n in appends}
    length = next(iter(pasts.values()))
    total, new = _dim(mask, 1), _dim(ids, 1)
    if length is None or new is None or set(pasts.values()) != {length}:
        return False
    if total is None or "".join(total.split()) not in (f"{length}+{new}", f"{new}+{length}"):
        return False  # the mask does not promise to be as long as past and new together
    if any(u.op_type not in ("Concat", "Shape") for past in pasts if past is not None for u in past.consumers()):
        return False

    made: list[ir.Node] = []
    counter = itertools.count()

    def op(kind: str, *operands: ir.Value, domain: str = "", **attributes: Any) -> ir.Value:
        name = f"cache_{kind}_{next(counter)}"
        node = ir.node(kind, list(operands), attributes=attributes, domain=domain, name=name)
        node.outputs[0].name = f"{name}_value"
        made.append(node)
        return node.outputs[0]

    def numbers(*values: int) -> ir.Value:
        return op("Constant", value=ir.tensor(np.array(values, np.int64)))

    def size(value: ir.Value, axis: int) -> ir.Value:
        return op("Slice", op("Shape", value), numbers(axis), numbers(axis + 1))

    rows = size(mask, 1)
    cached = op("Sub", rows, size(ids, 1))
    graph.insert_before(graph[0], made)
    for past in pasts:
        assert past is not None
        for node in [n for n in past.consumers() if n.op_type == "Shape"]:
            made = []
            shape = op("Shape", past)
            whole = op(
                "Concat", op("Slice", shape, numbers(0), numbers(2)), cached, op("Slice", shape, numbers(3), numbers(4)), axis=0
            )  # fmt: skip
            start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", 4)
            found = whole if (start, end) == (0, 4) else op("Slice", whole, numbers(start), numbers(end))
            graph.insert_before(node, made)
            node.outputs[0].replace_all_uses_with(found)
            graph.remove(node, safe=True)
    for node in appends:
        made = []
        past, fresh = node.inputs
        present = node.outputs[0]
        assert past is not None and fresh is not None
        grown = op("CacheAppend", past, fresh, rows, domain="opsmith")
        seen = op("CacheRows", grown, rows, domain="opsmith")
        grown.type = seen.type = present.type
        seen.shape = present.shape
        graph.insert_before(node, made)
        name = present.name
        graph.outputs[next(i for i, v in enumerate(graph.outputs) if v is present)] = grown
        present.replace_all_uses_with(seen)
        graph.remove(node, safe=True)
        present.name, grown.name = f"{name}_joined", name
        grown.shape = present.shape
    _rename_sizes(model, total, length)
    functions.attach(model)
    model.meta[IN_PLACE] = True
    return True


def _appends(node: ir.Node) -> bool:
    """Concat(input, new) along axis 2 of 4 that leaves the model."""
    if node.op_type != "Concat" or node.domain not in ("", "ai.onnx") or len(node.inputs) != 2:
        return False
    past, out = node.inputs[0], node.outputs[0]
    if past is None or not past.is_graph_input() or past.is_initializer() or not out.is_graph_output():
        return False
    return past.shape is not None and len(past.shape) == 4 and node.attributes.get_int("axis", 0) in (2, -2)


def _dim(value: ir.Value, axis: int) -> str | None:
    if value.shape is None or len(value.shape) <= axis:
        return None
    size = value.shape[axis]
    return size.value if isinstance(size, ir.SymbolicDim) else None


def _length(past: ir.Value | None) -> str | None:
    return None if past is None else _dim(past, 2)


def _rename_sizes(model: ir.Model, total: str, length: str) -> None:
    """The length of past and the length of the mask no longer depend on each other."""
    word = re.compile(rf"\b{re.escape(length)}\b")

    def renamed(shape: ir.Shape) -> ir.Shape:
        dims: list[int | str | None] = []
        for size in shape:
            text = size if isinstance(size, int) else size.value
            if text == total:
                text = TOTAL
            elif isinstance(text, str) and word.search(text):
                text = None
            dims.append(text)
        return ir.Shape(dims)

    model.meta[DECLARED] = {v.name: v.shape for v in (*model.graph.inputs, *model.graph.outputs)}
    for node in model.graph:
        for value in node.outputs:
            if value.shape is not None:
                value.shape = renamed(value.shape)
    for value in model.graph.inputs:
        if value.shape is not None and _length(value) != length:
            value.shape = renamed(value.shape)


def restore_declared(model: ir.Model) -> None:
    """Inputs and outputs are declared as in the source: a caller who knows nothing of room sees the model he knows."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.name in model.meta.get(DECLARED, {}):
            value.shape = model.meta[DECLARED][value.name]
