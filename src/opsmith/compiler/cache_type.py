"""A KV cache that is stored in less than fp32. What reads it gets floats as before.

    fp16   Concat(past, new) -> Cast(Concat(past16, Cast(new, fp16)), fp32)
    int8   Concat(past, new) -> Cast(Concat(past8, bytes), fp32) * Concat(past_scale, scale)     bytes, scale = CacheQuantize(new)

The inputs past_key_values.* and the outputs present.* become fp16, or int8 with an input and an output of scales (B,H,P,1) beside each:
one for every head and position. The result is ordinary ONNX, so what is compiled is verified against the same rounding in ONNX
Runtime. What the rounding itself costs, `opsmith score text` says beside the model as it was.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

from opsmith import session, store
from opsmith.check.inputs import Array
from opsmith.compiler.cache import appends_rows
from opsmith.compiler.simplify import inline
from opsmith.errors import OpsmithError, no_such
from opsmith.rewriter import functions
from opsmith.store import ModelLike

FULL, HALF, BYTES = "fp32", "fp16", "int8"
TYPES = (FULL, HALF, BYTES)
SCALE = "_scale"  # of past_key_values.0.key is past_key_values.0.key_scale


@contextlib.contextmanager
def with_cache_type(src: ModelLike, kind: str) -> Iterator[ModelLike]:
    """SRC with its KV cache stored as KIND: itself, or a copy with test data to match that lives as long as the block."""
    if kind not in TYPES:
        raise no_such("cache type", kind, TYPES)
    if kind == FULL:
        yield src
        return
    model = store.open_model(src)
    inline(model)
    shrink_cache(model, kind)
    with tempfile.TemporaryDirectory(prefix="opsmith-cache-") as folder:
        path = Path(folder) / "model.onnx"
        store.save_model(model, path)
        if not isinstance(src, ir.Model):
            with store.on_disk(src) as original:
                _convert_test_data(original, model, path)
        yield path


def shrink_cache(model: ir.Model, kind: str) -> None:
    """In place: every cache of the model as KIND, fp16 or int8."""
    caches = [n for n in model.graph if appends_rows(n) and n.outputs[0].dtype == ir.DataType.FLOAT]
    if not caches:
        raise OpsmithError(
            "the model has no KV cache in fp32 to store in less", "export a decoder with `opsmith export`"
        )
    for node in caches:
        if kind == HALF:
            _halve(model.graph, node)
        else:
            _to_bytes(model.graph, node)
    if kind == BYTES:
        functions.attach(model)


def _halve(graph: ir.Graph, node: ir.Node) -> None:
    past, new, present = _parts(node)
    narrow = _cast(new, ir.DataType.FLOAT16, f"{present.name}_narrow")
    wide = _cast(present, ir.DataType.FLOAT, f"{present.name}_wide")
    graph.insert_before(node, narrow)
    graph.insert_after(node, wide)
    _read_instead(present, wide.outputs[0], wide)
    node.replace_input_with(1, narrow.outputs[0])
    for value in (past, present, narrow.outputs[0]):
        value.type = ir.TensorType(ir.DataType.FLOAT16)
    wide.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    narrow.outputs[0].shape, wide.outputs[0].shape = new.shape, present.shape


def _to_bytes(graph: ir.Graph, node: ir.Node) -> None:
    past, new, present = _parts(node)
    quantize = ir.node("CacheQuantize", [new], domain="opsmith", name=f"{present.name}_quantize", num_outputs=2)
    narrow, scale = quantize.outputs
    narrow.name, scale.name = f"{present.name}_bytes", f"{present.name}_new{SCALE}"
    past_scale = ir.Value(name=f"{past.name}{SCALE}")
    join = ir.node("Concat", [past_scale, scale], attributes={"axis": 2}, name=f"{present.name}_join{SCALE}")
    present_scale = join.outputs[0]
    present_scale.name = f"{present.name}{SCALE}"
    cast = _cast(present, ir.DataType.FLOAT, f"{present.name}_cast")
    wide = ir.node("Mul", [cast.outputs[0], present_scale], name=f"{present.name}_wide")
    wide.outputs[0].name = f"{present.name}_wide_value"
    graph.insert_before(node, quantize)
    graph.insert_after(node, [join, cast, wide])
    graph.inputs.append(past_scale)
    graph.outputs.append(present_scale)
    _read_instead(present, wide.outputs[0], cast)
    node.replace_input_with(1, narrow)
    for value in (past, present, narrow):
        value.type = ir.TensorType(ir.DataType.INT8)
    for value in (past_scale, present_scale, scale, cast.outputs[0], wide.outputs[0]):
        value.type = ir.TensorType(ir.DataType.FLOAT)
    narrow.shape, cast.outputs[0].shape, wide.outputs[0].shape = new.shape, present.shape, present.shape
    for value, like in ((past_scale, past), (present_scale, present), (scale, new)):
        if like.shape is not None:
            value.shape = ir.Shape([*like.shape[:3], 1])


def _parts(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
    past, new = node.inputs
    assert past is not None and new is not None
    return past, new, node.outputs[0]


def _read_instead(present: ir.Value, wide: ir.Value, by: ir.Node) -> None:
    """Let all that reads PRESENT read WIDE, except the node that makes WIDE of PRESENT."""
    for user, index in list(present.uses()):
        if user is not by:
            user.replace_input_with(index, wide)


def _cast(value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    node = ir.node("Cast", [value], attributes={"to": int(to)}, name=name)
    node.outputs[0].name = f"{name}_value"
    return node


def _convert_test_data(original: Path, model: ir.Model, path: Path) -> None:
    """The stored cases for this type of cache. With halves the outputs are those of the model as it was; bytes are too far from it to
    be judged by them: the outputs are what ONNX Runtime makes of the model that is compiled."""
    types = {v.name or "": v.dtype for v in (*model.graph.inputs, *model.graph.outputs)}
    had = (
        [v.name or "" for v in values if not _is_scale(v.name, types)]
        for values in (model.graph.inputs, model.graph.outputs)
    )
    for i, case in enumerate(store.read_test_data(original, (next(had), next(had)))):
        inputs = _converted(case.inputs, types)
        if ir.DataType.INT8 in types.values():
            running = session.load(path)
            names = [o.name for o in running.get_outputs()]
            outputs = dict(zip(names, session.run(running, inputs, names)))
        else:
            outputs = _converted(case.outputs, types)
        store.write_test_data(path.parent, {n: inputs[n] for n in types if n in inputs}, outputs, i)


def _is_scale(name: str | None, types: dict[str, ir.DataType | None]) -> bool:
    return name is not None and name.endswith(SCALE) and types.get(name[: -len(SCALE)]) == ir.DataType.INT8


def _converted(arrays: dict[str, Array], types: dict[str, ir.DataType | None]) -> dict[str, Array]:
    """Floats as the model has them now, with scales where those are bytes."""
    converted: dict[str, Array] = {}
    for name, array in arrays.items():
        floats = array.dtype == np.float32
        if floats and types[name] == ir.DataType.FLOAT16:
            array = array.astype(np.float16)
        elif floats and types[name] == ir.DataType.INT8:
            scale = np.maximum(np.abs(array).max(axis=-1, keepdims=True, initial=0.0), np.float32(1e-30)) / np.float32(
                127
            )
            converted[f"{name}{SCALE}"] = scale
            array = np.round(array / scale).astype(np.int8)
        converted[name] = array
    return converted
