"""Expand: an operator without a kernel of its own becomes the standard operators that ONNX defines it by.

ONNX's schemas carry function bodies for dozens of operators (Attention, RotaryEmbedding, SoftmaxCrossEntropyLoss, ...). A node
that the compiler would leave to ORT is replaced by its body if, and only if, every operator of that body is supported: half an
expansion would take a fused kernel from ORT and give nothing for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from opsmith.analysis import Analysis, infer_node
from opsmith.analysis.values import Abstract, Unsupported
from opsmith.compiler.bodies import body_of
from opsmith.compiler.lower import can_lower
from opsmith.compiler.unroll import unroll_scan
from opsmith.nodes import ONNX

_DEPTH = 3  # bodies within bodies: SoftmaxCrossEntropyLoss -> NegativeLogLikelihoodLoss -> ...


def expand(graph: ir.Graph, analysis: Analysis) -> bool:
    """Replace unsupported nodes of a graph, the main one or a body, by supported bodies; says whether anything changed."""
    changed = False
    facts = dict(analysis.facts)  # of what is expanded too, so that what reads it is understood
    for node in list(analysis.reasons):
        expansion = _expansion(node, facts, analysis.opset, _DEPTH)
        if expansion is None:
            if changed:
                with contextlib.suppress(Unsupported):
                    infer_node(node, facts, analysis.opset)
            continue
        nodes, outputs = expansion
        graph.insert_before(node, nodes)
        for old, new in zip(node.outputs, outputs):
            if not old.name:  # an optional output that is not there
                continue
            name, new.type, new.shape = old.name, old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            old.name, new.name = f"{name}.expanded", name
        graph.remove(node, safe=True)
        changed = True
    return changed


def _expansion(
    node: ir.Node, facts: dict[ir.Value, Abstract], opset: int, depth: int
) -> tuple[list[ir.Node], list[ir.Value]] | None:
    """The node's body on its own inputs, with bodies inside it expanded too; None if part of it is unsupported."""
    if depth == 0:
        return None
    unrolled = unroll_scan(node, facts, opset)
    function = function_of(node, facts, opset) if unrolled is None else None
    if unrolled is not None:
        made, outputs = unrolled
    elif function is not None:
        made, outputs = _instantiate(function, node, _attributes(node, opset))
    else:
        return None
    result: list[ir.Node] = []
    for inner in made:
        try:
            infer_node(inner, facts, opset)
            if not can_lower(inner) and any(facts[o].runs for o in inner.outputs):
                raise Unsupported("no kernel")
        except Unsupported:
            deeper = _expansion(inner, facts, opset, depth - 1)
            if deeper is None:
                _detach([*made, *result])
                return None
            nodes, values = deeper
            for old, new in zip(inner.outputs, values):
                outputs = [new if o is old else o for o in outputs]
                old.replace_all_uses_with(new)
                facts[old] = facts[new]
            _detach([inner])
            result += nodes
        else:
            result.append(inner)
    own = {o for n in result for o in n.outputs}
    if any(o not in own for o in outputs):  # an output that is an input passed through
        _detach(result)
        return None
    return result, outputs


def function_of(node: ir.Node, facts: dict[ir.Value, Abstract], opset: int) -> ir.Function | None:
    """The operator's definition at this opset, for the types of this node's inputs: ONNX's, or our own."""
    if any(v is not None and v not in facts for v in node.inputs):
        return None
    own = body_of(node, [None if v is None else facts[v] for v in node.inputs], opset)
    if own is not None:
        return ir.serde.deserialize_function(own)
    if node.domain not in ONNX or _means_otherwise(node, [None if v is None else facts[v] for v in node.inputs]):
        return None
    try:
        text = _definition(node, facts, opset)
    except (RuntimeError, ValueError, onnx.defs.SchemaError):
        return None
    if text is None:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(text)
    return ir.serde.deserialize_function(body) if _valid(body, opset) and _completed(body, node) else None


def _completed(body: onnx.FunctionProto, node: ir.Node) -> bool:
    """An output that the node does not ask for is named but not computed: it becomes a constant. False if one is asked for."""
    made = {o for n in body.node for o in n.output}
    for i, name in enumerate(body.output):
        if name not in made:
            if i < len(node.outputs) and _is_read(node.outputs[i]):
                return False
            body.node.append(onnx.helper.make_node("Constant", [], [name], value_int=0))
    return True


def _means_otherwise(node: ir.Node, inputs: list[Abstract | None]) -> bool:
    """Whether ONNX's body gives other numbers than ONNX Runtime: a Shrink of integers rounds its bias to one, a
    ReduceLogSumExp of integers its exponentials, and a LayerNormalization takes doubles for floats and no scale that broadcasts."""
    x = inputs[0] if inputs else None
    if x is None:
        return False
    if node.op_type in ("Shrink", "ReduceLogSum", "ReduceLogSumExp"):
        return not x.dtype.is_floating_point()
    if node.op_type == "LayerNormalization":
        axis = node.attributes.get_int("axis", -1) % max(1, x.rank)
        return x.dtype == ir.DataType.DOUBLE or any(v is not None and v.dims != x.dims[axis:] for v in inputs[1:])
    return False


def _definition(node: ir.Node, facts: dict[ir.Value, Abstract], opset: int) -> bytes | None:
    """The serialized function that ONNX defines the operator by, if it is one."""
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    by_context = not schema.has_function and schema.has_context_dependent_function
    versions = schema.context_dependent_function_opset_versions if by_context else schema.function_opset_versions
    version = max((v for v in versions if v <= opset), default=None)
    if version is None:
        return None
    if by_context:
        types = [_type(None if v is None else facts[v]) for v in node.inputs]
        proto = ir.serde.serialize_node(node).SerializeToString()
        function: bytes = schema.get_context_dependent_function_with_opset_version(version, proto, types)
        return function
    body = schema.get_function_with_opset_version(version)
    return body if isinstance(body, bytes) else body.SerializeToString()


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _valid(function: onnx.FunctionProto, opset: int) -> bool:
    """Whether the body, written for the opset of the operator, means the same at the model's own opset."""
    for node in function.node:
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
            return False
        try:
            schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        except onnx.defs.SchemaError:
            return False
        if len(node.input) > schema.max_input or any(a.name not in schema.attributes for a in node.attribute):
            return False
    return True


def _type(fact: Abstract | None) -> bytes:
    if fact is None:
        return b""
    sizes = [d.value for d in fact.dims]
    shape = [s if s is not None else f"d{i}" for i, s in enumerate(sizes)]
    kind: bytes = onnx.helper.make_tensor_type_proto(int(fact.dtype), shape).SerializeToString()
    return kind


def _attributes(node: ir.Node, opset: int) -> dict[str, ir.Attr]:
    """The node's attributes, with the schema's defaults for those it does not give."""
    if node.domain not in ONNX:
        return dict(node.attributes)
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    defaults: dict[str, ir.Attr] = {}
    for name, declared in schema.attributes.items():
        if declared.default_value.type != onnx.AttributeProto.UNDEFINED:
            defaults[name] = ir.serde.deserialize_attribute(declared.default_value)
    return {**defaults, **node.attributes}


def _instantiate(
    function: ir.Function, node: ir.Node, attributes: dict[str, ir.Attr]
) -> tuple[list[ir.Node], list[ir.Value]]:
    given = [*node.inputs, *[None] * (len(function.inputs) - len(node.inputs))]
    values: dict[ir.Value, ir.Value | None] = dict(zip(function.inputs, given))
    made: list[ir.Node] = []
    for i, inner in enumerate(function):
        kept = [_resolve(a, attributes) for a in inner.attributes.values()]
        copy = ir.Node(
            inner.domain,
            inner.op_type,
            [None if v is None else values[v] for v in inner.inputs],
            [a for a in kept if a is not None],
            num_outputs=len(inner.outputs),
            name=f"{node.name or node.op_type}/{inner.op_type}_{i}",
        )
        for old, new in zip(inner.outputs, copy.outputs):
            new.name = f"{node.name or node.op_type}/{old.name}"
            values[old] = new
        made.append(copy)
    outputs: list[ir.Value] = []
    for value in function.outputs[: len(node.outputs)]:
        result = values[value]
        assert result is not None
        outputs.append(result)
    return made, outputs


def _resolve(attribute: ir.Attr, given: dict[str, ir.Attr]) -> ir.Attr | None:
    if not attribute.is_ref():
        return attribute
    meant = given.get(attribute.ref_attr_name or "")
    return None if meant is None else ir.Attr(attribute.name, meant.type, meant.value)


def _detach(nodes: Sequence[ir.Node]) -> None:
    """Nodes that will not be used leave no trace in the uses of their inputs."""
    for node in nodes:
        for i in range(len(node.inputs)):
            node.replace_input_with(i, None)
