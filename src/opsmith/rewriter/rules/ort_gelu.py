"""Gelu, GeluTanh, QuickGelu -> Gelu, FastGelu, QuickGelu of ONNX Runtime

ONNX Runtime finds some of these by itself when it loads a model; written out, loading has less to do.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from opsmith.rewriter.rule import Site, input_of, rule

_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "Gelu": ("Gelu", {}),
    "GeluTanh": ("FastGelu", {}),
    "QuickGelu": ("QuickGelu", {"alpha": 1.702}),
}


@rule(
    "ort_gelu",
    "Gelu, GeluTanh, QuickGelu -> com.microsoft.Gelu, FastGelu, QuickGelu",
    roots=("opsmith.Gelu", "opsmith.GeluTanh", "opsmith.QuickGelu"),
    level=3,
    targets=("ort-cpu", "ort-cuda"),
    makes=("com.microsoft.Gelu", "com.microsoft.FastGelu", "com.microsoft.QuickGelu"),
)
def ort_gelu(site: Site) -> None:
    x = input_of(site.root, 0)
    assert x is not None
    site.need(x.dtype == ir.DataType.FLOAT, "not float32")
    name, attributes = _NAMES[site.root.op_type]
    site.replace(site.root.outputs[0], site.op(name, x, domain="com.microsoft", **attributes))
