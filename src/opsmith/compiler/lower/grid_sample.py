"""GridSample: an image read at given positions. x (N, C, spatial...), grid (N, out..., r) -> (N, C, out...)."""

from __future__ import annotations

from opsmith.analysis.grid_sample import MODES
from opsmith.analysis.registry import Node
from opsmith.compiler.kernel import Kernel, Struct, read, struct, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.program import Argument, Enumerator, StructValue
from opsmith.sizes import ONE, product

GRID_SHAPE = Struct(
    "GridShape",
    "grid_sample.hpp",
    ("batch", "channels", "spatial", "in", "out", "interpolation", "outside", "align_corners"),
)
GRID_SAMPLE = Kernel(
    "grid_sample",
    "grid_sample.hpp",
    [struct("shape", GRID_SHAPE), read("x"), read("grid"), write("y")],
    "an image read at given positions",
)


@lowers("GridSample")
def _grid_sample(node: Node, builder: Builder) -> None:
    x, grid = builder.inputs(node, 0, 1)
    y = builder.result(node.ir.outputs[0])
    missing = 5 - len(x.dims)
    mode = MODES[node.attribute("mode", "linear")]
    fields: dict[str, Argument] = {
        "batch": x.dims[0],
        "channels": x.dims[1],
        "spatial": len(x.dims) - 2,
        "in": [ONE] * missing + list(x.dims[2:]),
        "out": [ONE] * missing + list(y.dims[2:]),
        "interpolation": Enumerator(f"Interpolation::{mode}"),
        "outside": Enumerator(f"Outside::{node.attribute('padding_mode', 'zeros')}"),
        "align_corners": node.flag("align_corners"),
    }
    shape = StructValue(GRID_SHAPE, fields)
    builder.call(
        GRID_SAMPLE, shape=shape, x=x, grid=grid, y=y, comment=f"{mode} grid sample", flops=product(y.dims) * 16
    )
