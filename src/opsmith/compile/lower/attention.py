"""Scaled dot-product attention, from the rewriter's functions: one kernel that never holds the score matrix.

q (B, H, S, D), k (B, G, T, D), v (B, G, T, E) -> (B, H, S, E); G divides H. Operands may lie in any order whose innermost
axis is contiguous, so heads need not be transposed out of a packed projection.
"""

from __future__ import annotations

from opsmith.compile.dims import ZERO, Dim, contiguous, exact_div, product
from opsmith.compile.lower.matmul import as_float
from opsmith.compile.lower.program import Lowering, Tunable
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.task import ATTENTION_FIELDS
from opsmith.compile.values import CPP, FLOATS, Abstract, DataType, Unsupported, View, abstract, float_literal


@infers("opsmith::Attention", "opsmith::AttentionBias", "opsmith::AttentionMask", "opsmith::CausalAttention")
def _attention(node: Node) -> list[Abstract]:
    q, k, v = (node.input(i) for i in range(3))
    if any(x.dtype not in FLOATS or x.rank != 4 for x in (q, k, v)):
        raise Unsupported("q, k and v must be rank-4 floats")
    for a, b, what in (
        (q.dims[0], k.dims[0], "batch of q and k"),
        (q.dims[0], v.dims[0], "batch of q and v"),
        (q.dims[3], k.dims[3], "head size of q and k"),
        (k.dims[1], v.dims[1], "heads of k and v"),
        (k.dims[2], v.dims[2], "length of k and v"),
    ):
        if a != b:
            if a.value is not None and b.value is not None:
                raise Unsupported(f"the {what} differ")
            node.checks.append((f"{a.cpp()} == {b.cpp()}", f"the {what} differ"))
    if q.dims[1] != k.dims[1] and exact_div(q.dims[1], k.dims[1]) is None:
        raise Unsupported("the heads of k do not divide those of q")
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        _check_mask(node, node.input(3), (q.dims[0], q.dims[1], q.dims[2], k.dims[2]))
    return [abstract(q.dtype, [q.dims[0], q.dims[1], q.dims[2], v.dims[3]])]


def _check_mask(node: Node, mask: Abstract, scores: tuple[Dim, ...]) -> None:
    if mask.rank > 4:
        raise Unsupported("the mask has more than 4 dims")
    wanted = DataType.BOOL if node.ir.op_type == "AttentionMask" else None
    if (wanted is None and mask.dtype not in FLOATS) or (wanted is not None and mask.dtype != wanted):
        raise Unsupported(f"a mask of {mask.dtype.name}")
    for d, s in zip(mask.dims, scores[4 - mask.rank :]):
        if d != s and d != 1:
            node.checks.append((f"{d.cpp()} == {s.cpp()} || {d.cpp()} == 1", "the mask does not fit the scores"))


def _unit_inner(view: View, out: Lowering) -> View:
    return view if view.strides[3] == 1 or view.dims[3] == 1 else out.dense(view)


@lowers("opsmith::Attention", "opsmith::AttentionBias", "opsmith::AttentionMask", "opsmith::CausalAttention")
def _lower_attention(node: Node, out: Lowering) -> None:
    q, k, v = (_unit_inner(out.tensor(value), out) for value in node.ir.inputs[:3])
    if k.dtype != v.dtype:
        k, v = as_float(k, out), as_float(v, out)
    value = node.ir.outputs[0]
    facts = out.facts[value]
    # (B, S, H, E) in memory: the transpose and reshape that follow are then views.
    target = out.result(value, None if out.is_output(value) else (0, 2, 1, 3))
    causal = node.ir.op_type == "CausalAttention"
    mask_type, mask_text, reads = "NoMask", "NoMask{}", [q, k, v]
    if node.ir.op_type in ("AttentionBias", "AttentionMask"):
        mask = out.tensor(node.ir.inputs[3])
        mask_type = "BoolMask" if node.ir.op_type == "AttentionMask" else "BiasMask"
        if mask_type == "BiasMask":
            mask = as_float(mask, out)
        mask_text = f"{mask_type}{{{out.pointer(mask)}, {', '.join(_mask_strides(mask, out))}}}"
        reads.append(mask)
    batch, heads, queries, size = q.dims
    keys, value_size = k.dims[2], v.dims[3]
    fields = [batch, heads, k.dims[1], queries, keys, size, value_size]
    for view in (q, k, v, target):
        fields += [view.strides[0], view.strides[1], view.strides[2]]
    scale = float_literal(float(node.attribute("scale", 1.0)))
    limits = out.limits("attention")
    most = f", {limits.rows}, {limits.panels}" if limits is not None else ""
    shape = f"AttentionShape{{{', '.join(out.cpp(f) for f in fields)}, {scale}, {str(causal).lower()}{most}}}"
    tq, tk, to = CPP[q.dtype], CPP[k.dtype], CPP[target.dtype]
    name = out.instance(
        "attention" if mask_type == "NoMask" else f"attention_{mask_type.lower()}",
        f"const Pool& pool, const AttentionShape& shape, const {tq}* q, const {tk}* k, const {tk}* v, {to}* out, const {mask_type}& mask, void* workspace",
        f"attention{'<true>' if mask_type == 'BoolMask' else ''}(pool, shape, q, k, v, out, mask, workspace);",
        ("attention.hpp",),
        "scaled dot-product attention, block by block",
    )
    space = out.workspace(f"attention_workspace({shape})", "attention.hpp")
    out.program.instance_headers.add("attention.hpp")
    out.call(
        name,
        f"{name}(pool, {shape}, {out.pointer(q)}, {out.pointer(k)}, {out.pointer(v)}, {out.pointer(target)}, {mask_text}, {space});",
        reads=reads,
        writes=[target],
        comment=f"({batch}, {heads}, {queries}, {size}) over {keys} keys",
        tunable=Tunable(
            "attention", "attention", {**dict(zip(ATTENTION_FIELDS, fields)), "causal": int(causal)}, limits
        )
        if tq == tk == to == "float"
        else None,
        flops=batch * heads * queries * keys * 2 * (size + value_size),
        header="attention.hpp",
    )
    del facts


def _mask_strides(mask: View, out: Lowering) -> list[str]:
    lead = 4 - len(mask.dims)
    strides = ["0"] * lead
    for d, s in zip(mask.dims, mask.strides):
        if d == 1:
            strides.append("0")
        elif d.value is not None:
            strides.append(out.cpp(s))
        else:
            strides.append(f"spread({out.cpp(d)}, {out.cpp(s)})")
    return strides


# --- rotary embedding: the first half of a head turns with the second ---


@infers("opsmith::Rotary", "opsmith::RotaryInterleaved")
def _rotary(node: Node) -> list[Abstract]:
    x = node.input(0)
    if x.dtype not in FLOATS or x.rank != 4:
        raise Unsupported("rotary embedding of something other than rank-4 floats")
    if exact_div(x.dims[3], 2) is None:
        raise Unsupported("an odd head size")
    for i in (1, 2):
        c = node.input(i)
        for d, s in zip(c.dims, x.dims[4 - c.rank :]):
            if d != s and d != 1:
                node.checks.append((f"{d.cpp()} == {s.cpp()} || {d.cpp()} == 1", "cos or sin does not fit"))
        if c.dims[-1] != x.dims[3]:
            raise Unsupported("cos or sin has another head size")
    return [Abstract(x.dtype, x.dims)]


@lowers("opsmith::Rotary", "opsmith::RotaryInterleaved")
def _lower_rotary(node: Node, out: Lowering) -> None:
    x = _unit_inner(out.tensor(node.ir.inputs[0]), out)
    cos, sin = (_unit_last(as_float(out.tensor(v), out), out) for v in node.ir.inputs[1:3])
    value = node.ir.outputs[0]
    target = out.result(value, None if out.is_output(value) else (0, 2, 1, 3))
    batch, heads, rows, size = x.dims
    interleaved = node.ir.op_type == "RotaryInterleaved"
    tx, to = CPP[x.dtype], CPP[target.dtype]
    name = out.instance(
        "rotary_interleaved" if interleaved else "rotary",
        f"const Pool& pool, const RotaryShape& shape, const {tx}* x, const float* cos, const float* sin, {to}* y",
        f"rotary<{str(interleaved).lower()}>(pool, shape, x, cos, sin, y);",
        ("rotary.hpp",),
        "rotary position embedding",
    )
    fields = [out.cpp(d) for d in (batch, heads, rows, size, *x.strides[:3])]
    fields += _mask_strides(cos, out)[:3] + _mask_strides(sin, out)[:3]
    fields += [out.cpp(s) for s in target.strides[:3]]
    out.program.instance_headers.add("rotary.hpp")
    out.call(
        name,
        f"{name}(pool, RotaryShape{{{', '.join(fields)}}}, {out.pointer(x)}, {out.pointer(cos)}, {out.pointer(sin)}, {out.pointer(target)});",
        reads=[x, cos, sin],
        writes=[target],
        comment=f"({batch}, {heads}, {rows}, {size})",
        flops=product(x.dims) * 3,
        header="rotary.hpp",
    )


def _unit_last(view: View, out: Lowering) -> View:
    return view if view.strides[-1] == 1 else out.dense(view)


__all__ = ["ZERO", "contiguous"]
