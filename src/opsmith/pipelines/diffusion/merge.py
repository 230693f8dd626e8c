"""Fewer keys and values in self-attention, an approximation: softmax(q [N,d] @ k' [d,N/s]) @ v' [N/s,d] with every s-th token of k and v.

Neighbours in a picture say nearly the same, so a query that sees one of s tokens sees nearly the same picture (Smith et al., "ToDo:
Token Downsampling for Efficient Generation of High-Resolution Images"); every query stays, so nothing has to be put back. Tokens are
counted row by row: a stride that does not divide the width of the latents leaves a lattice, one that does leaves columns.

It is done where attention dominates: where there are at least SMALLEST tokens, told at run time, so that one graph serves all sizes.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from opsmith.pipelines.diffusion.cut import SAMPLE, Graph

SMALLEST = 256  # tokens


def put(proto: onnx.ModelProto, stride: int, smallest: int = SMALLEST) -> int:
    """Change PROTO; how many attentions see every STRIDE-th token from now on."""
    graph = Graph(proto)
    needs = graph.needs()
    found = 0
    inserted: dict[int, list[onnx.NodeProto]] = {}  # before which node
    for i, node in enumerate(graph.nodes):
        if node.op_type != "Softmax" or _axis(node) not in (-1, 3):
            continue
        scores = _product_before(graph, i)
        product = _product_behind(graph, i)
        if scores is None or product is None:
            continue
        keys, values = graph.nodes[scores].input[1], graph.nodes[product].input[1]
        if any(SAMPLE not in needs[graph.maker[name]] if name in graph.maker else True for name in (keys, values)):
            continue  # cross-attention: its keys are words
        before_scores, before_product = _strided(keys, values, f"merged_{found}")
        inserted.setdefault(scores, []).extend(before_scores)
        inserted.setdefault(product, []).extend(before_product)
        graph.nodes[scores].input[1] = f"merged_{found}_keys"
        graph.nodes[product].input[1] = f"merged_{found}_values"
        found += 1
    if found:
        _insert(proto, inserted)
        numbers = {"zero": [0], "one": [1], "last": [-1], "before_last": [-2], "end": [2**62], "stride": [stride]}
        for name, number in (numbers | {"smallest": [smallest]}).items():
            proto.graph.initializer.append(numpy_helper.from_array(np.array(number), f"merged_{name}"))
    return found


def _axis(softmax: onnx.NodeProto) -> int:
    return next((a.i for a in softmax.attribute if a.name == "axis"), -1)


def _product_before(graph: Graph, node: int) -> int | None:
    """The MatMul whose result the Softmax reads, scaled or not."""
    while (maker := graph.maker.get(graph.nodes[node].input[0], -1)) >= 0:
        node = maker
        if graph.nodes[node].op_type == "MatMul":
            return node if graph.nodes[node].input[1] in graph.maker else None
        if graph.nodes[node].op_type not in ("Mul", "Div", "Cast"):
            return None
    return None


def _product_behind(graph: Graph, node: int) -> int | None:
    """The one MatMul that reads the Softmax from the left."""
    readers = graph.readers.get(graph.nodes[node].output[0], [])
    while len(readers) == 1 and graph.nodes[readers[0]].op_type == "Cast":
        readers = graph.readers.get(graph.nodes[readers[0]].output[0], [])
    if len(readers) != 1 or graph.nodes[readers[0]].op_type != "MatMul":
        return None
    return readers[0] if graph.nodes[readers[0]].input[1] in graph.maker else None


def _strided(keys: str, values: str, name: str) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """keys [...,d,N] and values [...,N,d] with every stride-th token, if there are enough: nodes for each of them."""

    def node(kind: str, inputs: list[str], suffix: str, **attributes: int) -> onnx.NodeProto:
        return helper.make_node(kind, inputs, [f"{name}_{suffix}"], f"{name}_{suffix}", **attributes)

    def slice_of(source: str, axis: str, suffix: str) -> onnx.NodeProto:
        return node("Slice", [source, "merged_zero", "merged_end", axis, f"{name}_step"], suffix)

    before = [
        node("Shape", [keys], "count", start=-1),
        node("Less", [f"{name}_count", "merged_smallest"], "few"),
        node("Where", [f"{name}_few", "merged_one", "merged_stride"], "step"),
        slice_of(keys, "merged_last", "keys"),
    ]
    return before, [slice_of(values, "merged_before_last", "values")]


def _insert(proto: onnx.ModelProto, inserted: dict[int, list[onnx.NodeProto]]) -> None:
    nodes = [n for i, node in enumerate(proto.graph.node) for n in (*inserted.get(i, ()), node)]
    copied = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copied)
