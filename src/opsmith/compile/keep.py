"""Keep: a region stays compiled only where it was measured not to be slower than the nodes it replaces.

Both sides run on the same real tensors, in turns, in this process. A region that is the whole model is measured against the
unchanged source model; a part of one against its own nodes, cut out of the graph.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith import session, store
from opsmith.compile.convert import Blob, region_node
from opsmith.compile.partition import Region
from opsmith.measure import inputs as random_inputs

SLACK = 1.03  # timing noise that is not held against a region
SECONDS = 1.0  # of measuring per region, at least three runs of each side
LARGE = 1 << 30  # models above this are measured one after the other, so that only one is in memory

Feed = Mapping[str, np.ndarray[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Timing:
    before: float  # seconds, median
    after: float

    @property
    def slower(self) -> bool:
        return self.after > self.before * SLACK


def time_whole(source: Path, compiled: Path) -> Timing:
    feed = feed_for(source)
    if session.size_on_disk(source) > LARGE:
        return Timing(*(statistics.median(_run(session.load(p), feed, 3)) for p in (source, compiled)))
    return _in_turns(session.load(source), session.load(compiled), feed)


def time_parts(
    model: ir.Model, regions: Sequence[Region], blobs: Sequence[Blob], domain: str, data: Path, source: Path
) -> list[Timing]:
    """`model` still holds the nodes of the regions; DATA and the library lie in the folder of the draft."""
    tensors = _capture(model, regions, feed_for(source), data.parent)
    timings = []
    for region, blob in zip(regions, blobs):
        feed = {v.name or "": tensors[v.name or ""] for v in region.inputs}
        before, after = data.parent / "before.onnx", data.parent / "after.onnx"
        try:
            part = ir.convenience.extract(model.graph, region.inputs, region.outputs)
            store.save_model(_model_of(part, model), before)
            ir.save(_model_of(_single(region, blob, domain, data), model, domain), after)
            timings.append(_in_turns(session.load(before), session.load(after), feed))
        finally:
            for file in data.parent.glob("before.onnx*"):
                file.unlink()
            after.unlink(missing_ok=True)
    return timings


def feed_for(source: Path) -> Feed:
    """Stored test data if there is some, else seeded random inputs."""
    model = store.open_model(source)
    names = [v.name or "" for v in model.graph.inputs], [v.name or "" for v in model.graph.outputs]
    stored = store.read_test_data(source, names)
    if stored:
        return stored[0].inputs
    return random_inputs.random_inputs(model, random_inputs.default_dims(random_inputs.specs(model)))


def _capture(model: ir.Model, regions: Sequence[Region], feed: Feed, folder: Path) -> dict[str, Any]:
    """The real tensors that flow into each region."""
    given = {v.name for v in model.graph.inputs}
    wanted = list(dict.fromkeys(v for r in regions for v in r.inputs if v.name not in given))
    tensors = dict(feed)
    if wanted:
        path = folder / "before.onnx"
        part = ir.convenience.extract(model.graph, list(model.graph.inputs), wanted)
        try:
            store.save_model(_model_of(part, model), path)
            found = session.run(session.load(path), feed)
        finally:
            for file in folder.glob("before.onnx*"):
                file.unlink()
        tensors.update({v.name or "": t for v, t in zip(wanted, found)})
    return tensors


def _model_of(graph: ir.Graph, model: ir.Model, domain: str | None = None) -> ir.Model:
    for name, version in model.opset_imports.items():
        graph.opset_imports.setdefault(name, version)
    if domain:
        graph.opset_imports[domain] = 1
    functions = [] if domain else list(model.functions.values())
    return ir.Model(graph, ir_version=model.ir_version, functions=functions)


def _single(region: Region, blob: Blob, domain: str, data: Path) -> ir.Graph:
    """A graph that holds nothing but the compiled region."""
    inputs = [ir.Value(name=v.name, type=v.type, shape=v.shape) for v in region.inputs]
    node, weights = region_node(region, blob, domain, data, inputs)
    for old, new in zip(region.outputs, node.outputs):
        new.name, new.type, new.shape = old.name, old.type, old.shape
    return ir.Graph(inputs, node.outputs, nodes=[node], initializers=[weights] if weights else [], name=region.name)


def _in_turns(before: Any, after: Any, feed: Feed) -> Timing:
    known = {i.name for i in before.get_inputs()}
    fed = {n: a for n, a in feed.items() if n in known}
    _run(before, fed, 1)
    _run(after, fed, 1)
    first: list[float] = []
    second: list[float] = []
    started = time.perf_counter()
    while len(first) < 3 or (time.perf_counter() - started < SECONDS and len(first) < 50):
        first += _run(before, fed, 1)
        second += _run(after, fed, 1)
    return Timing(statistics.median(first), statistics.median(second))


def _run(loaded: Any, feed: Feed, times: int) -> list[float]:
    known = {i.name for i in loaded.get_inputs()}
    fed = {n: a for n, a in feed.items() if n in known}
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        session.run(loaded, fed)
        seconds.append(time.perf_counter() - started)
    return seconds
