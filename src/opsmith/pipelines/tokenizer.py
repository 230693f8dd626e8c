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
