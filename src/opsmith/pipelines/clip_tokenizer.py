"""CLIP's tokenizer for text encoders: tokenizer.json, or vocab.json + merges.txt, without transformers.

tokens = ClipTokenizer(folder)
tokens.padded("a red apple", 77)   -> 77 ids: start, words, end, padding
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from opsmith.errors import OpsmithError
from opsmith.pipelines.tokenizer import encode, load_tokenizer

SMALL_WORLD = 5000  # entries; CLIP's own has 49408
START, END = "<|startoftext|>", "<|endoftext|>"

# Contractions, runs of letters, single digits, runs of anything else that is no space.
_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


class ClipTokenizer:
    def __init__(self, folder: Path) -> None:
        self.inner = load_tokenizer(folder) if (folder / "tokenizer.json").is_file() else _from_vocabulary(folder)
        special = _special_tokens(folder)
        self.start = self._id(folder, special.get("bos_token", START))
        self.end = self._id(folder, special.get("eos_token", END))
        self.pad = self._id(folder, special.get("pad_token", special.get("eos_token", END)))
        longest = special.get("model_max_length")
        # Hugging Face writes 1e30 where there is no limit.
        self.longest = int(longest) if isinstance(longest, (int, float)) and longest < 1e6 else None
        self.added: dict[str, list[int]] = {}  # words that are no text, found anywhere, in any case -> their ids

    def _id(self, folder: Path, token: str) -> int:
        found = self.inner.token_to_id(token)
        if found is None:
            raise OpsmithError(f"the tokenizer in {folder} has no token {token}")
        return int(found)

    def words(self, text: str) -> list[int]:
        """The ids of the text alone."""
        ids: list[int] = []
        for piece in self._pieces(text):
            added = self._lower.get(piece.lower())
            ids += encode(self.inner, piece, special=False) if added is None else added
        return ids

    @property
    def _lower(self) -> dict[str, list[int]]:
        return {word.lower(): ids for word, ids in self.added.items()}

    def _pieces(self, text: str) -> list[str]:
        """TEXT cut around added words; where several begin, the longest counts."""
        if not self.added:
            return [text]
        longest_first = sorted(self.added, key=len, reverse=True)
        return [p for p in re.split(f"({'|'.join(map(re.escape, longest_first))})", text, flags=re.IGNORECASE) if p]

    def unknown(self, text: str) -> list[str]:
        """Words that the text encoder has never met, where that can be told.

        A tokenizer of few entries was made from the words of a small world, each of which it holds whole: what it has to
        spell in pieces is new to it. One of many entries spells rare words in pieces that its model has met.
        """
        if self.inner.get_vocab_size() > SMALL_WORLD:
            return []
        plain = " ".join(piece for piece in self._pieces(text.lower()) if piece not in self._lower)
        found = dict.fromkeys(re.findall(r"[^\W\d_]+", plain))
        return [word for word in found if len(self.words(word)) > 1]

    def enclosed(self, text: str, longest: int) -> tuple[list[int], bool]:
        """start, text, end; and whether the text had to be cut to fit into LONGEST ids."""
        ids = self.words(text)
        return [self.start, *ids[: longest - 2], self.end], len(ids) > longest - 2

    def padded(self, text: str, length: int) -> tuple[list[int], bool]:
        ids, cut = self.enclosed(text, length)
        return ids + [self.pad] * (length - len(ids)), cut


def _from_vocabulary(folder: Path) -> Any:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if not vocabulary.is_file() or not merges.is_file():
        raise OpsmithError(f"{folder} holds no tokenizer", "expected tokenizer.json, or vocab.json and merges.txt")
    try:
        model = models.BPE.from_file(str(vocabulary), str(merges), unk_token=END, end_of_word_suffix="</w>")
    except Exception as error:
        raise OpsmithError(f"the tokenizer in {folder} cannot be read: {' '.join(str(error).split())[:200]}") from error
    made = Tokenizer(model)
    made.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return made


def _special_tokens(folder: Path) -> dict[str, Any]:
    """bos_token, eos_token, pad_token and model_max_length, as tokenizer_config.json and its older sibling hold them."""
    tokens: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = folder / name
        try:
            content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except ValueError as error:
            raise OpsmithError(f"{file} is not valid JSON: {error}") from error
        for key in ("bos_token", "eos_token", "pad_token", "model_max_length"):
            value = content.get(key)
            if isinstance(value, dict):  # an added token with its flags
                value = value.get("content")
            if value is not None:
                tokens[key] = value
    return tokens
