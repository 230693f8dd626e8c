"""The same model in double precision, as far as ONNX Runtime has kernels for it: who is right where two floats differ?

    x -> STFT -> Log -> y    becomes    x -> Cast -> STFT -> Log -> Cast -> y

Every node that takes doubles takes them; the rest, and the bodies of If, Loop and Scan, stay in single precision, with a Cast on the
way in. A logarithm of a nearly silent bin, or a norm of nearly equal numbers, makes the rounding before it large: ONNX Runtime's own
Fourier transform of a length that is no power of two is 1e-6 of the largest number off, ours 1e-8. What the variant agrees with in
double it need not agree with in float.

A product of weights in blocks (MatMulNBits) that may round what it multiplies to bytes, accuracy_level 2 to 4, is one of plain floats
here: the level is what may be lost at most, so a variant that does not round is right.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir
from onnxruntime.capi import onnxruntime_pybind11_state as native

from opsmith import bounds, session, store
from opsmith.check.footprint import largest_value
from opsmith.errors import OpsmithError
from opsmith.nodes import ONNX

LARGEST = 256 << 20  # bytes of weights: they are held once more, twice as wide
LARGEST_VALUE = 1 << 24  # elements: a convolution in double unfolds its input, 1.2 GB for a kernel of 3x3
PATIENCE = 30.0  # seconds of one run
# Registered for doubles by ONNX Runtime, and refused when they run.
_REFUSED = {"LSTM", "GRU"}
_LEVEL, _PLAIN = "accuracy_level", 1  # 1 is fp32, 2 fp16, 3 bf16, 4 int8; 0, the default, rounds nothing either
_FLOAT, _DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE


def answers(path: Path, feeds: Sequence[Mapping[str, Any]], threads: int | None) -> Iterator[tuple[int, list[Any]]]:
    """(index of the feed, outputs) of the model in double precision, the outputs as single again; nothing where it does not run."""
    model = store.open_model(path)
    weights = (v.const_value for v in model.graph.initializers.values())
    large = sum(t.nbytes for t in weights if t is not None) > LARGEST
    if large and not any(map(_may_round, (ir.to_proto(n) for n in model.graph if n.op_type == "MatMulNBits"))):
        return
    edit = without_rounding if large else in_double
    try:
        running = session.load(path, threads=threads, optimize=False, edit=edit, lean=True)
    except OpsmithError:
        return
    for index, feed in enumerate(feeds):
        if largest_value(model, {name: np.shape(array) for name, array in feed.items()}) > LARGEST_VALUE:
            continue
        try:
            yield index, session.run(running, feed, seconds=PATIENCE)
        except OpsmithError:
            continue


def without_rounding(proto: onnx.ModelProto) -> None:
    """Edit a model so that products of weights in blocks round nothing that they multiply."""
    for node in filter(_may_round, proto.graph.node):
        next(a for a in node.attribute if a.name == _LEVEL).i = _PLAIN


def _may_round(node: onnx.NodeProto) -> bool:
    return node.op_type == "MatMulNBits" and any(a.name == _LEVEL and a.i > _PLAIN for a in node.attribute)


def in_double(proto: onnx.ModelProto) -> None:
    """Edit a model so that what can be is computed in double precision; its inputs and outputs stay as they are."""
    without_rounding(proto)
    graph = proto.graph
    versions = {o.domain or "ai.onnx": o.version for o in proto.opset_import}
    writer = _Writer(_kinds(proto))
    for node in graph.node:
        copy = onnx.NodeProto.FromString(node.SerializeToString())
        wide = _wide(copy, writer.kinds, versions.get("ai.onnx", 1))
        if wide is None:
            writer.narrow([*copy.input, *_captured(copy)])
            writer.nodes.append(copy)
        else:
            writer.widen(copy, *wide)
    writer.narrow([o.name for o in graph.output])
    del graph.node[:]
    graph.node.extend(writer.nodes)


class _Writer:
    """The nodes so far. A value has its own name in single precision, and another one in double, once either is asked for."""

    def __init__(self, kinds: dict[str, int]) -> None:
        self.kinds = kinds
        self.nodes: list[onnx.NodeProto] = []
        self._wide: dict[str, str] = {}  # value -> its name in double
        self._owed: set[str] = set()  # values that were computed in double, and not asked for in single yet

    def widen(self, node: onnx.NodeProto, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Add a node that takes these inputs in double, and gives these outputs so; the others are what they were."""
        self.narrow([name for i, name in enumerate(node.input) if i not in inputs])
        for i in inputs:
            name = node.input[i]
            if name not in self._wide:
                self._wide[name] = f"{name}.double"
                self.nodes.append(onnx.helper.make_node("Cast", [name], [f"{name}.double"], to=_DOUBLE))
            node.input[i] = self._wide[name]
        for i in outputs:
            name = node.output[i]
            self._owed.add(name)
            node.output[i] = self._wide[name] = f"{name}.double"
        self.nodes.append(node)

    def narrow(self, names: Sequence[str]) -> None:
        """Add what gives these values in single precision, where only their doubles are there."""
        for name in names:
            if name in self._owed:
                self._owed.remove(name)
                self.nodes.append(onnx.helper.make_node("Cast", [self._wide[name]], [name], to=_FLOAT))


def _kinds(proto: onnx.ModelProto) -> dict[str, int]:
    inferred = bounds.infer_shapes(proto).graph
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*inferred.input, *inferred.value_info, *inferred.output)}
    return kinds | {t.name: t.data_type for t in inferred.initializer}


def _captured(node: onnx.NodeProto) -> list[str]:
    """Names that the bodies of a node read, whether theirs or the graph's."""
    bodies = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    inside = [n for body in bodies for n in body.node]
    results = [o.name for body in bodies for o in body.output]
    return [*results, *(name for n in inside for name in (*n.input, *_captured(n)))]


def _wide(node: onnx.NodeProto, kinds: Mapping[str, int], version: int) -> tuple[list[int], list[int]] | None:
    """Which inputs and outputs of a node turn to double, if ONNX Runtime has a kernel for that."""
    if node.domain not in ONNX or node.op_type in _REFUSED or not onnx.defs.has(node.op_type):
        return None
    schema = onnx.defs.get_schema(node.op_type, version)
    inputs, outputs = _variables(schema.inputs, node.input), _variables(schema.outputs, node.output)
    floats = {variable for variable, name in zip(inputs, node.input) if kinds.get(name) == _FLOAT}
    turned = floats & {constraint.type_param_str for constraint in schema.type_constraints}
    takes, gives = _places(inputs, node.input, turned), _places(outputs, node.output, turned)
    names = [*(node.input[i] for i in takes), *(node.output[i] for i in gives)]
    if not takes or any(kinds.get(name) != _FLOAT for name in names):
        return None
    return (takes, gives) if _has_kernel(node.op_type, schema.since_version, frozenset(turned)) else None


def _variables(formal: Sequence[Any], actual: Sequence[str]) -> list[str]:
    """The type of each operand as the schema calls it; the last one repeats."""
    return [formal[min(i, len(formal) - 1)].type_str for i in range(len(actual))]


def _places(variables: Sequence[str], names: Sequence[str], turned: Collection[str]) -> list[int]:
    """Of the operands that are there and whose type turns to double."""
    return [i for i, (variable, name) in enumerate(zip(variables, names)) if variable in turned and name]


@functools.cache
def _has_kernel(op: str, since: int, variables: frozenset[str]) -> bool:
    return any(
        k.version_range[0] <= since <= k.version_range[1]
        and all("tensor(double)" in k.type_constraints.get(v, ()) for v in variables)
        for k in _kernels().get(op, ())
    )


@functools.cache
def _kernels() -> dict[str, list[Any]]:
    """ONNX Runtime's kernels of ONNX's own operators, by their names."""
    kernels: dict[str, list[Any]] = {}
    for kernel in native.get_all_opkernel_def():
        if kernel.domain in ONNX and kernel.provider == "CPUExecutionProvider":
            kernels.setdefault(kernel.op_name, []).append(kernel)
    return kernels
