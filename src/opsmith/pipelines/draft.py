"""A draft model: a small model writes a few tokens ahead, and the large one reads them all in one pass.

As with prompt lookup (lookup.py) as much of the guess is kept as the large model would have written itself: the text stays the same. Both
models must have the same vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opsmith.errors import OpsmithError
from opsmith.pipelines.lookup import Guesses
from opsmith.pipelines.text import Cache, TextGenerator, make_cache


class Draft(Guesses):
    """What WRITER writes next, greedily; for one text."""

    def __init__(self, writer: TextGenerator, most: int) -> None:
        super().__init__(most)
        self.writer = writer
        self._cache: Cache | None = None
        self._read: list[int] = []  # what the cache holds

    def guess(self, seen: Sequence[int], room: int) -> list[int]:
        count = min(self.width, room, self.writer.context - len(seen))
        if count < 1:
            return []
        tokens = list(seen)
        if self._cache is None:
            self._cache = make_cache(self.writer, 1, self.writer.context)
        common = next(
            (i for i, (a, b) in enumerate(zip(self._read, tokens)) if a != b), min(len(self._read), len(tokens))
        )
        common = min(common, len(tokens) - 1)  # the last token gives the logits
        self._cache.drop(len(self._read) - common)
        del self._read[common:]
        made: list[int] = []
        while len(made) < count:
            made.append(self._next(tokens[len(self._read) :] if not made else made[-1:]))
        return made

    def _next(self, new: list[int]) -> int:
        assert self._cache is not None
        places = np.arange(len(self._read), len(self._read) + len(new))[None]
        mask = np.concatenate([self._cache.mask, np.ones((1, len(new)), np.int64)], axis=1)
        logits = self._cache.run(np.array([new], np.int64), mask, places)
        self._read += new
        return int(logits[0].argmax())


def check(draft: TextGenerator, writer: TextGenerator) -> None:
    if draft.tokenizer.get_vocab() != writer.tokenizer.get_vocab():
        raise OpsmithError(
            f"{draft.folder} has another vocabulary than {writer.folder}", "a draft model must have the same"
        )
