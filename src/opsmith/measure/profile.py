"""profile: where the time of a model goes, node by node.

Two warm processes run the same model on the same inputs in turns: one plainly, for the latency, one under ONNX
Runtime's profiler. A compiled library adds its own counters, so that its regions appear as the kernels they consist
of. Times are those of the graph after ONNX Runtime's own optimization; `optimized_model_filepath` and the names of
values lead back to the nodes of the model (see `origins`). Warm-up runs are left out, and so are runs that took much
longer than the median, which other processes had disturbed.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
import re
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from opsmith import machine, progress, settings, store
from opsmith.errors import OpsmithError
from opsmith.measure import bench, nsys, peak, trace
from opsmith.measure.op_costs import node_flops
from opsmith.measure.origins import Graph, graph_of, kernel_origins, origins, read_graph
from opsmith.measure.worker import Worker

WARM_UP = 3
SLOW_RUN = 1.25  # runs that took this many times the median were disturbed
MOST_EVENTS = 400_000  # ONNX Runtime keeps one million events at most


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
class OpRow:
    """All rows of one op type together."""

    op: str
    count: int
    us: float
    share: float  # of the latency
    flops: int | None
    bytes: int | None
    roofline: float | None  # least possible time over measured time: 1.0 means nothing is left to gain

    @property
    def gflops(self) -> float | None:
        return None if not self.flops or not self.us else self.flops / self.us / 1e3


@dataclasses.dataclass
class Profile:
    label: str
    path: Path
    rows: list[Row]
    latency_us: float  # median of a run without the profiler
    runs: int
    left_out: int  # runs much slower than the median
    kept: list[tuple[int, int]]  # (start, duration) in the trace of the runs that count
    threads: int
    graph: Path  # the model whose nodes `origin` names
    inputs: dict[str, str]
    trace: Path | None
    limits: peak.Limits | None
    notes: list[str]
    gpu: list[nsys.GpuKernel] = dataclasses.field(default_factory=list)  # with --device cuda, where nsys is installed

    @property
    def kernels_us(self) -> float:
        """Time inside nodes and kernels in one run."""
        return sum(row.us for row in self.rows)

    @property
    def between_us(self) -> float:
        """What the latency holds beyond them: ONNX Runtime's own work from node to node."""
        return self.latency_us - self.kernels_us

    def roofline(self, us: float, flops: int | None, moved: int | None) -> float | None:
        """The share of the time that the machine's peak would need: max(flops / peak, bytes / bandwidth) / time."""
        if self.limits is None or not us or moved is None or (not flops and not moved):
            return None
        least = max((flops or 0) / self.limits.flops, moved / self.limits.bandwidth)
        return least * 1e6 / us

    def by_op(self) -> list[OpRow]:
        groups: dict[str, list[Row]] = collections.defaultdict(list)
        for row in self.rows:
            groups[row.op].append(row)
        found = []
        for op, rows in groups.items():
            us = sum(r.us for r in rows)
            counted = _total([r.flops for r in rows])
            moved = _total([r.bytes for r in rows])
            least = [self.roofline(r.us, r.flops, r.bytes) for r in rows]
            # Per node, then weighted by time: a mix of small and large nodes is not one big node.
            share = None if None in least or not us else sum((x or 0) * r.us for x, r in zip(least, rows)) / us
            count = sum(r.count for r in rows)
            found.append(OpRow(op, count, us, us / self.latency_us, counted, moved, share))
        return sorted(found, key=lambda r: -r.us)

    def to_dict(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "path": self.path.name,
            "threads": self.threads,
            "latency_us": self.latency_us,
            "kernels_us": self.kernels_us,
            "between_us": self.between_us,
            "runs": self.runs,
            "left_out": self.left_out,
            "inputs": self.inputs,
            "trace": None if self.trace is None else self.trace.name,
            "ops": [{**dataclasses.asdict(row), "gflops": row.gflops} for row in self.by_op()],
            "nodes": [
                {**dataclasses.asdict(r), "gflops": r.gflops, "roofline": self.roofline(r.us, r.flops, r.bytes)}
                for r in sorted(self.rows, key=lambda r: -r.us)
            ],
            "gpu": [dataclasses.asdict(kernel) for kernel in self.gpu],
            "notes": self.notes,
        }


def _total(values: Sequence[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def profile(
    models: store.PathLike | store.Variant | Sequence[store.PathLike | store.Variant],
    *,
    threads: int | None = None,
    iterations: int | None = None,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    seed: int = 0,
    device: str = "cpu",
    keep: store.PathLike | None = None,
) -> list[Profile]:
    """Profile one or more variants, one after the other, all on the same inputs.

    KEEP is a folder for the Chrome traces; without it they go to the cache folder.
    """
    check_device(device)
    paths = [models] if isinstance(models, (str, os.PathLike, store.Variant)) else list(models)
    candidates = bench.find_candidates(paths)
    bench.check_same_inputs(candidates)
    if iterations is not None and iterations < 1:
        raise OpsmithError(f"--iterations must be at least 1, not {iterations}")
    threads = settings.get(threads=threads).threads or machine.cores()
    feed, _ = bench.choose_inputs(candidates[0].path, shapes, seed)
    folder = Path(keep) if keep is not None else settings.cache_folder("traces")
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Profile] = []
    with progress.task("profile", len(candidates)) as step, tempfile.TemporaryDirectory(prefix="opsmith-") as scratch:
        store.write_test_data(Path(scratch) / "inputs", feed, {})
        for candidate in candidates:
            step(candidate.label)
            work = Path(scratch) / f"work{len(found)}"
            work.mkdir()
            found.append(_profile(candidate, feed, Path(scratch) / "inputs", work, folder, threads, iterations, device))
    return found


def check_device(device: str) -> None:
    import onnxruntime as ort

    if device not in ("cpu", "cuda"):
        raise OpsmithError(f"there is no device {device!r}", "cpu or cuda")
    if device == "cuda" and "CUDAExecutionProvider" not in ort.get_available_providers():
        raise OpsmithError(
            "this ONNX Runtime has no CUDA provider",
            "install onnxruntime-gpu on a machine with a GPU; --device cpu works",
        )


def _profile(
    candidate: bench.Candidate,
    feed: Mapping[str, np.ndarray[Any, Any]],
    inputs: Path,
    work: Path,
    folder: Path,
    threads: int,
    iterations: int | None,
    device: str,
) -> Profile:
    compiled = bool(store.libraries(candidate.path))
    counters = work / "kernels.jsonl"
    environment = {"OPSMITH_PROFILE": "1", "OPSMITH_PROFILE_FILE": str(counters)} if compiled else {}
    order = {
        "model": str(candidate.path.absolute()),
        "runtime": "ort",
        "threads": threads,
        "inputs": str(inputs),
    }
    optimized = work / "optimized.onnx"
    tracing = {"profile": str(work / "trace"), "optimized": str(optimized), "device": device}
    with Worker(candidate.label, threads) as plain, Worker(candidate.label, threads, environment) as traced:
        for worker, extra in ((plain, {"device": device}), (traced, tracing)):
            worker.ask("load", settings=extra, **order)
            worker.ask("first")
        once = statistics.median(plain.ask("turn", runs=3, warm=WARM_UP)["seconds"])
        nodes = len(store.read_proto(optimized).graph.node)
        runs = iterations or max(8, min(100, int(2.0 / max(once, 1e-6))))
        runs = max(1, min(runs, MOST_EVENTS // max(nodes, 1)))
        traced.ask("turn", runs=WARM_UP, warm=0)
        skipped = counters.stat().st_size if counters.exists() else 0
        seconds: list[float] = []
        for part in _split(runs, 5):
            seconds += plain.ask("turn", runs=part, warm=0)["seconds"]
            traced.ask("turn", runs=part, warm=0)
        source = Path(traced.ask("trace")["trace"])
    every = trace.read_runs(source)[-runs:]
    if len(every) < runs:
        raise OpsmithError(f"{candidate.label}: ONNX Runtime's profile holds {len(every)} of {runs} runs")
    limit = SLOW_RUN * statistics.median(run.kernels for run in every)
    chosen = [i for i, run in enumerate(every) if run.kernels <= limit]
    kept = [every[i] for i in chosen]
    graph_path = _reference(candidate.path) if compiled else candidate.path
    notes = []
    if compiled and graph_path == candidate.path:
        notes.append(f"{candidate.label}: its parent is not here, kernels are matched within the compiled model only")
    proto = store.read_proto(optimized)
    shapes = {name: array.shape for name, array in feed.items()}
    rows = _rows(kept, proto, read_graph(graph_path), shapes)
    if compiled:
        text = counters.read_bytes()[skipped:].decode() if counters.exists() else ""
        rows = _open_regions(rows, trace.read_kernels(text), runs, chosen, read_graph(graph_path), notes)
    gpu = _gpu_kernels(order, runs, work, notes) if device == "cuda" else []
    limits = peak.cached() if device == "cpu" else None  # the peak is the CPU's
    if limits is None and device == "cpu":
        notes.append("distance to the roofline unknown: run `opsmith bench --machine` once")
    final = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', candidate.label)}.trace.json"
    shutil.move(str(source), final)
    return Profile(
        label=candidate.label,
        path=candidate.path,
        rows=rows,
        latency_us=statistics.median(seconds) * 1e6,
        runs=runs,
        left_out=runs - len(kept),
        kept=[(run.start, run.duration) for run in kept],
        threads=threads,
        graph=graph_path,
        inputs={name: f"{a.dtype}[{', '.join(map(str, a.shape))}]" for name, a in feed.items()},
        trace=final,
        limits=limits.at(threads) if limits else None,
        notes=notes,
        gpu=gpu,
    )


def _gpu_kernels(order: Mapping[str, Any], runs: int, work: Path, notes: list[str]) -> list[nsys.GpuKernel]:
    if not nsys.available():
        notes.append("nsys is not installed: no times of single GPU kernels")
        return []
    return nsys.kernel_times(order, runs, work)


def _split(total: int, parts: int) -> list[int]:
    sizes = [total // parts + (i < total % parts) for i in range(parts)]
    return [s for s in sizes if s]


def _reference(path: Path) -> Path:
    """The model that a compiled variant was made from, if it is still beside it; else the variant itself."""
    parent = store.read_record(path).get("parent")
    if not parent:
        return path
    for candidate in (path.parent.parent / parent, path.parent / parent):
        if candidate.exists():
            return store.find_model(candidate)
    return path


# --- rows -------------------------------------------------------------------------------------------------


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
    found = {}
    for name, op, index in keys:
        # An unnamed node's events are called after its type and index.
        place = by_name.get((name, op)) or (by_name.get(("", op)) if name == f"{op}_{index}" else None)
        if place:
            found[name, op, index] = place.pop(0)
    return found


def _shapes(optimized: onnx.ModelProto, events: Mapping[int, trace.Event]) -> dict[str, tuple[int, ...]]:
    """value -> shape, as it was when the model ran."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in optimized.graph.initializer}
    for i, event in events.items():
        outputs = [o for o in optimized.graph.node[i].output if o]
        shapes |= {name: shape for name, (shape, _) in zip(outputs, event.outputs)}
    return shapes


def _size(tensor: onnx.TensorProto) -> int:
    return int(math.prod(tensor.dims) * ir.DataType(tensor.data_type).bitwidth // 8)


def _plain(node: onnx.NodeProto) -> onnx.NodeProto:
    """ONNX Runtime's NCHWc operators do the work of the plain ones of the same name."""
    if node.domain != "com.microsoft.nchwc":
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.domain = ""
    return copy


_VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size"}


def _bytes(node: onnx.NodeProto | None, event: trace.Event, weights: Mapping[str, int]) -> int:
    """Bytes read and written. Weights come from the file: the profiler does not see those packed in advance."""
    if event.op in _VIEWS:
        return 0
    read = sum(weights.get(name, 0) for name in set(node.input)) if node is not None else 0
    return event.activations + read + trace.size(event.outputs)


def _open_regions(
    rows: list[Row],
    calls: Sequence[trace.KernelCall],
    runs: int,
    chosen: Sequence[int],
    reference: Graph,
    notes: list[str],
) -> list[Row]:
    """Put the kernels of each compiled region in the place of its one opaque node."""
    lines: dict[str, list[trace.KernelCall]] = collections.defaultdict(list)
    for call in calls:
        lines[call.region].append(call)
    found = []
    for row in rows:
        region = row.name if row.name in lines else row.op
        if region not in lines:
            found.append(row)
            continue
        per_run, rest = divmod(len(lines[region]), runs)
        if rest:
            notes.append(f"{region}: its kernel counters do not divide into {runs} runs; all of them are used")
        use = lines[region] if rest else [c for i in chosen for c in lines[region][i * per_run : (i + 1) * per_run]]
        share = runs if rest else len(chosen)
        found += _kernel_rows(region, use, share, row, reference)
    return found


def _kernel_rows(
    region: str,
    calls: Sequence[trace.KernelCall],
    runs: int,
    row: Row,
    reference: Graph,
) -> list[Row]:
    groups: dict[int, list[trace.KernelCall]] = collections.defaultdict(list)
    for call in calls:
        groups[call.call].append(call)
    covered = kernel_origins(
        reference, row.origin, [(number, group[0].node) for number, group in sorted(groups.items())]
    )
    return [
        Row(
            name=f"{region}/{number} {group[0].node}",
            op=kernel_type(group[0].kernel),
            kind="kernel",
            count=max(1, round(len(group) / runs)),
            us=sum(c.us for c in group) / runs,
            flops=round(sum(c.flops for c in group) / runs) or None,
            bytes=round(sum(c.bytes for c in group) / runs) or None,
            origin=covered.get(number, ()),
            region=region,
        )
        for number, group in sorted(groups.items())
    ]


def kernel_type(kernel: str) -> str:
    """The kernel's name without the digest that tells its instances apart: gemm_add_relu_48234b -> gemm_add_relu."""
    return re.sub(r"_[0-9a-f]{6,}$", "", kernel)


# --- two profiles side by side ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TypeDifference:
    """One op type in A and in B."""

    op: str
    a_count: int
    a_us: float
    b_count: int
    b_us: float

    @property
    def difference(self) -> float:
        return self.b_us - self.a_us

    @property
    def percent(self) -> float | None:
        return None if not self.a_us else 100 * self.difference / self.a_us


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


def compare_types(a: Profile, b: Profile) -> list[TypeDifference]:
    """Op types of either profile, the largest change first."""
    left, right = ({row.op: row for row in p.by_op()} for p in (a, b))
    found = []
    for op in {**left, **right}:
        x, y = left.get(op), right.get(op)
        found.append(
            TypeDifference(op, x.count if x else 0, x.us if x else 0.0, y.count if y else 0, y.us if y else 0.0)
        )
    return sorted(found, key=lambda d: (-abs(d.difference), d.op))


def compare_nodes(a: Profile, b: Profile) -> list[GroupDifference]:
    """Match the two by the nodes of A's model, even where one of them has fused several into one."""
    translate = _translation(a.graph, b.graph)
    left = [row.origin for row in a.rows]
    right = [tuple(sorted({n for name in row.origin for n in translate(name)})) for row in b.rows]
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for names in (*left, *right):
        for name in names[1:]:
            parent[root(name)] = root(names[0])
    order = {node.name: i for i, node in enumerate(read_graph(a.graph).nodes)}
    groups: dict[str, tuple[list[Row], list[Row]]] = {}
    for side, (rows, sets) in enumerate(((a.rows, left), (b.rows, right))):
        for row, names in zip(rows, sets):
            # Rows without an origin (layout changes, folded parts) stand together, one group for each side.
            key = root(names[0]) if names else f"\0{side}"
            groups.setdefault(key, ([], []))[side].append(row)
    members: dict[str, set[str]] = collections.defaultdict(set)
    for names in (*left, *right):
        for name in names:
            members[root(name)].add(name)
    found = []
    for key, (mine, yours) in groups.items():
        nodes = tuple(sorted(members.get(key, ()), key=lambda n: order.get(n, len(order))))
        ops = [tuple(r.op for r in rows) for rows in (mine, yours)]
        found.append(GroupDifference(nodes, ops[0], sum(r.us for r in mine), ops[1], sum(r.us for r in yours)))
    return sorted(found, key=lambda g: -abs(g.difference))


def _translation(a: Path, b: Path) -> Any:
    """From names of nodes of B's model to names of nodes of A's."""
    if a == b:
        return lambda name: (name,)
    left, right = read_graph(a), read_graph(b)
    table = {node.name: names for node, names in zip(right.nodes, origins(left, right))}
    return lambda name: table.get(name, ())


def to_json(profiles: Sequence[Profile]) -> str:
    data: dict[str, Any] = {"profiles": [p.to_dict() for p in profiles], "comparisons": []}
    for other in profiles[1:]:
        types = compare_types(profiles[0], other)
        groups = compare_nodes(profiles[0], other)
        data["comparisons"].append(
            {
                "a": profiles[0].label,
                "b": other.label,
                "types": [{**dataclasses.asdict(d), "difference": d.difference, "percent": d.percent} for d in types],
                "nodes": [{**dataclasses.asdict(g), "difference": g.difference, "percent": g.percent} for g in groups],
            }
        )
    return json.dumps(bench.finite(data), indent=2)
