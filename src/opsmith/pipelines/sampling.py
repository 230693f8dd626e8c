"""From logits to the next token: penalties first, then temperature, then the filters, then one draw.

Every sequence draws from its own generator, seeded by (seed, candidate), so that the same seed gives the same text whatever else
is in the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from opsmith.errors import OpsmithError

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Sampling:
    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0  # relative to the most likely token
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, ok, what in (
            ("temperature", self.temperature >= 0, "0 or more"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p < 1, "at least 0 and below 1"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0"),
            ("no_repeat_ngram", self.no_repeat_ngram >= 0, "0 or more"),
        ):
            if not ok:
                raise OpsmithError(f"{name} is {getattr(self, name)}; it must be {what}")

    def generator(self, candidate: int) -> np.random.Generator:
        return np.random.default_rng([self.seed & 0xFFFFFFFFFFFFFFFF, candidate])

    def next_token(self, logits: Array, seen: Sequence[int], rng: np.random.Generator) -> int:
        """One token from the logits (vocabulary,) of one sequence; `seen` are its prompt and its tokens so far."""
        scores = logits.astype(np.float64)
        if self.repetition_penalty != 1.0 and seen:
            known = np.unique(np.asarray(seen))
            scores[known] = np.where(
                scores[known] > 0, scores[known] / self.repetition_penalty, scores[known] * self.repetition_penalty
            )
        if self.no_repeat_ngram:
            scores[self._repeating(seen)] = -np.inf
        if self.temperature == 0:
            return int(scores.argmax())
        probabilities = self._filtered(scores / self.temperature)
        return int(rng.choice(len(probabilities), p=probabilities))

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
