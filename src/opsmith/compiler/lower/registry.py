"""How an operator is taught to the compiler: a function that writes kernel calls.

    @lowers("Softmax")   def _softmax(node: Node, builder: Builder) -> None
    @anchors("MatMul")   def _matmul(node: Node, builder: Builder, group: Group) -> None

An *anchor* is an operator whose kernel can run elementwise nodes on its result before storing it: its group. What an operator
means for types and sizes is in opsmith/analysis; elementwise operators are rows of ops.py and need nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from opsmith.analysis.registry import Key, Node, key

if TYPE_CHECKING:
    from opsmith.compiler.lower.builder import Builder
    from opsmith.compiler.lower.fuse import Group

Lower: TypeAlias = "Callable[[Node, Builder], None]"
LowerAnchor: TypeAlias = "Callable[[Node, Builder, Group], None]"

LOWER: dict[Key, Lower] = {}
ANCHORS: dict[Key, LowerAnchor] = {}


def lowers(*operators: str) -> Callable[[Lower], Lower]:
    def register(function: Lower) -> Lower:
        LOWER.update({key(o): function for o in operators})
        return function

    return register


def anchors(*operators: str) -> Callable[[LowerAnchor], LowerAnchor]:
    def register(function: LowerAnchor) -> LowerAnchor:
        ANCHORS.update({key(o): function for o in operators})
        return function

    return register
