"""What a decoder is judged on: a text, and the past that the model itself makes of its beginning, in place of random keys and values.

    wanted     input_ids [1,1], past_key_values.0.key [1,H,128,D] ...
    a run of   input_ids [1,128], past_key_values.0.key [1,H,0,D] ...    gives present.0.key [1,H,128,D] ...

A trained model never sees noise there: its scores are then so large that rounding decides which key is looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from opsmith.check import passage
from opsmith.check.inputs import Array, Dims, Input, usual_sizes
from opsmith.check.values import random_inputs

Pairs: TypeAlias = "dict[str, str]"  # past_key_values.0.key -> present.0.key
IDS, MASK = "input_ids", "attention_mask"


def caches(model: ir.Model) -> Pairs:
    """Each input that is a past, and the output that is the next past."""
    outputs = {v.name: v for v in model.graph.outputs}
    found = {}
    for value in model.graph.inputs:
        name = value.name or ""
        present = outputs.get(name.replace("past_key_values", "present"))
        if name.startswith("past_key_values") and present is not None and present.dtype == value.dtype:
            found[name] = present.name or ""
    return found


@dataclasses.dataclass(frozen=True)
class Lengths:
    """How much a case of a decoder has behind it, and how much is new."""

    past: int
    new: int


def lengths(wanted: Sequence[Input], dims: Dims) -> Lengths | None:
    """As DIMS have them; None where they are not one number each."""
    found: dict[str, set[int]] = {"past": set(), "new tokens": set()}
    for symbol, usual in usual_sizes(wanted).items():
        if usual.kind in found and symbol in dims:
            found[usual.kind].add(dims[symbol])
    past, new = found["past"], found["new tokens"]
    return Lengths(min(past), min(new)) if len(past) == len(new) == 1 else None


def text(feed: Mapping[str, Any], size: Lengths, home: Path) -> Array | None:
    """The tokens of past and new ones of FEED (batch, past + new), behind its padding; None where they cannot be made."""
    ids, mask = np.asarray(feed.get(IDS, 0)), np.asarray(feed.get(MASK, 0))
    total = size.past + size.new
    if ids.ndim != 2 or ids.shape[1] != size.new or not ids.size:
        return None
    made = passage.tokens(home, len(ids), total)
    if made is not None and mask.shape == made.shape:
        for row, padded in zip(made, (mask != 0).argmax(axis=1)):
            row[padded:] = row[: total - padded].copy()
    return made


def before(
    model: ir.Model,
    wanted: Sequence[Input],
    feed: Mapping[str, Any],
    dims: Dims,
    size: Lengths,
    seed: Sequence[int],
    tokens: Array | None = None,
) -> dict[str, Array]:
    """The inputs of the run that makes the past of FEED, which has these DIMS; random ids where there are no TOKENS."""
    kinds = {symbol: usual.kind for symbol, usual in usual_sizes(wanted).items()}
    sizes = {"past": 0, "new tokens": size.past}
    made = random_inputs(model, {s: sizes.get(kinds.get(s, ""), n) for s, n in dims.items()}, seed)
    for name, array in made.items():
        given = np.asarray(feed[name])
        if given.ndim == 2 and given.shape[1] == size.past + size.new and array.shape == (len(given), size.past):
            made[name] = given[:, : size.past]  # a mask of the past and the new tokens
    if tokens is not None and IDS in made:
        made[IDS] = tokens[:, : size.past].astype(made[IDS].dtype)
    return made


def with_past(feed: Mapping[str, Any], pairs: Pairs, presents: Mapping[str, Any]) -> dict[str, Any] | None:
    """FEED with the PRESENTS of an earlier run as its past; None where they do not fit, or are no numbers."""
    past = {name: presents[present] for name, present in pairs.items() if name in feed}
    fits = all(p.shape == np.shape(feed[n]) and np.isfinite(p.astype(np.float32)).all() for n, p in past.items())
    return {**feed, **{n: p.copy() for n, p in past.items()}} if past and fits else None
