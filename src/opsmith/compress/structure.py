"""Which parts of which matrices belong together: the channels of an attention head, or of one neuron, all through the graph.

A *group* (one attention, one MLP) has units (heads, neurons). Each axis that carries channels of a group gets labels: for every
channel the number of its unit, or -1 if it belongs to none and stays. Labels spread from a seed over the nodes that keep
channels apart; they end in the weights of products:

    w_q (C, heads * D)    labels along axis 1: 0 0 0 1 1 1 2 2 2
    w_o (heads * D, C)    labels along axis 0, likewise: the group's sink

To remove units is then to drop the labelled slices of every constant, and to mend the sizes that Reshape, Split and the model's
inputs state. A node that mixes channels (a norm over them, a residual stream) has no rule: the group is refused, with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith import ops
from opsmith.compress.layers import Layer, constant, free_name, stored
from opsmith.nodes import ONNX

Array = np.ndarray[Any, Any]
OWN = "opsmith"
# Ops that treat every element by itself; operands broadcast as in numpy. The second operand of CastLike only names a type.
ELEMENTWISE = (ops.names() | {"Identity"}) - {"CastLike"}
OWN_ELEMENTWISE = ops.names(domain=OWN)


class Refused(Exception):
    """Why a group cannot be pruned."""


@dataclasses.dataclass
class Group:
    """Units that can be removed from the graph, and what has to change for it."""

    name: str
    kind: str  # "heads" or "neurons"
    units: int
    sink: Layer  # the product that reads all units and mixes them
    sink_labels: Array  # (K of the sink)
    constants: dict[tuple[ir.Node, int], tuple[int, Array]] = dataclasses.field(default_factory=dict)  # axis, labels
    reshapes: dict[ir.Node, tuple[int, Array]] = dataclasses.field(default_factory=dict)  # output axis, its labels
    splits: dict[ir.Node, list[Array]] = dataclasses.field(default_factory=dict)
    values: dict[ir.Value, tuple[int, Array]] = dataclasses.field(default_factory=dict)  # axis, labels

    def weights_per_unit(self) -> Array:
        """How many numbers go with each unit."""
        total = np.zeros(self.units, np.int64)
        for (node, index), (axis, labels) in self.constants.items():
            value = node.inputs[index]
            assert value is not None
            slice_size = stored(value).size // stored(value).shape.numpy()[axis]
            total += slice_size * np.bincount(labels[labels >= 0], minlength=self.units)
        return total


class Spread:
    """Labels on their way through the graph."""

    def __init__(self, layers: dict[ir.Node, Layer]) -> None:
        self.layers = layers
        self.values: dict[ir.Value, tuple[int, Array]] = {}
        self.constants: dict[tuple[ir.Node, int], tuple[int, Array]] = {}
        self.reshapes: dict[ir.Node, tuple[int, Array]] = {}
        self.splits: dict[ir.Node, list[Array]] = {}
        self.sinks: list[tuple[Layer, Array]] = []
        self._todo: list[ir.Value] = []
        self._done: set[tuple[ir.Node, ir.Value]] = set()

    def label(self, value: ir.Value | None, axis: int, labels: Array) -> None:
        """Axis counts from the front."""
        if value is None:
            raise Refused("an operand is missing")
        if value in self.values:
            known_axis, known = self.values[value]
            if known_axis != axis or not np.array_equal(known, labels):
                raise Refused(f"{value.name} would have to be cut in two ways")
            return
        if _size(value, axis) not in (None, len(labels)):
            raise Refused(f"{value.name} has {_size(value, axis)} channels where {len(labels)} were expected")
        self.values[value] = (axis, labels)
        self._todo.append(value)

    def run(self) -> None:
        while self._todo:
            value = self._todo.pop()
            axis, labels = self.values[value]
            producer = value.producer()
            if producer is None:
                if not value.is_graph_input():
                    raise Refused(f"{value.name} is neither computed nor an input")
            else:
                self._visit(producer, value, axis, labels)
            for node in value.consumers():
                self._visit(node, value, axis, labels)

    def _visit(self, node: ir.Node, value: ir.Value, axis: int, labels: Array) -> None:
        if (node, value) in self._done:
            return None
        self._done.add((node, value))
        op = node.op_type
        if node.domain == OWN:
            if op in ops.ATTENTIONS:
                return self._attention(node, value, axis, labels)
            if op in OWN_ELEMENTWISE:
                return self._elementwise(node, value, axis, labels)
            if op in ("Rotary", "RotaryInterleaved"):
                return self._rotary(node, value, axis, labels)
            if op == "KvAppend":
                return self._joined(node, axis, labels, 2)
        elif node.domain in ONNX:
            if node in self.layers:
                return self._layer(self.layers[node], value, axis, labels)
            if op in ELEMENTWISE:
                return self._elementwise(node, value, axis, labels)
            rule = getattr(self, f"_{op.lower()}", None)
            if rule is not None:
                rule(node, value, axis, labels)
                return None
        raise Refused(f"{op} {node.name} mixes or moves the channels in a way that is not known")

    # --- one rule per kind of node ---

    def _layer(self, layer: Layer, value: ir.Value, axis: int, labels: Array) -> None:
        node = layer.node
        rank = _rank(value)
        if axis != rank - 1:
            raise Refused(f"{layer.name} does not read the channels along its last axis")
        if value is node.outputs[0]:
            self.constants[node, 1] = (0 if layer.transposed else 1, labels)
            self._cut_weight(layer)
            if layer.bias is not None:
                self._constant(node, 2, axis, rank, labels)
        else:
            if value is not node.inputs[0]:
                raise Refused(f"{layer.name} reads the channels as its weight")
            self.constants[node, 1] = (1 if layer.transposed else 0, labels)
            self._cut_weight(layer)
            self.sinks.append((layer, labels))

    def _cut_weight(self, layer: Layer) -> None:
        if layer.node.inputs[1] is not layer.weight:
            raise Refused(f"the weight of {layer.name} is transposed in the graph")

    def _constant(self, node: ir.Node, index: int, axis: int, rank: int, labels: Array) -> None:
        """An operand that broadcasts against the labelled axis: cut it if it has that axis."""
        value = node.inputs[index]
        assert value is not None
        shape = stored(value).shape.numpy()
        own = axis - rank + len(shape)
        if own < 0 or shape[own] == 1:
            return
        if shape[own] != len(labels):
            raise Refused(f"{value.name} does not fit the channels")
        self.constants[node, index] = (own, labels)

    def _elementwise(self, node: ir.Node, value: ir.Value, axis: int, labels: Array) -> None:
        result = node.outputs[0]
        rank = _rank(result)
        place = axis - _rank(value) + rank if value is not result else axis
        self.label(result, place, labels)
        for i, operand in enumerate(node.inputs):
            if operand is None:
                continue
            if constant(operand):
                self._constant(node, i, place, rank, labels)
                continue
            own = place - rank + _rank(operand)
            if own < 0:
                continue
            size = _size(operand, own)
            if size is None:
                raise Refused(f"the size of {operand.name} is not known")
            if size != 1:
                self.label(operand, own, labels)

    def _transpose(self, node: ir.Node, value: ir.Value, axis: int, labels: Array) -> None:
        source, result = node.inputs[0], node.outputs[0]
        perm = list(node.attributes.get_ints("perm", list(range(_rank(result)))[::-1]))
        if value is result:
            self.label(source, perm[axis], labels)
        else:
            self.label(result, perm.index(axis), labels)

    def _reshape(self, node: ir.Node, value: ir.Value, axis: int, labels: Array) -> None:
        source, result = node.inputs[0], node.outputs[0]
        if value is node.inputs[1]:
            raise Refused("channels are used as a shape")
        a, b = _dims(source), _dims(result)
        n = len(labels)
        other, there, here = (source, a, b) if value is result else (result, b, a)
        last = len(here) - 1
        if axis == last and there[-1] == n:  # the last axis stays as it is
            moved, new_axis = labels, len(there) - 1
        elif axis == last - 1 and isinstance(here[-1], int) and there[-1] == n * here[-1]:  # (heads, D) -> heads * D
            moved, new_axis = np.repeat(labels, here[-1]), len(there) - 1
        elif axis == last and len(there) > 1 and isinstance(there[-1], int) and isinstance(there[-2], int):
            size = there[-1]  # heads * D -> (heads, D)
            if there[-2] * size != n:
                raise Refused(f"Reshape {node.name} cuts the channels")
            blocks = labels.reshape(-1, size)
            if (blocks != blocks[:, :1]).any():
                raise Refused(f"Reshape {node.name} lays channels of several units together")
            moved, new_axis = blocks[:, 0], len(there) - 2
        else:
            raise Refused(f"Reshape {node.name} cuts the channels")
        self.label(other, new_axis, moved)
        self.reshapes[node] = self.values[result]

    def _split(self, node: ir.Node, value: ir.Value, axis: int, labels: Array) -> None:
        source = node.inputs[0]
        along = node.attributes.get_int("axis", 0) % _rank(source)
        if axis != along:
            for v in (source, *node.outputs):
                self.label(v, axis, labels)
            return
        sizes = [_size(v, along) for v in node.outputs]
        if any(s is None for s in sizes):
            raise Refused(f"the sizes of Split {node.name} are not known")
        widths = [int(s) for s in sizes if s is not None]
        if value is source:
            parts = np.split(labels, np.cumsum(widths)[:-1])
        else:
            parts = []
            for out in node.outputs:
                if out not in self.values:
                    return  # wait until all parts have labels
                parts.append(self.values[out][1])
        self.label(source, along, np.concatenate(parts))
        for out, part in zip(node.outputs, parts):
            self.label(out, along, part)
        self.splits[node] = list(parts)

    def _concat(self, node: ir.Node, value: ir.Value, axis: int, labels: Array) -> None:
        self._joined(node, axis, labels, node.attributes.get_int("axis", 0) % _rank(node.outputs[0]))

    def _joined(self, node: ir.Node, axis: int, labels: Array, along: int) -> None:
        if along == axis:
            raise Refused(f"{node.op_type} {node.name} joins channels with others")
        for v in (*node.inputs, *node.outputs):
            self.label(v, axis, labels)

    def _rotary(self, node: ir.Node, value: ir.Value, axis: int, labels: Array) -> None:
        if axis != 1:
            raise Refused(f"Rotary {node.name} turns channels within a head")
        for v in node.inputs[1:]:
            if v is not None and _rank(v) == 4 and _size(v, 1) != 1:
                raise Refused(f"the angles of {node.name} differ from head to head")
        self.label(node.inputs[0], 1, labels)
        self.label(node.outputs[0], 1, labels)

    def _attention(self, node: ir.Node, value: ir.Value, axis: int, labels: Array) -> None:
        if axis != 1 or value in node.inputs[3:]:
            raise Refused(f"{node.op_type} {node.name} mixes the channels")
        q, k, v = node.inputs[:3]
        group = _heads(q) // _heads(k)
        if value in (k, v):
            wide, narrow = np.repeat(labels, group), labels
        else:
            blocks = labels.reshape(-1, group)
            if (blocks != blocks[:, :1]).any():
                raise Refused(f"{node.op_type} {node.name}: query heads of one key head belong to several units")
            wide, narrow = labels, blocks[:, 0]
        for head_value, found in ((q, wide), (k, narrow), (v, narrow), (node.outputs[0], wide)):
            self.label(head_value, 1, found)
        if len(node.inputs) > 3 and node.inputs[3] is not None:
            bias = node.inputs[3]
            if _rank(bias) == 4 and _size(bias, 1) != 1:
                raise Refused(f"the mask of {node.name} differs from head to head")

    def _shape(self, node: ir.Node, value: ir.Value, axis: int, labels: Array) -> None:
        """A size is read when the model runs, so it follows by itself."""


def _rank(value: ir.Value | None) -> int:
    if value is None or value.shape is None:
        raise Refused(f"the rank of {value.name if value is not None else 'a value'} is not known")
    return len(value.shape)


def _dims(value: ir.Value | None) -> list[int | None]:
    rank = _rank(value)
    assert value is not None and value.shape is not None
    return [d if isinstance(d, int) else None for d in (value.shape[i] for i in range(rank))]


def _size(value: ir.Value | None, axis: int) -> int | None:
    return _dims(value)[axis]


def _heads(value: ir.Value | None) -> int:
    heads = _size(value, 1)
    if heads is None:
        raise Refused("the number of heads is not fixed")
    return heads


def spread(
    name: str, kind: str, units: int, layers: dict[ir.Node, Layer], seeds: Collection[tuple[ir.Value, int, Array]]
) -> Group:
    """Follow the labels of SEEDS through the graph; one product must read all units."""
    spreading = Spread(layers)
    for value, axis, labels in seeds:
        spreading.label(value, axis, labels)
    spreading.run()
    waiting = [n for v in spreading.values for n in (v.producer(),) if n is not None and n.op_type == "Split"]
    if any(
        n not in spreading.splits and spreading.values[v][0] == _along(n)
        for n in waiting
        for v in n.outputs
        if v in spreading.values
    ):
        raise Refused("a part of a joined projection has no heads")
    outputs = [v for v in spreading.values if v.is_graph_output() and not any(i.is_graph_input() for i in _feeding(v))]
    if outputs:
        raise Refused(f"{outputs[0].name} is an output of the model")
    if len(spreading.sinks) != 1:
        raise Refused(f"{len(spreading.sinks)} products read the channels where one is expected")
    sink, labels = spreading.sinks[0]
    if not any((layer.node, 1) in spreading.constants for layer in layers.values() if layer is not sink):
        raise Refused("no product makes the channels")
    return Group(
        name, kind, units, sink, labels, spreading.constants, spreading.reshapes, spreading.splits, spreading.values
    )


def _along(node: ir.Node) -> int:
    return node.attributes.get_int("axis", 0) % _rank(node.inputs[0])


def _feeding(value: ir.Value) -> list[ir.Value]:
    """What an output is made of, if it is a KV cache: the past is an input."""
    node = value.producer()
    if node is None or node.op_type not in ("KvAppend", "Concat"):
        return []
    return [v for v in node.inputs if v is not None]


# --- surgery ---------------------------------------------------------------------------------------------


def remove_units(model: ir.Model, group: Group, kept: Array) -> None:
    """Cut the graph down to the units in KEPT (sorted numbers)."""

    def keep(labels: Array) -> Array:
        return np.flatnonzero((labels < 0) | np.isin(labels, kept))

    for (node, index), (axis, labels) in group.constants.items():
        old = node.inputs[index]
        assert old is not None
        node.replace_input_with(
            index, _register(model, f"{old.name}_pruned", np.take(stored(old).numpy(), keep(labels), axis=axis))
        )
    for node, (axis, labels) in group.reshapes.items():
        _mend_shape(model, node, axis, len(keep(labels)))
    for node, parts in group.splits.items():
        sizes = np.array([len(keep(p)) for p in parts], np.int64)
        node.attributes.pop("num_outputs", None)
        if model.opset_imports[""] < 13:
            node.attributes["split"] = ir.AttrInt64s("split", sizes.tolist())
        elif len(node.inputs) > 1:
            node.replace_input_with(1, _register(model, f"{node.name}_sizes", sizes))
        else:
            node.resize_inputs(2)
            node.replace_input_with(1, _register(model, f"{node.name}_sizes", sizes))
    for value, (axis, labels) in group.values.items():
        assert value.shape is not None
        dims: list[Any] = list(value.shape)
        if isinstance(dims[axis], int):
            dims[axis] = len(keep(labels))
        value.shape = ir.Shape(dims)


def _mend_shape(model: ir.Model, node: ir.Node, axis: int, size: int) -> None:
    """The shape that a Reshape is given, with SIZE at AXIS; -1 and 0 follow by themselves."""
    shape = node.inputs[1]
    assert shape is not None
    if constant(shape):
        numbers = stored(shape).numpy().copy()
        if numbers[axis] > 0:
            numbers[axis] = size
            node.replace_input_with(1, _register(model, f"{node.name}_shape", numbers))
        return
    maker = shape.producer()
    if maker is None or maker.op_type != "Concat":
        raise Refused(f"the shape of Reshape {node.name} is computed in a way that is not known")
    parts, at = list(maker.inputs), 0
    for i, part in enumerate(parts):
        width = _size(part, 0)
        if width is None:
            break
        if at <= axis < at + width:
            assert part is not None
            if not constant(part):
                return  # read from the data, so it follows by itself
            numbers = stored(part).numpy().copy()
            if numbers[axis - at] > 0:
                numbers[axis - at] = size
            parts[i] = _register(model, f"{node.name}_size", numbers)
            made = ir.node("Concat", parts, attributes={"axis": 0}, name=f"{node.name}_shape")
            made.outputs[0].type, made.outputs[0].shape = shape.type, shape.shape
            assert node.graph is not None
            node.graph.insert_before(node, made)
            node.replace_input_with(1, made.outputs[0])
            return
        at += width
    raise Refused(f"the shape of Reshape {node.name} is computed in a way that is not known")


def _register(model: ir.Model, name: str, array: Array) -> ir.Value:
    unique = free_name(model, name)
    tensor = ir.Tensor(np.ascontiguousarray(array), name=unique)
    value = ir.Value(name=unique, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    model.graph.register_initializer(value)
    return value


def replace_weight(model: ir.Model, group: Group, matrix: Array) -> None:
    """A new weight (K, N) for the group's sink."""
    layer = group.sink
    old = layer.node.inputs[1]
    assert old is not None
    stored_as = matrix.T if layer.transposed else matrix
    layer.node.replace_input_with(
        1, _register(model, f"{old.name}_repaired", stored_as.astype(stored(old).dtype.numpy()))
    )
