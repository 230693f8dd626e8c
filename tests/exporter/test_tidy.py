"""Dims get their names back, in expressions too."""

from __future__ import annotations

import models
import onnx
import onnx_ir as ir
import pytest

from opsmith import store
from opsmith.exporter.tidy import _renamed, identifier


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("batch", "batch"),
        ("dim_past_sequence", "past + sequence"),
        ("sequence + past", "past + sequence"),
        ("(dim_8_height//2)", "4*height"),
        ("((dim_8_width//2))*((dim_8_height//2))", "16*height*width"),
        ("(((height - 1)//2)) + 1", "((height + 1)//2)"),
        ("Max(1, height)", "Max(1, height)"),
        ("CeilToInt(dim_8_height)", "CeilToInt((8*height))"),
        ("Concatpresent.0.key_dim_0", None),
        (7, 7),
        (None, None),
    ],
)
def test_dims_are_renamed(given: str | int | None, expected: str | int | None) -> None:
    names = {identifier(name): name for name in ("past + sequence", "8*height", "8*width")}
    assert _renamed(given if isinstance(given, int) else ir.SymbolicDim(given), names) == expected


@pytest.mark.parametrize("part", ["vae_encoder", "vae_decoder"])
def test_values_inside_use_the_symbols_of_the_inputs(part: str) -> None:
    proto = onnx.load(store.find_model(models.tiny_variant("stable-diffusion", part=part)))
    dims = {d.dim_param for v in proto.graph.value_info for d in v.type.tensor_type.shape.dim if d.dim_param}
    assert dims == {"batch", "height", "width", "2*height", "2*width", "height*width"}
