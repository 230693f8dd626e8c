"""onnxscript's rules for one or two nodes: casts, transposes and reshapes that cancel, Pad into Conv; and  x * 1 -> x.

The last is ours: onnxscript compares with a tolerance, and took the epsilon of  x + 1e-12  for 0.

They are tried only at nodes of their last op. onnxscript's own driver tries every rule at every node: on GPT-2 medium from
the torchscript exporter (4686 nodes) these patterns took half of all rewriting time, more than ten times what all
other rules together take.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes.common import NameFixPass
from onnxscript.rewriter import RewriteRule
from onnxscript.rewriter.rules import common as rules

from opsmith.nodes import ONNX
from opsmith.rewriter.rule import attribute, rank_of, register, tensor_of

_BY_OP: dict[str, tuple[RewriteRule, ...]] = {
    "Cast": (rules.no_op_cast_rule, rules.cast_cast_rule, rules.cast_constant_of_shape_rule),
    "Expand": (rules.no_op_expand_rule,),
    "Transpose": (rules.no_op_transpose_rule, rules.transpose_transpose_rule),
    "Reshape": (rules.reshape_reshape_rule,),
    "Unsqueeze": (rules.unsqueeze_unsqueeze_rule,),
    "Dropout": (rules.dropout_inference_rule, rules.dropout_zero_rule),
    "Conv": (rules.normalize_pad_format_conv_rule, rules.fuse_pad_into_conv_rule),
    "Relu": (rules.successive_relu_rule,),
}

# op -> the constant that changes nothing, and the operands that may be it
_NEUTRAL: dict[str, tuple[int, tuple[int, ...]]] = {
    "Add": (0, (0, 1)),
    "Sub": (0, (1,)),
    "Mul": (1, (0, 1)),
    "Div": (1, (1,)),
}


def apply(model: ir.Model) -> bool:
    """Apply the small rules once, from the first node to the last; whether anything changed."""
    changed = False
    graph = model.graph
    for node in list(graph):
        if node.domain not in ONNX or node.graph is not graph:
            continue
        if (kept := _unchanged(node)) is not None:
            ir.convenience.replace_all_uses_with(node.outputs[0], kept)
            graph.remove(node, safe=True)
            changed = True
            continue
        for rule in _BY_OP.get(node.op_type, ()):
            if rule is rules.normalize_pad_format_conv_rule and _misdeclared(node):
                continue
            try:
                rewritten = rule.try_rewrite(model, graph, node)
            except Exception as error:  # whatever onnxscript's rules raise on a malformed node
                logging.getLogger(__name__).debug("%s stays as it is: %s", node.op_type, error)
                continue
            if rewritten is None:
                continue
            for value in rewritten.new_initializers:
                register(graph, value)
            spent = [n for n in rewritten.match.nodes if n is node or not _read_elsewhere(n, rewritten.match.nodes)]
            ir.convenience.replace_nodes_and_values(
                graph, node, spent, rewritten.new_nodes, rewritten.match.outputs, rewritten.new_outputs
            )
            changed = True
            break
    if changed:
        NameFixPass()(model)  # onnxscript's new values may carry names that are taken
    return changed


def _read_elsewhere(node: ir.Node, matched: Sequence[ir.Node]) -> bool:
    """Whether somebody beside what a rule replaces reads the node: it stays."""
    readers = {reader for value in node.outputs for reader, _ in value.uses()}
    return bool(readers - set(matched)) or any(value.is_graph_output() for value in node.outputs)


def _misdeclared(conv: ir.Node) -> bool:
    """Whether the shape of a Conv<auto_pad=SAME_*> is not what its input makes it, as a stale declaration of an output.

    ONNX Runtime goes on with a warning; onnxscript works the padding out from that shape.
    """
    source, made = (value.shape if value is not None else None for value in (conv.inputs[0], conv.outputs[0]))
    if source is None or made is None or not str(attribute(conv, "auto_pad", "NOTSET")).startswith("SAME"):
        return False
    sizes = [d if isinstance(d, int) else None for d in source[2:]]
    strides = attribute(conv, "strides", [1] * len(sizes))
    if len(strides) != len(sizes) or min(strides, default=1) < 1:
        return True
    return list(made[2:]) != [-(-size // stride) if size is not None else None for size, stride in zip(sizes, strides)]


def _unchanged(node: ir.Node) -> ir.Value | None:
    """The operand that this node returns as it is: the other is exactly 0 or 1, and does not broadcast it."""
    if node.op_type not in _NEUTRAL or len(node.inputs) != 2 or node.outputs[0].is_graph_output():
        return None
    number, places = _NEUTRAL[node.op_type]
    for place in places:
        tensor, kept = tensor_of(node.inputs[place]), node.inputs[1 - place]
        if tensor is None or kept is None or tensor.size != 1 or len(tensor.shape) > (rank_of(kept) or 0):
            continue
        if tensor.dtype != ir.DataType.STRING and tensor.numpy().item() == number:
            return kept
    return None
