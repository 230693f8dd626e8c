"""The past of a decoder as the model itself makes it, in place of random keys and values.

    wanted     input_ids [1,1], past_key_values.0.key [1,H,128,D] ...
    a run of   input_ids [1,128], past_key_values.0.key [1,H,0,D] ...    gives present.0.key [1,H,128,D] ...

A trained model never sees noise there: its scores are then so large that rounding decides which key is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from opsmith.check.inputs import Array, Dims, Input, usual_sizes
from opsmith.check.values import random_inputs

Pairs: TypeAlias = "dict[str, str]"  # past_key_values.0.key -> present.0.key


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


def before(
    model: ir.Model, wanted: Sequence[Input], feed: Mapping[str, Any], dims: Dims, seed: Sequence[int]
) -> dict[str, Array] | None:
    """The inputs of the run that makes the past of FEED, which has these DIMS; None where it has none, or no run makes it."""
    kinds = {symbol: usual.kind for symbol, usual in usual_sizes(wanted).items()}
    past = {dims[s] for s, kind in kinds.items() if kind == "past" and s in dims}
    new = {dims[s] for s, kind in kinds.items() if kind == "new tokens" and s in dims}
    if len(past) != 1 or len(new) != 1 or past == {0} or not caches(model):
        return None
    (length,), (fresh,) = past, new
    sizes = {"past": 0, "new tokens": length}
    made = random_inputs(model, {s: sizes.get(kinds.get(s, ""), n) for s, n in dims.items()}, seed)
    for name, array in made.items():
        given = np.asarray(feed[name])
        if given.ndim == 2 and given.shape[1] == length + fresh and array.shape == (given.shape[0], length):
            made[name] = given[:, :length]  # a mask of the past and the new tokens
    return made


def with_past(feed: Mapping[str, Any], pairs: Pairs, presents: Mapping[str, Any]) -> dict[str, Any] | None:
    """FEED with the PRESENTS of an earlier run as its past; None where they do not fit, or are no numbers."""
    past = {name: presents[present] for name, present in pairs.items() if name in feed}
    fits = all(p.shape == np.shape(feed[n]) and np.isfinite(p.astype(np.float32)).all() for n, p in past.items())
    return {**feed, **{n: p.copy() for n, p in past.items()}} if past and fits else None
