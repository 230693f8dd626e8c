"""A KV cache stored in half precision: Concat(past, new) -> Cast(Concat(past16, Cast(new, fp16)), fp32)

The inputs past_key_values.* and the outputs present.* become fp16; what reads the cache gets floats as before. The result is
ordinary ONNX, so what is compiled is verified against the same rounding in ONNX Runtime. What the rounding itself costs, `opsmith score
text` says beside the model as it was.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

from opsmith import store
from opsmith.compiler.cache import appends_rows
from opsmith.compiler.simplify import inline
from opsmith.errors import OpsmithError
from opsmith.store import ModelLike

FULL, HALF = "fp32", "fp16"
TYPES = (FULL, HALF)


@contextlib.contextmanager
def with_cache_type(src: ModelLike, kind: str) -> Iterator[ModelLike]:
    """SRC with its KV cache stored as KIND: itself, or a copy with test data to match that lives as long as the block."""
    if kind not in TYPES:
        raise OpsmithError(f"--cache {kind} is not known", f"one of {', '.join(TYPES)}")
    if kind == FULL:
        yield src
        return
    model = store.open_model(src)
    inline(model)
    halve_cache(model)
    with tempfile.TemporaryDirectory(prefix="opsmith-cache-") as folder:
        path = Path(folder) / "model.onnx"
        store.save_model(model, path)
        if not isinstance(src, ir.Model):
            with store.on_disk(src) as original:
                _convert_test_data(original, model, path.parent)
        yield path


def halve_cache(model: ir.Model) -> None:
    """In place: every cache of the model in fp16."""
    graph = model.graph
    caches = [n for n in graph if appends_rows(n) and n.outputs[0].dtype == ir.DataType.FLOAT]
    if not caches:
        raise OpsmithError(
            "the model has no KV cache in fp32 to store in less", "export a decoder with `opsmith export`"
        )
    for node in caches:
        past, new = node.inputs
        present = node.outputs[0]
        assert past is not None and new is not None
        narrow = _cast(new, ir.DataType.FLOAT16, f"{present.name}_narrow")
        wide = _cast(present, ir.DataType.FLOAT, f"{present.name}_wide")
        graph.insert_before(node, narrow)
        graph.insert_after(node, wide)
        for user, index in list(present.uses()):
            if user is not wide:
                user.replace_input_with(index, wide.outputs[0])
        node.replace_input_with(1, narrow.outputs[0])
        for value in (past, present, narrow.outputs[0]):
            value.type = ir.TensorType(ir.DataType.FLOAT16)
        wide.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        narrow.outputs[0].shape, wide.outputs[0].shape = new.shape, present.shape


def _cast(value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    node = ir.node("Cast", [value], attributes={"to": int(to)}, name=name)
    node.outputs[0].name = f"{name}_value"
    return node


def _convert_test_data(original: Path, model: ir.Model, folder: Path) -> None:
    """The caches of the stored cases in fp16; the outputs are those of the model as it was."""
    halves = {v.name for v in (*model.graph.inputs, *model.graph.outputs) if v.dtype == ir.DataType.FLOAT16}
    names = ([v.name or "" for v in model.graph.inputs], [v.name or "" for v in model.graph.outputs])
    for i, case in enumerate(store.read_test_data(original, names)):
        inputs, outputs = (
            {n: a.astype(np.float16) if n in halves else a for n, a in side.items()}
            for side in (case.inputs, case.outputs)
        )
        store.write_test_data(folder, inputs, outputs, i)
