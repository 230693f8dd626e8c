"""Weights of a GGUF file stay the blocks that they are: Q8_0, Q4_0 and Q4_1, 32 weights with a scale each.

    x @ W                 ->  MatMulNBits(x, integers, scales, zero points)
    Gather(table, ids)    ->  rows of the same integers, scaled: a table that is also the last product is stored once

    Q8_0   w = d q          q signed                     ->  (q + 128 - 128) d
    Q4_0   w = d (q - 8)                                 ->  as it is
    Q4_1   w = d q + m      zero points are floats       ->  (q - -m / d) d

transformers renames, joins, splits and reorders the rows of a file (llama.cpp rotates neighbours where Hugging Face rotates halves), so
what belongs where is not asked by name: a row of a weight is found in the file by the floats that it stands for.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.compress import nbits
from opsmith.compress.blocks import Blocks, pack
from opsmith.compress.layers import find_layers, find_tables, stored, tidy

Array = np.ndarray[Any, Any]
BLOCK = 32
BITS = {"Q8_0": 8, "Q4_0": 4, "Q4_1": 4}  # the kinds that stay


@dataclasses.dataclass(frozen=True)
class Place:
    """Where rows of one weight are: ROWS[n] of the tensor number TENSORS[n], all of the same KIND."""

    kind: str
    tensors: Array  # int64 (N)
    rows: Array  # int64 (N)

    @property
    def key(self) -> tuple[str, bytes, bytes]:
        return self.kind, self.tensors.tobytes(), self.rows.tobytes()


class File:
    """The rows of a GGUF file that are stored in blocks."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader
        from gguf.quants import dequantize

        found = [t for t in GGUFReader(path).tensors if t.tensor_type.name in BITS and len(t.shape) == 2]
        self.kinds = [t.tensor_type.name for t in found]
        self.data = [np.asarray(t.data) for t in found]  # uint8 (N, bytes of a row), mapped
        self._places: dict[bytes, tuple[int, int]] = {}
        for number, tensor in enumerate(found):
            for row, name in enumerate(_names(dequantize(tensor.data, tensor.tensor_type))):
                self._places.setdefault(name, (number, row))

    def find(self, weight: Array) -> Place | None:
        """WEIGHT (N, K), if every row of it is in the file and all are of one kind."""
        places = [self._places.get(name) for name in _names(weight)]
        kinds = {None if place is None else self.kinds[place[0]] for place in places}
        if len(kinds) != 1 or None in kinds:
            return None
        tensors, rows = np.array(places, np.int64).T
        return Place(str(kinds.pop()), tensors, rows)

    def read(self, place: Place) -> Blocks:
        """The blocks of these rows, as MatMulNBits has them."""
        raw = np.empty((len(place.rows), self.data[int(place.tensors[0])].shape[1]), np.uint8)
        for number in np.unique(place.tensors):
            here = place.tensors == number
            raw[here] = self.data[int(number)][place.rows[here]]
        return read_blocks(raw, place.kind)


def read_blocks(raw: Array, kind: str) -> Blocks:
    """RAW (N, bytes of a row) of llama.cpp's KIND."""
    n, bits, numbers = len(raw), BITS[kind], 2 if kind == "Q4_1" else 1
    each = raw.reshape(n, -1, 2 * numbers + BLOCK * bits // 8)
    halves = np.ascontiguousarray(each[:, :, : 2 * numbers]).view(np.float16).astype(np.float32)  # (N, blocks, numbers)
    q = each[:, :, 2 * numbers :]
    scales, zeros = halves[:, :, 0], None
    if bits == 8:
        q = q ^ 128  # two's complement -> 128 higher
    else:
        q = np.concatenate(
            [q & 15, q >> 4], axis=2
        )  # a block's first half is in the low bits, its second in the high ones
    if kind == "Q4_1":
        flat = scales == 0  # all weights are the smallest one: (0 - -1) * smallest
        q = np.where(flat[:, :, None], np.uint8(0), q)
        zeros = np.where(flat, np.float32(-1), -halves[:, :, 1] / np.where(flat, np.float32(1), scales))
        scales = np.where(flat, halves[:, :, 1], scales)
    return Blocks(each.shape[1] * BLOCK, n, bits, BLOCK, pack(q, bits), scales, zeros)


def keep(model: ir.Model, path: Path) -> dict[str, int]:
    """In place: the products and tables of MODEL whose weights the file has in blocks. How many there are of each kind."""
    file, counts = File(path), collections.Counter[str]()
    tensors: dict[tuple[str, bytes, bytes], tuple[Blocks, nbits.Tensors]] = {}

    def blocks_of(weight: Array, name: str) -> tuple[Blocks, nbits.Tensors] | None:
        place = file.find(weight)
        if place is None:
            return None
        if place.key not in tensors:
            blocks = file.read(place)
            tensors[place.key] = blocks, nbits.register(model, blocks, f"{name}_{place.kind.lower()}")
        counts[place.kind] += 1
        return tensors[place.key]

    for layer in find_layers(model):
        if found := blocks_of(layer.matrix().T, layer.name):
            nbits.replace(layer, {"bits": found[0].bits, "block_size": BLOCK}, found[1])
    for node, table in find_tables(model):
        ids = node.inputs[1]
        if ids is not None and ids.shape is not None and (found := blocks_of(stored(table).numpy(), table.name or "")):
            _look_up(model, node, ids, *found)
    if counts:
        model.opset_imports.setdefault("com.microsoft", 1)
        tidy(model)
    return dict(counts)


def _look_up(model: ir.Model, node: ir.Node, ids: ir.Value, blocks: Blocks, tensors: nbits.Tensors) -> None:
    """Gather(table (N, K), ids) -> (rows of integers (..., blocks, 32) - zero) * scale (..., blocks, 1) as (..., K)"""
    assert ids.shape is not None
    rank, count = len(ids.shape), blocks.scales.shape[1]
    weight, scales, zeros = tensors
    build = _Builder(model, node)
    per_block = [blocks.n, count, 1]
    q = build("Gather", weight, ids)  # (..., blocks, bytes)
    if blocks.bits == 4:
        pairs = build("Cast", q, to=int(ir.DataType.INT32))
        sixteen = build.constant(np.array(16, np.int32))
        high = build("Div", pairs, sixteen)
        low = build("Sub", pairs, build("Mul", high, sixteen))
        last = build.constant(np.array([-1], np.int64))
        q = build("Concat", build("Unsqueeze", low, last), build("Unsqueeze", high, last), axis=-1)
        q = build("Reshape", q, build.sizes([0] * rank + [count, BLOCK]))
    numbers = build("Cast", q, to=int(ir.DataType.FLOAT))
    middle = build.constant(np.array(1 << (blocks.bits - 1), np.float32))
    zero = middle if zeros is None else build("Gather", build("Reshape", zeros, build.sizes(per_block)), ids)
    scale = build("Gather", build("Reshape", scales, build.sizes(per_block)), ids)
    rows = build("Mul", build("Sub", numbers, zero), scale)
    whole = build("Reshape", rows, build.sizes([0] * rank + [blocks.k]))
    result = node.outputs[0]
    whole.type, whole.shape = result.type, result.shape
    graph = node.graph
    assert graph is not None
    ir.convenience.replace_nodes_and_values(graph, node, [node], build.nodes, [result], [whole])


class _Builder:
    """Nodes and constants that take the place of one node, with names that say of which."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self.model, self.stem = model, node.name or node.outputs[0].name or "rows"
        self.nodes: list[ir.Node] = []
        self._constants = 0

    def __call__(self, kind: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        made = ir.node(kind, inputs, attributes=attributes, name=f"{self.stem}_{len(self.nodes)}")
        made.outputs[0].name = f"{self.stem}_{len(self.nodes)}_value"
        self.nodes.append(made)
        return made.outputs[0]

    def constant(self, array: Array) -> ir.Value:
        self._constants += 1
        tensor = ir.Tensor(array, name=f"{self.stem}_constant_{self._constants}")
        value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        self.model.graph.register_initializer(value)
        return value

    def sizes(self, dims: Sequence[int]) -> ir.Value:
        return self.constant(np.array(dims, np.int64))


def _names(rows: Array) -> list[bytes]:
    """A digest of every row's floats."""
    floats = np.ascontiguousarray(rows, np.float32)
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in floats]
