"""How far the next token that two models of text expect is apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from opsmith.check.inputs import Array

ROWS = 256  # positions at a time: vocabularies are large


@dataclasses.dataclass(frozen=True)
class NextToken:
    """Over POSITIONS of the cases that were compared."""

    kl: float  # mean divergence from the source's distribution, in nats
    top1: float  # share of positions whose most likely token is the same
    positions: int


def compare_logits(reference: Array, found: Array) -> NextToken | None:
    """Logits (..., vocabulary); None where they cannot be compared."""
    if reference.shape != found.shape or reference.ndim < 2 or not reference.size:
        return None
    a, b = (x.reshape(-1, x.shape[-1]) for x in (reference, found))
    numbers = np.isfinite(a).all(axis=1) & np.isfinite(b).all(axis=1)
    if not numbers.any():
        return None
    return NextToken(*next_token(a[numbers], b[numbers]), int(numbers.sum()))


def together(parts: Iterable[NextToken]) -> NextToken | None:
    """Of all positions; None where there are none."""
    found = list(parts)
    positions = sum(p.positions for p in found)
    if not positions:
        return None
    kl, top1 = (sum(getattr(p, name) * p.positions for p in found) / positions for name in ("kl", "top1"))
    return NextToken(kl, top1, positions)


def next_token(reference: Array, found: Array) -> tuple[float, float]:
    """Mean KL(reference || found) in nats and top-1 agreement of logits (positions, vocabulary)."""
    kl = same = 0.0
    for start in range(0, len(reference), ROWS):
        a, b = log_softmax(reference[start : start + ROWS]), log_softmax(found[start : start + ROWS])
        kl += float((np.exp(a) * (a - b)).sum())
        same += float((a.argmax(-1) == b.argmax(-1)).sum())
    return max(0.0, kl / len(reference)), same / len(reference)


def log_softmax(logits: Array) -> Array:
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x
