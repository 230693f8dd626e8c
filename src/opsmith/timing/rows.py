"""Where the time of a run went: the nodes of ONNX Runtime's profile, and in place of a compiled region its kernels.

Times are those of the graph after ONNX Runtime's own optimization; each row names the nodes of the model that it stands for
(see check/origins.py), so that two profiles of one model can be laid side by side.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from opsmith import store
from opsmith.check.flops import VIEWS
from opsmith.check.op_costs import node_flops
from opsmith.check.origins import Graph, graph_of, origins
from opsmith.errors import OpsmithError
from opsmith.timing import trace
from opsmith.timing.worker import Worker

WARM_UP = 3
LONG = 0.5  # seconds; runs that take longer vary less and need no more than the first one to warm up
SLOW_RUN = 1.25  # runs that took this many times the median were disturbed
MOST_EVENTS = 200_000  # of a trace: a kilobyte each while ONNX Runtime holds them; it keeps one million at most
LEAST_US = 1.0  # that a node takes, with what the runtime does around it
READING = 100e-6  # seconds that an event costs to write, to read and to count; half of it on an idle machine


@dataclasses.dataclass(frozen=True)
class Row:
    """One node of the optimized graph, or one kernel call of a compiled region. Times are per run."""

    name: str
    op: str  # op type, or the kernel's name
    kind: str  # "node", "kernel"
    count: int  # how often it runs in one run of the model
    us: float
    flops: int | None
    bytes: int | None
    origin: tuple[str, ...]  # the nodes of the model (of its parent, if compiled) that it stands for
    region: str | None = None

    @property
    def gflops(self) -> float | None:
        return None if not self.flops or not self.us else self.flops / self.us / 1e3


@dataclasses.dataclass(frozen=True)
class Times:
    """What a plain and a profiled process gave, in turns."""

    rows: list[Row]
    latency_us: float  # median of a run without the profiler
    runs: int
    kept: list[tuple[int, int]]  # (start, duration) in the trace of the runs that count
    trace: Path
    notes: list[str]


def time_rows(
    order: Mapping[str, Any],
    label: str,
    work: Path,
    reference: Graph,
    shapes: Mapping[str, tuple[int, ...]],
    iterations: int | None = None,
    device: str = "cpu",
    seconds: float = 2.0,
) -> Times:
    """Run a model (ORDER is what a worker needs to load it) for about SECONDS; WORK is an empty folder, SHAPES those fed."""
    made = _run(order, label, work, iterations, device, seconds)
    every = trace.read_runs(made.trace)[-made.count :]
    if len(every) < made.count:
        raise OpsmithError(f"{label}: ONNX Runtime's profile holds {len(every)} of {made.count} runs")
    limit = SLOW_RUN * statistics.median(run.kernels for run in every)
    chosen = [i for i, run in enumerate(every) if run.kernels <= limit]
    kept = [every[i] for i in chosen]
    notes: list[str] = []
    rows = _rows(kept, store.read_proto(work / "optimized.onnx"), reference, shapes)
    if made.kernels:
        covered = store.read_origins(order["model"])
        rows = _open_regions(rows, trace.read_kernels(made.kernels), made.count, chosen, covered, notes)
    spans = [(run.start, run.duration) for run in kept]
    return Times(rows, statistics.median(made.seconds) * 1e6, made.count, spans, made.trace, notes)


@dataclasses.dataclass(frozen=True)
class _Runs:
    """What the two workers gave: times without, and traces with, the profiler."""

    count: int
    seconds: list[float]
    trace: Path
    kernels: str  # what the kernels of a compiled model counted, in lines of JSON


def _run(order: Mapping[str, Any], label: str, work: Path, iterations: int | None, device: str, budget: float) -> _Runs:
    """Plain and traced runs take turns, so that both see the same machine."""
    counters, optimized = work / "kernels.jsonl", work / "optimized.onnx"
    environment = {"OPSMITH_PROFILE": "1", "OPSMITH_PROFILE_FILE": str(counters)}
    tracing = {"profile": str(work / "trace"), "optimized": str(optimized), "device": device}
    threads = order["threads"]
    with Worker(label, threads) as plain, Worker(label, threads, environment) as traced:
        for worker, extra in ((plain, {"device": device}), (traced, tracing)):
            worker.ask("load", settings=extra, **order)
            worker.ask("first")
        once = plain.ask("turn", runs=1, warm=0)["seconds"][0]
        if once < LONG:
            once = statistics.median(plain.ask("turn", runs=3, warm=WARM_UP)["seconds"])
        events = _events(store.read_proto(optimized).graph, once)
        count = max(1, min(iterations or _affordable(once, events, budget), MOST_EVENTS // events))
        if once < LONG:
            traced.ask("turn", runs=WARM_UP, warm=0)
        skipped = counters.stat().st_size if counters.exists() else 0
        seconds: list[float] = []
        for part in _split(count, 5):
            seconds += plain.ask("turn", runs=part, warm=0)["seconds"]
            traced.ask("turn", runs=part, warm=0)
        source = Path(traced.ask("trace")["trace"])
    kernels = counters.read_bytes()[skipped:].decode() if counters.exists() else ""
    return _Runs(count, seconds, source, kernels)


def _affordable(once: float, events: int, budget: float) -> int:
    """How many runs fit into BUDGET seconds: of a graph of small nodes, reading the trace takes longer than running it."""
    return max(8 if once < LONG else 3, min(100, int(budget / max(once + events * READING, 1e-6))))


def _events(graph: onnx.GraphProto, seconds: float) -> int:
    """How many nodes one run that takes this long may run: with a loop in it, as many as it has time for."""
    if any(node.op_type in ("Loop", "Scan", "SequenceMap") for node in graph.node):
        return max(len(graph.node), int(seconds * 1e6 / LEAST_US), 1)
    return max(len(graph.node), 1)


def _split(total: int, parts: int) -> list[int]:
    sizes = [total // parts + (i < total % parts) for i in range(parts)]
    return [s for s in sizes if s]


def _rows(
    runs: Sequence[trace.Run], optimized: onnx.ModelProto, reference: Graph, fed: Mapping[str, tuple[int, ...]]
) -> list[Row]:
    """The nodes of the optimized graph with their mean time over the runs."""
    total: collections.Counter[tuple[str, str, int]] = collections.Counter()
    count: collections.Counter[tuple[str, str, int]] = collections.Counter()
    for run in runs:
        for event in run.events:
            key = (event.name, event.op, event.index)
            total[key] += event.duration
            count[key] += 1
    first = {(e.name, e.op, e.index): e for e in reversed(runs[0].events)}
    keys = sorted(first, key=lambda k: first[k].start)
    places = _match(keys, optimized)
    groups = origins(reference, graph_of(optimized))
    shapes = {**fed} | _shapes(optimized, {places[k]: first[k] for k in keys if k in places})
    weights = {t.name: _size(t) for t in optimized.graph.initializer}
    rows = []
    for key in keys:
        node = optimized.graph.node[places[key]] if key in places else None
        event = first[key]
        rows.append(
            Row(
                name=event.name,
                op=event.op,
                kind="node",
                count=round(count[key] / len(runs)),
                us=total[key] / len(runs),
                flops=node_flops(_plain(node), shapes) if node is not None else None,
                bytes=_bytes(node, event, weights),
                origin=groups[places[key]] if key in places else (),
            )
        )
    return rows


def _match(keys: Sequence[tuple[str, str, int]], optimized: onnx.ModelProto) -> dict[tuple[str, str, int], int]:
    """Which node of the optimized graph an event belongs to.

    By name and type where that is unique; ONNX Runtime gives several fused nodes the same name ("Gelu"), these are
    taken in order. Events of subgraph nodes match none.
    """
    by_name: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    for i, node in enumerate(optimized.graph.node):
        by_name[node.name, node.op_type].append(i)
    places = {}
    for name, op, index in keys:
        # An unnamed node's events are called after its type and index.
        place = by_name.get((name, op)) or (by_name.get(("", op)) if name == f"{op}_{index}" else None)
        if place:
            places[name, op, index] = place.pop(0)
    return places


def _shapes(optimized: onnx.ModelProto, events: Mapping[int, trace.Event]) -> dict[str, tuple[int, ...]]:
    """value -> shape, as it was when the model ran."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in optimized.graph.initializer}
    for i, event in events.items():
        outputs = [o for o in optimized.graph.node[i].output if o]
        shapes |= {name: shape for name, (shape, _) in zip(outputs, event.outputs)}
    return shapes


def _size(tensor: onnx.TensorProto) -> int:
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(len(s) for s in tensor.string_data)
    return int(math.prod(tensor.dims) * ir.DataType(tensor.data_type).bitwidth // 8)


def _plain(node: onnx.NodeProto) -> onnx.NodeProto:
    """ONNX Runtime's NCHWc operators do the work of the plain ones of the same name."""
    if node.domain != "com.microsoft.nchwc":
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.domain = ""
    return copy


def _bytes(node: onnx.NodeProto | None, event: trace.Event, weights: Mapping[str, int]) -> int:
    """Bytes read and written. Weights come from the file: the profiler does not see those packed in advance."""
    if event.op in VIEWS:
        return 0
    read = sum(weights.get(name, 0) for name in set(node.input)) if node is not None else 0
    return event.activations + read + trace.size(event.outputs)


def _open_regions(
    rows: list[Row],
    calls: Sequence[trace.KernelCall],
    runs: int,
    chosen: Sequence[int],
    covered: Mapping[str, Sequence[Sequence[str]]],
    notes: list[str],
) -> list[Row]:
    """Put the kernels of each compiled region in the place of its one opaque node."""
    lines: dict[str, list[trace.KernelCall]] = collections.defaultdict(list)
    for call in calls:
        lines[call.region].append(call)
    opened = []
    for row in rows:
        region = row.name if row.name in lines else row.op
        if region not in lines:
            opened.append(row)
            continue
        per_run, rest = divmod(len(lines[region]), runs)
        if rest:
            notes.append(f"{region}: its kernel counters do not divide into {runs} runs; all of them are used")
        use = lines[region] if rest else [c for i in chosen for c in lines[region][i * per_run : (i + 1) * per_run]]
        share = runs if rest else len(chosen)
        opened += _kernel_rows(region, use, share, covered.get(region, ()))
    return opened


def _kernel_rows(
    region: str, calls: Sequence[trace.KernelCall], runs: int, covered: Sequence[Sequence[str]]
) -> list[Row]:
    groups: dict[int, list[trace.KernelCall]] = collections.defaultdict(list)
    for call in calls:
        groups[call.call].append(call)
    return [
        Row(
            name=f"{region}/{number} {group[0].node}",
            op=kernel_type(group[0].kernel),
            kind="kernel",
            count=max(1, round(len(group) / runs)),
            us=sum(c.us for c in group) / runs,
            flops=round(sum(c.flops for c in group) / runs) or None,
            bytes=round(sum(c.bytes for c in group) / runs) or None,
            origin=tuple(covered[number]) if number < len(covered) else (),
            region=region,
        )
        for number, group in sorted(groups.items())
    ]


def kernel_type(kernel: str) -> str:
    """The kernel's name without the digest that tells its instances apart: gemm_add_relu_48234b -> gemm_add_relu."""
    return re.sub(r"_[0-9a-f]{6,}$", "", kernel)


# --- two runs of one model side by side --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class GroupDifference:
    """The smallest set of original nodes that A and B cover alike, with what each of them made of it."""

    nodes: tuple[str, ...]  # of A's model; empty: what only one of the two has
    a: tuple[str, ...]  # op types
    a_us: float
    b: tuple[str, ...]
    b_us: float

    @property
    def difference(self) -> float:
        return self.b_us - self.a_us

    @property
    def percent(self) -> float | None:
        return None if not self.a_us else 100 * self.difference / self.a_us


def side_by_side(a: Sequence[Row], b: Sequence[Row], order: Sequence[str]) -> list[GroupDifference]:
    """The rows of A and B by the original nodes they share, also where one of them has fused several into one.

    ORDER names the original nodes in the model's order. The largest difference first.
    """
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for row in (*a, *b):
        for name in row.origin[1:]:
            parent[root(name)] = root(row.origin[0])
    groups: dict[str, tuple[list[Row], list[Row]]] = {}
    members: dict[str, set[str]] = collections.defaultdict(set)
    for side, rows in enumerate((a, b)):
        for row in rows:
            # Rows without an origin (layout changes, folded parts) stand together, one group for each side.
            key = root(row.origin[0]) if row.origin else f"\0{side}"
            groups.setdefault(key, ([], []))[side].append(row)
            members[key].update(row.origin)
    place = {name: i for i, name in enumerate(order)}
    differences = []
    for key, (mine, yours) in groups.items():
        nodes = tuple(sorted(members[key], key=lambda n: place.get(n, len(place))))
        ops = [tuple(r.op for r in rows) for rows in (mine, yours)]
        differences.append(GroupDifference(nodes, ops[0], sum(r.us for r in mine), ops[1], sum(r.us for r in yours)))
    return sorted(differences, key=lambda g: -abs(g.difference))
