"""Where do two models part? Values inside both are fetched and compared, until the first that differs is found.

Values are matched by their names; graphs of two exporters, which share none, by what they hold (match_values.py).
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from opsmith import session
from opsmith.check import match_values
from opsmith.check.differences import OutputCheck, Tolerance, compare_any
from opsmith.check.inputs import Array
from opsmith.check.spool import keep

PROBES = 64  # values fetched in one run: few enough to hold, many enough to need few runs


@dataclasses.dataclass(frozen=True)
class Parting:
    """The first value, in A's order, that both models name and that differs."""

    value: str
    node_a: str
    node_b: str
    check: OutputCheck
    compared: int  # values that both models name, or that hold the same in both where no name is shared


def bisect_models(
    path_a: Path,
    path_b: Path,
    model_a: ir.Model,
    model_b: ir.Model,
    feed: Mapping[str, Array],
    tolerance: Tolerance,
    threads: int | None,
) -> tuple[Parting | None, str | None]:
    """Fetch the values that both graphs name, spread over the graph, and close in on the first that differs."""
    made_a, made_b = _producers(model_a), _producers(model_b)
    shared = [name for name in made_a if name in made_b]
    outputs = {value.name for value in model_a.graph.outputs}
    if not set(shared) - outputs:
        return _part_by_values(path_a, path_b, model_a, model_b, feed, tolerance, threads)
    low, high = 0, len(shared)  # the first differing value lies in shared[low:high]
    differing: OutputCheck | None = None
    while True:
        step = max(1, -(-(high - low) // PROBES))
        probes = shared[low:high][step - 1 :: step]
        if shared[high - 1] not in probes:
            probes.append(shared[high - 1])
        with tempfile.TemporaryDirectory(prefix="opsmith-verify-") as kept:
            expected = _fetch(path_a, feed, probes, threads, Path(kept))
            actual = _fetch(path_b, feed, probes, threads, None)
            checks = {p: next(iter(compare_any(p, expected[p], actual[p], tolerance))) for p in probes}
        first = next((p for p in probes if not checks[p].ok), None)
        if first is None:
            return None, "every value that both models name agrees without ORT's optimizations; the outputs do not"
        differing = checks[first]
        position = shared.index(first)
        good = [shared.index(p) for p in probes if shared.index(p) < position]
        low, high = (max(good) + 1 if good else low), position + 1
        if high - low <= 1 or step == 1:
            break
    return Parting(differing.name, made_a[differing.name], made_b[differing.name], differing, len(shared)), None


def _part_by_values(
    path_a: Path,
    path_b: Path,
    model_a: ir.Model,
    model_b: ir.Model,
    feed: Mapping[str, Array],
    tolerance: Tolerance,
    threads: int | None,
) -> tuple[Parting | None, str | None]:
    """Graphs of two exporters share no names: what holds the same numbers is the same value."""
    made_a, made_b = _producers(model_a), _producers(model_b)

    def check(name: str, expected: Any, actual: Any) -> OutputCheck:
        return next(iter(compare_any(name, expected, actual, tolerance)))

    with tempfile.TemporaryDirectory(prefix="opsmith-verify-") as kept:
        values_a = _fetch_all(path_a, feed, list(made_a), threads, Path(kept) / "a")
        values_b = _fetch_all(path_b, feed, list(made_b), threads, Path(kept) / "b")
        matched = match_values.match(model_a, model_b, values_a, values_b, lambda name, x, y: check(name, x, y).ok)
        if matched.parting is not None:
            a, b = matched.parting
            differing = check(a, values_a[a], values_b[b])
            return Parting(
                a, made_a[a], made_b[b], differing, len(matched.equals)
            ), "matched by values: no names are shared"
    if matched.last is None:
        return None, "the two models share no names of intermediate values, and none holds the same numbers in both"
    a, b = matched.last
    return None, (
        f"no names are shared; {len(matched.equals)} values are the same in both, the last of them {a} ({made_a[a]}) as {b} "
        f"({made_b[b]}); behind it the graphs differ in structure"
    )


def _fetch_all(
    path: Path, feed: Mapping[str, Array], names: Sequence[str], threads: int | None, kept: Path
) -> dict[str, Any]:
    """All values, a few at a time, kept in files."""
    values: dict[str, Any] = {}
    for begin in range(0, len(names), PROBES):
        folder = kept / str(begin)
        folder.mkdir(parents=True)
        values |= _fetch(path, feed, names[begin : begin + PROBES], threads, folder)
    return values


def _producers(model: ir.Model) -> dict[str, str]:
    """value name -> "Op node_name", in the graph's order."""
    return {
        value.name: f"{node.domain}.{node.op_type} {node.name or ''}".strip(". ")
        for node in model.graph
        for value in node.outputs
        if value.name
    }


def _fetch(
    path: Path, feed: Mapping[str, Array], names: Sequence[str], threads: int | None, kept: Path | None
) -> dict[str, Any]:
    def add_outputs(proto: onnx.ModelProto) -> None:
        present = {value.name for value in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)

    running = session.load(path, threads=threads, optimize=False, edit=add_outputs)
    values = session.run(running, feed, names)
    del running
    return {n: keep(kept, 0, i, v) if kept is not None else v for i, (n, v) in enumerate(zip(names, values))}
