"""Scaled dot-product attention, from the rewriter's functions: one kernel that never holds the score matrix. Rotary embedding and
the KV cache beside it.

q (B, H, S, D), k (B, G, T, D), v (B, G, T, E) -> (B, H, S, E); G divides H. Operands may lie in any order whose innermost
axis is contiguous, so heads need not be transposed out of a packed projection.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from opsmith import ops
from opsmith.analysis.attention import total_rows
from opsmith.analysis.registry import Node
from opsmith.analysis.values import DataType
from opsmith.compiler.kernel import SPACE, Kernel, Space, Struct, read, struct, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.precision import BF16, FP32
from opsmith.compiler.program import Argument, StructValue, Tunable, View
from opsmith.sizes import ZERO, Size, SizeLike, apply, product

ATTENTION_SHAPE = Struct(
    "AttentionShape",
    "attention.hpp",
    (
        "batch",
        "heads",
        "kv_heads",
        "queries",
        "keys",
        "head_size",
        "value_size",
        *(f"{operand}_{step}" for operand in "qkvo" for step in ("batch", "head", "row")),
        "scale",
        "causal",
        "cap",
        "most_keys",
        "most_panels",
    ),
    singles=("scale", "cap"),
)
TUNED = (*ATTENTION_SHAPE.fields[:7], "causal")  # what the tuner must know of a call
_MASK = ("p", "batch", "head", "row", "col")
NO_MASK = Struct("NoMask", "attention.hpp", ())
BIAS_MASK = Struct("BiasMask", "attention.hpp", _MASK)
BOOL_MASK = Struct("BoolMask", "attention.hpp", _MASK)
ATTENTION = Kernel(
    "attention",
    "attention.hpp",
    [struct("shape", ATTENTION_SHAPE), read("q"), read("k"), read("v"), write("out"), struct("mask"), SPACE],
    "scaled dot-product attention, block by block",
    Space("attention_workspace", ("shape",)),
)
ATTENTION_BF16 = dataclasses.replace(
    ATTENTION, name="attention_bf16", comment="scaled dot-product attention in bf16, block by block"
)
# over a cache in bytes (compiler/cache_type.py)
ROW_SCALES = Struct("RowScales", "attention_rows.hpp", ("k", "k_batch", "k_head", "v", "v_batch", "v_head"))
ATTENTION_SCALED = Kernel(
    "attention_scaled",
    "attention_scaled.hpp",
    [
        struct("shape", ATTENTION_SHAPE),
        read("q"),
        read("k", dtype=DataType.INT8),
        read("v", dtype=DataType.INT8),
        struct("scales", ROW_SCALES),
        write("out"),
        struct("mask"),
        SPACE,
    ],
    "scaled dot-product attention over keys and values in bytes",
    Space("attention_scaled_workspace", ("shape",)),
)


def unit_inner(view: View, builder: Builder) -> View:
    return view if view.strides[-1] == 1 or view.dims[-1] == 1 else builder.dense(view)


@lowers(*(f"opsmith::{name}" for name in ops.ATTENTIONS))
def _attention(node: Node, builder: Builder) -> None:
    if (bytes_of := in_bytes(node.ir, builder)) is not None:
        _attention_over_bytes(node, builder, *bytes_of)
        return
    q, k, v = (unit_inner(builder.tensor(value), builder) for value in node.ir.inputs[:3])
    narrow = builder.precision(node) is BF16 and builder.target.isa.multiplies_bf16
    if k.dtype != v.dtype:
        k, v = (builder.as_type(x, DataType.BFLOAT16 if narrow else DataType.FLOAT) for x in (k, v))
    value = node.ir.outputs[0]
    # (B, S, H, E) in memory: the transpose and reshape that follow are then views.
    target = builder.result(value, None if builder.is_output(value) else (0, 2, 1, 3))
    mask = _mask(node, builder)
    batch, heads, queries, size = q.dims
    keys, value_size = k.dims[2], v.dims[3]
    fields = _shape_fields(node, q, k, v, target)
    limits = builder.limits("attention")
    tunable = None
    if {q.dtype, k.dtype, target.dtype} == {DataType.FLOAT} and not narrow:
        sizes: dict[str, SizeLike | str] = {
            **dict(zip(TUNED, _numbers(q, k, v))),
            "causal": int(_is_causal(node)),
        }
        tunable = Tunable("attention", "attention", sizes, limits)
    if limits is not None:
        fields |= {"most_keys": limits.rows, "most_panels": limits.panels}
    label = ["attention", *(["bf16"] if narrow else []), *_mask_words(mask)]
    builder.call(
        ATTENTION_BF16 if narrow else ATTENTION,
        templates=(True,) if mask.struct is BOOL_MASK else (),
        shape=StructValue(ATTENTION_SHAPE, fields),
        q=q,
        k=k,
        v=v,
        out=target,
        mask=mask,
        label="_".join(label),
        comment=f"({batch}, {heads}, {queries}, {size}) over {keys} keys",
        tunable=tunable,
        precision=BF16 if narrow else FP32,
        flops=batch * heads * queries * keys * 2 * (size + value_size),
    )


def _shape_fields(node: Node, q: View, k: View, v: View, target: View) -> dict[str, Argument]:
    strides = [s for view in (q, k, v, target) for s in view.strides[:3]]
    fields: dict[str, Argument] = dict(zip(ATTENTION_SHAPE.fields, [*_numbers(q, k, v), *strides]))
    cap = float(node.attribute("cap", 0.0))
    return fields | {"scale": float(node.attribute("scale", 1.0)), "cap": cap, "causal": _is_causal(node)}


def _numbers(q: View, k: View, v: View) -> list[Size]:
    batch, heads, queries, size = q.dims
    return [batch, heads, k.dims[1], queries, k.dims[2], size, v.dims[3]]


def _is_causal(node: Node) -> bool:
    return node.op.endswith("CausalAttention")


def _mask_words(mask: StructValue) -> list[str]:
    return [] if mask.struct is NO_MASK else [mask.struct.name.lower()]


def in_bytes(node: ir.Node, builder: Builder) -> tuple[ir.Node, ir.Node] | None:
    """The CacheRowsScaled that an attention takes its keys and its values from, if both are of this region."""
    keys, values = (v.producer() if v is not None else None for v in node.inputs[1:3])
    for rows in (keys, values):
        if rows is None or rows.op_type != "CacheRowsScaled" or rows not in builder.region.nodes:
            return None
    assert keys is not None and values is not None
    return keys, values


def bytes_and_scales(rows: ir.Node, builder: Builder) -> tuple[View, View]:
    """The rows of a cache in bytes that are filled, and their scales."""
    length = builder.region.facts[rows.outputs[0]].dims[2]
    cache, scales = (builder.tensor(v) for v in rows.inputs[:2])
    filled = [x.with_([*x.dims[:2], length, x.dims[3]], x.strides) for x in (cache, scales)]
    return filled[0], filled[1]


def _attention_over_bytes(node: Node, builder: Builder, keys: ir.Node, values: ir.Node) -> None:
    q = unit_inner(builder.tensor(node.ir.inputs[0]), builder)
    (k, k_scales), (v, v_scales) = (bytes_and_scales(rows, builder) for rows in (keys, values))
    narrow = builder.precision(node) is BF16 and builder.target.isa.multiplies_bf16
    value = node.ir.outputs[0]
    target = builder.result(value, None if builder.is_output(value) else (0, 2, 1, 3))
    mask = _mask(node, builder)
    scales: list[Argument] = [k_scales, *k_scales.strides[:2], v_scales, *v_scales.strides[:2]]
    batch, heads, queries, size = q.dims
    builder.call(
        ATTENTION_SCALED,
        templates=(mask.struct is BOOL_MASK, narrow),
        shape=StructValue(ATTENTION_SHAPE, _shape_fields(node, q, k, v, target)),
        q=q,
        k=k,
        v=v,
        scales=StructValue(ROW_SCALES, dict(zip(ROW_SCALES.fields, scales))),
        out=target,
        mask=mask,
        label="_".join(["attention_scaled", *(["bf16"] if narrow else []), *_mask_words(mask)]),
        comment=f"({batch}, {heads}, {queries}, {size}) over {k.dims[2]} keys in bytes",
        precision=BF16 if narrow else FP32,
        flops=batch * heads * queries * k.dims[2] * 2 * (size + v.dims[3]),
    )


def _mask(node: Node, builder: Builder) -> StructValue:
    if not node.has(3):
        return StructValue(NO_MASK, {})
    kind = BOOL_MASK if node.op.endswith("AttentionMask") else BIAS_MASK
    mask = builder.tensor(node.ir.inputs[3])
    mask = mask if kind is BOOL_MASK else builder.as_float(mask)
    return StructValue(kind, dict(zip(_MASK, (mask, *_stretched_strides(mask)))))


def _stretched_strides(view: View) -> list[Size]:
    """Four strides of an operand that may be 1 where the scores are not."""
    strides = [ZERO] * (4 - len(view.dims))
    for d, s in zip(view.dims, view.strides):
        strides.append(ZERO if d == 1 else s if d.value is not None else apply("spread", d, s))
    return strides


# --- rotary embedding: the first half of a head turns with the second ---

ROTARY_SHAPE = Struct(
    "RotaryShape",
    "rotary.hpp",
    (
        "batch",
        "heads",
        "rows",
        "size",
        *(f"{operand}_{step}" for operand in ("x", "cos", "sin", "y") for step in ("batch", "head", "row")),
    ),
)
ROTARY = Kernel(
    "rotary",
    "rotary.hpp",
    [struct("shape", ROTARY_SHAPE), read("x"), read("cos"), read("sin"), write("y")],
    "rotary position embedding",
)


@lowers("opsmith::Rotary", "opsmith::RotaryInterleaved")
def _rotary(node: Node, builder: Builder) -> None:
    x = unit_inner(builder.tensor(node.ir.inputs[0]), builder)
    cos, sin = (_unit_last(builder.as_float(builder.tensor(v)), builder) for v in node.ir.inputs[1:3])
    value = node.ir.outputs[0]
    target = builder.result(value, None if builder.is_output(value) else (0, 2, 1, 3))
    strides = [*x.strides[:3], *_stretched_strides(cos)[:3], *_stretched_strides(sin)[:3], *target.strides[:3]]
    batch, heads, rows, size = x.dims
    interleaved = node.op == "RotaryInterleaved"
    builder.call(
        ROTARY,
        templates=(interleaved,),
        shape=StructValue(ROTARY_SHAPE, dict(zip(ROTARY_SHAPE.fields, [*x.dims, *strides]))),
        x=x,
        cos=cos,
        sin=sin,
        y=target,
        label="rotary_interleaved" if interleaved else "rotary",
        comment=f"({batch}, {heads}, {rows}, {size})",
        flops=product(x.dims) * 3,
    )


def _unit_last(view: View, builder: Builder) -> View:
    return view if view.strides[-1] == 1 else builder.dense(view)


# --- the KV cache: new rows behind the cached ones, in place where the caller gave room (compiler/cache.py) ---

CACHE_SHAPE = Struct(
    "CacheShape",
    "cache.hpp",
    ("batch", "heads", "rows", "size", "cached", "past_room", "present_room", "fresh_batch", "fresh_head", "fresh_row"),
)
CACHE_APPEND = Kernel(
    "cache_append",
    "cache.hpp",
    [struct("shape", CACHE_SHAPE), read("past"), read("fresh"), read("mask"), write("present")],
    "rows of a KV cache, in place where past and present are one buffer",
)


@lowers("opsmith::CacheAppend")
def _append(node: Node, builder: Builder) -> None:
    past = builder.rows(node.ir.inputs[0])
    new = unit_inner(builder.tensor(node.ir.inputs[1]), builder)
    target = builder.result(node.ir.outputs[0])
    batch, heads, rows, size = new.dims
    cached = total_rows(node, 2) - rows
    fields = [batch, heads, rows, size, cached, past.dims[2], target.dims[2], *new.strides[:3]]
    builder.call(
        CACHE_APPEND,
        shape=StructValue(CACHE_SHAPE, dict(zip(CACHE_SHAPE.fields, fields))),
        past=past,
        fresh=new,
        mask=builder.dense(builder.tensor(node.ir.inputs[3])),
        present=target,
        comment=f"{rows} rows of {product((batch, heads))} heads behind {cached}",
    )
