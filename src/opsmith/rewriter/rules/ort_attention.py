"""Transpose(Attention(Transpose(q), Transpose(k), Transpose(v))) -> MultiHeadAttention(q, k, v) of ONNX Runtime

Its kernel computes without storing the scores, for inputs (B,S,H*D) without mask. Only where the Transposes are there to
be saved: otherwise new ones would cost what the kernel gains.
"""

from __future__ import annotations

import onnx_ir as ir

from opsmith.rewriter.rule import Site, attribute, distinct_users, input_of, is_op, rule, size_of

_SWAP = [0, 2, 1, 3]


@rule(
    "ort_attention",
    "Attention(q, k, v) -> com.microsoft.MultiHeadAttention(q, k, v)",
    roots=("opsmith.Attention",),
    level=3,
    targets=("ort-cpu", "ort-cuda"),
    makes=("com.microsoft.MultiHeadAttention",),
)
def ort_attention(site: Site) -> None:
    heads = size_of(site.root.inputs[0], 1) if site.root.inputs[0] is not None else None
    if not isinstance(heads, int):
        site.miss("the number of heads is not known")
    key = site.root.inputs[1]
    site.need(key is not None and size_of(key, 1) == heads, "keys and queries have different numbers of heads")
    sources = [_before_swap(site, v) for v in site.root.inputs]
    after = site.only_user(site.root.outputs[0], "Transpose")
    site.need(list(attribute(after, "perm", [])) == _SWAP, "the result is not turned back to (B,S,H,D)", after)
    depth = size_of(sources[2], 3)
    site.need(isinstance(depth, int), "the size of a head is not known")
    flat = [site.op("Reshape", s, site.constant([0, 0, -1])) for s in sources]
    scale = float(attribute(site.root, "scale"))
    result = site.op("MultiHeadAttention", *flat, domain="com.microsoft", num_heads=heads, scale=scale)
    site.replace(after.outputs[0], site.op("Reshape", result, site.constant([0, 0, heads, depth])))


def _before_swap(site: Site, value: ir.Value | None) -> ir.Value:
    """x (B,S,H,D) of Transpose(x, [0,2,1,3]); the Transpose may have other readers."""
    node = value.producer() if value is not None else None
    if node is None or not is_op(node, "Transpose") or list(attribute(node, "perm", [])) != _SWAP:
        site.miss("an operand is not turned from (B,S,H,D)", node)
    source = input_of(node, 0)
    assert source is not None
    if len(distinct_users(node.outputs[0])) == 1:
        site.take(node)
    return source
