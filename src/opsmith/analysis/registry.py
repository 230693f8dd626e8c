"""How an operator is taught to the analysis: one function that gives type, sizes and (for shape arithmetic) elements.

    @infers("MatMul")
    def _matmul(node: Node) -> list[Abstract]: ...

It raises Unsupported, with the reason that is shown to the user, for what the compiler leaves to ONNX Runtime. What can only be
checked when the program runs it adds with `node.expect`. Elementwise operators need no such function: they are rows of ops.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from opsmith.analysis.values import Abstract, Array, DataType, Unsupported
from opsmith.sizes import NOTHING, Condition, Given, Size, SizeLike, as_size, compare, equal

_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass
class Node:
    """An ir.Node with the abstract values of its inputs, as inference and lowering see it."""

    ir: ir.Node
    inputs: list[Abstract | None]
    opset: int
    given: Given = NOTHING  # sizes that are not negative, because the generated code checks that
    outputs: list[Abstract] = field(default_factory=list)
    # What must hold at run time, and what to say if not.
    checks: list[tuple[Condition, str]] = field(default_factory=list)
    spans: list[Size] = field(default_factory=list)  # see `slides_over`

    @property
    def name(self) -> str:
        return self.ir.name or f"{self.ir.op_type}_{self.ir.outputs[0].name}"

    @property
    def op(self) -> str:
        return self.ir.op_type

    # --- what must hold ---

    def require(self, condition: Condition, message: str) -> None:
        """Add a condition that is checked when the program runs."""
        self.checks.append((condition, message))

    def expect(self, left: SizeLike, relation: str, right: SizeLike, message: str) -> None:
        """Check the sizes: now if they are known, else when the program runs."""
        a, b = as_size(left), as_size(right)
        if a.value is not None and b.value is not None:
            if not _RELATIONS[relation](a.value, b.value):
                raise Unsupported(message)
        elif relation == "==" and (same := equal(a, b, self.given)) is not None:
            if not same:
                raise Unsupported(message)
        else:
            self.require(compare(a, relation, b), message)

    def expect_all(self, left: Sequence[SizeLike], relation: str, right: Sequence[SizeLike], message: str) -> None:
        """The same for lists of equal length."""
        if len(left) != len(right):
            raise Unsupported(message)
        for a, b in zip(left, right):
            self.expect(a, relation, b, message)

    def slides_over(self, span: Size) -> None:
        """A window moves by up to `span`, which is negative where the image is smaller than the window. The compiler may want a check."""
        self.spans.append(span)
        if span in self.given:
            self.require(compare(span, ">=", 0), "the image is smaller than the kernel")

    # --- inputs and attributes ---

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Abstract:
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise Unsupported(f"input {index} is missing")
        return value

    def type_of(self, index: int) -> DataType:
        return self.input(index).dtype

    def result_type(self) -> DataType:
        return self.outputs[0].dtype

    def number(self, index: int) -> float | None:
        """A constant input of one element."""
        constant = self.input(index).constant
        value = None if constant is None else constant.scalar()
        return None if value is None else float(value)

    def attribute(self, name: str, default: Any = None) -> Any:
        attribute = self.ir.attributes.get(name)
        if attribute is None:
            return default
        if attribute.type == ir.AttributeType.TENSOR:
            return attribute.value.numpy()
        if attribute.type == ir.AttributeType.STRING:
            return attribute.as_string()
        if attribute.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
            return list(attribute.value)
        return attribute.value

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.attribute(name, default))

    def axis(self, rank: int, default: int = -1, name: str = "axis") -> int:
        axis = int(self.attribute(name, default))
        if not -rank <= axis < max(rank, 1):
            raise Unsupported(f"axis {axis} is outside rank {rank}")
        return axis % rank if rank else 0

    def elements(self, index: int, what: str) -> list[Size]:
        """The integer elements of an input that must be known as shape arithmetic."""
        value = self.input(index)
        if value.elements is None:
            raise Unsupported(f"{what} depends on computed data")
        sizes = [e for e in value.elements if isinstance(e, Size)]
        if len(sizes) != len(value.elements):
            raise Unsupported(f"{what} is not an integer")
        return sizes

    def integers(self, index: int, what: str) -> list[int]:
        """The elements of an input that must be plain numbers."""
        values = [e.value for e in self.elements(index, what)]
        numbers = [v for v in values if v is not None]
        if len(numbers) != len(values):
            raise Unsupported(f"{what} is not constant")
        return numbers

    def array(self, index: int, what: str) -> Array:
        value = self.input(index)
        if value.constant is None:
            raise Unsupported(f"{what} is not constant")
        return np.asarray(value.constant.read())


Infer: TypeAlias = Callable[[Node], list[Abstract]]
Key: TypeAlias = tuple[str, str]  # domain, operator

INFER: dict[Key, Infer] = {}


def infers(*operators: str) -> Callable[[Infer], Infer]:
    def register(function: Infer) -> Infer:
        INFER.update({key(o): function for o in operators})
        return function

    return register


def key(name: str) -> Key:
    """ "MatMul" or "opsmith::Attention" -> (domain, operator)."""
    domain, _, operator_name = name.rpartition("::")
    return ("" if domain == "ai.onnx" else domain), operator_name


def key_of(node: ir.Node) -> Key:
    return ("" if node.domain == "ai.onnx" else node.domain), node.op_type
