"""--shape: symbols and inputs alike, also where the stored test data has another size."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from small_models import mlp, save

import opsmith
from opsmith import session, store


def test_a_shape_that_the_stored_test_data_does_not_have(tmp_path):
    home = save(mlp(16), tmp_path / "m" / "original")
    x = np.ones((2, 16), np.float32)
    (y,) = session.run(session.load(home), {"x": x})
    store.write_test_data(home, {"x": x}, {"y": y})
    for number, shapes in enumerate(({"batch": 3}, {"x": (3, 16)})):
        result = opsmith.compile(home, tmp_path / "m" / f"c{number}", shapes=shapes, regions="all")
        assert result.native == result.nodes and result.verified.ok and len(result.verified.dropped) == 1
        (data,) = store.read_test_data(result.variant.path)
        assert data.inputs["x"].shape == (3, 16)
        assert opsmith.verify(home, result.variant).ok and opsmith.verify(result.variant).ok


@pytest.mark.parametrize("shapes", [{"batch": 3}, {"x": (3, 16)}], ids=str)
def test_a_dim_stored_as_minus_one_has_a_name(tmp_path, shapes):
    model = mlp(16)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, tmp_path / "m.onnx")
    assert opsmith.inspect(tmp_path / "m.onnx").inputs[0].shape == ("batch", 16)
    result = opsmith.compile(tmp_path / "m.onnx", tmp_path / "c.onnx", shapes=shapes, regions="all")
    assert result.judged.feed["x"].shape == (3, 16)
    assert [d.dim_value for d in onnx.load(tmp_path / "c.onnx").graph.input[0].type.tensor_type.shape.dim] == [3, 16]
