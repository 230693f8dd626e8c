"""The text generator: cache, batches, sampling, stops, and what it refuses."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import models
import numpy as np
import onnx
import pytest
from small_models import counted_decoder

import opsmith
from opsmith import starter
from opsmith.errors import OpsmithError
from opsmith.measure.score_text import score_text
from opsmith.pipelines import text as text_pipeline
from opsmith.pipelines.draft import Draft
from opsmith.pipelines.draft import check as check_draft
from opsmith.pipelines.lookup import Lookup
from opsmith.pipelines.prompts import Style, contains, load_style, style_of, write_prompts
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


def test_a_draw_does_not_hang_on_the_last_bits_of_the_logits():
    """Another batch rounds in another way; the text of a seed stays."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal(20000)
    other = logits + rng.uniform(-1e-4, 1e-4, logits.shape)
    asked = [Sampling(temperature=1.0, seed=s) for s in range(200)]
    first, second = ([s.next_token(x, (), s.generator(0)) for s in asked] for x in (logits, other))
    assert first == second and len(set(first)) > 150


def test_draws_have_the_probabilities_of_the_logits():
    wanted = np.array([0.5, 0.25, 0.15, 0.1, 0.0])
    sampling, rng = Sampling(temperature=2.0, seed=3), np.random.default_rng(0)
    with np.errstate(divide="ignore"):
        logits = 2.0 * np.log(wanted)
    counts = np.bincount([sampling.next_token(logits, (), rng) for _ in range(4000)], minlength=5) / 4000
    assert np.abs(counts - wanted).max() < 0.03 and counts[4] == 0


def test_a_model_without_past_inputs_is_refused():
    with pytest.raises(OpsmithError, match="past_key_values"):
        TextGenerator(models.tiny_model("bert"), "dynamo")


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """A folder as onnxruntime-genai's builder leaves it, and its model compiled."""
    folder = tmp_path_factory.mktemp("counted")
    onnx.save(counted_decoder(), folder / "model.onnx")
    shutil.copy(models.tiny_source("llama") / "tokenizer.json", folder)
    genai = {"context_length": 64, "vocab_size": 514, "eos_token_id": 513, "decoder": {"head_size": 16}}
    (folder / "genai_config.json").write_text(json.dumps({"model": genai}))
    result = opsmith.compile(folder / "model.onnx", folder / "model_compiled.onnx", regions="whole")
    assert (
        result.verified is not None and len(result.verified.cases) == 2
    )  # ONNX Runtime refuses several texts with a past
    return folder


@pytest.mark.parametrize("file", ["model.onnx", "model_compiled.onnx"])
def test_decoders_of_genai_that_count_their_keys_write_what_full_passes_say(counted, file):
    generator = TextGenerator(counted / file)
    assert generator.context == 64 and generator.ends == {513}
    prompts = ["a", "a red apple on a table", "frog and cat"]
    pieces = []
    together = generator.generate(prompts, max_new_tokens=12, on_text=lambda i, piece: pieces.append((i, piece)))
    for i, (prompt, found) in enumerate(zip(prompts, together, strict=True)):
        assert "".join(text for row, text in pieces if row == i) == found.text
        ids = generator.encode(prompt)
        for token in found.tokens:
            feed = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
            feed |= {name: np.zeros((1, 1, 0, 16), np.float32) for name in generator.past}
            assert token == int(generator.session.run(["logits"], feed)[0][0, -1].argmax())
            ids.append(token)
        for guesses in ({"lookup": 4}, {"guesses": _Wrong()}):
            assert generator.generate(prompt, max_new_tokens=12, **guesses)[0].tokens == found.tokens


def test_decoders_of_genai_are_scored(counted, tmp_path):
    (tmp_path / "text.txt").write_text("a red apple on a table. " * 8)
    files = [counted / "model.onnx", counted / "model_compiled.onnx"]
    source, compiled = score_text(files, tmp_path / "text.txt", tokens=40, window=16, decode=4)
    assert source.predicted == compiled.predicted > 30 and compiled.kl < 1e-6 and compiled.top1 == 1


class _Wrong:
    """Guesses that never come true: what they leave in the cache has to go."""

    def guess(self, tokens, most):
        return [3, 4][:most]

    def learn(self, guessed, right):
        pass


def test_a_cache_whose_size_nothing_says_is_told(counted, tmp_path):
    for name in ("model.onnx", "tokenizer.json"):
        shutil.copy(counted / name, tmp_path)
    with pytest.raises(OpsmithError, match="does not say how large a cache is") as refused:
        TextGenerator(tmp_path / "model.onnx").generate("a", max_new_tokens=1)
    assert "genai_config.json" in refused.value.hint


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

    def test_no_temperature_is_too_small(self):
        rng = np.random.default_rng(0)
        assert [Sampling(temperature=t).next_token(self.logits, [], rng) for t in (1e-308, 1e-6, 1e-4)] == [0, 0, 0]

    def test_penalties_count_what_was_written_and_not_the_prompt(self):
        rng = np.random.default_rng(0)
        for penalty in ({"presence_penalty": 1.0}, {"frequency_penalty": 0.3}):
            assert Sampling(**penalty).next_token(self.logits, [0, 0, 0], rng, prompt=3) == 0
            assert Sampling(**penalty).next_token(self.logits, [0, 0, 0], rng, prompt=1) == 1
        assert Sampling(frequency_penalty=0.3).next_token(self.logits, [0], rng) == 0  # once is not enough

    def test_a_bias_is_added_to_the_score(self):
        rng = np.random.default_rng(0)
        assert Sampling(bias={3: 100.0}).next_token(self.logits, [], rng) == 3
        with pytest.raises(OpsmithError, match="there is no token 7"):
            Sampling(bias={7: 1.0}).next_token(self.logits, [], rng)

    @pytest.mark.parametrize(
        "option", [{"temperature": -1}, {"top_p": 0}, {"min_p": 1}, {"repetition_penalty": 0}, {"presence_penalty": 3}]
    )
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


class Spelling:
    """A tokenizer whose token t is PIECES[t]."""

    def __init__(self, pieces):
        self.pieces = pieces

    def decode(self, ids):
        return "".join(self.pieces[i] for i in ids)


def written(pieces, stop, ended=None):
    """What a row shows of PIECES, one token each: the streamed pieces, and the text."""
    owner = SimpleNamespace(tokenizer=Spelling(["", *pieces]))
    row, said = text_pipeline.Row(owner, "", [0], np.random.default_rng(0)), []
    wanted = text_pipeline.Wanted(Sampling(), stop, (), None, lambda i, piece: said.append(piece))
    for token in range(1, len(pieces) + 1):
        if row.ended is None:
            row.take(0, np.eye(len(pieces) + 1)[token], wanted)
    row.show(0, wanted, final=True)
    return said, row.generation()


@pytest.mark.parametrize(
    ("pieces", "stop", "shown"),
    [
        ([" a", " little", " girl", " named"], ["ttle gi"], " a li"),
        ([" named", " L", "ily", "."], ["Lily", "."], " named "),
        ([" named", " Lily", "."], [".", "Lily"], " named "),
        (["one", " tw", "ig"], [" two"], "one twig"),  # it did not become a stop string
        (["a", "b", "a", "b", "c"], ["abc"], "ab"),
        (["end", " of"], ["of the text"], "end of"),  # the text ends while it could still become one
    ],
)
def test_what_could_become_a_stop_string_is_held_back(pieces, stop, shown):
    said, made = written(pieces, stop)
    assert made.text == shown
    assert "".join(said) == shown


@pytest.mark.parametrize(("stop", "shown"), [(["ture of"], " a pic"), ([" frog", "of a"], " a picture ")])
def test_a_stop_string_that_spans_tokens_does_not_leak(stop, shown):
    pieces = []
    writer = TextGenerator(starter.folder("writer"))
    assert writer.generate("frog:", max_new_tokens=12)[0].text.startswith(" a picture of a frog")
    (made,) = writer.generate("frog:", max_new_tokens=12, stop=stop, on_text=lambda i, piece: pieces.append(piece))
    assert (made.text, made.ended) == (shown, "stop")
    assert "".join(pieces) == shown


def test_a_first_word_keeps_its_space_after_the_prompt(generator):
    """Tokenizers of SentencePiece drop the space before a first word: new tokens are decoded behind the prompt's."""
    from tokenizers import decoders

    owner = SimpleNamespace(
        tokenizer=SimpleNamespace(decode=lambda ids: decoders.Metaspace().decode([words[i] for i in ids]))
    )
    words = ["▁once", "▁upon", "▁a"]
    row = text_pipeline.Row(owner, "once", [0], np.random.default_rng(0))
    wanted = text_pipeline.Wanted(Sampling(), (), (), None, None)
    row.take(0, np.eye(3)[1], wanted)
    row.take(0, np.eye(3)[2], wanted)
    assert row.generation().text == " upon a"


def test_without_a_number_of_tokens_there_are_as_many_as_fit():
    writer = TextGenerator(starter.folder("writer"))
    (made,) = writer.generate("frog:", ends=())
    assert made.prompt_tokens + len(made.tokens) == writer.context == 64
    with pytest.raises(OpsmithError, match="exceed the context of 64"):
        writer.generate("frog:", max_new_tokens=64)


def test_a_text_that_cannot_fit_is_refused_before_it_is_split_into_tokens(generator, monkeypatch):
    monkeypatch.setattr(generator, "tokenizer", None)  # not asked
    with pytest.raises(OpsmithError, match="2000000 characters, more than"):
        generator.generate("x " * 1_000_000)


def test_half_a_character_is_refused(generator):
    with pytest.raises(OpsmithError, match="half a character .a lone surrogate. at 2"):
        generator.generate("no\ud800")


def test_prompts_may_be_token_numbers(generator):
    ids = list(generator.tokenizer.encode("a red apple").ids)
    assert (
        generator.generate([ids], max_new_tokens=8)[0].tokens
        == generator.generate("a red apple", max_new_tokens=8)[0].tokens
    )
    with pytest.raises(OpsmithError, match="there is no token 100000"):
        generator.generate([[100000]])


def test_likelihoods_are_those_of_the_logits(generator):
    (made,) = generator.generate("a red apple", max_new_tokens=4, logprobs=3, ends=())
    logits = full_forward(generator, list(generator.tokenizer.encode("a red apple").ids)).astype(np.float64)[-1]
    expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    first = made.likelihoods[0]
    assert first.token == made.tokens[0] and first.logprob == pytest.approx(expected.max(), abs=1e-5)
    assert [t for t, _ in first.top] == list(np.argsort(-expected)[:3])


def test_a_copy_of_the_starter_writer_is_asked_like_the_starter_writer(tmp_path):
    shutil.copytree(starter.folder("writer"), tmp_path / "copy")
    styles = [style_of(TextGenerator(home)) for home in (tmp_path / "copy", starter.folder("writer"))]
    assert styles[0] == styles[1] and styles[0].template == "{keyword}:"
    assert style_of(TextGenerator(models.tiny_model("gpt2"))).template != "{keyword}:"


class TestLookup:
    def test_the_latest_place_where_the_last_tokens_stood_is_found(self):
        assert Lookup(4).guess([1, 2, 3, 9, 1, 2, 3, 7, 8, 1, 2, 3], 10) == [7, 8, 1, 2]
        assert Lookup(4).guess([1, 2, 3, 9, 1, 2, 3, 7, 8, 1, 2, 3], 2) == [7, 8]
        assert Lookup(4).guess([5, 2, 3, 9, 1, 2, 3], 10) == [9, 1, 2, 3]  # two tokens, where three were never seen
        assert Lookup(4).guess([4, 4, 4], 10) == [4]
        assert Lookup(4).guess([1, 2, 3, 4], 10) == [] == Lookup(4).guess([1], 10) == Lookup(4).guess([1, 1, 1], 0)

    def test_wrong_guesses_become_shorter_and_right_ones_longer(self):
        lookup = Lookup(8)
        lookup.learn(8, 1)
        assert lookup.width == 2
        lookup.learn(2, 2)
        assert lookup.width == 4
        lookup.learn(0, 0)
        assert lookup.width == 4

    @pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.3, seed=4)], ids=["greedy", "sampled"])
    def test_the_text_is_the_same_in_fewer_passes(self, generator, sampling):
        prompt = "the red apple and the green frog. the red apple and the green frog. the red apple and"
        asked = {"max_new_tokens": 40, "sampling": sampling, "ends": (), "logprobs": 0}
        (plain,) = generator.generate(prompt, **asked)
        passes = generator.speed.decode_steps
        (guessed,) = generator.generate(prompt, lookup=6, **asked)
        assert guessed.tokens == plain.tokens and guessed.text == plain.text
        assert [a.logprob for a in guessed.likelihoods] == pytest.approx(
            [b.logprob for b in plain.likelihoods], abs=1e-4
        )
        assert passes == 39
        if sampling.temperature == 0:  # a tiny model repeats itself
            assert generator.speed.decode_steps < passes

    def test_a_compiled_cache_forgets_wrong_guesses(self, tmp_path):
        home = tmp_path / "llama"
        shutil.copytree(models.tiny_model("llama"), home)
        opsmith.compile(home / "dynamo", home / "fast", regions="whole")
        fast = TextGenerator(home, "fast")
        assert fast.in_place
        prompt = "the red apple and the green frog. the red apple and the"
        for seed in range(3):
            asked = {"max_new_tokens": 40, "sampling": Sampling(temperature=0.5, seed=seed), "ends": ()}
            assert fast.generate(prompt, lookup=8, **asked)[0].tokens == fast.generate(prompt, **asked)[0].tokens


class TestDraft:
    @pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.3, seed=4)], ids=["greedy", "sampled"])
    def test_a_model_that_drafts_for_itself_is_always_right_and_the_text_is_the_same(self, generator, sampling):
        asked = {"max_new_tokens": 30, "sampling": sampling, "ends": ()}
        (plain,) = generator.generate("a red apple", **asked)
        passes = generator.speed.decode_steps
        (drafted,) = generator.generate("a red apple", guesses=Draft(generator, 4), **asked)
        assert drafted.tokens == plain.tokens
        if sampling.temperature == 0:
            assert generator.speed.decode_steps == 6 < passes == 29  # 29 tokens, five a pass

    def test_another_model_drafts_wrongly_and_the_text_is_the_same(self):
        writer, other = (TextGenerator(models.tiny_model(name), "dynamo") for name in NAMES)
        for seed in range(3):
            asked = {"max_new_tokens": 30, "sampling": Sampling(temperature=0.5, seed=seed), "ends": ()}
            (plain,) = writer.generate("night", **asked)
            assert writer.generate("night", guesses=Draft(other, 4), **asked)[0].tokens == plain.tokens

    def test_another_vocabulary_is_refused(self):
        writer = TextGenerator(models.tiny_model("llama"), "dynamo")
        with pytest.raises(OpsmithError, match="another vocabulary"):
            check_draft(TextGenerator(starter.folder("writer")), writer)


def test_the_next_turn_reads_only_what_is_new(tmp_path):
    home = tmp_path / "llama"
    shutil.copytree(models.tiny_model("llama"), home)
    opsmith.compile(home / "dynamo", home / "fast", regions="whole")
    fresh, kept = TextGenerator(home, "fast"), TextGenerator(home, "fast")
    prompt = list(range(3, 23))
    turns = [[], [5, 6, 7], [9] * 4]
    for i, turn in enumerate(turns):
        prompt += turn
        asked = {"max_new_tokens": 6, "ends": (), "lookup": 4 * (i % 2)}
        (made,) = kept.generate([prompt], reuse=True, **asked)
        assert made.tokens == fresh.generate([prompt], **asked)[0].tokens
        # the text so far is cached, but for its last token, which no pass has read
        assert kept.speed.prompt_tokens == (20 if i == 0 else len(turn) + 1)
        prompt += made.tokens
    (made,) = kept.generate(
        [prompt[:10]], reuse=True, max_new_tokens=6, ends=()
    )  # a prefix: its last token is read again
    assert kept.speed.prompt_tokens == 1
    assert made.tokens == fresh.generate([prompt[:10]], max_new_tokens=6, ends=())[0].tokens
    (made,) = kept.generate([[30, 31]], reuse=True, max_new_tokens=6, ends=())  # nothing in common
    assert kept.speed.prompt_tokens == 2
    assert made.tokens == fresh.generate([[30, 31]], max_new_tokens=6, ends=())[0].tokens
