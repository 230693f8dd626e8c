"""What every room asks of ONNX nodes, as protobufs and in onnx-ir: whose operator it is, its name, the graphs inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

ONNX = ("", "ai.onnx")  # ONNX's own domain, in both of its spellings


def operator_name(node: onnx.NodeProto | ir.Node) -> str:
    """`Relu`, or with its domain `com.microsoft.Gelu`."""
    return node.op_type if node.domain in ONNX else f"{node.domain}.{node.op_type}"


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The branches of an If, the body of a Loop or Scan."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
