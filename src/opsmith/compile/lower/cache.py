"""The KV cache: new rows behind the cached ones, in place where the caller gave room (see compile/cache.py)."""

from __future__ import annotations

from opsmith.compile.dims import Dim, maximum, product
from opsmith.compile.lower.attention import _unit_inner
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import CPP, FLOATS, Abstract, Unsupported, abstract


def _total(node: Node, index: int) -> Dim:
    (total,) = node.elements(index, "the length of the sequence")
    return total


@infers("opsmith::CacheAppend")
def _append(node: Node) -> list[Abstract]:
    past, new = node.input(0), node.input(1)
    if past.dtype not in FLOATS or past.dtype != new.dtype or past.rank != 4 or new.rank != 4:
        raise Unsupported("a cache of something other than rank-4 floats")
    total = _total(node, 2)
    for axis in (0, 1, 3):
        if past.dims[axis] != new.dims[axis]:
            node.checks.append((f"{past.dims[axis].cpp()} == {new.dims[axis].cpp()}", "past and new rows differ"))
    room, rows = past.dims[2].cpp(), new.dims[2].cpp()
    node.checks.append((f"{total.cpp()} >= {rows}", "the mask is shorter than the new rows"))
    node.checks.append(
        (f"{room} >= {total.cpp()} || {room} + {rows} == {total.cpp()}", "past and mask do not fit each other")
    )
    return [abstract(past.dtype, [past.dims[0], past.dims[1], maximum(past.dims[2], total), past.dims[3]])]


@lowers("opsmith::CacheAppend")
def _lower_append(node: Node, out: Lowering) -> None:
    past = out.rows(node.ir.inputs[0])
    new = _unit_inner(out.tensor(node.ir.inputs[1]), out)
    target = out.result(node.ir.outputs[0])
    total = _total(node, 2)
    kind = CPP[target.dtype]
    name = out.instance(
        "cache_append",
        f"const Pool& pool, const CacheShape& shape, const {kind}* past, const {kind}* fresh, {kind}* present",
        "cache_append(pool, shape, past, fresh, present);",
        ("cache.hpp",),
        "rows of a KV cache, in place where past and present are one buffer",
    )
    batch, heads, rows, size = new.dims
    fields = [batch, heads, rows, size, total - rows, past.dims[2], target.dims[2], *new.strides[:3]]
    out.program.instance_headers.add("cache.hpp")
    out.call(
        name,
        f"{name}(pool, CacheShape{{{', '.join(out.cpp(f) for f in fields)}}}, {out.pointer(past)}, {out.pointer(new)}, {out.pointer(target)});",
        reads=[past, new],
        writes=[target],
        comment=f"{rows} rows of {product((batch, heads))} heads behind {total - rows}",
        header="cache.hpp",
    )


@infers("opsmith::CacheRows")
def _rows(node: Node) -> list[Abstract]:
    cache = node.input(0)
    return [abstract(cache.dtype, [*cache.dims[:2], _total(node, 1), *cache.dims[3:]])]


@lowers("opsmith::CacheRows")
def _lower_rows(node: Node, out: Lowering) -> None:
    view = out.tensor(node.ir.inputs[0])
    dims = [*view.dims[:2], _total(node, 1), *view.dims[3:]]
    out.alias(node.ir.outputs[0], view.with_(dims, view.strides, view.offset))
