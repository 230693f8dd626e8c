"""An .onnx file as a protobuf and as an onnx-ir model: read, and written, without its external data.

What the two say in different ways is settled here: sparse weights, types that onnx-ir lacks, dims of -1, initializers that are inputs.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from opsmith import bounds
from opsmith.errors import OpsmithError
from opsmith.later import Later
from opsmith.nodes import subgraphs

if TYPE_CHECKING:
    import onnx_ir as ir
else:
    ir = Later("onnx_ir")  # as in store.py


# --- as a protobuf ---------------------------------------------------------------------------------------


def read_proto(path: Path) -> onnx.ModelProto:
    """The protobuf without its external data; a clear error if it is not ONNX."""
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except OSError:
        raise
    except Exception as error:
        raise OpsmithError(f"{path} is not an ONNX model (it does not parse)") from error
    if not proto.HasField("graph") or not proto.opset_import:
        raise OpsmithError(f"{path} is not an ONNX model (no graph or no opset in it)")
    with contextlib.suppress(UnicodeDecodeError):  # the checker says which name is no text
        proto.graph.name = proto.graph.name or "graph"  # ONNX's checker wants one, ONNX Runtime only of inner graphs
    _forget_negative_dims(proto.graph)
    return proto


def _forget_negative_dims(graph: onnx.GraphProto) -> None:
    """As unknown_dims; ONNX's own inference computes with negative sizes."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.Clear()
    for node in graph.node:
        for inner in subgraphs(node):
            _forget_negative_dims(inner)


# --- as an onnx-ir model ---------------------------------------------------------------------------------


def _is_sparse(graph: onnx.GraphProto) -> bool:
    inner = (g for node in graph.node for g in subgraphs(node))
    return bool(graph.sparse_initializer) or any(map(_is_sparse, inner))


def _write_out(graph: onnx.GraphProto, what: str) -> None:
    """Turn the sparse weights of a graph and of those inside it into dense ones, as ONNX Runtime does: onnx-ir knows none."""
    for node in graph.node:
        for inner in subgraphs(node):
            _write_out(inner, what)
    for sparse in graph.sparse_initializer:
        shape, kind = tuple(sparse.dims), onnx.helper.tensor_dtype_to_np_dtype(sparse.values.data_type)
        bounds.check_sparse(sparse, what)
        dense = np.zeros(shape, kind)
        places = onnx.numpy_helper.to_array(sparse.indices)
        where = np.unravel_index(places, shape) if places.ndim == 1 else tuple(places.T)
        dense[where] = onnx.numpy_helper.to_array(sparse.values)
        graph.initializer.append(onnx.numpy_helper.from_array(dense, sparse.values.name))
    graph.ClearField("sparse_initializer")


_TYPE = "opsmith.type"  # in the meta of a value: its type as ONNX writes it, where onnx-ir has none


def _map_types(proto: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """value -> its type, where that is a map or holds one: the outputs of classifiers from scikit-learn."""
    values = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    return {value.name: value.type for value in values if _has_map(value.type)}


def _has_map(kind: onnx.TypeProto) -> bool:
    inner = {"sequence_type": kind.sequence_type, "optional_type": kind.optional_type}.get(
        kind.WhichOneof("value") or ""
    )
    return kind.HasField("map_type") if inner is None else _has_map(inner.elem_type)


def from_proto(proto: onnx.ModelProto, what: str = "the model") -> ir.Model:
    """onnx-ir knows no sparse weights, which are written out, and no maps: values of such types come without one, and
    `write_model` gives them back."""
    if _is_sparse(proto.graph):
        proto = onnx.ModelProto.FromString(proto.SerializeToString())
        _write_out(proto.graph, what)
    kept = {name: kind.SerializeToString() for name, kind in _map_types(proto).items()}
    if not kept:
        whole: ir.Model = ir.from_proto(proto)
        return whole
    plain = onnx.ModelProto()
    plain.CopyFrom(proto)
    for value in (*plain.graph.input, *plain.graph.output, *plain.graph.value_info):
        if value.name in kept:
            value.ClearField("type")
    model: ir.Model = ir.from_proto(plain)
    for found in (*model.graph.inputs, *model.graph.outputs):
        if found.name in kept:
            found.meta[_TYPE] = kept[found.name]
    return model


def write_model(model: ir.Model, path: Path, **options: Any) -> None:
    """As ir.save, with the types that only ONNX itself can write."""
    ir.save(model, path, **options)
    kept = {v.name: v.meta[_TYPE] for v in (*model.graph.inputs, *model.graph.outputs) if _TYPE in v.meta}
    if kept:
        proto = onnx.load(str(path), load_external_data=False)
        for value in (*proto.graph.input, *proto.graph.output):
            if value.name in kept:
                value.type.ParseFromString(kept[value.name])
        path.write_bytes(proto.SerializeToString())


def as_run(model: ir.Model) -> ir.Model:
    """The model as ONNX Runtime reads it, where files say it in other ways."""
    return unknown_dims(constant_initializers(model))


def constant_initializers(model: ir.Model) -> ir.Model:
    """Before IR 4 each initializer is listed as an input, too, but no caller can override it: from here on it is none."""
    if model.ir_version < 4:
        for graph in model.graphs():
            for value in [v for v in graph.inputs if v.is_initializer()]:
                graph.inputs.remove(value)
        model.ir_version = 4
    return model


def unknown_dims(model: ir.Model) -> ir.Model:
    """Some tools write a dynamic dim as -1. ONNX Runtime takes that for unknown, and so does everyone here."""
    for graph in model.graphs():
        for value in (*graph.inputs, *(v for n in graph for v in n.outputs)):
            if value.shape is not None and any(isinstance(d, int) and d < 0 for d in value.shape):
                value.shape = ir.Shape([None if isinstance(d, int) and d < 0 else d for d in value.shape])
    return model
