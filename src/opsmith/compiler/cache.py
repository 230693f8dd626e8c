"""A KV cache that can grow in place: Concat(past, new) -> CacheRows(CacheAppend(past, new, total, mask), total)

Where the mask says how long the sequence is, the cache need not say it too, and may have room for more rows than it holds:

    past (B,H,X,D), new (B,H,S,D), attention_mask (B,total)     P = total - S rows are cached
    X == P      as before: present (B,H,total,D) is a new tensor, the past and the new rows
    X >= total  a buffer with room: present (B,H,X,D) is the same buffer with S more rows. If the caller binds it to the memory
                of past, only the new rows are written, else the P cached rows are copied too. Rows beyond total are not touched.
                A single new row (S = 1) is written where its row of the mask ends: texts of different lengths share a batch,
                each from the first row on, total being the longest.

A cache of halves that is read as floats (cache_type.py) is read by CacheRowsAsFloat, which converts; one of bytes is two that grow
alike, of bytes and of scales, read together by CacheRowsScaled.

One compiled model serves both kinds of caller, so it still replaces its source everywhere.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.nodes import ONNX
from opsmith.rewriter import functions

IN_PLACE = "opsmith.in_place_cache"
TOTAL = "total_rows"


@dataclasses.dataclass(frozen=True)
class _Caches:
    mask: ir.Value
    ids: ir.Value
    appends: list[ir.Node]
    pasts: list[ir.Value]
    total: str  # the dims of mask and past
    length: str


def grow_in_place(model: ir.Model) -> bool:
    """Rewrite every cache of the model, or none."""
    caches = _find(model)
    if caches is None:
        return False
    graph, writer = model.graph, _Writer()
    rows = writer.size(caches.mask, 1)
    cached = writer.op("Sub", rows, writer.size(caches.ids, 1))
    graph.insert_before(graph[0], writer.taken())
    for past in caches.pasts:
        for node in [n for n in past.consumers() if n.op_type == "Shape"]:
            _ask_the_mask(graph, node, past, cached, writer)
    for node in caches.appends:
        _append(graph, node, rows, caches.mask, writer)
    for node in [n for n in graph if n.op_type == "CacheRows" and n.outputs[0].dtype == ir.DataType.INT8]:
        _read_with_scales(graph, node)
    _rename_sizes(model, caches.total, caches.length)
    functions.attach(model)
    model.meta[IN_PLACE] = True
    return True


def _find(model: ir.Model) -> _Caches | None:
    """The caches, if all of them can be rewritten."""
    inputs = {v.name: v for v in model.graph.inputs}
    mask, ids = inputs.get("attention_mask"), inputs.get("input_ids")
    appends = [n for n in model.graph if appends_rows(n)]
    if (
        mask is None
        or mask.dtype != ir.DataType.INT64
        or ids is None
        or not appends
        or model.opset_imports.get("", 0) < 13
    ):
        return None
    pasts = list(dict.fromkeys(n.inputs[0] for n in appends if n.inputs[0] is not None))
    length, total, new = _dim(pasts[0], 2), _dim(mask, 1), _dim(ids, 1)
    if length is None or new is None or any(_dim(p, 2) != length for p in pasts):
        return None
    if total is None or "".join(total.split()) not in (f"{length}+{new}", f"{new}+{length}"):
        return None  # the mask does not promise to be as long as past and new together
    if any(u.op_type not in ("Concat", "Shape") for past in pasts for u in past.consumers()):
        return None
    return _Caches(mask, ids, appends, pasts, total, length)


class _Writer:
    """Nodes with names of their own, until they are taken."""

    def __init__(self) -> None:
        self._made: list[ir.Node] = []
        self._count = itertools.count()

    def op(self, kind: str, *operands: ir.Value, domain: str = "", **attributes: Any) -> ir.Value:
        name = f"cache_{kind}_{next(self._count)}"
        node = ir.node(kind, list(operands), attributes=attributes, domain=domain, name=name)
        node.outputs[0].name = f"{name}_value"
        self._made.append(node)
        return node.outputs[0]

    def part(self, vector: ir.Value, start: int, end: int) -> ir.Value:
        return self.op("Slice", vector, self._numbers(start), self._numbers(end))

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        return self.part(self.op("Shape", value), axis, axis + 1)

    def taken(self) -> list[ir.Node]:
        made, self._made = self._made, []
        return made

    def _numbers(self, *values: int) -> ir.Value:
        return self.op("Constant", value=ir.tensor(np.array(values, np.int64)))


def _ask_the_mask(graph: ir.Graph, node: ir.Node, past: ir.Value, cached: ir.Value, writer: _Writer) -> None:
    """Shape(past) with the number of rows that are cached, not of those there is room for."""
    shape = writer.op("Shape", past)
    whole = writer.op("Concat", writer.part(shape, 0, 2), cached, writer.part(shape, 3, 4), axis=0)
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", 4)
    asked = whole if (start, end) == (0, 4) else writer.part(whole, start, end)
    graph.insert_before(node, writer.taken())
    node.outputs[0].replace_all_uses_with(asked)
    graph.remove(node, safe=True)


def _append(graph: ir.Graph, node: ir.Node, rows: ir.Value, mask: ir.Value, writer: _Writer) -> None:
    past, fresh = node.inputs
    present = node.outputs[0]
    assert past is not None and fresh is not None
    grown = writer.op("CacheAppend", past, fresh, rows, mask, domain="opsmith")
    widening = _widening(present)
    seen = writer.op("CacheRowsAsFloat" if widening else "CacheRows", grown, rows, domain="opsmith")
    grown.type = present.type
    seen.type = ir.TensorType(ir.DataType.FLOAT) if widening else present.type
    seen.shape = present.shape
    graph.insert_before(node, writer.taken())
    name = present.name
    graph.outputs[next(i for i, v in enumerate(graph.outputs) if v is present)] = grown
    for cast in widening:
        cast.outputs[0].replace_all_uses_with(seen)
    graph.remove(widening, safe=True)
    present.replace_all_uses_with(seen)
    graph.remove(node, safe=True)
    present.name, grown.name = f"{name}_joined", name
    grown.shape = present.shape


def _widening(present: ir.Value) -> list[ir.Node]:
    """The nodes that read a cache of halves, if all of them make floats of it: attention reads halves as they lie."""
    readers = list(present.consumers())
    casts = all(n.op_type == "Cast" and n.attributes.get_int("to", 0) == ir.DataType.FLOAT for n in readers)
    outputs = any(v.is_graph_output() for n in readers for v in n.outputs)
    return readers if present.dtype == ir.DataType.FLOAT16 and casts and not outputs else []


def _read_with_scales(graph: ir.Graph, bytes_read: ir.Node) -> None:
    """Mul(Cast(CacheRows(bytes, total)), CacheRows(scales, total)) -> CacheRowsScaled(bytes, scales, total)"""
    for cast in [n for n in bytes_read.outputs[0].consumers() if n.op_type == "Cast"]:
        for multiply in [n for n in cast.outputs[0].consumers() if n.op_type == "Mul"]:
            others = [v.producer() for v in multiply.inputs if v is not None and v is not cast.outputs[0]]
            if len(others) != 1 or others[0] is None or others[0].op_type != "CacheRows":
                continue
            operands = [bytes_read.inputs[0], others[0].inputs[0], bytes_read.inputs[1]]
            name = f"{multiply.name}_scaled"
            node = ir.node("CacheRowsScaled", operands, domain="opsmith", name=name)
            product, rows = multiply.outputs[0], node.outputs[0]
            rows.name, rows.type, rows.shape = f"{name}_value", product.type, product.shape
            graph.insert_before(multiply, node)
            product.replace_all_uses_with(rows)
            graph.remove(multiply, safe=True)


def appends_rows(node: ir.Node) -> bool:
    """Concat(input, new) along axis 2 of 4 that leaves the model."""
    if node.op_type != "Concat" or node.domain not in ONNX or len(node.inputs) != 2:
        return False
    past, present = node.inputs[0], node.outputs[0]
    if past is None or not past.is_graph_input() or past.is_initializer() or not present.is_graph_output():
        return False
    return past.shape is not None and len(past.shape) == 4 and node.attributes.get_int("axis", 0) in (2, -2)


def _dim(value: ir.Value, axis: int) -> str | None:
    if value.shape is None or len(value.shape) <= axis:
        return None
    size = value.shape[axis]
    return size.value if isinstance(size, ir.SymbolicDim) else None


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

    for node in model.graph:
        for value in node.outputs:
            if value.shape is not None:
                value.shape = renamed(value.shape)
    for value in model.graph.inputs:
        if value.shape is not None and _dim(value, 2) != length:
            value.shape = renamed(value.shape)
