"""From logits to the next token: penalties first, then temperature, then the filters, then one draw.

Every sequence draws from its own generator, seeded by (seed, candidate), so that the same seed gives the same text whatever else
is in the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opsmith.errors import OpsmithError

Array = np.ndarray[Any, Any]
COLDEST = 1e-5  # below it the likeliest token always wins, and dividing by it overflows


@dataclasses.dataclass(frozen=True)
class Sampling:
    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0  # relative to the most likely token
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    seed: int = 0
    presence_penalty: float = 0.0  # taken off the score of a token that was written, once
    frequency_penalty: float = 0.0  # and as often as it was
    bias: Mapping[int, float] = dataclasses.field(default_factory=dict)  # added to scores of tokens

    def __post_init__(self) -> None:
        for name, ok, what in (
            ("temperature", self.temperature >= 0, "0 or more"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p < 1, "at least 0 and below 1"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0"),
            ("no_repeat_ngram", self.no_repeat_ngram >= 0, "0 or more"),
            ("presence_penalty", abs(self.presence_penalty) <= 2, "-2 to 2"),
            ("frequency_penalty", abs(self.frequency_penalty) <= 2, "-2 to 2"),
            ("bias", all(abs(b) <= 100 for b in self.bias.values()), "-100 to 100 for each token"),
        ):
            if not ok:
                raise OpsmithError(f"{name} is {getattr(self, name)}; it must be {what}")

    def generator(self, candidate: int) -> np.random.Generator:
        return np.random.default_rng([self.seed & 0xFFFFFFFFFFFFFFFF, candidate])

    def next_token(self, logits: Array, seen: Sequence[int], rng: np.random.Generator, prompt: int = 0) -> int:
        """One token from the logits (vocabulary,) of one sequence; `seen` are PROMPT tokens of its prompt and those written so far."""
        scores = logits.astype(np.float64)
        for token, more in self.bias.items():
            if not 0 <= token < len(scores):
                raise OpsmithError(f"there is no token {token}", f"0 to {len(scores) - 1}")
            scores[token] += more
        if self.presence_penalty or self.frequency_penalty:
            written, times = np.unique(np.asarray(seen[prompt:], np.int64), return_counts=True)
            scores[written] -= self.presence_penalty + self.frequency_penalty * times
        if self.repetition_penalty != 1.0 and seen:
            repeated = np.unique(np.asarray(seen))
            scores[repeated] = np.where(
                scores[repeated] > 0,
                scores[repeated] / self.repetition_penalty,
                scores[repeated] * self.repetition_penalty,
            )
        if self.no_repeat_ngram:
            scores[self._repeating(seen)] = -np.inf
        if self.temperature < COLDEST:
            return int(scores.argmax())
        probabilities = self._filtered(scores / self.temperature)
        # A race: token i arrives after an exponential time of rate p_i, and the first is the draw. Where logits differ in their last
        # bits, as they do in another batch, it is the same token but for near ties; a point on the sum of all would pass a boundary.
        return int((probabilities / rng.standard_exponential(len(probabilities))).argmax())

    def _repeating(self, seen: Sequence[int]) -> list[int]:
        """Tokens that would complete an n-gram which has occurred before."""
        n = self.no_repeat_ngram
        if len(seen) < n:
            return []
        tail = tuple(seen[len(seen) - n + 1 :]) if n > 1 else ()
        return [seen[i + n - 1] for i in range(len(seen) - n + 1) if tuple(seen[i : i + n - 1]) == tail]

    def _filtered(self, scores: Array) -> Array:
        if self.top_k and self.top_k < len(scores):
            scores = np.where(scores < np.partition(scores, -self.top_k)[-self.top_k], -np.inf, scores)
        probabilities = np.exp(scores - scores.max())
        probabilities /= probabilities.sum()
        if self.min_p > 0:
            probabilities[probabilities < self.min_p * probabilities.max()] = 0
        if self.top_p < 1:
            order = np.argsort(-probabilities, kind="stable")
            before = np.cumsum(probabilities[order]) - probabilities[order]
            probabilities[order[before >= self.top_p]] = 0
        return np.asarray(probabilities / probabilities.sum())
