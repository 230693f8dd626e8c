"""Prompt lookup: what came after the last words when they came before is guessed to come again.

A pass through the model over several tokens costs little more than one over one token, since both read all weights. So the guess is run
behind the last token, and as much of it as the model would have written itself is kept: the text is the one it writes anyway, in
fewer passes. It pays where the text repeats its prompt: summaries, quotations, edits of code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LONGEST, SHORTEST = 3, 2  # tokens that must have come before


class Guesses:
    """MOST guesses at a time; fewer while they are wrong."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.width = most

    def guess(self, seen: Sequence[int], room: int) -> list[int]:
        """At most ROOM tokens that may follow SEEN."""
        raise NotImplementedError

    def learn(self, guessed: int, right: int) -> None:
        if guessed:
            self.width = min(self.most, self.width + 2) if right == guessed else max(1, right + 1)


class Lookup(Guesses):
    def guess(self, seen: Sequence[int], room: int) -> list[int]:
        """At most ROOM tokens that followed the latest earlier place where the last tokens of SEEN stood."""
        tokens = np.asarray(seen, np.int64)
        count = min(self.width, room)
        for size in range(LONGEST, SHORTEST - 1, -1):
            if count < 1 or len(tokens) <= size:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], size)  # each followed by a token
            places = np.flatnonzero((windows == tokens[-size:]).all(axis=1))
            if len(places):
                after = int(places[-1]) + size
                return [int(t) for t in tokens[after : after + count]]
        return []
