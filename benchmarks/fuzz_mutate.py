"""Mutated models for benchmarks/fuzz.py: ONNX's own node tests and small models, with operators exchanged, attributes and sizes
changed, and one model's graph behind another's."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import numpy as np
import onnx
from fuzz_graphs import COMPARE, REDUCE, UNARY
from onnx import helper as h
from onnx import numpy_helper as nh

ALIKE = [
    UNARY,
    "Add Sub Mul Div Max Min Pow PRelu".split(),
    COMPARE,
    REDUCE,
    ["And", "Or", "Xor"],
    ["ArgMax", "ArgMin"],
]
ALIKE += [
    ["Softmax", "LogSoftmax", "Hardmax"],
    ["MaxPool", "AveragePool", "LpPool"],
    ["GlobalAveragePool", "GlobalMaxPool"],
]
LARGEST = 1 << 20  # bytes of a model that is worth mutating


@functools.cache
def seeds(folder: Path | None = None) -> list[onnx.ModelProto]:
    """ONNX's node tests; or every small model in a folder."""
    if folder is not None:
        files = [p for p in sorted(folder.rglob("*.onnx")) if p.stat().st_size < LARGEST]
        return [onnx.load(p) for p in files]
    from node_tests import load_cases  # in tests/

    models = [onnx.load_from_string(case.model) for case in load_cases()]
    return [m for m in models if _plain(m)]


def _plain(model: onnx.ModelProto) -> bool:
    """Of tensors of numbers, in ONNX's own domain."""
    kinds = {v.type.WhichOneof("value") for v in (*model.graph.input, *model.graph.output)}
    strings = any(
        v.type.tensor_type.elem_type == onnx.TensorProto.STRING for v in (*model.graph.input, *model.graph.output)
    )
    return kinds == {"tensor_type"} and not strings and all(o.domain in ("", "ai.onnx") for o in model.opset_import)


def mutant(seed: int, folder: Path | None = None) -> onnx.ModelProto:
    """A model that may or may not be valid: ONNX Runtime decides."""
    rng = random.Random(seed)
    models = seeds(folder)
    model = onnx.ModelProto()
    model.CopyFrom(rng.choice(models))
    for _ in range(rng.choice([1, 1, 2, 3])):
        how = rng.choice([_exchange, _attribute, _sizes, _numbers, _behind, _behind, _duplicate])
        how(model, rng, models)
    return model


def _exchange(model: onnx.ModelProto, rng: random.Random, models: list[onnx.ModelProto]) -> None:
    places = [(n, kinds) for n in model.graph.node for kinds in ALIKE if n.op_type in kinds]
    if places:
        node, kinds = rng.choice(places)
        node.op_type = rng.choice(kinds)


def _attribute(model: onnx.ModelProto, rng: random.Random, models: list[onnx.ModelProto]) -> None:
    attributes = [a for n in model.graph.node for a in n.attribute]
    if not attributes:
        return
    chosen = rng.choice(attributes)
    if chosen.type == onnx.AttributeProto.INT:
        chosen.i += rng.choice([-1, 1])
    elif chosen.type == onnx.AttributeProto.INTS and chosen.ints:
        place = rng.randrange(len(chosen.ints))
        chosen.ints[place] = max(0, chosen.ints[place] + rng.choice([-1, 1]))
    elif chosen.type == onnx.AttributeProto.FLOAT:
        chosen.f = rng.choice([0.0, 1.0, -chosen.f, chosen.f * 2])


def _sizes(model: onnx.ModelProto, rng: random.Random, models: list[onnx.ModelProto]) -> None:
    """One number becomes another or a dim, wherever it stands; outputs forget theirs."""
    numbers = sorted({d.dim_value for v in model.graph.input for d in v.type.tensor_type.shape.dim if d.dim_value > 1})
    if not numbers:
        return
    old, new = rng.choice(numbers), rng.choice([1, 2, 3, 5, 8, 16, 17, "n"])
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value == old:
                dim.Clear()
                if isinstance(new, int):
                    dim.dim_value = new
                else:
                    dim.dim_param = new
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    del model.graph.value_info[:]


def _numbers(model: onnx.ModelProto, rng: random.Random, models: list[onnx.ModelProto]) -> None:
    """An input of integers or a small one becomes a constant, as it mostly is in models from exporters."""
    inputs = [v for v in model.graph.input if all(d.dim_value for d in v.type.tensor_type.shape.dim)]
    if len(inputs) < 2:
        return
    value = rng.choice(inputs)
    kind = h.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    if np.prod(shape) < 4096 and np.dtype(kind).kind in "fiub":
        numbers = (
            np.random.default_rng(rng.randrange(1 << 30)).integers(0, 3, shape) if np.dtype(kind).kind in "iu" else None
        )
        if numbers is None:
            numbers = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(shape)
        model.graph.initializer.append(nh.from_array(np.asarray(numbers).astype(kind), value.name))
        model.graph.input.remove(value)


def _behind(model: onnx.ModelProto, rng: random.Random, models: list[onnx.ModelProto]) -> None:
    """Another graph reads one of this one's outputs in place of an input of the same type and rank."""
    other = onnx.ModelProto()
    other.CopyFrom(rng.choice(models))
    if _opset(other) != _opset(model) or other.functions:
        same = [m for m in models if _opset(m) == _opset(model) and not m.functions]
        if not same:
            return
        other.CopyFrom(rng.choice(same))
    prefix = f"p{len(model.graph.node)}_"
    pairs = [
        (i, o)
        for i in other.graph.input
        for o in model.graph.output
        if i.type.tensor_type.elem_type == o.type.tensor_type.elem_type
        and len(i.type.tensor_type.shape.dim) == len(o.type.tensor_type.shape.dim)
    ]
    if not pairs:
        return
    entry, source = rng.choice(pairs)
    names = {entry.name: source.name}
    for graph in (other.graph,):
        _rename(graph, names, prefix)
    model.graph.node.extend(other.graph.node)
    model.graph.initializer.extend(other.graph.initializer)
    model.graph.input.extend(v for v in other.graph.input if v.name != source.name)
    model.graph.output.remove(source)
    model.graph.output.extend(other.graph.output)
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()


def _duplicate(model: onnx.ModelProto, rng: random.Random, models: list[onnx.ModelProto]) -> None:
    """The same output once more, through an operator that changes little."""
    plain = [o for o in model.graph.output if o.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    if plain:
        value = rng.choice(plain)
        copy = onnx.ValueInfoProto()
        copy.CopyFrom(value)
        copy.name = f"{value.name}_twice{len(model.graph.node)}"
        model.graph.node.append(
            h.make_node(rng.choice(["Identity", "Relu", "Neg", "Sigmoid"]), [value.name], [copy.name])
        )
        model.graph.output.append(copy)


def _opset(model: onnx.ModelProto) -> int:
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)


def _rename(graph: onnx.GraphProto, names: dict[str, str], prefix: str) -> None:
    def new(name: str) -> str:
        return names.setdefault(name, f"{prefix}{name}") if name else ""

    for node in graph.node:
        for field in (node.input, node.output):
            for i, name in enumerate(field):
                field[i] = new(name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, names, prefix)
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = new(value.name)
