"""Real weights: stories15M against a plain numpy forward pass, and what quantization costs it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import stories

from opsmith.compress.quantize import quantize
from opsmith.pipelines.text import TextGenerator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("stories") / "story.txt"
    file.write_text(stories.TEXT, encoding="utf-8")
    return file


def test_greedy_text_equals_a_plain_numpy_forward_pass():
    generator = TextGenerator(stories.stories_model(), "dynamo")
    (found,) = generator.generate("Once upon a time", max_new_tokens=200)
    prompt = list(generator.tokenizer.encode("Once upon a time").ids)
    assert prompt[0] == stories.BEGIN
    assert found.tokens == stories.NumpyLlama().greedy(prompt, 200)
    assert len(found.tokens) > 100 and " the " in found.text


def test_the_tokenizer_is_the_one_the_model_was_trained_with():
    """Wrong tokens would make an ordinary story surprising."""
    generator = TextGenerator(stories.stories_model(), "dynamo")
    ids = list(generator.tokenizer.encode(stories.TEXT[:300]).ids)
    numpy_model = stories.NumpyLlama()
    losses = []
    for token, target in itertools.pairwise(ids):
        logits = numpy_model.step(token).astype(np.float64)
        losses.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[target])
    assert np.exp(np.mean(losses)) < 8
    assert generator.tokenizer.decode(ids).strip() == stories.TEXT[:300]


def test_int8_keeps_nearly_every_token(tmp_path, text):
    found = quantize(stories.stories_model() / "dynamo", tmp_path / "m" / "int8", calibration=text).quality
    assert found.top1 >= 0.97 and found.kl <= 0.01


def test_int4_with_the_sweep_keeps_most_tokens(tmp_path, text):
    result = quantize(
        stories.stories_model() / "dynamo", tmp_path / "m" / "int4", bits=4, block=32, max_error=0.08, calibration=text
    )
    assert result.quality.top1 >= 0.88 and result.quality.kl <= 0.08
    assert sum(row.bits == 4 for row in result.sweep) >= len(result.sweep) // 4
