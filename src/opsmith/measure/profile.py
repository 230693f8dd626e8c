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
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opsmith import machine, progress, settings, store
from opsmith.check.feed import Given
from opsmith.check.origins import origins, read_graph
from opsmith.errors import OpsmithError, no_such
from opsmith.measure import bench, nsys, peak
from opsmith.plain import Shown
from opsmith.timing.rows import GroupDifference, Row, side_by_side, time_rows


@dataclasses.dataclass(frozen=True)
class OpRow:
    """All rows of one op type together."""

    op: str
    count: int
    us: float
    share: float  # of the latency (`Profile.whole_us`)
    flops: int | None
    bytes: int | None
    roofline: float | None  # least possible time over measured time: 1.0 means nothing is left to gain

    @property
    def gflops(self) -> float | None:
        return None if not self.flops or not self.us else self.flops / self.us / 1e3


@dataclasses.dataclass(repr=False)
class Profile(Shown):
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
    inputs_from: str = ""  # "test data", "--shape, seed 0", "typical image 320x320, seed 0"

    @property
    def kernels_us(self) -> float:
        """Time inside nodes and kernels in one run."""
        return sum(row.us for row in self.rows)

    @property
    def whole_us(self) -> float:
        """What shares are of: the latency, or all kernels where the profiler's own cost makes them longer than that."""
        return max(self.latency_us, self.kernels_us)

    @property
    def between_us(self) -> float:
        """What the latency holds beyond them: ONNX Runtime's own work from node to node."""
        return self.latency_us - self.kernels_us

    def roofline(self, us: float, flops: int | None, moved: int | None) -> float | None:
        """The share of the time that the machine's peak would need: max(flops / peak, bytes / bandwidth) / time."""
        if self.limits is None or not us or moved is None or (not flops and not moved):
            return None
        peak_flops = self.limits.arithmetic(store.precision_of(self.path))
        least = max((flops or 0) / peak_flops, moved / self.limits.bandwidth)
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
            found.append(OpRow(op, count, us, us / self.whole_us, counted, moved, share))
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
            "inputs_from": self.inputs_from,
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
    inputs: Given | None = None,
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
    feed, origin = bench.choose_inputs(candidates[0].path, shapes, seed, inputs)
    folder = Path(keep) if keep is not None else settings.cache_folder("traces")
    folder.mkdir(parents=True, exist_ok=True)
    profiles: list[Profile] = []
    with progress.task("profile", len(candidates)) as step, tempfile.TemporaryDirectory(prefix="opsmith-") as scratch:
        store.write_test_data(Path(scratch) / "inputs", feed, {})
        for candidate in candidates:
            step(candidate.label)
            work = Path(scratch) / f"work{len(profiles)}"
            work.mkdir()
            profiles.append(
                _profile(candidate, feed, Path(scratch) / "inputs", work, folder, threads, iterations, device)
            )
    return [dataclasses.replace(one, inputs_from=origin) for one in profiles]


def check_device(device: str) -> None:
    import onnxruntime as ort

    if device not in ("cpu", "cuda"):
        raise no_such("device", device, ("cpu", "cuda"))
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
    order = {"model": str(candidate.path.absolute()), "runtime": "ort", "threads": threads, "inputs": str(inputs)}
    compiled = bool(store.libraries(candidate.path))
    graph_path = _reference(candidate.path) if compiled else candidate.path
    notes = []
    if compiled and graph_path == candidate.path:
        notes.append(f"{candidate.label}: its parent is not here, kernels are matched within the compiled model only")
    shapes = {name: array.shape for name, array in feed.items()}
    made = time_rows(order, candidate.label, work, read_graph(graph_path), shapes, iterations, device)
    notes += made.notes
    gpu = _gpu_kernels(order, made.runs, work, notes) if device == "cuda" else []
    limits = peak.cached() if device == "cpu" else None  # the peak is the CPU's
    if limits is None and device == "cpu":
        notes.append("distance to the roofline unknown: run `opsmith bench --machine` once")
    final = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', candidate.label)}.trace.json"
    shutil.move(str(made.trace), final)
    return Profile(
        label=candidate.label,
        path=candidate.path,
        rows=made.rows,
        latency_us=made.latency_us,
        runs=made.runs,
        left_out=made.runs - len(made.kept),
        kept=made.kept,
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


def _reference(path: Path) -> Path:
    """The model that a compiled variant was made from, if it is still beside it; else the variant itself."""
    parent = store.read_record(path).get("parent")
    if not parent:
        return path
    for candidate in (path.parent.parent / parent, path.parent / parent):
        if candidate.exists():
            return store.find_model(candidate)
    return path


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
        return None if self.a_us <= 0 else 100 * self.difference / self.a_us


def compare_types(a: Profile, b: Profile) -> list[TypeDifference]:
    """Op types of either profile, the largest change first."""
    left, right = ({row.op: row for row in p.by_op()} for p in (a, b))
    differences = []
    for op in {**left, **right}:
        x, y = left.get(op), right.get(op)
        differences.append(
            TypeDifference(op, x.count if x else 0, x.us if x else 0.0, y.count if y else 0, y.us if y else 0.0)
        )
    return sorted(differences, key=lambda d: (-abs(d.difference), d.op))


def compare_nodes(a: Profile, b: Profile) -> list[GroupDifference]:
    """Match the two by the nodes of A's model, even where one of them has fused several into one."""
    translate = _translation(a.graph, b.graph)
    translated = [
        dataclasses.replace(row, origin=tuple(sorted({n for name in row.origin for n in translate(name)})))
        for row in b.rows
    ]
    return side_by_side(a.rows, translated, [node.name for node in read_graph(a.graph).nodes])


def _translation(a: Path, b: Path) -> Any:
    """From names of nodes of B's model to names of nodes of A's."""
    if a == b:
        return lambda name: (name,)
    left, right = read_graph(a), read_graph(b)
    table = {node.name: names for node, names in zip(right.nodes, origins(left, right))}
    return lambda name: table.get(name, ())


def to_dict(profiles: Sequence[Profile]) -> dict[str, Any]:
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
    return data
