"""A prompt as rows of tokens: weights, and as many chunks as it needs.

plain      as diffusers reads it: one chunk, brackets are text, what is too long is cut
otherwise  phrases with weights, in chunks of 75 tokens, each between its own start and end
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from opsmith.pipelines import prompt_weights
from opsmith.pipelines.clip_tokenizer import ClipTokenizer

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Reading:
    """A prompt's chunks; each is `length` ids long."""

    rows: list[list[int]]
    weights: list[list[float]]


def rows(texts: Sequence[str], tokenizer: ClipTokenizer, length: int, *, plain: bool) -> tuple[int, Array, Array]:
    """How many chunks each text has, their ids [texts * chunks, length] and weights [texts, chunks * length]."""
    readings = [read(text, tokenizer, length, plain=plain) for text in texts]
    chunks = max(len(r.rows) for r in readings)
    readings = [_extended(r, chunks, tokenizer, length) for r in readings]
    ids = np.array([row for r in readings for row in r.rows], np.int64)
    weights = np.array([w for r in readings for w in r.weights], np.float32)
    return chunks, ids, weights.reshape(len(texts), -1)


def read(text: str, tokenizer: ClipTokenizer, length: int, *, plain: bool) -> Reading:
    inside = length - 2  # start and end
    if plain:
        return _framed([[(i, 1.0) for i in tokenizer.words(text)[:inside]]], tokenizer, length)
    chunks: list[list[tuple[int, float]]] = [[]]
    for phrase in prompt_weights.parse(text):
        if phrase.breaks:
            chunks.append([])
            continue
        for i in tokenizer.words(phrase.text):
            if len(chunks[-1]) == inside:
                chunks.append([])
            chunks[-1].append((i, phrase.weight))
    return _framed(chunks, tokenizer, length)


def _framed(chunks: list[list[tuple[int, float]]], tokenizer: ClipTokenizer, length: int) -> Reading:
    rows, weights = [], []
    for chunk in chunks:
        left = length - 2 - len(chunk)
        rows.append([tokenizer.start, *(i for i, _ in chunk), tokenizer.end, *[tokenizer.pad] * left])
        weights.append([1.0, *(w for _, w in chunk), *[1.0] * (left + 1)])
    return Reading(rows, weights)


def _extended(reading: Reading, chunks: int, tokenizer: ClipTokenizer, length: int) -> Reading:
    """With empty chunks at its end, so that prompt and negative prompt have the same number."""
    empty = _framed([[]] * (chunks - len(reading.rows)), tokenizer, length)
    return Reading(reading.rows + empty.rows, reading.weights + empty.weights)


def weighted(states: Array, weights: Array) -> Array:
    """STATES [N,S,X] with each token times its weight [N,S]; the mean of each prompt stays what it was."""
    if (weights == 1).all():
        return states
    changed = states * weights[..., None]
    means = [x.mean(axis=(1, 2), keepdims=True) for x in (states, changed)]
    return np.asarray(changed * (means[0] / means[1]), states.dtype)
