"""What ONNX Runtime itself computes of a model with compiled regions, as a digest.

Two models with the same library and the same digest differ in packed weights only, so a live session can change from one to the other.
"""

from __future__ import annotations

import hashlib
from typing import Any

import onnx_ir as ir


def rest(model: ir.Model, domain: str) -> str:
    """MODEL: as converted, each region one node of DOMAIN."""
    digest = hashlib.sha256()
    _add(model.graph, domain, digest)
    for function in model.functions.values():
        _add(function, domain, digest)
    return digest.hexdigest()[:32]


def _add(graph: ir.Graph | ir.Function, domain: str, digest: Any) -> None:
    if isinstance(graph, ir.Graph):
        for name in sorted(graph.initializers):
            value = graph.initializers[name]
            if value.const_value is None or _is_packed(value, domain):
                continue
            tensor = value.const_value
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\0".encode())
            digest.update(tensor.tobytes())
    for node in graph:
        reads, writes = ([v.name if v is not None else "" for v in values] for values in (node.inputs, node.outputs))
        digest.update(f"{node.domain} {node.op_type} {reads} {writes}\0".encode())
        for name in sorted(node.attributes):
            _add_attribute(node.attributes[name], domain, digest)


def _add_attribute(attribute: ir.Attr, domain: str, digest: Any) -> None:
    digest.update(f"{attribute.name}\0".encode())
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) and not attribute.is_ref():
        for body in [attribute.value] if attribute.type == ir.AttributeType.GRAPH else attribute.value:
            _add(body, domain, digest)
    else:
        digest.update(ir.to_proto(attribute).SerializeToString(deterministic=True))


def _is_packed(value: ir.Value, domain: str) -> bool:
    readers = [use.node for use in value.uses()]
    return bool(readers) and all(node.domain == domain for node in readers)
