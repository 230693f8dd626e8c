"""A text for decoders to be judged on, in the tokens of the tokenizer beside the model.

Random tokens are no text: at few of them, and at the beginning of a few texts that begin in no way that a model knows, a trained model is so
undecided what to look at that the last bits decide.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from opsmith.check.inputs import Array

SENTENCES = (
    "The harbour was quiet when the first boat came in, and only the gulls took notice of it.",
    "Nobody had told the old keeper that the light would be switched off at the end of the month.",
    "He climbed the stairs as he had every evening, with a lamp in one hand and a newspaper in the other.",
    "On the top step he stopped, because the door to the gallery stood open.",
    "Below him, the water moved in long grey lines towards the town.",
    "A child had drawn a ship on the wall with a piece of chalk, and written a name under it.",
    "He knew that name; it was his own, and the ship was the one that he had sailed on fifty years before.",
    "Somebody must have found the letters that he kept in the tin box under the bed.",
    "When the telephone rang, he let it ring, and counted the seconds between two waves.",
    "In the morning they asked him what he had seen, and he told them about the weather.",
)


def tokens(home: Path, rows: int, length: int) -> Array | None:
    """LENGTH tokens for each row, from another sentence on, begun as texts are; None where HOME has no tokenizer to tell."""
    tokenizer, config = _tokenizer(home), _config(home)
    vocabulary, first = config.get("vocab_size"), config.get("bos_token_id")
    if tokenizer is None or not isinstance(vocabulary, int):
        return None
    made = []
    for row in range(rows):
        sentences = itertools.cycle(SENTENCES)
        text = " ".join(itertools.islice(sentences, row, row + len(SENTENCES) * (1 + length // len(SENTENCES))))
        ids = list(tokenizer.encode(text).ids)
        made.append(ids if first is None or ids[:1] == [first] else [int(first), *ids])
    if any(len(ids) < length or max(ids[:length], default=0) >= vocabulary for ids in made):
        return None
    return np.array([ids[:length] for ids in made], np.int64).reshape(rows, length)


def _tokenizer(home: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(home / "tokenizer.json"))
    except Exception:  # none, or one that cannot be read: random tokens do, too
        return None


def _config(home: Path) -> dict[str, Any]:
    try:
        found = json.loads((home / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
