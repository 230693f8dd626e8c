"""Opsmith against the runtimes a user could pick instead, at the precisions that people run: one command, its tables.

    python benchmarks/peers.py MODELS RESULTS [--case NAME ...] [--peer NAME ...] [--search 2] [--write]

MODELS holds full-size exports (export_full_size.py); the two real models come from their packages. RESULTS, outside the
repository, gets the compiled variants and one JSON file per case. A case that has its file is not measured again (--again
does), so that a run can be interrupted and continued. --write puts the table and the chart of all cases with results into
README.md and docs/benchmarks.md; --list names the cases; --table prints the table and measures nothing.

Per case all runtimes run in turns, in processes of their own, on the same inputs and 2 threads (`opsmith bench`). Models too
large to hold all at once are measured in sets, each with stock ONNX Runtime and Opsmith in it. Ratios are of paired rounds, with
95 % intervals. The error is the largest difference from stock ONNX Runtime over the output's scale. The machine should be
otherwise idle.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer_cases import CASES, OPTIMIZED, OURS, PEERS, STOCK, Case, label
from peer_tables import class_tables, goal_table, load_results, machine_text, write

import opsmith
from opsmith import machine, session, store
from opsmith.errors import OpsmithError
from opsmith.measure.bench import BenchResult, bench
from opsmith.timing import peers as adapters

ROOT = Path(__file__).parents[1]
SHARE_OF_MEMORY = 0.85
# What a compiled variant depends on, in the package.
ROAD = ("analysis", "check", "compiler", "kernels", "rewriter", "expressions.py", "ops.py", "sizes.py")


# --- the variants of a case ---


@dataclasses.dataclass
class Workshop:
    """Where sources are found and variants are made, once for all cases of a model."""

    models: Path
    results: Path
    exporter: str
    search: int

    def source(self, case: Case) -> Path:
        if case.source in ("terrain", "minilm"):
            return self._real(case.source)
        folder = self.models / case.source / self.exporter
        if not folder.is_dir():
            raise OpsmithError(f"{case.name}: there is no {folder}", "benchmarks/export_full_size.py makes it")
        return folder

    def _real(self, name: str) -> Path:
        sys.path.insert(0, str(ROOT / "tests"))
        import real_models

        if name == "terrain":
            return Path(real_models.terrain_unet())
        dest = self.results / "variants" / "minilm" / self.exporter
        if not dest.is_dir():
            opsmith.export(str(real_models.minilm()), dest.parent, exporter=self.exporter)
        return dest

    def ours(self, case: Case, variant: str) -> Path:
        """The compiled variant, made anew if compiler or kernels changed; each search level has its own."""
        home = self._home(case)
        name = label(variant) + (f"-search{self.search}" if self.search else "")
        dest, mark = home / name, home / f"{name}.made"
        wanted = f"by {road_digest()}"
        if dest.is_dir() and mark.is_file() and mark.read_text() == wanted:
            return dest
        shutil.rmtree(dest, ignore_errors=True)
        plain = self._plain(case, variant)
        opsmith.compile(plain, dest, search=self.search, precision=OURS[variant].arithmetic)
        mark.write_text(wanted)
        return dest

    def _plain(self, case: Case, variant: str) -> Path:
        """What a variant is compiled from."""
        source, options = self.source(case), OURS[variant].quantize
        if options is None:
            return source
        dest = self._home(case) / variant
        if not dest.is_dir():
            opsmith.quantize(source, dest, **options)  # type: ignore[arg-type]
        return dest

    def optimized(self, case: Case) -> Path:
        """What ONNX Runtime's own transformers optimizer makes of the source; it needs torch and a lot of memory."""
        if not case.kind:
            raise OpsmithError("the transformers optimizer knows no such model")
        dest = self._home(case) / OPTIMIZED / f"{case.kind}.onnx"
        if not dest.is_file():
            dest.parent.mkdir(parents=True, exist_ok=True)
            source = store.find_model(self.source(case))
            script = _OPTIMIZE.format(source=str(source), kind=case.kind, dest=str(dest))
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
            if done.returncode or not dest.is_file():
                shutil.rmtree(dest.parent)
                raise OpsmithError((done.stderr.strip().splitlines() or ["it wrote nothing"])[-1])
        return dest

    def _home(self, case: Case) -> Path:
        home = self.results / "variants" / case.source.replace("/", "-")
        home.mkdir(parents=True, exist_ok=True)
        return home


# The fusions that need kernels which the CPU provider does not have are turned off: with them the model does not load.
_OPTIMIZE = """
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_model
options = FusionOptions("{kind}")
for name in ("enable_group_norm", "enable_skip_group_norm", "enable_bias_splitgelu", "enable_nhwc_conv", "enable_bias_add",
             "enable_packed_qkv", "enable_packed_kv"):
    if hasattr(options, name):
        setattr(options, name, False)
model = optimize_model(r"{source}", model_type="{kind}", optimization_options=options)
model.save_model_to_file(r"{dest}", use_external_data_format=True)
"""


def road_digest() -> str:
    """Of every file that decides what `compile` writes."""
    package = Path(opsmith.__file__).parent
    files = (f for room in ROAD for f in ([package / room] if room.endswith(".py") else (package / room).rglob("*")))
    digest = hashlib.sha256()
    for file in sorted(f for f in files if f.suffix in (".py", ".hpp")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


# --- measuring ---


def measure(
    case: Case, workshop: Workshop, peers: Sequence[str], seconds: float, rounds: int | None, threads: int
) -> dict[str, Any]:
    """All runtimes of one case. A runtime that cannot run the model is left out, with its reason."""
    source = workshop.source(case)
    ours = {label(v): workshop.ours(case, v) for v in case.variants}
    failed: dict[str, str] = {}
    rivals: dict[str, Path | None] = {}  # None: an adapter of `opsmith bench --peer`
    for peer in peers:
        try:
            if peer == OPTIMIZED:
                rivals[peer] = workshop.optimized(case)
            else:
                adapters.check(peer)
                rivals[peer] = None
        except OpsmithError as error:
            failed[peer] = str(error)
    results: list[BenchResult] = []
    base = [source, *ours.values()]
    for group in memory_sets(source, list(ours.values()), list(rivals)):
        results.append(_one_set(base, list(ours), group, rivals, case, failed, seconds, rounds, threads))
    return summary(case, results, list(ours), failed, threads)


def memory_sets(source: Path, ours: Sequence[Path], rivals: Sequence[str]) -> list[list[str]]:
    """Rivals in groups that fit into memory together with the source and our variants; each group has one at least."""
    need = 1.5 * session.size_on_disk(store.find_model(source))
    free = SHARE_OF_MEMORY * machine.memory_bytes() - need
    free -= sum(1.5 * session.size_on_disk(store.find_model(path)) for path in ours)
    per_set = max(1, int(free // max(need, 1)))
    return [list(rivals[i : i + per_set]) for i in range(0, len(rivals), per_set)] or [[]]


def _one_set(
    base: Sequence[Path],
    labels: Sequence[str],
    group: Sequence[str],
    rivals: dict[str, Path | None],
    case: Case,
    failed: dict[str, str],
    seconds: float,
    rounds: int | None,
    threads: int,
) -> BenchResult:
    """One interleaved run; a peer that fails in it is dropped, and the run is made again without it."""
    left = list(group)
    while True:
        paths = [*base, *(rivals[p] for p in left if rivals[p] is not None)]
        names = [STOCK, *labels, *(p for p in left if rivals[p] is not None)]
        running = [p for p in left if rivals[p] is None]
        try:
            result = bench(paths, peer=running, shapes=case.sizes, threads=threads, seconds=seconds, rounds=rounds)
        except OpsmithError as error:
            culprit = next((p for p in left if str(error).startswith((f"{p}:", f"{p} "))), None)
            if culprit is None and len(left) == 1:
                culprit = left[0]
            if culprit is None:
                raise
            failed[culprit] = str(error)
            left.remove(culprit)
            continue
        for entry, name in zip(result.entries, [*names, *running]):
            entry.label = name
        return result


def summary(
    case: Case, results: Sequence[BenchResult], ours: Sequence[str], failed: dict[str, str], threads: int
) -> dict[str, Any]:
    """What is kept of a case: per runtime its time, its error, and how much faster each of our variants is."""
    runtimes: dict[str, Any] = {}
    for result in results:
        for entry in result.entries:
            row = {
                "seconds": entry.run.median,
                "load_s": entry.load,
                "peak_rss": entry.peak_rss,
                "size": entry.size,
                "error": max((e.max_abs / e.scale for e in entry.errors if e.scale), default=0.0),
                "speedups": {},
            }
            for ratio, name in ((result.ratio(entry.label, o), o) for o in ours if o != entry.label):
                row["speedups"][name] = [ratio.value, ratio.low, ratio.high]
            runtimes.setdefault(entry.label, row)
    return {
        "case": case.name,
        "runtimes": runtimes,
        "failed": failed,
        "threads": threads,
        "clean": all(r.clean for r in results),
        "rounds": min(len(r.entries[0].rounds) for r in results),
        "inputs": results[0].inputs,
        "notes": sorted({n for r in results for n in r.notes}),
        "machine": about_machine(),
        "measured": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
    }


def about_machine() -> dict[str, Any]:
    import importlib.metadata

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    names = ("onnxruntime", "openvino", "torch", "MNN")
    return {
        "cpu": machine.cpu_model(),
        "cores": machine.cores(),
        "memory": machine.memory_bytes(),
        "features": sorted(machine.cpu_features()),
        "versions": {n: v for n in names if (v := version(n))},
    }


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    return done.stdout.strip()


def save(result: dict[str, Any], file: Path) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=2), encoding="utf-8")
    temporary.replace(file)


def is_done(file: Path, peers: Sequence[str]) -> bool:
    """Whether a case has a result in which every wanted peer was tried."""
    if not file.is_file():
        return False
    result = json.loads(file.read_text(encoding="utf-8"))
    return set(peers) <= {*result["runtimes"], *result["failed"]}


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--case", nargs="+", choices=[c.name for c in CASES], default=[c.name for c in CASES])
    parser.add_argument("--peer", nargs="*", choices=PEERS, default=list(PEERS), help="besides stock ONNX Runtime")
    parser.add_argument("--exporter", default="dynamo")
    parser.add_argument("--search", type=int, default=0, choices=(0, 1, 2))
    parser.add_argument("--seconds", type=float, default=60.0, help="time to spend on the rounds of one set")
    parser.add_argument(
        "--rounds", type=int, help="of each set, instead of as many as fit into --seconds (10 at least)"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="measure also what has a result")
    parser.add_argument("--prepare", action="store_true", help="make the variants and measure nothing")
    parser.add_argument("--table", action="store_true", help="print the table of what is there")
    parser.add_argument("--write", action="store_true", help="write README.md, docs/benchmarks.md and the chart")
    parser.add_argument("--list", action="store_true", help="name the cases and their goals")
    options = parser.parse_args(arguments)
    chosen = [c for c in CASES if c.name in options.case]
    if options.list:
        for case in chosen:
            print(f"{case.name:16} {case.title}: {'; '.join(map(str, case.goals))}")
        return 0
    options.results.mkdir(parents=True, exist_ok=True)
    workshop = Workshop(options.models, options.results, options.exporter, options.search)
    missing = 0
    for case in [] if options.table else chosen:
        file = options.results / f"{case.name}.json"
        try:
            if options.prepare:
                print(case.name, *(workshop.ours(case, v) for v in case.variants), flush=True)
            elif options.again or not is_done(file, options.peer):
                print(f"{case.name} ...", flush=True)
                save(measure(case, workshop, options.peer, options.seconds, options.rounds, options.threads), file)
        except OpsmithError as error:
            missing += 1
            print(f"{case.name}: {error}", file=sys.stderr, flush=True)
    results = load_results(options.results)
    if results:
        print(f"{class_tables(results)}\n\n{goal_table(results)}\n\n{machine_text(results)}")
        if options.write:
            write(results, root)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
