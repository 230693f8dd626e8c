"""export --dtype: smaller files of rounded weights, proved equal to PyTorch with those very weights."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import onnx_ir as ir
import pytest

import opsmith
from opsmith import OpsmithError, store
from opsmith.compress.quantize import SMALLEST
from opsmith.exporter import dtype as dtypes


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_weights_are_stored_in_the_type_and_proved_as_strictly_as_in_fp32(
    tmp_path: Path, dtype: str, exporter: str
) -> None:
    result = opsmith.export(models.tiny_source("bert"), tmp_path / "bert", exporter=exporter, dtype=dtype)
    (variant,) = result.variants
    assert variant.name == f"{exporter}_{dtype}" and variant.record["options"]["dtype"] == dtype
    assert result.max_abs_error < 1e-4, "the tolerance is that of fp32, the weights are those of the file"
    kinds = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
    model = store.open_model(variant)
    large = [v for v in model.graph.initializers.values() if v.const_value.size >= SMALLEST]
    assert large and {v.dtype for v in large} == {kinds[dtype]}
    assert {v.dtype for v in model.graph.outputs} == {ir.DataType.FLOAT}
    assert "embeddings.word_embeddings.weight" in model.graph.initializers, "weights keep the checkpoint's names"


def test_a_model_in_bf16_compiles_and_runs(tmp_path: Path) -> None:
    result = opsmith.export(models.tiny_source("bert"), tmp_path / "bert", dtype="bf16")
    compiled = opsmith.compile(result.variants[0], tmp_path / "compiled", regions="all")
    assert opsmith.verify(result.variants[0], compiled.variant).ok


def test_what_half_precision_cannot_hold_is_refused_or_stays() -> None:
    import torch

    with pytest.raises(OpsmithError, match=r"the weight w exceeds the range of fp16.*bf16"):
        dtypes._rounded("w", torch.tensor([1e6]), torch.float16, "fp16")
    assert dtypes._holds(np.float32([0.5, np.nan]), ir.DataType.FLOAT16)
    assert not dtypes._holds(np.float32([0.1]), ir.DataType.FLOAT16)


def test_an_unknown_type_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OpsmithError, match="there is no dtype 'int8'.*fp32, fp16, bf16"):
        opsmith.export(models.tiny_source("bert"), tmp_path / "bert", dtype="int8")
