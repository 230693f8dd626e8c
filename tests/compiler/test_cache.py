"""A compiled KV cache: drop-in as before, and in place where the caller gives room."""

from __future__ import annotations

import models
import numpy as np
import onnxruntime as ort
import pytest

import opsmith
from opsmith import session, store
from opsmith.errors import OpsmithError

LAYERS, BATCH, PROMPT, NEW = 2, 2, 5, 3


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def pair(request, tmp_path_factory):
    source = models.tiny_variant(request.param)
    target = tmp_path_factory.mktemp(request.param) / "m" / "fast"
    found = opsmith.compile(source, target, regions="whole")
    assert found.variant.record["compiled"]["cache"] == "in place"
    return session.load(source, threads=2), session.load(target, threads=2)


def tokens(running, cached, new, seed):
    rng = np.random.default_rng(seed)
    mask = np.ones((BATCH, cached + new), np.int64)
    mask[0, :2] = 0  # the first sequence is shorter: padded on the left
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, cached:]
    feed = {"input_ids": rng.integers(1, 90, (BATCH, new)), "attention_mask": mask, "position_ids": positions}
    return {n: a for n, a in feed.items() if n in {i.name for i in running.get_inputs()}}


def pasts(running, room, fill=0.0):
    found = {}
    for spec in running.get_inputs():
        if spec.name.startswith("past_key_values"):
            found[spec.name] = np.full((BATCH, spec.shape[1], room, spec.shape[3]), fill, np.float32)
    return found


def by_name(running, feed):
    names = [o.name for o in running.get_outputs()]
    return dict(zip(names, session.run(running, feed, names)))


def test_past_and_mask_of_the_old_kind_give_the_old_presents(pair):
    source, fast = pair
    feed = {**tokens(source, 0, PROMPT, 0), **pasts(source, 0)}
    for step in range(2):
        a, b = by_name(source, feed), by_name(fast, feed)
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-5)
        cached = PROMPT + step
        feed = {
            **tokens(source, cached, 1, step + 1),
            **{n.replace("present", "past_key_values"): v for n, v in a.items() if n != "logits"},
        }


@pytest.mark.parametrize("room", [PROMPT + NEW, 64])
def test_a_buffer_with_room_is_filled_in_place_and_touched_nowhere_else(pair, room):
    source, fast = pair
    buffers = pasts(fast, room, fill=np.nan)  # whatever reads a row that nobody wrote would spread it
    values = {n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in buffers.items()}
    cache, cached = pasts(source, 0), 0
    for step, new in enumerate([PROMPT, 1, 1, 1]):
        feed = tokens(source, cached, new, step)
        wanted = by_name(source, {**feed, **cache})
        before = {n: a.copy() for n, a in buffers.items()}
        binding = fast.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        binding.bind_output("logits", "cpu")
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), value)
        fast.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.get_outputs()[0].numpy(), wanted["logits"], rtol=1e-4, atol=1e-4)
        for name, buffer in buffers.items():
            # Only the new rows are written: the rest of the buffer is bit for bit what it was.
            same = np.ones(room, bool)
            same[cached : cached + new] = False
            np.testing.assert_array_equal(buffer[:, :, same], before[name][:, :, same])
            joined = wanted[name.replace("past_key_values", "present")]
            np.testing.assert_allclose(buffer[:, :, : cached + new], joined, rtol=1e-4, atol=1e-5)
        cache = {n.replace("present", "past_key_values"): v for n, v in wanted.items() if n != "logits"}
        cached += new


def test_a_mask_that_fits_neither_way_is_an_error(pair):
    _, fast = pair
    with pytest.raises(OpsmithError, match="past and mask do not fit"):
        by_name(fast, {**tokens(fast, 8, 1, 0), **pasts(fast, 4)})


def test_the_declared_shapes_are_those_of_the_source(pair):
    source, fast = pair
    for a, b in zip(
        (*source.get_inputs(), *source.get_outputs()), (*fast.get_inputs(), *fast.get_outputs()), strict=True
    ):
        assert (a.name, a.shape, a.type) == (b.name, b.shape, b.type)


def test_a_model_whose_mask_has_a_length_of_its_own_keeps_its_concat(tmp_path):
    model = store.open_model(models.tiny_variant("gpt2"))
    mask = next(v for v in model.graph.inputs if v.name == "attention_mask")
    mask.shape = type(mask.shape)([mask.shape[0], "something"])
    from opsmith.compiler.cache import grow_in_place

    assert not grow_in_place(model)
    assert not any(n.op_type == "CacheAppend" for n in model.graph)
