"""A KV cache in half precision: half the memory, grown in place, nearly the same answers."""

from __future__ import annotations

import shutil

import models
import numpy as np
import pytest

import opsmith
from opsmith.compiler.cache_type import halve_cache
from opsmith.errors import OpsmithError
from opsmith.pipelines.text import TextGenerator, make_cache


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def pair(request, tmp_path_factory):
    source = models.tiny_model(request.param)
    target = tmp_path_factory.mktemp(request.param) / "fast"
    for file in (f for f in source.iterdir() if f.is_file()):  # tokenizer and config
        shutil.copy(file, target.parent)
    found = opsmith.compile(source / "dynamo", target, regions="whole", cache="fp16")
    assert found.variant.record["options"]["cache"] == "fp16"
    return TextGenerator(source, "dynamo"), TextGenerator(target), target


def test_past_and_present_are_halves_and_grow_in_place(pair):
    plain, half, folder = pair
    assert half.in_place
    assert {half.inputs[n].type for n in half.past} == {"tensor(float16)"}
    assert {plain.inputs[n].type for n in plain.past} == {"tensor(float)"}
    # attention reads the halves as they lie: no copy of the cache in floats
    program = "".join(f.read_text() for f in (folder / "src").glob("*.txt"))
    attentions = [line for line in program.splitlines() if " = attention(" in line]
    assert attentions and all("k=out" in line and "v=out" in line for line in attentions)


def test_logits_differ_by_the_rounding_of_the_cache_and_no_more(pair):
    plain, half, _ = pair
    caches = [make_cache(g, 2, 12) for g in (plain, half)]
    rng, mask = np.random.default_rng(0), np.ones((2, 0), np.int64)
    for new in (7, 1, 2, 1):
        ids = rng.integers(1, 90, (2, new))
        positions = np.arange(mask.shape[1], mask.shape[1] + new) + np.zeros((2, 1), np.int64)
        mask = np.concatenate([mask, np.ones((2, new), np.int64)], axis=1)
        wanted, found = (c.run(ids, mask.copy(), positions, every=True) for c in caches)
        difference = float(np.abs(found - wanted).max() / np.abs(wanted).max())
        assert 0 < difference < 1e-3


def test_a_model_without_a_cache_is_refused(tmp_path):
    with pytest.raises(OpsmithError, match="no KV cache"):
        opsmith.compile(models.tiny_variant("bert"), tmp_path / "m" / "fast", cache="fp16")
    with pytest.raises(OpsmithError, match="--cache int3 is not known"):
        opsmith.compile(models.tiny_variant("bert"), tmp_path / "m" / "fast", cache="int3")


def test_what_else_reads_the_cache_gets_floats():
    """The rewritten model is ordinary ONNX whose other values keep their types."""
    from opsmith import store

    model = store.open_model(models.tiny_variant("llama"))
    halve_cache(model)
    assert {v.dtype.name for v in model.graph.inputs if v.name.startswith("past")} == {"FLOAT16"}
    readers = [n for v in model.graph.outputs if v.name.startswith("present") for n in v.consumers()]
    assert readers and {n.op_type for n in readers} == {"Cast"}
