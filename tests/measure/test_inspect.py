"""inspect: the figures of a model, and the lists of folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import opsmith
from opsmith import demo, store
from opsmith.cli import main
from opsmith.measure.inspect import FolderInfo, ModelInfo, inspect


def cli(*args: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    return int(stop.value.code or 0)


def test_figures_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(demo.tiny_model(), str(path), save_as_external_data=True, location="m.data", size_threshold=1000)
    info = opsmith.inspect(path)
    assert isinstance(info, ModelInfo)
    assert info.size == path.stat().st_size + (tmp_path / "m.data").stat().st_size
    assert info.external == ("m.data",) and info.opsets == {"": 18}
    proto = demo.tiny_model()
    floats = [t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    assert info.parameters == sum(int(np.prod(t.dims)) for t in floats)
    assert [(v.name, v.dtype, v.shape) for v in info.inputs] == [("image", "float32", ("batch", 3, "height", "width"))]
    assert info.dynamic_dims["batch"] == ("image[0]", "logits[0]", "tokens[0]")
    counts = {op.op: op.count for op in info.ops}
    assert counts["Conv"] == 3 and sum(counts.values()) == info.nodes == len(proto.graph.node)
    # the first convolution alone: 64 channels of 32x32, 27 products and a bias each
    assert info.flops is not None and info.flops > 64 * 32 * 32 * (2 * 27 + 1)
    assert sum(op.flops for op in info.ops) == info.flops


def test_flops_can_be_left_out_or_asked_for_at_a_shape(tmp_path: Path) -> None:
    model = demo.tiny_model()
    without, small, large = (
        inspect(model, count_flops=False),
        inspect(model, dims={"image": (1, 3, 32, 32)}),
        inspect(model, dims={"batch": 4, "height": 32, "width": 32}),
    )
    assert isinstance(without, ModelInfo) and isinstance(small, ModelInfo) and isinstance(large, ModelInfo)
    assert without.flops is None and small.flops and large.flops == pytest.approx(4 * small.flops, rel=1e-6)


def test_a_model_folder_lists_its_variants_and_a_pipeline_its_components(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for component in ("unet", "vae_decoder"):
        for variant in ("dynamo", "dynamo_rewritten"):
            with store.new_variant(tmp_path / "sd" / component / variant, verb="test", parent="dynamo") as draft:
                onnx.save(demo.tiny_model(), str(draft.path))
    (tmp_path / "sd" / "tokenizer").mkdir()
    (tmp_path / "sd" / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    folder = inspect(tmp_path / "sd" / "unet")
    assert isinstance(folder, FolderInfo) and folder.kind == "model folder"
    assert {v.name for v in folder.variants[""]} == {"dynamo", "dynamo_rewritten"}
    pipeline = inspect(tmp_path / "sd")
    assert isinstance(pipeline, FolderInfo) and pipeline.kind == "pipeline"
    assert pipeline.other == ("tokenizer",) and pipeline.pipeline_class == "StableDiffusionPipeline"
    assert cli("inspect", str(tmp_path / "sd")) == 0
    shown = capsys.readouterr().out
    assert "unet" in shown and "dynamo_rewritten" in shown and "tokenizer" in shown
    assert cli("inspect", str(tmp_path / "sd" / "unet")) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("dynamo_rewritten"))
    assert row.split()[:3] == ["dynamo_rewritten", "test", "dynamo"] and row.endswith(" MB          0"), (
        "cells are not cut"
    )
    assert repr(folder).startswith("FolderInfo(path=") and "<table>" in folder._repr_html_()
    assert cli("inspect", str(tmp_path / "sd" / "unet"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "model folder"


def test_the_command_prints_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(demo.tiny_model(), str(tmp_path / "m.onnx"))
    assert cli("inspect", str(tmp_path / "m.onnx")) == 0
    assert "[batch, 3, height, width]" in capsys.readouterr().out
    assert cli("inspect", str(tmp_path / "m.onnx"), "--json", "--shape", "batch=2") == 0
    assert json.loads(capsys.readouterr().out)["flops_dims"]["batch"] == 2
    assert cli("inspect", str(tmp_path / "m.onnx"), "--shape", "rows=2") == 2
