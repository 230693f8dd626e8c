"""How much the output of a product changes when some of its inputs are removed, and the weights that make the best of the rest.

x (T, K) are the inputs of the product w (K, N) on calibration data, h = x^T x / T (K, K). Removing the channels u costs

    |x_u w_u|^2 / T                        = trace(w_u^T h_uu w_u)               if the other weights stay
    trace(w_u^T ((h^-1)_uu)^-1 w_u)                                              if they are fitted anew by least squares

The second is the block form of the optimal brain surgeon. Units are removed cheapest first, a few at a time, and h^-1 follows by
a block elimination, so that of two units that can stand in for each other only one goes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from opsmith import progress, session
from opsmith.compress.quality import Feed
from opsmith.compress.structure import Group

Array = np.ndarray[Any, Any]
DAMPING = 1e-3  # of the mean diagonal: calibration data never spans everything
MOST_BYTES = 1 << 30  # of moments in memory at a time; more groups take more passes over the data


@dataclasses.dataclass(frozen=True)
class Removal:
    """Units of one group in the order in which to remove them, and what each step costs."""

    steps: list[Array]  # unit numbers of each step
    # Squared error that each step adds, over the square of the whole output: comparable between layers.
    costs: list[float]


def collect(path: Path, groups: Sequence[Group], feeds: Sequence[Feed], threads: int | None) -> list[Array]:
    """h (K, K) for the sink of every group, over all positions of all feeds."""
    moments: list[Array] = []
    sizes = [8 * len(g.sink_labels) ** 2 for g in groups]
    start = 0
    while start < len(groups):
        stop, room = start, MOST_BYTES
        while stop < len(groups) and (stop == start or sizes[stop] <= room):
            room -= sizes[stop]
            stop += 1
        names = [_sink_input(g) for g in groups[start:stop]]
        running = session.load(path, threads=threads, edit=functools.partial(_also_return, names=names))
        part = [np.zeros((len(g.sink_labels),) * 2) for g in groups[start:stop]]
        rows = 0
        with progress.task("activations", total=len(feeds)) as step:
            for feed in feeds:
                step()
                activations = session.run(running, feed, names)
                rows += activations[0].size // activations[0].shape[-1]
                for h, x in zip(part, activations):
                    flat = x.reshape(-1, x.shape[-1]).astype(np.float32)
                    h += flat.T @ flat
        moments += [h / max(1, rows) for h in part]
        start = stop
    return moments


def _sink_input(group: Group) -> str:
    value = group.sink.node.inputs[0]
    assert value is not None and value.name
    return value.name


def _also_return(proto: onnx.ModelProto, names: Sequence[str]) -> None:
    known = {o.name for o in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in known)


def damped(h: Array) -> Array:
    return h + np.eye(len(h)) * (DAMPING * float(np.trace(h)) / len(h) + 1e-12)


def removal(h: Array, w: Array, labels: Array, units: int, step: int, repair: bool) -> Removal:
    """The order in which to remove all units but STEP. w is (K, N), labels (K)."""
    w = w.astype(np.float64)
    places = [np.flatnonzero(labels == u) for u in range(units)]
    alive = list(range(units))
    inverse = np.linalg.inv(damped(h)) if repair else None
    power = max(float(np.sum(w * (h @ w))), 1e-30)
    steps, costs = [], []
    while len(alive) > step:
        each = _costs(h, inverse, w, [places[u] for u in alive])
        chosen = np.argsort(each, kind="stable")[:step]
        gone = np.array([alive[i] for i in chosen])
        block = np.concatenate([places[u] for u in gone])
        if inverse is None:
            cost = float(np.sum(w[block] * (h[np.ix_(block, block)] @ w[block])))
            w[block] = 0
        else:
            solved = np.linalg.solve(inverse[np.ix_(block, block)], np.hstack([w[block], inverse[block]]))
            n = w.shape[1]
            cost = float(np.sum(w[block] * solved[:, :n]))
            w -= inverse[:, block] @ solved[:, :n]
            inverse -= inverse[:, block] @ solved[:, n:]
            inverse[block, :] = inverse[:, block] = 0
            inverse[block, block] = 1  # never looked at again
            w[block] = 0
        steps.append(gone)
        costs.append(max(cost, 0.0) / power)
        dead = set(gone.tolist())
        alive = [u for u in alive if u not in dead]
    return Removal(steps, costs)


def _costs(h: Array, inverse: Array | None, w: Array, places: Sequence[Array]) -> Array:
    if all(len(p) == 1 for p in places):
        at = np.concatenate(places)
        power = np.einsum("kn,kn->k", w[at], w[at])
        single: Array = power * h[at, at] if inverse is None else power / inverse[at, at]
        return single
    costs = []
    for p in places:
        middle = h[np.ix_(p, p)] @ w[p] if inverse is None else np.linalg.solve(inverse[np.ix_(p, p)], w[p])
        costs.append(float(np.sum(w[p] * middle)))
    return np.array(costs)


def repaired(h: Array, w: Array, kept: Array) -> Array:
    """Weights (len(kept), N) with which the kept channels come closest to the whole product: least squares."""
    whole = damped(h)
    fitted: Array = np.linalg.solve(whole[np.ix_(kept, kept)], whole[kept] @ w.astype(np.float64))
    return fitted


def by_weight_size(group: Group, step: int) -> Removal:
    """The order by the norm of the weights alone, for comparison."""
    from opsmith.compress.layers import stored

    power = np.zeros(group.units)
    for (node, index), (axis, labels) in group.constants.items():
        value = node.inputs[index]
        assert value is not None
        array = stored(value).numpy().astype(np.float64)
        squares = np.square(array).sum(axis=tuple(i for i in range(array.ndim) if i != axis))
        np.add.at(power, labels[labels >= 0], squares[labels >= 0])
    order = np.argsort(power, kind="stable")
    cut = [order[i : i + step] for i in range(0, group.units - step, step)]
    return Removal(cut, [float(power[c].sum() / power.sum()) for c in cut])
