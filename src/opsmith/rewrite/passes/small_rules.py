"""onnxscript's rules for one or two nodes: casts, transposes and reshapes that cancel, x * 1, Pad into Conv.

They are tried only at nodes of their last op. onnxscript's own driver tries every rule at every node: on GPT-2 medium from
the torchscript exporter (4686 nodes) these 17 patterns took half of all rewriting time, more than ten times what all
other rules together take.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import NameFixPass
from onnxscript.rewriter import RewriteRule
from onnxscript.rewriter.rules import common as rules

_BY_OP: dict[str, tuple[RewriteRule, ...]] = {
    "Cast": (rules.no_op_cast_rule, rules.cast_cast_rule, rules.cast_constant_of_shape_rule),
    "Expand": (rules.no_op_expand_rule,),
    "Transpose": (rules.no_op_transpose_rule, rules.transpose_transpose_rule),
    "Reshape": (rules.reshape_reshape_rule,),
    "Unsqueeze": (rules.unsqueeze_unsqueeze_rule,),
    "Mul": (rules.mul_by_1_rule,),
    "Div": (rules.div_by_1_rule,),
    "Add": (rules.add_0_rule,),
    "Sub": (rules.sub_0_rule,),
    "Dropout": (rules.dropout_inference_rule, rules.dropout_zero_rule),
    "Conv": (rules.normalize_pad_format_conv_rule, rules.fuse_pad_into_conv_rule),
    "Relu": (rules.successive_relu_rule,),
}


def apply(model: ir.Model) -> bool:
    """Apply the small rules once, from the first node to the last; whether anything changed."""
    changed = False
    graph = model.graph
    for node in list(graph):
        if node.domain not in ("", "ai.onnx") or node.graph is not graph:
            continue
        for rule in _BY_OP.get(node.op_type, ()):
            found = rule.try_rewrite(model, graph, node)
            if found is None:
                continue
            for value in found.new_initializers:
                graph.register_initializer(value)
            ir.convenience.replace_nodes_and_values(
                graph, node, found.match.nodes, found.new_nodes, found.match.outputs, found.new_outputs
            )
            changed = True
            break
    if changed:
        NameFixPass()(model)  # onnxscript's new values may carry names that are taken
    return changed
