"""How an operator is taught to the compiler: one entry with an inference and a lowering.

    @infers("MatMul")            def infer(node: Node) -> list[Abstract]
    @lowers("MatMul")            def lower(node: Node, out: Lowering) -> None

`infer` gives type, dims and (for shape arithmetic) elements of the outputs, or raises Unsupported with the reason that is
shown to the user. `lower` writes kernel calls. Elementwise operators have neither: they are a line in elementwise.py.
An *anchor* is an operator whose kernel can run an elementwise epilogue on its result before storing it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir

from opsmith.compile.dims import Dim, is_assumed
from opsmith.compile.values import Abstract, Array, Unsupported

if TYPE_CHECKING:
    from opsmith.compile.lower.program import Lowering


@dataclasses.dataclass
class Node:
    """An ir.Node with the abstract values of its inputs, as inference and lowering see it."""

    ir: ir.Node
    inputs: list[Abstract | None]
    opset: int
    outputs: list[Abstract] = dataclasses.field(default_factory=list)
    checks: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # C++ condition, message
    spans: list[Dim] = dataclasses.field(default_factory=list)  # see `slides_over`

    @property
    def name(self) -> str:
        return self.ir.name or f"{self.ir.op_type}_{self.ir.outputs[0].name}"

    def slides_over(self, span: Dim) -> None:
        """A window moves by up to `span`; below 0 the image is smaller than the window. `lower_region` may want that ruled out."""
        self.spans.append(span)
        if is_assumed(span):
            self.checks.append((f"{span.cpp()} >= 0", "the image is smaller than the kernel"))

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Abstract:
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise Unsupported(f"input {index} is missing")
        return value

    def attribute(self, name: str, default: Any = None) -> Any:
        found = self.ir.attributes.get(name)
        if found is None:
            return default
        if found.type == ir.AttributeType.TENSOR:
            return found.value.numpy()
        if found.type == ir.AttributeType.STRING:
            return found.as_string()
        if found.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
            return list(found.value)
        return found.value

    def axis(self, rank: int, default: int = -1, name: str = "axis") -> int:
        axis = int(self.attribute(name, default))
        if not -rank <= axis < max(rank, 1):
            raise Unsupported(f"axis {axis} is outside rank {rank}")
        return axis % rank if rank else 0

    def elements(self, index: int, what: str) -> list[Dim]:
        """The integer elements of an input that must be known as shape arithmetic."""
        value = self.input(index)
        if value.elements is None:
            raise Unsupported(f"{what} depends on computed data")
        result = [e for e in value.elements if isinstance(e, Dim)]
        if len(result) != len(value.elements):
            raise Unsupported(f"{what} is not an integer")
        return result

    def integers(self, index: int, what: str) -> list[int]:
        """The elements of an input that must be plain numbers."""
        values = [e.value for e in self.elements(index, what)]
        known = [v for v in values if v is not None]
        if len(known) != len(values):
            raise Unsupported(f"{what} is not constant")
        return known

    def array(self, index: int, what: str) -> Array:
        value = self.input(index)
        if value.constant is None:
            raise Unsupported(f"{what} is not constant")
        return np.asarray(value.constant.read())


Infer: TypeAlias = Callable[[Node], list[Abstract]]
Lower: TypeAlias = "Callable[[Node, Lowering], None]"

INFER: dict[tuple[str, str], Infer] = {}
LOWER: dict[tuple[str, str], Lower] = {}
ANCHORS: set[tuple[str, str]] = set()


def key(op: str) -> tuple[str, str]:
    """ "MatMul" or "opsmith::Attention" -> (domain, type)."""
    domain, _, name = op.rpartition("::")
    return ("" if domain == "ai.onnx" else domain), name


def infers(*ops: str) -> Callable[[Infer], Infer]:
    def register(f: Infer) -> Infer:
        INFER.update({key(op): f for op in ops})
        return f

    return register


def lowers(*ops: str, anchor: bool = False) -> Callable[[Lower], Lower]:
    def register(f: Lower) -> Lower:
        LOWER.update({key(op): f for op in ops})
        if anchor:
            ANCHORS.update(key(op) for op in ops)
        return f

    return register


def key_of(node: ir.Node) -> tuple[str, str]:
    return ("" if node.domain == "ai.onnx" else node.domain), node.op_type
