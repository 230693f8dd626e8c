"""GridSample: an image read at given positions. x (N, C, spatial...), grid (N, out..., r) -> (N, C, out...)."""

from __future__ import annotations

from opsmith.compile.dims import ONE, dim, product
from opsmith.compile.lower.program import Lowering
from opsmith.compile.lower.registry import Node, infers, lowers
from opsmith.compile.values import CPP, FLOATS, Abstract, DataType, Unsupported, abstract

_MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}


@infers("GridSample")
def _grid_sample(node: Node) -> list[Abstract]:
    x, grid = node.input(0), node.input(1)
    floats = (*FLOATS, DataType.DOUBLE)
    if x.dtype not in floats or grid.dtype not in floats:
        raise Unsupported(f"GridSample of {x.dtype.name} at {grid.dtype.name}")
    if x.rank not in (4, 5) or grid.rank != x.rank or grid.dims[-1] != x.rank - 2:
        raise Unsupported(f"GridSample of rank {x.rank}")
    if node.attribute("mode", "linear") not in _MODES:
        raise Unsupported(f"GridSample with mode {node.attribute('mode')}")
    if x.rank == 5 and _MODES[node.attribute("mode", "linear")] == "cubic":
        raise Unsupported("cubic GridSample over 3 dims")
    if x.dims[0] != grid.dims[0]:
        if x.dims[0].value is not None and grid.dims[0].value is not None:
            raise Unsupported("image and grid differ in batch")
        node.checks.append((f"{x.dims[0].cpp()} == {grid.dims[0].cpp()}", "image and grid differ in batch"))
    for d in x.dims[2:]:
        if d == 0:
            raise Unsupported("an empty image")
        if d.value is None:
            node.checks.append((f"{d.cpp()} > 0", "an empty image"))
    return [abstract(x.dtype, [*x.dims[:2], *grid.dims[1:-1]])]


@lowers("GridSample")
def _lower_grid_sample(node: Node, out: Lowering) -> None:
    x, grid = out.rows(node.ir.inputs[0]), out.rows(node.ir.inputs[1])
    target = out.result(node.ir.outputs[0])
    spatial = len(x.dims) - 2
    lists = [out.braces([ONE] * (3 - spatial) + list(v.dims[2:])) for v in (x, target)]
    mode = _MODES[node.attribute("mode", "linear")]
    shape = (
        f"GridShape{{{out.cpp(x.dims[0])}, {out.cpp(x.dims[1])}, {spatial}, {', '.join(lists)}, Interpolation::{mode}, "
        f"Outside::{node.attribute('padding_mode', 'zeros')}, {str(bool(node.attribute('align_corners', 0))).lower()}}}"
    )
    name = out.instance(
        "grid_sample",
        f"const Pool& pool, const GridShape& shape, const {CPP[x.dtype]}* x, const {CPP[grid.dtype]}* grid, {CPP[x.dtype]}* y",
        "grid_sample(pool, shape, x, grid, y);",
        ("grid_sample.hpp",),
        "an image read at given positions",
    )
    out.program.instance_headers.add("grid_sample.hpp")
    out.call(
        name, f"{name}(pool, {shape}, {out.pointer(x)}, {out.pointer(grid)}, {out.pointer(target)});",
        reads=[x, grid], writes=[target], comment=f"{mode} grid sample", flops=product(target.dims) * dim(16),
        header="grid_sample.hpp",
    )  # fmt: skip
