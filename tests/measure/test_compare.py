from __future__ import annotations

import json

import numpy as np
import pytest
from quick import own_cache
from small_models import mlp, save

import opsmith
from opsmith.cli import build_app, main
from opsmith.measure import compare as module
from opsmith.measure.compare import compare, graph_facts
from opsmith.plain import to_json

QUICK = {"rounds": 2, "processes": 1, "threads": 1, "seconds": 0.5, "iterations": 3}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPSMITH_CACHE", str(own_cache(tmp_path / "cache")))


def test_what_changed_is_counted_measured_and_matched(tmp_path):
    a = save(mlp(64, 2), tmp_path / "net" / "a")
    opsmith.optimize(a, tmp_path / "net" / "b", timing=False)
    result = compare(a, tmp_path / "net" / "b", **QUICK)
    assert result.a.ops == {"MatMul": 2, "Add": 3, "Relu": 2} and result.a.nodes == 7
    assert result.a.parameters == 2 * (64 * 64 + 64) + 1
    for op, before, after in result.ops:
        assert before == result.a.ops.get(op, 0) and after == result.b.ops.get(op, 0) and before != after
    assert result.verified.ok and result.bench.verified
    data = json.loads(to_json(result))
    assert data["bench"]["entries"][1]["speedup"]["value"] == result.bench.entries[1].speedup.value
    assert data["comparisons"][0]["a"] == "a" and data["outputs"][0]["name"] == "y"


def test_a_wrong_variant_gives_exit_code_1(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("opsmith.measure.compare.compare", lambda a, b, **given: compare(a, b, **given | QUICK))
    a, b = save(mlp(), tmp_path / "net" / "a"), save(mlp(shift=0.5), tmp_path / "net" / "b")
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(a), str(b)])
    assert ended.value.code == 1
    text = capsys.readouterr().out
    assert "elements differ" in text and "original nodes" in text


def test_all_parts_run_on_the_inputs_that_are_given(tmp_path, monkeypatch):
    asked = {}
    for name in ("verify", "bench"):
        monkeypatch.setattr(module, name, lambda *models, name=name, **given: asked.update({name: given["inputs"]}))
    monkeypatch.setattr(module.profiling, "profile", lambda models, **given: asked.update(profile=given["inputs"]))
    a = save(mlp(16, 1), tmp_path / "net" / "a")
    np.save(tmp_path / "x.npy", np.full((5, 16), 3, np.float32))
    with pytest.raises(AttributeError):  # nothing was measured, so there is nothing to print
        build_app()(["compare", str(a), str(a), "--input", f"x={tmp_path / 'x.npy'}"], standalone_mode=False)
    assert set(asked) == {"verify", "bench", "profile"}
    for given in asked.values():
        assert given["x"].shape == (5, 16) and (given["x"] == 3).all()


def test_a_missing_variant_is_one_clear_line(tmp_path, capsys):
    a = save(mlp(), tmp_path / "net" / "a")
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(a), str(tmp_path / "net" / "b")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip().endswith("does not exist")


def test_facts_count_the_file_as_it_is(tmp_path):
    facts = graph_facts(save(mlp(8, 1), tmp_path / "net" / "a"))
    assert (facts.nodes, facts.parameters) == (4, 8 * 8 + 8 + 1)
