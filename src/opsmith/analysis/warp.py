"""AffineGrid, DeformConv, MaxUnpool: images read or written where data says."""

from __future__ import annotations

import numpy as np

from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import FLOATS, REALS, Abstract, DataType, Unsupported, abstract
from opsmith.analysis.window import Window, resolve
from opsmith.sizes import Size


@infers("AffineGrid")
def _affine_grid(node: Node) -> list[Abstract]:
    theta, sizes = node.input(0), node.elements(1, "the size of the grid")
    rank = len(sizes) - 2
    if theta.rank != 3 or rank not in (2, 3) or theta.dtype not in REALS:
        raise Unsupported(f"AffineGrid over {rank} dims on {theta.dtype.name}")
    node.expect_all(theta.dims, "==", [sizes[0], rank, rank + 1], "theta does not fit the size")
    for s in sizes:
        node.expect(s, ">=", 0, "a negative size")
    return [abstract(theta.dtype, [sizes[0], *sizes[2:], rank])]


def deform_window(node: Node) -> Window:
    x, w = node.input(0), node.input(1)
    return resolve(node, x.dims[2:], w.dims[2:])


@infers("DeformConv")
def _deform_conv(node: Node) -> list[Abstract]:
    x, w, offset = (node.input(i) for i in range(3))
    if x.rank != 4 or w.rank != 4 or x.dtype not in FLOATS:
        raise Unsupported(f"DeformConv of rank {x.rank} on {x.dtype.name}")
    groups, parts = (int(node.attribute(a, 1)) for a in ("group", "offset_group"))
    o, c, taps = w.dims[0].value, x.dims[1].value, [k.value for k in w.dims[2:]]
    if o is None or c is None or None in taps or groups < 1 or parts < 1 or o % groups or c % groups or c % parts:
        raise Unsupported("channels that do not divide into groups")
    out = deform_window(node).out
    count = parts * int(np.prod([t for t in taps if t is not None]))
    node.expect(w.dims[1], "==", c // groups, "the channels do not fit the weights")
    node.expect_all(offset.dims, "==", [x.dims[0], 2 * count, *out], "the offsets do not fit")
    if node.has(3):
        node.expect_all(node.input(3).dims, "==", [o], "the bias does not fit")
    if node.has(4):
        node.expect_all(node.input(4).dims, "==", [x.dims[0], count, *out], "the mask does not fit")
    return [abstract(x.dtype, [x.dims[0], o, *out])]


@infers("MaxUnpool")
def _max_unpool(node: Node) -> list[Abstract]:
    x, indices = node.input(0), node.input(1)
    spatial = x.rank - 2
    kernel = [int(k) for k in node.attribute("kernel_shape") or []]
    if node.has(2):
        raise Unsupported("MaxUnpool into a given shape")
    if spatial < 1 or len(kernel) != spatial or indices.dtype != DataType.INT64:
        raise Unsupported(f"MaxUnpool of rank {x.rank}")
    strides = [int(s) for s in node.attribute("strides") or [1] * spatial]
    pads = [int(p) for p in node.attribute("pads") or [0] * 2 * spatial]
    node.expect_all(x.dims, "==", indices.dims, "the indices do not fit")
    sizes: list[Size] = []
    for i, size in enumerate(x.dims[2:]):
        sizes.append((size - 1) * strides[i] + (kernel[i] - pads[i] - pads[spatial + i]))
        node.expect(sizes[-1], ">=", 0, "the result has a negative size")
    return [abstract(x.dtype, [*x.dims[:2], *sizes])]
