"""Tokenizers as Hugging Face stores them: tokenizer.json, or GPT-2's vocab.json + merges.txt. No transformers needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opsmith.errors import OpsmithError


def load_tokenizer(folder: Path) -> Any:
    """A tokenizers.Tokenizer."""
    from tokenizers import ByteLevelBPETokenizer, Tokenizer

    try:
        if (folder / "tokenizer.json").is_file():
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            return ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    except Exception as error:
        raise OpsmithError(f"the tokenizer in {folder} cannot be read: {' '.join(str(error).split())[:200]}") from error
    raise OpsmithError(f"{folder} holds no tokenizer", "expected tokenizer.json, or vocab.json and merges.txt")


def longest_token(tokenizer: Any) -> int:
    """Characters of the longest token: a text that is longer than this times the context cannot fit."""
    return max(map(len, tokenizer.get_vocab()), default=1)


def encode(tokenizer: Any, text: str, special: bool = True) -> list[int]:
    """The tokens of TEXT; SPECIAL adds those that the tokenizer puts around a text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OpsmithError(f"the text holds half a character (a lone surrogate) at {error.start}") from error
    return list(tokenizer.encode(text, add_special_tokens=special).ids)
