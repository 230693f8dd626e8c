"""export --opset and --shape: the graph says so, and what cannot be had is said."""

from __future__ import annotations

from pathlib import Path

import models
import onnx
import pytest

import opsmith
from opsmith import OpsmithError
from opsmith.exporter.fixed import fix
from opsmith.exporter.graph import Graph


def declared(model: onnx.ModelProto, name: str) -> list[int | str]:
    value = next(v for v in (*model.graph.input, *model.graph.output) if v.name == name)
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def decoder() -> Graph:
    return Graph(
        model=None,  # type: ignore[arg-type]
        inputs={"ids": {0: "batch", 1: "sequence"}, "mask": {0: "batch", 1: "past + sequence"}},
        outputs={"logits": {0: "batch", 1: "sequence"}},
        forward=lambda *_: [],
        example=lambda *_: [],
        trace_at={"batch": 2, "sequence": 3, "past": 4},
        cases=[{"batch": 1, "sequence": 5, "past": 0}, {"batch": 1, "sequence": 1, "past": 0}],
    )


def test_a_fixed_dim_leaves_the_graph_and_sums_with_it() -> None:
    graph, known = fix(decoder(), {"sequence": 1})
    assert known == {"sequence"} and graph.trace_at["sequence"] == 1
    assert graph.inputs == {"ids": {0: "batch"}, "mask": {0: "batch", 1: "past + 1"}}
    assert graph.outputs == {"logits": {0: "batch"}}
    assert graph.cases == [{"batch": 1, "sequence": 1, "past": 0}], "the same case is proved once"
    both, _ = fix(decoder(), {"sequence": 1, "past": 7})
    assert both.inputs["mask"] == {0: "batch"}


def test_an_input_names_its_dims_and_two_sizes_for_one_are_a_mistake() -> None:
    graph, known = fix(decoder(), {"ids": (1, 32), "no": 3})
    assert known == {"ids"} and graph.trace_at == {"batch": 1, "sequence": 32, "past": 4}
    with pytest.raises(OpsmithError, match="batch is to be 1 and 2"):
        fix(decoder(), {"ids": (1, 32), "batch": 2})
    with pytest.raises(OpsmithError, match="more than 1 dims"):
        fix(decoder(), {"ids": 1})


def test_the_export_has_the_shape_and_the_opset_and_is_proved(tmp_path: Path) -> None:
    source = models.tiny_source("bert")
    result = opsmith.export(
        source, tmp_path / "bert", exporter="torchscript", opset=17, shapes={"batch": 1, "sequence": 8}
    )
    model = onnx.load(result.variants[0].path)
    assert {o.domain: o.version for o in model.opset_import}[""] == 17
    assert declared(model, "input_ids") == [1, 8] and declared(model, "last_hidden_state")[:2] == [1, 8]
    assert result.variants[0].record["options"]["shapes"] == {"batch": 1, "sequence": 8}
    assert len(result.variants[0].record["verified"]["cases"]) == 1


def test_a_dim_that_is_not_there_is_said_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(OpsmithError, match="there is no length .*batch, input_ids, sequence"):
        opsmith.export(models.tiny_source("bert"), tmp_path / "b", exporter="torchscript", shapes={"length": 8})
    assert not (tmp_path / "b" / "torchscript").exists()
