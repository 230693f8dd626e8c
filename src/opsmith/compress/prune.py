"""prune: fewer attention heads, fewer neurons, smaller matrices; or zeros.

heads       whole attention heads leave the graph: their part of q, k, v and the output projection, and of the KV cache
neurons     whole neurons of the MLPs leave it: their column in the products before and their row in the one after
structured  both, whichever costs least per weight
magnitude   the smallest weights become zeros; nothing gets smaller or faster, which is said

What goes is chosen by what it does to the outputs of the next product on calibration data (importance.py); the weights that stay
are fitted to the old outputs by least squares. The result is portable ONNX, run beside its source before it is kept.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith import progress, session, store
from opsmith.check.inputs import Fixed
from opsmith.compress import importance, quality
from opsmith.compress.layers import Layer, expose_weights, find_layers, stored, tidy
from opsmith.compress.own_outputs import write_test_data
from opsmith.compress.prune_heads import find_heads
from opsmith.compress.prune_magnitude import weights, zero_smallest
from opsmith.compress.prune_neurons import find_neurons
from opsmith.compress.quality import Feed, Quality
from opsmith.compress.quantize import halve
from opsmith.compress.structure import Group, Refused, remove_units, replace_weight
from opsmith.errors import OpsmithError, no_such
from opsmith.plain import Shown

Array = np.ndarray[Any, Any]

METHODS = ("heads", "neurons", "structured", "magnitude")
IMPORTANCE = ("activations", "weights")
MOST = 0.9  # of a group's units may go
NEURONS_AT_ONCE = 8  # a vector of the kernels: other sizes would only be padded again
NO_FASTER = (
    "zeros are stored and multiplied like other weights: the file keeps its size and dense kernels get no faster"
)


@dataclasses.dataclass(frozen=True)
class Pruned:
    """One row of the table: a group, and what is left of it."""

    name: str
    kind: str
    units: int
    kept: int


@dataclasses.dataclass(frozen=True, repr=False)
class PruneResult(Shown):
    variant: store.Variant
    method: str
    groups: tuple[Pruned, ...]
    refused: tuple[str, ...]  # attentions and products that cannot be cut, with the reason
    weights: tuple[int, int]  # numbers in the model before and after (magnitude: nonzero ones)
    before: int  # bytes on disk
    after: int
    quality: Quality
    judged_apart: bool  # on calibration cases that the choice and the fit have not seen
    note: str = ""

    @property
    def remarks(self) -> list[str]:
        """What speaks against using the result."""
        return self.quality.remark(
            "take less with --ratio or --shrink, and give --calibration data like those that it will meet"
        )


def prune(
    src: store.ModelLike,
    dest: str | os.PathLike[str],
    *,
    method: str = "structured",
    ratio: float | None = None,
    shrink: float | None = None,
    importance_by: str = "activations",
    repair: bool = True,
    uniform: bool = False,
    calibration: object = None,
    shapes: Fixed | None = None,
    samples: int = 64,
    threads: int | None = None,
    overwrite: bool = False,
) -> PruneResult:
    """Write SRC without its least important parts to DEST, a variant folder or .onnx file.

    `ratio` is the share of the weights of all heads or neurons that goes (magnitude: of the weights that are multiplied with), `shrink` the share
    of all weights of the model; one of them is needed. `uniform` takes the same share from every layer. `calibration` is a
    text file, .npz files or a folder, as for quantize; a quarter of its cases is kept for judging the result. `shapes` are
    those of generated cases.
    """
    _check_options(method, ratio, shrink, importance_by, samples)
    options = {
        "method": method,
        "ratio": ratio,
        "shrink": shrink,
        "importance": importance_by,
        "repair": repair,
        "uniform": uniform,
        "samples": samples,
    }
    with (
        store.on_disk(src) as source,
        store.new_variant(dest, verb="prune", parent=src, options=options, overwrite=overwrite) as draft,
    ):
        if store.libraries(source):
            raise OpsmithError(f"{source} is compiled; its weights are packed", "prune the variant it was made from")
        model = store.open_model(source)
        expose_weights(model)
        feeds = quality.calibration_feeds(source, model, calibration, samples, shapes=shapes)
        apart = len(feeds) >= 4
        fit, judge = (feeds[: -(len(feeds) // 4)], feeds[-(len(feeds) // 4) :]) if apart else (feeds, feeds)
        names = quality.judged_outputs(model)
        reference = quality.answers(source, judge, names, threads)
        before_weights = _count(model)
        halved = any(map(_is_half, model.graph.initializers.values()))
        groups: list[Group] = []
        kept: list[Array] = []
        refused: list[str] = []
        note = ""
        if method == "magnitude":
            share = ratio if ratio is not None else _magnitude_share(model, shrink or 0.0)
            zeroed, _ = zero_smallest(model, share)
            if not zeroed:
                raise OpsmithError(f"{source} has no weights of products, convolutions or recurrent layers to zero")
            after_weights = before_weights - zeroed
            note = NO_FASTER
            store.save_model(model, draft.path)
        else:
            model, groups, refused = _structure(source, method)
            budget = _budget(groups, ratio, shrink, before_weights)
            with tempfile.TemporaryDirectory(prefix="opsmith-prune-", dir=draft.folder.parent) as spool:
                kept = _cut(model, groups, fit, budget, importance_by, repair, uniform, Path(spool), threads)
                if halved:
                    halve(model)
                after_weights = _count(model)
                store.save_model(model, draft.path)
        judged = [_cut_feed(feed, groups, kept) for feed in judge]
        try:
            answers = quality.answers(draft.path, judged, names, threads)
        except OpsmithError as error:
            raise OpsmithError(f"the pruned model does not run, nothing was written: {error.message}") from error
        reached = quality.compare(reference, answers, logits=names == ["logits"])
        write_test_data(source, draft, threads, lambda feed: _cut_feed(feed, groups, kept))
        before, after = session.size_on_disk(source), session.size_on_disk(draft.path)
        rows = tuple(Pruned(g.name, g.kind, g.units, len(k)) for g, k in zip(groups, kept))
        draft.record["pruned"] = {
            "groups": [dataclasses.asdict(r) for r in rows],
            "refused": refused,
            "weights": [before_weights, after_weights],
            "size": [before, after],
            "quality": reached.facts(),
            "cases": [len(fit), len(judge)],
            **({"note": note} if note else {}),
        }
    variant = store.Variant(store.find_model(dest))
    return PruneResult(
        variant, method, rows, tuple(refused), (before_weights, after_weights), before, after, reached, apart, note
    )


def _check_options(method: str, ratio: float | None, shrink: float | None, importance_by: str, samples: int) -> None:
    for what, value, choices in (("method", method, METHODS), ("measure of importance", importance_by, IMPORTANCE)):
        if value not in choices:
            raise no_such(what, value, choices)
    if (ratio is None) == (shrink is None):
        raise OpsmithError("how much to remove is not clear", "give a ratio or a shrink, say --ratio 0.2")
    for name, share in (("ratio", ratio), ("shrink", shrink)):
        if share is not None and not 0 < share < 1:
            raise OpsmithError(f"a {name} of {share} makes no sense", "give a number between 0 and 1, say 0.2")
    if samples < 1:
        raise OpsmithError("at least one calibration sample is needed")


def _is_half(value: ir.Value) -> bool:
    """Stored in half precision, computed in float."""
    return value.dtype == ir.DataType.FLOAT16 and any(user.op_type == "Cast" for user, _ in value.uses())


def _count(model: ir.Model) -> int:
    return sum(v.const_value.size for v in model.graph.initializers.values() if v.const_value is not None)


def _magnitude_share(model: ir.Model, shrink: float) -> float:
    share = shrink * _count(model) / max(1, sum(stored(value).size for value in weights(model)))
    if not 0 < share < 1:
        raise OpsmithError(
            f"the matrices and kernels of the model are too small a part of it to zero {shrink:.0%} of all weights"
        )
    return share


# --- structured ------------------------------------------------------------------------------------------


def _structure(source: Path, method: str) -> tuple[ir.Model, list[Group], list[str]]:
    """The model with attention found, and the groups to prune in it."""
    from opsmith.rewriter import PRUNER_RULES, rewrite_model

    model = store.open_model(source)
    expose_weights(model)
    rewrite_model(model, level=2, only=PRUNER_RULES)
    layers: dict[ir.Node, Layer] = {layer.node: layer for layer in find_layers(model)}
    groups: list[Group] = []
    refused: list[str] = []
    if method in ("heads", "structured"):
        found, reasons = find_heads(model, layers)
        groups, refused = groups + found, refused + reasons
    if method in ("neurons", "structured"):
        found, reasons = find_neurons(model, layers)
        groups += found
        if method == "neurons" and not found:  # every other product is refused too, which is no news if some are found
            refused += reasons
    if not groups:
        what = {"heads": "attention heads", "neurons": "MLP neurons"}.get(method, "attention heads or MLP neurons")
        why = f": {refused[0]}" if refused else ""
        raise OpsmithError(
            f"{source} has no {what} that could be removed{why}", "--method magnitude works on any model with weights"
        )
    return model, groups, refused


def _budget(groups: Sequence[Group], ratio: float | None, shrink: float | None, weights: int) -> float:
    """How many weights are to go, as a share of those that heads and neurons hold."""
    whole = sum(int(g.weights_per_unit().sum()) for g in groups)
    share = ratio if ratio is not None else (shrink or 0.0) * weights / whole
    if share > MOST:
        raise OpsmithError(
            f"heads and neurons hold {whole} of {weights} weights, too few for that",
            f"ask for at most {MOST * whole / weights:.0%} of the model",
        )
    return share


def _cut(
    model: ir.Model,
    groups: list[Group],
    feeds: Sequence[Feed],
    share: float,
    importance_by: str,
    repair: bool,
    uniform: bool,
    spool: Path,
    threads: int | None,
) -> list[Array]:
    """Remove SHARE of the weights of all units; the kept units of each group."""
    steps = [1 if g.kind == "heads" or g.units < 8 * NEURONS_AT_ONCE else NEURONS_AT_ONCE for g in groups]
    sinks = [g.sink.matrix() for g in groups]
    moments: list[Array] = []
    dense = spool / "dense.onnx"
    if importance_by == "activations" or repair:
        store.save_model(model, dense)
        moments = importance.collect(dense, groups, feeds, threads)
    with progress.task("choosing", total=len(groups)) as step:
        orders = []
        for i, group in enumerate(groups):
            step(group.name)
            orders.append(
                importance.by_weight_size(group, steps[i])
                if importance_by == "weights"
                else importance.removal(moments[i], sinks[i], group.sink_labels, group.units, steps[i], repair)
            )
    whole = sum(int(g.weights_per_unit().sum()) for g in groups)
    removed = _allocate(groups, orders, share * whole, share if uniform else None)
    kept = [np.setdiff1d(np.arange(g.units), gone) for g, gone in zip(groups, removed)]
    for i, group in enumerate(groups):
        if len(kept[i]) == group.units:
            continue
        try:
            remove_units(model, group, kept[i])
        except Refused as reason:
            raise OpsmithError(f"{group.name} cannot be cut: {reason}") from reason
        if repair:
            channels = np.flatnonzero(np.isin(group.sink_labels, kept[i]))
            replace_weight(model, group, importance.repaired(moments[i], sinks[i], channels))
    _tie_again(model)
    tidy(model)
    return kept


def _tie_again(model: ir.Model) -> None:
    """A table that is looked up and multiplied is stored once. The rewriter makes a transposed copy for the product; undo that."""
    for name, value in list(model.graph.initializers.items()):
        table = model.graph.initializers.get(name.removesuffix("_transposed"))
        if not isinstance(value.const_value, ir.LazyTensor) or table is None or table is value or not table.uses():
            continue
        node = ir.node("Transpose", [table], attributes={"perm": [1, 0]}, name=f"{name}_node")
        node.outputs[0].shape, node.outputs[0].type = value.shape, value.type
        users = list(value.uses())
        for user, index in users:
            user.replace_input_with(index, node.outputs[0])
        model.graph.insert_before(model.graph[0], node)


def _allocate(
    groups: Sequence[Group], orders: Sequence[importance.Removal], budget: float, share: float | None
) -> list[Array]:
    """Which units go: step by step where a weight costs least, or the same share everywhere."""
    sizes = [g.weights_per_unit() for g in groups]
    taken = [0] * len(groups)

    def units(i: int) -> int:
        return sum(len(s) for s in orders[i].steps[: taken[i]])

    def may(i: int) -> bool:
        if taken[i] >= len(orders[i].steps):
            return False
        limit = MOST if share is None else share + 0.5 * len(orders[i].steps[0]) / groups[i].units
        return units(i) + len(orders[i].steps[taken[i]]) <= limit * groups[i].units + 1e-9

    def price(i: int) -> float:
        gone = orders[i].steps[taken[i]]
        return orders[i].costs[taken[i]] / float(sizes[i][gone].sum())

    spent = 0.0
    while True:
        open_groups = [i for i in range(len(groups)) if may(i)]
        if not open_groups or (share is None and spent >= budget):
            break
        best = min(open_groups, key=price) if share is None else open_groups[0]
        spent += float(sizes[best][orders[best].steps[taken[best]]].sum())
        taken[best] += 1
    return [np.concatenate(o.steps[:t]) if t else np.zeros(0, np.int64) for o, t in zip(orders, taken)]


def _cut_feed(feed: Feed, groups: Sequence[Group], kept: Sequence[Array]) -> Feed:
    """Inputs for the pruned model: the cache of a removed head goes too."""
    cut = dict(feed)
    for group, units in zip(groups, kept):
        for value, (axis, labels) in group.values.items():
            if value.is_graph_input() and value.name in cut:
                keep = np.flatnonzero((labels < 0) | np.isin(labels, units))
                cut[value.name] = np.take(cut[value.name], keep, axis=axis)
    return cut
