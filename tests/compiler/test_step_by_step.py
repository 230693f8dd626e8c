"""Wrong kernels in quantized models, which the model's own spread would hide."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import opsmith
from opsmith.check.verify import verify

sys.path.insert(0, str(Path(__file__).parents[1] / "check"))
import test_spread as nets

cut = importlib.import_module("opsmith.compiler.cut")  # the package has a function of this name


def planted(monkeypatch: pytest.MonkeyPatch, layer: int) -> None:
    """Half of the scales of a layer are packed 2 % too large."""
    right = cut.lower_region

    def wrong(*args: Any) -> Any:
        program = right(*args)
        for key, weight in program.weights.items():
            if key.split(":")[0] == f"s{layer}":

                def write(write: Any = weight.write) -> Any:
                    scales = np.array(write())
                    scales[: scales.size // 2] *= np.float32(1.02)
                    return scales

                program.weights[key] = dataclasses.replace(weight, write=write)
        return program

    monkeypatch.setattr(cut, "lower_region", wrong)


def test_an_error_that_the_spread_hides_is_found_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nets.DEPTH - 1
    model = nets.net("dynamic")
    hidden = verify(model, nets.net("dynamic", nets._scale(layer, 1.02), order=7), shapes=nets.SHAPES)
    assert hidden.ok and any(o.spread is not None for o in hidden.worst)  # by itself the comparison lets it pass
    onnx.save(model, tmp_path / "m.onnx")
    planted(monkeypatch, layer)
    result = opsmith.compile(tmp_path / "m.onnx", tmp_path / "c", regions="all")
    assert any("a defect of ours" in r for r in result.remarks), result.remarks
    stays = {name for _, name, _ in result.left}
    assert any(str(layer) in name for name in stays) and result.native > result.nodes // 2
    x = np.random.default_rng(1).standard_normal((2, 16, nets.WIDTH)).astype(np.float32)
    got, want = (opsmith.load(m).run(None, {"x": x})[0] for m in (tmp_path / "c", tmp_path / "m.onnx"))
    assert np.abs(got - want).max() < 0.1 * np.abs(want).max()


def test_rounding_alone_is_no_finding(tmp_path: Path) -> None:
    onnx.save(nets.net("static"), tmp_path / "m.onnx")
    result = opsmith.compile(tmp_path / "m.onnx", tmp_path / "c", regions="all")
    assert result.verified is not None and any(o.spread is not None for o in result.verified.worst)
    assert not result.remarks and len(result.regions) == 1
