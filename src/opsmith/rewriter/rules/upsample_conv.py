"""Conv(Resize(x, nearest, by 2), weight, bias) -> UpsampleConv(x, weight, bias)

Only where each pixel is repeated: nearest with scales 1, 1, f, f (f a whole number) and coordinates that are
rounded down ("asymmetric" with "floor").
"""

from __future__ import annotations

import numpy as np

from opsmith.rewriter.rule import Site, array_of, attribute, input_of, ints_of, rank_of, rule, size_of
from opsmith.rewriter.rules.conv import conv_attributes


@rule(
    "upsample_conv",
    "Conv(Resize(x, nearest, by f)) -> UpsampleConv(x, weight, bias; factor)",
    roots=("Conv",),
    makes=("opsmith.UpsampleConv",),
)
def upsample_conv(site: Site) -> None:
    resize = site.input(site.root, 0, "Resize")
    x, bias = input_of(resize, 0), input_of(site.root, 2)
    site.need(bias is not None, "there is no bias", site.root)
    site.need(rank_of(x) == 4, "not an image (N,C,H,W)")
    site.need(attribute(site.root, "auto_pad", "NOTSET") == "NOTSET", "the padding is not spelled out", site.root)
    site.need(attribute(resize, "mode", "nearest") == "nearest", "not nearest-neighbour", resize)
    site.need(attribute(resize, "axes") is None, "the axes are given one by one", resize)
    stretched = attribute(resize, "keep_aspect_ratio_policy", "stretch") == "stretch"
    site.need(stretched, "the aspect ratio is kept", resize)
    assert x is not None
    scales, sizes = array_of(input_of(resize, 2)), ints_of(input_of(resize, 3))
    factor = _factor(scales)
    if factor is None and sizes is not None and sizes[:2] == [size_of(x, 0), size_of(x, 1)]:
        height, width = size_of(x, 2), size_of(x, 3)
        if isinstance(height, int) and isinstance(width, int) and sizes[2] * width == sizes[3] * height:
            factor = sizes[2] // height if sizes[2] % height == 0 else None
    site.need(factor is not None, "not scaled by a whole number", resize)
    coordinates = attribute(resize, "coordinate_transformation_mode", "half_pixel")
    rounding = attribute(resize, "nearest_mode", "round_prefer_floor")
    repeats = (coordinates, rounding) == ("asymmetric", "floor")
    site.need(repeats, f"{coordinates} with {rounding} does not repeat each pixel", resize)
    attributes = conv_attributes(site.root)
    result = site.call("UpsampleConv", x, input_of(site.root, 1), bias, factor=float(factor or 0), **attributes)
    site.replace(site.root.outputs[0], result)


def _factor(scales: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None) -> int | None:
    if scales is None or scales.size != 4:
        return None
    n, c, h, w = (float(s) for s in scales.reshape(-1))
    return int(h) if n == c == 1.0 and h == w and h == int(h) and h > 1 else None
