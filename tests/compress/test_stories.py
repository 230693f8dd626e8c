"""Real weights: stories15M against a plain numpy forward pass, and what quantization costs it."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import stories

import opsmith
from opsmith import store
from opsmith.compress import quality
from opsmith.compress.prune import prune
from opsmith.compress.quantize import quantize
from opsmith.measure.score_text import score_text
from opsmith.pipelines.sampling import Sampling
from opsmith.pipelines.text import TextGenerator

pytestmark = pytest.mark.slow

_FILE = Path(__file__).parents[2] / "benchmarks" / "token_by_token.py"
_SPEC = importlib.util.spec_from_file_location("token_by_token", _FILE)
token_by_token = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(token_by_token)


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


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    """Stories that the model tells itself: text like what it was trained on, and not the text it is judged by."""
    generator = TextGenerator(stories.stories_model(), "dynamo")
    starts = [
        "Once upon a time",
        "One day",
        "There was a little",
        "Tom and",
        "Lily",
        "The cat",
        "In the forest",
        "A big dog",
    ]
    told = [
        story
        for seed in range(4)
        for story in generator.generate(starts, max_new_tokens=200, sampling=Sampling(temperature=1.0, seed=seed))
    ]
    file = tmp_path_factory.mktemp("calibration") / "told.txt"
    file.write_text("\n".join(s.prompt + s.text for s in told), encoding="utf-8")
    return file


def judged(path, text):
    """Quality on TEXT, which no calibration has seen."""
    source = store.find_model(stories.stories_model() / "dynamo")
    answers = [
        quality.answers(p, quality.text_feeds(text, p, store.open_model(p), 8), ["logits"], 2) for p in (source, path)
    ]
    return quality.compare(*answers, logits=True)


def test_structured_pruning_shrinks_the_file_and_costs_less_than_its_simpler_relatives(tmp_path, text, calibration):
    home = tmp_path / "m"
    home.mkdir()
    shutil.copy(stories.stories_model() / "tokenizer.json", home)
    source = stories.stories_model() / "dynamo"

    def kl(name, **options):
        result = prune(source, home / name, calibration=calibration, samples=96, **options)
        return result, judged(result.variant.path, text).kl

    same = {"shrink": 0.125, "uniform": True}
    result, repaired = kl("repaired", **same)
    assert result.after <= 0.88 * result.before
    _, left = kl("left", repair=False, **same)
    _, by_size = kl("by_size", repair=False, importance_by="weights", **same)
    assert repaired < 0.75 * left and left < 0.5 * by_size
    # Zeros shrink a file only if they are stored sparse: a value and a 16-bit column index, 6 bytes, for what took 4. A file of
    # 0.87 of the size then holds 0.58 of the weights.
    zeros, magnitude = kl("zeros", method="magnitude", ratio=1 - result.after / result.before * 4 / 6)
    assert zeros.after > 0.99 * zeros.before and repaired < magnitude


@pytest.mark.parametrize("compiled", [False, True])
def test_token_by_token_equals_one_pass_for_real_weights(tmp_path, compiled):
    source = stories.stories_model() / "dynamo"
    path = source
    if compiled:
        path = tmp_path / "m" / "fast"
        opsmith.compile(source, path, regions="whole")
    for batch in (1, 4):
        worst, largest = token_by_token.difference(path, source, batch, steps=20, threads=2)
        assert worst <= 1e-4 and largest > 5


def test_a_cache_of_halves_writes_the_same_story_with_little_loss(tmp_path, text):
    """Greedy, 200 tokens; KL of the cache's rounding alone, beside the same model with a cache of floats."""
    source = stories.stories_model()
    half = opsmith.compile(source / "dynamo", tmp_path / "half", regions="whole", cache="fp16").variant.folder
    for file in ("config.json", "tokenizer.json"):
        shutil.copy(source / file, tmp_path)
    wanted, found = (
        TextGenerator(f).generate("Once upon a time", max_new_tokens=200)[0].tokens for f in (source / "dynamo", half)
    )
    assert found == wanted
    plain, rounded = score_text([source / "dynamo", half], text, tokens=256)
    assert 0 < rounded.kl < 1e-5 and rounded.top1 == 1.0
    assert abs(rounded.perplexity / plain.perplexity - 1) < 1e-3
