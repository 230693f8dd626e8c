"""The KV cache: one graph for the prompt and for every token after it."""

from __future__ import annotations

import models
import numpy as np
import pytest

import opsmith

CASES = [(m, e) for m in ("gpt2", "llama") for e in models.EXPORTERS]


def run(session, ids, past=None, mask=None, positions=None):  # type: ignore[no-untyped-def]
    """One call with the past of an earlier one; returns logits and the new past."""
    names = [i.name for i in session.get_inputs() if i.name.startswith("past")]
    heads, head = session.get_inputs()[3].shape[1], session.get_inputs()[3].shape[3]
    batch = ids.shape[0]
    past = past or [np.zeros((batch, heads, 0, head), np.float32)] * len(names)
    before = past[0].shape[2]
    if mask is None:
        mask = np.ones((batch, before + ids.shape[1]), np.int64)
    if positions is None:
        positions = np.tile(np.arange(before, before + ids.shape[1]), (batch, 1))
    feed = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **dict(zip(names, past))}
    logits, *present = session.run(None, feed)
    return logits, present


def reference(model: str):  # type: ignore[no-untyped-def]
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(models.tiny_source(model)).eval()


@pytest.mark.parametrize(("model", "exporter"), CASES)
def test_token_by_token_gives_the_logits_of_one_full_pass(model: str, exporter: str) -> None:
    import torch

    session = opsmith.load(models.tiny_variant(model, exporter))
    ids = np.random.default_rng(0).integers(0, 512, (2, 24))
    with torch.no_grad():
        expected = reference(model)(torch.from_numpy(ids)).logits.numpy()
    past, steps = None, []
    for i in range(ids.shape[1]):
        logits, past = run(session, ids[:, i : i + 1], past)
        steps.append(logits)
    np.testing.assert_allclose(np.concatenate(steps, axis=1), expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(run(session, ids)[0], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("model", "exporter"), CASES)
def test_prompt_then_decode_in_uneven_pieces(model: str, exporter: str) -> None:
    session = opsmith.load(models.tiny_variant(model, exporter))
    ids = np.random.default_rng(1).integers(0, 512, (3, 20))
    whole, _ = run(session, ids)
    past, pieces = None, []
    for start, end in ((0, 9), (9, 10), (10, 17), (17, 20)):
        logits, past = run(session, ids[:, start:end], past)
        pieces.append(logits)
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), whole, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("model", "exporter"), CASES)
def test_left_padded_prompt_answers_like_an_unpadded_one(model: str, exporter: str) -> None:
    session = opsmith.load(models.tiny_variant(model, exporter))
    random = np.random.default_rng(2)
    ids = random.integers(0, 512, (2, 12))
    mask = np.ones((2, 12), np.int64)
    mask[1, :5] = 0
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    logits, past = run(session, ids, mask=mask, positions=positions)
    assert np.isfinite(logits).all()
    alone, alone_past = run(session, ids[1:, 5:])
    np.testing.assert_allclose(logits[1:, 5:], alone, rtol=0, atol=1e-4)
    # and the next token too, through the padded cache
    token = random.integers(0, 512, (2, 1))
    step, _ = run(session, token, past, np.concatenate([mask, np.ones((2, 1), np.int64)], 1), np.array([[12], [7]]))
    np.testing.assert_allclose(step[1:], run(session, token[1:], alone_past)[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_greedy_text_equals_generate(model: str) -> None:
    import torch

    session = opsmith.load(models.tiny_variant(model))
    ids = np.random.default_rng(3).integers(0, 512, (1, 6))
    with torch.no_grad():
        expected = reference(model).generate(
            torch.from_numpy(ids), max_new_tokens=20, min_new_tokens=20, do_sample=False, eos_token_id=None
        )
    tokens, past, new = list(ids[0]), None, ids
    for _ in range(20):
        logits, past = run(session, new, past)
        new = logits[:, -1:].argmax(-1)
        tokens.append(int(new[0, 0]))
    assert tokens == expected[0].tolist()
