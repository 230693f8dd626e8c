"""Note the types of values that ONNX's inference does not know, as those behind a contrib operator, for tools that ask it.

x -> com.microsoft::QuickGelu -> a -> MatMul -> h        a, h: unknown  ->  float, as ONNX Runtime takes them
"""

from __future__ import annotations

from pathlib import Path

import onnx

from opsmith import bounds, session, store

_TYPES = {f"tensor({name.lower()})": number for name, number in onnx.TensorProto.DataType.items()}


def note_types(path: Path) -> None:
    proto = store.read_proto(path)
    graph = bounds.infer_shapes(proto).graph
    known = {v.name for v in (*graph.input, *graph.output, *graph.value_info) if v.type.WhichOneof("value")}
    unknown = [name for node in proto.graph.node for name in node.output if name and name not in known]
    if not unknown:
        return

    def expose(model: onnx.ModelProto) -> None:
        del model.graph.output[:]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in unknown)

    found = {o.name: _TYPES.get(o.type) for o in session.load(path, optimize=False, edit=expose).get_outputs()}
    noted = [v for v in proto.graph.value_info if found.get(v.name) is None]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(noted)
    for name, dtype in found.items():
        if dtype is not None:
            proto.graph.value_info.append(onnx.helper.make_tensor_value_info(name, dtype, None))
    path.write_bytes(proto.SerializeToString())
