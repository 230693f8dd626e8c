"""Level 1: what needs no pattern. Everything here is exact and keeps weights where they are, memory-mapped.

The order, and why:
  1. inline        functions of the exporter hide nodes from everything that follows
  2. fold          onnxscript folds constants node by node and infers shapes on the way; its small rules (no-op Cast,
                   Expand, Transpose ..., Pad into Conv) feed on the constants and make new ones, so both take turns
  3. sizes         only now are most ranks known; it makes further constants (head sizes, scales), hence fold again
  4. lift, dedupe  constants become initializers, equal ones become one value ...
  5. CSE           ... so that equal computations have equal inputs when they are compared
  6. dead code     last: each step above leaves orphans
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common
from onnxscript import optimizer

from opsmith.analysis.control import gathered_perhaps
from opsmith.check.drawn import draws
from opsmith.errors import OpsmithError
from opsmith.nodes import ONNX
from opsmith.rewriter.passes import invariants, opsets, shapes, small_rules, weights
from opsmith.rewriter.passes.unused import remove_unused
from opsmith.rewriter.rule import DOMAIN, tensor_of

NEWEST_SPLIT, AXES_AS_INPUT = 18, 13  # the opsets of Split with `num_outputs`, and of Unsqueeze with axes as an input
FOLD_LIMIT = 64 * 1024  # elements; a larger result would copy weights into memory
_FOLD_ROUNDS = 16  # far more than are ever needed: each makes a constant out of one more layer of nodes


def simplify(model: ir.Model, raise_opset: bool = False) -> None:
    """Inline, fold, infer sizes, merge duplicates, remove dead code; in place. The rules want opset 17 or later."""
    try:
        common.InlinePass(criteria=lambda f: f.domain != DOMAIN)(model)
    except (ir.passes.PreconditionError, ValueError) as error:  # the latter: written for another opset
        raise OpsmithError(f"its functions cannot be inlined: {error.__cause__ or error}") from error
    if raise_opset:
        with quiet():
            opsets.raise_opset(model)
    fold(model)
    weights.transpose_lazily(model)
    for _ in range(2):
        remove_unused(model)
        if not shapes.infer(model):
            break
        fold(model)
    tidy(model)


def fold(model: ir.Model) -> None:
    """Constant folding and onnxscript's small rules, until nothing changes."""
    invariants.read_invariants_outside(model)
    cannot: set[ir.Node] = set()  # nodes at which the folder gave up: it lacks an implementation of their op
    last: list[ir.Node] = []
    opset = model.opset_imports.get("", 1)

    def should_fold(node: ir.Node) -> bool | None:
        last[:] = [node]
        return False if node in cannot or _read_otherwise(node, opset) else _should_fold(node)

    folding = _Folding(
        shape_inference=True, input_size_limit=FOLD_LIMIT, output_size_limit=FOLD_LIMIT, should_fold=should_fold
    )
    with quiet():
        for _ in range(_FOLD_ROUNDS):
            try:
                changed = bool(folding(model).modified)
            except Exception as error:  # whatever the folder raises on a malformed node
                logging.getLogger(__name__).debug("constant folding goes on without a node: %s", error)
                if not last or last[0] in cannot:
                    return
                cannot.add(last[0])
                continue
            _refuse_negative_sizes(model)
            _plain_constants(model)
            remove_unused(model)
            if not small_rules.apply(model) and not changed:
                break


def _read_otherwise(node: ir.Node, opset: int) -> bool:
    """Whether the folder takes a node for something else than ONNX Runtime does."""
    if node.op_type == "Squeeze" and len(node.inputs) > 1:
        axes = tensor_of(node.inputs[1])
        return axes is not None and axes.size == 0  # by no axes: ONNX Runtime drops all of size 1
    if node.op_type == "Pow":
        return _overflows(node)
    return (
        draws(node) or node.op_type in _NEVER or (node.op_type in _OF_ROWS and opset < _ROWS_BEFORE) or _backwards(node)
    )


def _overflows(node: ir.Node) -> bool:
    """Whether a power of integers leaves what ONNX Runtime, which computes it in double, gives exactly."""
    tensors = [tensor_of(value) for value in node.inputs]
    if any(tensor is None or tensor.size > FOLD_LIMIT for tensor in tensors):
        return False  # not folded anyway
    base, exponent = (np.asarray(tensor.numpy()) for tensor in tensors if tensor is not None)
    if base.dtype.kind not in "iu":
        return False
    with np.errstate(all="ignore"):
        powers = np.abs(np.power(base.astype(np.float64), exponent.astype(np.float64)))
    limit = min(2.0**53, float(np.iinfo(base.dtype).max))
    return not bool(np.all(powers <= limit)) or bool((exponent < 0).any())


def _backwards(node: ir.Node) -> bool:
    """A Slice by a negative step from before the first element: the folder takes Python's, which is empty where ONNX's starts there."""
    if node.op_type != "Slice" or len(node.inputs) < 5:
        return False
    data, starts, _, axes, steps = (tensor_of(value) for value in node.inputs)
    if data is None or starts is None or steps is None:
        return steps is not None and bool((steps.numpy() < 0).any())
    along = range(len(starts.numpy())) if axes is None else axes.numpy()
    triples = zip(along, starts.numpy().tolist(), steps.numpy().tolist())
    return any(step < 0 and start < -int(data.shape[axis]) for axis, start, step in triples)


class _Folding(optimizer._constant_folding.FoldConstantsPass):  # type: ignore[misc]
    """The folder itself takes what shape arithmetic computes for sizes, which are never negative, and writes nodes of a newer opset.

    ONNX's inference aborts the process on a Slice of a negative size, takes it that every loop runs, and that no operand of an
    Einsum is stretched."""

    def process_node(self, node: ir.Node, is_function: bool) -> Any:
        if self._misread(node):
            self._do_inference(node)
            return None
        if node.op_type == "SplitToSequence" and len(node.inputs) > 1 and node.inputs[1] is not None:
            node.attributes.pop("keepdims", None)  # which then means nothing; the folder heeds it
        return super().process_node(node, is_function)

    def _misread(self, node: ir.Node) -> bool:
        opset = self._opset_imports.get(node.domain, 0)
        if node.op_type == "Abs":
            return node.inputs[0] is None or node.inputs[0].const_value is None
        newer = {"SplitToSequence": NEWEST_SPLIT, "ConcatFromSequence": AXES_AS_INPUT}
        return bool(opset < newer.get(node.op_type, 0))

    def _do_inference(self, node: ir.Node) -> None:
        if node.op_type != "Slice" or not any(_negative(value) for value in node.inputs):
            super()._do_inference(node)
        stretched = node.outputs if node.op_type == "Einsum" else ()
        for value in (*gathered_perhaps(node), *stretched):
            if value.shape is not None:
                value.shape = ir.Shape([None] * len(value.shape))


def _negative(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and any(isinstance(d, int) and d < 0 for d in value.shape)


def _refuse_negative_sizes(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if _negative(value):
                raise OpsmithError(f"{node.op_type} makes {value.name!r} with a negative size: {value.shape}")


def _plain_constants(model: ir.Model) -> None:
    """The folder writes `Constant<value_ints>`, which opsets before 12 do not have; every opset has `value`."""
    for node in model.graph.all_nodes():
        tensor = node.outputs[0].const_value if node.op_type == "Constant" and node.domain in ONNX else None
        if tensor is not None and not {"value", "sparse_value"} & set(node.attributes):
            node.attributes.clear()
            node.attributes["value"] = ir.AttrTensor("value", tensor)


@contextlib.contextmanager
def defaults_hidden(model: ir.Model) -> Iterator[None]:
    """Inputs with a default value are no constants: a caller may override them. onnxscript takes them for constants. What outputs
    declare is no fact either."""
    with _outputs_kept(model), _inputs_open(model):
        yield


@contextlib.contextmanager
def _outputs_kept(model: ir.Model) -> Iterator[None]:
    """Outputs have their names again at the end: a rule may find that one is an input, or another value. Meanwhile they declare no
    sizes: ONNX Runtime goes on with a warning where those are wrong, as [1, 10] of any number of rows."""
    names = [value.name for value in model.graph.outputs]
    said = [value.shape for value in model.graph.outputs]
    for value in model.graph.outputs:
        if value.shape is not None and value.producer() is not None:
            value.shape = ir.Shape([None if isinstance(d, int) else d for d in value.shape])
    try:
        yield
    finally:
        if [value.name for value in model.graph.outputs] != names:
            own_outputs(model.graph, names)
            common.NameFixPass()(model)
        for value, shape in zip(model.graph.outputs, said):
            if shape is not None and value.producer() is not None:
                value.shape = shape


@contextlib.contextmanager
def _inputs_open(model: ir.Model) -> Iterator[None]:
    """Inputs have no values; their defaults are theirs again at the end."""
    held = model.graph.initializers
    defaults = {v.name: v.const_value for v in model.graph.inputs if v.const_value is not None and v.name in held}
    for value in model.graph.inputs:
        value.const_value = None  # also of an input that a pass over a model in memory found to be constant
        if value.name in defaults:
            held.pop(value.name or "")
    try:
        yield
    finally:
        for value in model.graph.inputs:  # by name: raising the opset replaces the graph
            if value.name in defaults:
                value.const_value = defaults[value.name]
                model.graph.register_initializer(value)


@contextlib.contextmanager
def quiet(*libraries: str) -> Iterator[None]:
    """The passes warn about every node and every constant that they leave alone. LIBRARIES are silent, too."""
    loggers = [logging.getLogger(name) for name in ("onnxscript", "onnx_ir", *libraries)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


@contextlib.contextmanager
def without_maps(model: ir.Model) -> Iterator[None]:
    """ONNX infers that ZipMap makes a sequence of maps, a type that onnx-ir cannot hold: meanwhile it is no known operator."""
    makers = [n for n in model.graph.all_nodes() if n.op_type == "ZipMap" and n.domain == "ai.onnx.ml"]
    for node in makers:
        node.op_type = "ZipMap of unknown type"
    try:
        yield
    finally:
        for node in makers:
            node.op_type = "ZipMap"


def tidy(model: ir.Model) -> None:
    """Merge equal constants and equal computations, drop what nobody reads, make names unique."""
    names = [value.name for value in model.graph.outputs]
    for one in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        _merge_equal_nodes,
        remove_unused,
        common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        common.RemoveUnusedOpsetsPass(),
    ):
        with quiet():
            one(model)
    own_outputs(model.graph, names)
    with quiet():
        common.NameFixPass()(model)


def _merge_equal_nodes(model: ir.Model) -> None:
    """CSE; nodes that draw random numbers carry a number meanwhile, so that no two are equal."""
    drawing = [node for node in model.graph if draws(node)]
    for i, node in enumerate(drawing):
        node.attributes[_DRAW_NUMBER] = ir.AttrInt64(_DRAW_NUMBER, i)
    try:
        common.CommonSubexpressionEliminationPass()(model)
    finally:
        for node in drawing:
            del node.attributes[_DRAW_NUMBER]


_DRAW_NUMBER = "opsmith_draw"


def own_outputs(graph: ir.Graph, names: Sequence[str | None]) -> None:
    """Each output is a value of its own again, and has its old name: merging made equal ones the same value, or a constant."""
    seen: set[ir.Value] = set()
    inputs = {value.name: value for value in graph.inputs}
    for i, (value, name) in enumerate(zip(graph.outputs, names)):
        if name in inputs:  # an output of this name is the input
            graph.outputs[i] = inputs[name]
            continue
        if value.name == name and value not in seen:
            seen.add(value)
            continue
        copy = ir.Node("", "Identity", [value], name=f"{name}_output")
        copy.outputs[0].name, copy.outputs[0].type, copy.outputs[0].shape = name, value.type, value.shape
        graph.append(copy)
        graph.outputs[i] = copy.outputs[0]


def _should_fold(node: ir.Node) -> bool | None:
    """Leave weights alone: onnxscript would transpose a 50 MB matrix in memory, and later write it out again.

    A node has a budget in elements that it makes and in work, known before it runs: a model of 200 bytes can ask for a
    Range of 10^12. What is beyond it, or cannot be foreseen, stays a node.
    """
    inputs = [v.const_value.size for v in node.inputs if v is not None and v.const_value is not None]
    if any(s > FOLD_LIMIT for s in inputs):
        return False
    made = 0
    for value in node.outputs:
        if value.shape is None or not all(isinstance(d, int) for d in value.shape):
            return False
        made += math.prod(d for d in value.shape if isinstance(d, int))
    if made > FOLD_LIMIT:
        return False
    if node.op_type in _SLOW and (made + sum(inputs) > SLOW_LIMIT or _largest_attribute(node) > SLOW_LIMIT):
        return False
    # The folder leaves all of these alone, also torch.full([], size ** 0.5), which is a factor of scores.
    return True if node.op_type == "ConstantOfShape" and len(inputs) == made == 1 else None


def _largest_attribute(node: ir.Node) -> int:
    numbers = [a.value if a.type == ir.AttributeType.INTS else [a.value] for a in node.attributes.values()]
    return max((abs(n) for some in numbers for n in some if isinstance(n, int)), default=0)


# Never folded: onnx's reference implementation, which the folder computes with, takes some attributes, defaults and opsets of these
# for something else than ONNX Runtime does (a MaxPool with SAME padding, a BatchNormalization with a momentum). Models have no
# constants that go through them. The work of an Einsum is the product of all its labels.
_NEVER = {
    *(
        "AveragePool",
        "LpPool",
        "MaxPool",
        "MaxRoiPool",
        "MaxUnpool",
        "GlobalAveragePool",
        "GlobalLpPool",
        "GlobalMaxPool",
    ),
    *(
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "DeformConv",
        "QLinearConv",
        "Col2Im",
        "RoiAlign",
        "GridSample",
        "AffineGrid",
    ),
    *(
        "Resize",
        "Upsample",
        "CenterCropPad",
        "BatchNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "LRN",
    ),
    *("LayerNormalization", "RMSNormalization", "LpNormalization", "MeanVarianceNormalization", "GRU", "LSTM", "RNN"),
    *(
        "Attention",
        "RotaryEmbedding",
        "Einsum",
        "NegativeLogLikelihoodLoss",
        "SoftmaxCrossEntropyLoss",
        "NonMaxSuppression",
    ),
    *("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix", "DFT", "STFT", "TfIdfVectorizer", "Unique"),
}
_ROWS_BEFORE = 13  # before this opset a row of these is all dims from the axis on, which the reference does not know
_OF_ROWS = {"Softmax", "LogSoftmax", "Hardmax"}

# What it computes in loops of Python, or with more work than elements.
SLOW_LIMIT = 1024
_SLOW = {
    *("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "CumSum", "Det", "ScatterND", "ScatterElements", "GatherND"),
    *("GatherElements", "TopK"),
}
