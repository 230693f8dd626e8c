"""GridSample: an image read at given positions. x (N, C, spatial...), grid (N, out..., r) -> (N, C, out...)."""

from __future__ import annotations

from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import REALS, Abstract, Unsupported, abstract

MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}


@infers("GridSample")
def _grid_sample(node: Node) -> list[Abstract]:
    x, grid = node.input(0), node.input(1)
    if x.dtype not in REALS or grid.dtype not in REALS:
        raise Unsupported(f"GridSample of {x.dtype.name} at {grid.dtype.name}")
    if x.rank not in (4, 5) or grid.rank != x.rank or grid.dims[-1] != x.rank - 2:
        raise Unsupported(f"GridSample of rank {x.rank}")
    if node.attribute("mode", "linear") not in MODES:
        raise Unsupported(f"GridSample with mode {node.attribute('mode')}")
    if x.rank == 5 and MODES[node.attribute("mode", "linear")] == "cubic":
        raise Unsupported("cubic GridSample over 3 dims")
    node.expect(x.dims[0], "==", grid.dims[0], "image and grid differ in batch")
    for d in x.dims[2:]:
        node.expect(d, ">", 0, "an empty image")
    return [abstract(x.dtype, [*x.dims[:2], *grid.dims[1:-1]])]
