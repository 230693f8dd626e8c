"""The BPE tokenizers of this world, in CLIP's and in GPT-2's format: python -m training.tokens

CLIP's serves all text encoders, GPT-2's the prompt writer. Words of the world become one token each; any other English text still
encodes, letter by letter where it must (byte-level alphabet), so that no caption is an error.
"""

from __future__ import annotations

import itertools
import json

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from training import world
from training.models import TOKENS
from training.paths import folder

BEGIN, END = "<|startoftext|>", "<|endoftext|>"
VOCABULARY = 1024
WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def corpus():
    for seed in range(20000):
        rng = np.random.default_rng([seed, 5])
        yield world.write_caption(world.sample_scene(rng), rng)
    for words in itertools.product(world.NAMES, range(20)):
        yield words[0] + ":"


def build() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix="</w>", unk_token=END))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=alphabet,
        end_of_word_suffix="</w>",
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return finish(tokenizer)


def finish(tokenizer: Tokenizer) -> Tokenizer:
    """Give every letter its end-of-word twin, as CLIP has, and put the special tokens last."""
    state = json.loads(tokenizer.to_str())
    vocabulary: dict[str, int] = state["model"]["vocab"]
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary.setdefault(letter + "</w>", len(vocabulary))
    for token in (BEGIN, END):
        vocabulary[token] = len(vocabulary)
    state["added_tokens"] = [
        {
            "id": vocabulary[token],
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token in (BEGIN, END)
    ]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}", special_tokens=[(token, vocabulary[token]) for token in (BEGIN, END)]
    )
    return tokenizer


def build_gpt2() -> Tokenizer:
    """Byte-level BPE: a space belongs to the word after it. One special token, the last, begins and ends a text."""
    tokenizer = Tokenizer(models.BPE())
    # With a space put before the text, a keyword is the same token as the word in the caption: easy to copy.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = itertools.chain(corpus(), (f" {name}" for name in world.NAMES for _ in range(20)))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=alphabet, min_frequency=2, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([END])
    return tokenizer


def load(style: str = "clip") -> Tokenizer:
    """The tokenizer of a style, clip or gpt2, built once."""
    path = folder("tokenizer") / style / "tokenizer.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        (build() if style == "clip" else build_gpt2()).save(str(path))
    return Tokenizer.from_file(str(path))


def encode(tokenizer: Tokenizer, captions: list[str], length: int = TOKENS) -> np.ndarray:
    """int64 [captions, length], begun, ended and padded with the end token, as CLIP does."""
    end = tokenizer.token_to_id(END)
    rows = np.full((len(captions), length), end, np.int64)
    for row, encoding in zip(rows, tokenizer.encode_batch(captions), strict=True):
        ids = encoding.ids if len(encoding.ids) <= length else [*encoding.ids[: length - 1], end]
        row[: len(ids)] = ids
    return rows


if __name__ == "__main__":
    for style in ("clip", "gpt2"):
        tokenizer = load(style)
        print(
            style,
            "vocabulary",
            tokenizer.get_vocab_size(),
            "longest",
            max(len(tokenizer.encode(c).ids) for c in corpus()),
        )
        for text in (
            "a big red apple beside a small green frog, on a yellow background",
            "a Purple dragon, 7 unicorns!",
        ):
            print(tokenizer.encode(text).tokens, repr(tokenizer.decode(tokenizer.encode(text).ids)))
