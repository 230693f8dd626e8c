"""A KV cache in half precision or in bytes: less memory, grown in place, nearly the same answers."""

from __future__ import annotations

import shutil

import models
import numpy as np
import pytest

import opsmith
from opsmith.compiler.cache_type import shrink_cache
from opsmith.errors import OpsmithError
from opsmith.pipelines.text import TextGenerator, make_cache

TYPES = {"fp16": "tensor(float16)", "int8": "tensor(int8)"}
ROUNDING = {"fp16": 1e-3, "int8": 4e-2}  # of the largest logit, on these models


@pytest.fixture(scope="module", params=[(m, c) for m in ("gpt2", "llama") for c in TYPES], ids="-".join)
def pair(request, tmp_path_factory):
    model, cache = request.param
    source = models.tiny_model(model)
    target = tmp_path_factory.mktemp(model) / "fast"
    for file in (f for f in source.iterdir() if f.is_file()):  # tokenizer and config
        shutil.copy(file, target.parent)
    found = opsmith.compile(source / "dynamo", target, regions="whole", cache=cache)
    assert found.variant.record["options"]["cache"] == cache
    return TextGenerator(source, "dynamo"), TextGenerator(target), target, cache


def test_past_and_present_are_narrow_and_grow_in_place(pair):
    plain, narrow, folder, cache = pair
    assert narrow.in_place
    scales = {n for n in narrow.past if n.endswith("_scale")}
    assert {narrow.inputs[n].type for n in set(narrow.past) - scales} == {TYPES[cache]}
    assert {plain.inputs[n].type for n in plain.past} == {"tensor(float)"}
    assert {narrow.inputs[n].shape[3] for n in scales} == ({1} if cache == "int8" else set())
    # attention reads the cache as it lies: no copy of it in floats
    program = "".join(f.read_text() for f in (folder / "src").glob("*.txt"))
    kernel = " = attention_scaled<" if cache == "int8" else " = attention("
    attentions = [line for line in program.splitlines() if kernel in line]
    assert attentions and all("k=out" in line and "v=out" in line for line in attentions)
    assert "cache_dequantize" not in program


def test_logits_differ_by_the_rounding_of_the_cache_and_no_more(pair):
    plain, narrow, _, cache = pair
    caches = [make_cache(g, 2, 40) for g in (plain, narrow)]
    rng, mask = np.random.default_rng(0), np.ones((2, 0), np.int64)
    for new in (27, 1, 2, 1, 5):  # more rows than attention takes one by one, and fewer
        ids = rng.integers(1, 90, (2, new))
        positions = np.arange(mask.shape[1], mask.shape[1] + new) + np.zeros((2, 1), np.int64)
        mask = np.concatenate([mask, np.ones((2, new), np.int64)], axis=1)
        wanted, found = (c.run(ids, mask.copy(), positions, every=True) for c in caches)
        difference = float(np.abs(found - wanted).max() / np.abs(wanted).max())
        assert 0 < difference < ROUNDING[cache]


def test_a_model_without_a_cache_is_refused(tmp_path):
    with pytest.raises(OpsmithError, match="no KV cache"):
        opsmith.compile(models.tiny_variant("bert"), tmp_path / "m" / "fast", cache="fp16")
    with pytest.raises(OpsmithError, match="there is no cache type 'int3'"):
        opsmith.compile(models.tiny_variant("bert"), tmp_path / "m" / "fast", cache="int3")


def test_what_else_reads_the_cache_gets_floats():
    """The rewritten model is ordinary ONNX whose other values keep their types."""
    from opsmith import store

    model = store.open_model(models.tiny_variant("llama"))
    shrink_cache(model, "fp16")
    assert {v.dtype.name for v in model.graph.inputs if v.name.startswith("past")} == {"FLOAT16"}
    readers = [n for v in model.graph.outputs if v.name.startswith("present") for n in v.consumers()]
    assert readers and {n.op_type for n in readers} == {"Cast"}
