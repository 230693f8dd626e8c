"""The text generator: cache, batches, sampling, stops, and what it refuses."""

from __future__ import annotations

import shutil

import models
import numpy as np
import pytest

import opsmith
from opsmith.errors import OpsmithError
from opsmith.pipelines.prompts import Style, contains, load_style, write_prompts
from opsmith.pipelines.sampling import Sampling
from opsmith.pipelines.text import InPlaceCache, TextGenerator

NAMES = ["gpt2", "llama"]


@pytest.fixture(scope="module", params=NAMES)
def generator(request):
    return TextGenerator(models.tiny_model(request.param), "dynamo")


def full_forward(generator, ids):
    """Logits of every position in one pass without a cache."""
    feed = {
        "input_ids": np.array([ids]),
        "attention_mask": np.ones((1, len(ids)), np.int64),
        "position_ids": np.arange(len(ids))[None],
    }
    for name in generator.past:
        shape = generator.inputs[name].shape
        feed[name] = np.zeros((1, shape[1], 0, shape[3]), np.float32)
    known = {n: a for n, a in feed.items() if n in generator.inputs}
    return generator.session.run(["logits"], known)[0][0]


def test_greedy_tokens_are_those_of_full_forward_passes(generator):
    (found,) = generator.generate("a red apple", max_new_tokens=24)
    ids = list(generator.tokenizer.encode("a red apple").ids)
    for token in found.tokens:
        assert token == int(full_forward(generator, ids)[-1].argmax())
        ids.append(token)


def test_a_batch_of_different_lengths_gives_what_each_gives_alone(generator):
    prompts = ["a", "a red apple on a table", "frog and cat"]
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=5)
    together = generator.generate(prompts, max_new_tokens=16, sampling=sampling, n=2)
    alone = [g for p in prompts for g in generator.generate(p, max_new_tokens=16, sampling=sampling, n=2)]
    assert [g.tokens for g in together] == [g.tokens for g in alone]


def test_the_same_seed_gives_the_same_text_and_another_one_another(generator):
    texts = [
        generator.generate("night", max_new_tokens=16, sampling=Sampling(temperature=1.5, seed=s))[0].tokens
        for s in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_streaming_shows_the_whole_text_piece_by_piece(generator):
    pieces = []
    (found,) = generator.generate("sea", max_new_tokens=12, on_text=lambda i, p: pieces.append(p))
    assert "".join(pieces) == found.text


def test_a_stop_string_ends_the_text_before_it(generator):
    (plain,) = generator.generate("sea", max_new_tokens=12)
    word = plain.text[len(plain.text) // 2 :][:2]
    if not word:
        pytest.skip("the tiny model wrote nothing printable")
    (stopped,) = generator.generate("sea", max_new_tokens=12, stop=[word])
    assert stopped.ended == "stop" and word not in stopped.text and plain.text.startswith(stopped.text)


def test_what_cannot_be_done_is_said(generator):
    with pytest.raises(OpsmithError, match="empty"):
        generator.generate("", max_new_tokens=4)
    with pytest.raises(OpsmithError, match="context"):
        generator.generate("word " * 400, max_new_tokens=4)
    with pytest.raises(OpsmithError, match="ask for at most"):
        generator.generate("word", max_new_tokens=100000)


def test_a_model_without_past_inputs_is_refused():
    with pytest.raises(OpsmithError, match="past_key_values"):
        TextGenerator(models.tiny_model("bert"), "dynamo")


def test_a_missing_tokenizer_is_named(tmp_path):
    shutil.copytree(models.tiny_variant("gpt2"), tmp_path / "m" / "v", ignore=shutil.ignore_patterns("*.pb"))
    with pytest.raises(OpsmithError, match="holds no tokenizer"):
        TextGenerator(tmp_path / "m" / "v")


class TestSampling:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05]))

    def draws(self, **options):
        sampling = Sampling(temperature=1.0, **options)
        rng = sampling.generator(0)
        return {sampling.next_token(self.logits, [], rng) for _ in range(400)}

    def test_filters_keep_what_they_say(self):
        assert self.draws() == {0, 1, 2, 3}
        assert self.draws(top_k=2) == {0, 1}
        assert self.draws(top_p=0.7) == {0, 1}
        assert self.draws(min_p=0.25) == {0, 1, 2}

    def test_frequencies_follow_the_probabilities(self):
        sampling = Sampling(temperature=1.0, seed=1)
        rng = sampling.generator(0)
        counts = np.bincount([sampling.next_token(self.logits, [], rng) for _ in range(4000)], minlength=4) / 4000
        np.testing.assert_allclose(counts, [0.5, 0.3, 0.15, 0.05], atol=0.03)

    def test_a_repetition_penalty_makes_the_seen_less_likely(self):
        assert Sampling(repetition_penalty=3.0).next_token(self.logits + 3, [0], np.random.default_rng(0)) == 1

    def test_no_ngram_is_repeated(self):
        rng = np.random.default_rng(0)
        assert Sampling(no_repeat_ngram=2).next_token(self.logits, [3, 0, 2, 3], rng) == 1
        assert Sampling(no_repeat_ngram=1).next_token(self.logits, [0, 1], rng) == 2

    @pytest.mark.parametrize("option", [{"temperature": -1}, {"top_p": 0}, {"min_p": 1}, {"repetition_penalty": 0}])
    def test_bad_options_are_refused(self, option):
        with pytest.raises(OpsmithError, match=next(iter(option))):
            Sampling(**option)


def test_prompts_hold_the_keyword_and_differ():
    generator = TextGenerator(models.tiny_model("gpt2"), "dynamo")
    found = write_prompts(generator, "apple", n=3, seed=1, style=Style("{keyword}:", max_new_tokens=12))
    assert len(found) == 3 and len(set(found)) == 3 and all(contains(p, "apple") for p in found)


def test_an_edited_template_file_is_checked(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[mine]\ntemplate = "about {keyword}:"\n')
    assert load_style("mine", file).template == "about {keyword}:"
    file.write_text('[mine]\ntemplate = "nothing"\n')
    with pytest.raises(OpsmithError, match="does not contain"):
        load_style("mine", file)
    file.write_text('[mine]\ntemplate = "{keyword}"\nheat = 3\n')
    with pytest.raises(OpsmithError, match="unknown key 'heat'"):
        load_style("mine", file)
    with pytest.raises(OpsmithError, match=r"no section \[other\]"):
        load_style("other", file)


def test_a_compiled_variant_writes_the_same(tmp_path):
    home = tmp_path / "gpt2"
    shutil.copytree(models.tiny_model("gpt2"), home)
    opsmith.compile(home / "dynamo", home / "dynamo_compiled", regions="whole")
    generator = TextGenerator(home)
    assert generator.path.parent.name == "dynamo_compiled"
    stock = TextGenerator(home, "dynamo")
    assert (
        generator.generate("apple", max_new_tokens=40)[0].tokens == stock.generate("apple", max_new_tokens=40)[0].tokens
    )


def test_the_compiled_cache_is_written_in_place_and_resident_memory_grows_with_the_sequence(tmp_path):
    """Bytes that a step writes do not depend on what is cached; memory beyond the sequence is never touched."""
    source = models.tiny_model("gpt2")
    shutil.copytree(source, tmp_path / "m", ignore=shutil.ignore_patterns("dynamo"))
    opsmith.compile(source / "dynamo", tmp_path / "m" / "fast", regions="whole")
    plain, fast = TextGenerator(source, "dynamo"), TextGenerator(tmp_path / "m", "fast")
    assert fast.in_place and not plain.in_place
    prompts = ["a", "a red apple on a table", "frog"]
    assert [g.tokens for g in fast.generate(prompts, max_new_tokens=24)] == [
        g.tokens for g in plain.generate(prompts, max_new_tokens=24)
    ]
    cache = InPlaceCache(fast, 1, 120)
    places = {n: v.data_ptr() for n, v in cache.values.items()}
    buffers = {n: v.numpy() for n, v in cache.values.items()}
    written = []
    for step in range(100):
        before = {n: b.copy() for n, b in buffers.items()}
        cache.run(np.array([[5]]), np.ones((1, step + 1), np.int64), np.array([[step]]))
        written.append(sum(int((b.view(np.uint32) != before[n].view(np.uint32)).sum()) for n, b in buffers.items()))
    assert {n: v.data_ptr() for n, v in cache.values.items()} == places  # the same memory for the whole sequence
    row = sum(b.shape[1] * b.shape[3] for b in buffers.values())
    assert max(written) <= row and min(written) > 0.9 * row  # a number may happen to be written over by itself
