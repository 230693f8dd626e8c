"""Raise an old model to opset 18, which the rules are written for.

onnx's converter does most of it. Operators whose meaning changed and that it passes on as they are, are adapted here:
  (1) Hardmax before opset 13    the dims from `axis` on are one row  ->  Flatten, Hardmax over the last axis, Reshape
  (2) Resize before opset 11     positions are asymmetric, nearest rounds down, or up where the image shrinks; the defaults are others since
  (3) Upsample before opset 10   becomes such a Resize
  (4) Pad and Clip before 11     the numbers that were attributes become floats, whatever the type of the operand
  (5) Split before opset 18      of an axis shorter than its parts, an empty one, which `num_outputs` refuses: the sizes are an input
A model stays as it is if it has a Scan before opset 9, which has a batch of its own that the converter takes from the model's inputs,
a BatchNormalization before opset 9 with statistics per pixel, or a Dropout before opset 12 whose mask is read: there it is all 0 in
ONNX Runtime, later all 1.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from onnxscript import version_converter

from opsmith.nodes import ONNX
from opsmith.rewriter.rule import attribute, rank_of

OLDEST = 17  # LayerNormalization, and CastLike for the bodies of our functions
NEW = 18  # what an older model is raised to


def raise_opset(model: ir.Model) -> None:
    """Convert an old model. A model that cannot be converted stays as it is: rules that need a newer opset say so."""
    old = model.opset_imports.get("", OLDEST)
    if old >= OLDEST or any(_cannot_be_raised(node, old) for node in model.graph.all_nodes()):
        return
    converted = model.clone()  # the converter stops half-way when it fails
    if old < 13:
        _rows_of_hardmax(converted)  # (1)
    try:
        version_converter.convert_version(converted, target_version=NEW, fallback=True)
    except Exception as error:  # the converter has no common error type
        logging.getLogger(__name__).info("the opset stays as it is: %s", error)
        return
    if converted.opset_imports.get("") != NEW:
        return
    _sizes_of_parts(converted)  # (5)
    if old < 13:
        _empty_rows(converted)
    if old < 11:
        _numbers_of_its_type(converted)  # (4)
        if not _old_positions(converted):  # (2) (3)
            return
    _forget_shapes(converted.graph, model.graph)
    model.graph = converted.graph
    model.functions.clear()
    model.functions.update(converted.functions)


def _forget_shapes(converted: ir.Graph, graph: ir.Graph | None) -> None:
    """Those that the converter inferred: ONNX takes it that no operand of an Einsum is stretched and that every loop runs.

    Graph by graph: the two branches of an If may call their values by the same names.
    """
    makers = {v.name: n for n in graph or () for v in n.outputs if v.name}
    said = {v.name: v.shape for n in makers.values() for v in n.outputs}
    for node in converted:
        for value in node.outputs:
            value.shape = said.get(value.name) if value.name else None
        before = next((makers[v.name] for v in node.outputs if v.name in makers), None)
        bodies = dict(_bodies(before)) if before is not None else {}
        for place, body in _bodies(node):
            _forget_shapes(body, bodies.get(place))


def _bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    return ((name, a.as_graph()) for name, a in node.attributes.items() if a.type == ir.AttributeType.GRAPH)


def _cannot_be_raised(node: ir.Node, opset: int) -> bool:
    if node.op_type == "Dropout":
        return opset < 12 and any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
    return opset < 9 and (node.op_type == "Scan" or attribute(node, "spatial", 1) == 0)


def _rows_of_hardmax(model: ir.Model) -> None:
    for node in [n for n in model.graph.all_nodes() if n.op_type == "Hardmax" and n.domain in ONNX]:
        x, axis = node.inputs[0], int(attribute(node, "axis", 1))
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
        if x is None or node.graph is None or axis == -1 or axis == (rank_of(x) or 0) - 1:
            continue
        shape, rows = ir.Node("", "Shape", [x]), ir.Node("", "Flatten", [x], [ir.AttrInt64("axis", axis)])
        back = ir.Node("", "Reshape", [node.outputs[0], shape.outputs[0]])
        result = node.outputs[0]
        back.outputs[0].type, back.outputs[0].shape = result.type, result.shape
        node.graph.insert_before(node, [shape, rows])
        node.graph.insert_after(node, back)
        node.replace_input_with(0, rows.outputs[0])
        result.shape = None
        result.replace_all_uses_with(back.outputs[0], replace_graph_outputs=True)
        back.replace_input_with(0, result)
        name, result.name = result.name, f"{result.name}_rows"
        back.outputs[0].name = name


def _empty_rows(model: ir.Model) -> None:
    """Reshape(Softmax(Flatten(x)), Shape(x)), as converted: a size of 0 is one, not a place where a size is copied."""
    for node in model.graph.all_nodes():
        rows, shape = (v.producer() if v is not None else None for v in (*node.inputs, None, None)[:2])
        if node.op_type == "Reshape" and rows is not None and shape is not None and shape.op_type == "Shape":
            flat = rows.inputs[0].producer() if rows.inputs and rows.inputs[0] is not None else None
            if rows.op_type in ("Softmax", "LogSoftmax", "Hardmax") and flat is not None and flat.op_type == "Flatten":
                node.attributes["allowzero"] = ir.AttrInt64("allowzero", 1)


def _numbers_of_its_type(model: ir.Model) -> None:
    for node in [n for n in model.graph.all_nodes() if n.op_type in ("Pad", "Clip") and n.domain in ONNX]:
        x = node.inputs[0] if node.inputs else None
        if node.op_type == "Pad":
            node.attributes.pop("value", None)  # which the converter leaves where the mode has no use for it
        for i in (2,) if node.op_type == "Pad" else (1, 2):
            number = node.inputs[i] if i < len(node.inputs) else None
            if x is not None and number is not None and number.dtype != x.dtype and node.graph is not None:
                cast = ir.Node("", "CastLike", [number, x])
                node.graph.insert_before(node, cast)
                node.replace_input_with(i, cast.outputs[0])


def _sizes_of_parts(model: ir.Model) -> None:
    for node in list(model.graph.all_nodes()):
        x, count = node.inputs[0] if node.inputs else None, len(node.outputs)
        if node.op_type != "Split" or node.domain not in ONNX or len(node.inputs) > 1 or x is None:
            continue
        axis, rank = int(attribute(node, "axis", 0)), rank_of(x)
        size = None if x.shape is None or rank is None or not -rank <= axis < rank else x.shape[axis]
        if node.graph is None or (isinstance(size, int) and size >= count):
            continue
        bounds = {"start": axis, **({"end": axis + 1} if axis != -1 else {})}
        size_of_axis = ir.Node("", "Shape", [x], [ir.AttrInt64(k, v) for k, v in bounds.items()])
        divisor = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(np.array([count], np.int64)))])
        part = ir.Node("", "Div", [size_of_axis.outputs[0], divisor.outputs[0]])
        parts = ir.Node("", "Concat", [part.outputs[0]] * count, [ir.AttrInt64("axis", 0)])
        node.graph.insert_before(node, [size_of_axis, divisor, part, parts])
        node.attributes.pop("num_outputs", None)
        node.resize_inputs(2)
        node.replace_input_with(1, parts.outputs[0])


def _old_positions(model: ir.Model) -> bool:
    """Say the positions of before opset 11 in the modes of today: nearest took the pixel below where an axis grows, above where it
    shrinks. False if no mode says it."""
    for node in model.graph.all_nodes():
        if node.op_type != "Resize" or node.domain not in ONNX:
            continue
        node.attributes["coordinate_transformation_mode"] = ir.AttrString(
            "coordinate_transformation_mode", "asymmetric"
        )
        if attribute(node, "mode", "nearest") != "nearest":
            continue
        value = node.inputs[2] if len(node.inputs) > 2 else None
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        scales = [1.0] if tensor is None else tensor.numpy().tolist()
        if min(scales) < 1 < max(scales):
            return False
        node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil" if min(scales) < 1 else "floor")
    return True
