"""Any .onnx: every model of the zoo is compiled, verified and timed, and docs/zoo.md is written.

    python benchmarks/zoo.py [--model NAME ...] [--smallest N] [--results FOLDER] [--limit S] [--no-peers] [--untimed] [--write-docs]

Each model is fetched by package name (zoo_models.py), compiled without any option in a process of its own, verified against plain
ONNX Runtime in another, and timed in turns with stock ONNX Runtime and OpenVINO, as installed and held to f32. The inputs are those
of zoo.json, stored as the model's test data. Each model is measured in a process of its own, which is ended with all that it started
when it takes longer than --limit. RESULTS keeps the compiled variants and one JSON file per model: a run that was interrupted goes
on where it was, and a model whose file is there is not measured again unless --again is given. --untimed compiles everything that
can be and checks that it is right, as CI does with the smallest. Exit code 1 if a model is refused, wrong, slower than stock ONNX
Runtime, or compiled in too much time or memory.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import zoo_models
from zoo_models import ZooModel

import opsmith
from opsmith import machine, store
from opsmith.errors import OpsmithError
from opsmith.measure.bench import bench
from opsmith.timing.worker import Worker

DOCS = Path(__file__).parents[1] / "docs" / "zoo.md"
PEERS = ("openvino-f32", "openvino")
LIMIT = 1500  # seconds for all that is done with one model, its runs included
SLOW = 120  # seconds that the compiler's own steps may take
SLOWER = 0.98  # the lower end of the interval


@dataclasses.dataclass
class Row:
    """What became of one model. Ratios are times of the other over ours: above 1 we are faster."""

    name: str
    kind: str
    nodes: int = 0
    native: int = 0
    left: dict[str, int] = dataclasses.field(default_factory=dict)
    compile_s: float = 0.0  # without runs of the model itself
    compile_rss: int = 0
    stock_rss: int = 0  # what stock ONNX Runtime needs to load the model and run it once
    error: float | None = None
    verified: bool = False
    stock_ms: float | None = None
    ours_ms: float | None = None
    ratio: tuple[float, float, float] | None = None  # to stock ORT, with its interval
    peers: dict[str, float] = dataclasses.field(default_factory=dict)
    peer_errors: dict[str, float] = dataclasses.field(default_factory=dict)
    busy: bool = False
    problem: str | None = None

    @property
    def good(self) -> bool:
        fast = self.ratio is None or self.ratio[1] >= SLOWER
        return self.problem is None and self.verified and fast and not self.too_large and self.compile_s <= SLOW

    @property
    def too_large(self) -> bool:
        return self.compile_rss > (1 << 30) + 4 * self.stock_rss


def prepare(model: ZooModel, folder: Path) -> Path:
    """The model as a variant with its listed inputs as test data."""
    variant = folder / model.name / "original"
    if not variant.exists():
        variant.mkdir(parents=True)
        (variant / f"{model.name}_original.onnx").symlink_to(zoo_models.fetch(model).absolute())
        store.write_test_data(variant, zoo_models.feed(model), {})
    return variant


# Between this process and the one it measures: on Linux a child's peak counts what its parent held when it was started.
MEASURING = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def compile_alone(source: Path, dest: Path, row: Row, options: Sequence[str] = ()) -> None:
    """`opsmith compile SRC DEST`, in a process of its own. Its peak memory counts the processes that it starts, too."""
    shutil.rmtree(dest, ignore_errors=True)
    command = [sys.executable, "-m", "opsmith", "compile", str(source), str(dest), *options]
    printed, errors, peak = (dest.parent / f"{name}.txt" for name in ("compile", "errors", "peak"))
    started = time.monotonic()
    with printed.open("w") as out, errors.open("w") as err:
        code = subprocess.call([sys.executable, "-c", MEASURING, str(peak), *command], stdout=out, stderr=err)
    row.compile_s = time.monotonic() - started
    row.compile_rss = int(peak.read_text()) * 1024  # Linux counts KiB
    if code:
        raise OpsmithError((errors.read_text().strip().splitlines() or [f"exit code {code}"])[-1])
    compiled = store.read_record(store.find_model(dest))["compiled"]
    runs = sum(compiled["seconds"].get(step, 0.0) for step in ("verify", "measure", "profile", "find wrong"))
    row.compile_s -= runs
    row.nodes, row.native, row.left = compiled["nodes"]["all"], compiled["nodes"]["native"], compiled["left_to_ort"]


def measure(model: ZooModel, folder: Path, peers: tuple[str, ...], seconds: float | None) -> Row:
    """SECONDS None: nothing is timed, and everything that can be is compiled."""
    row = Row(model.name, model.kind)
    try:
        source = prepare(model, folder)
        row.stock_rss = stock_memory(source)
        dest = source.with_name("compiled")
        compile_alone(source, dest, row, () if seconds is not None else ("--regions", "all"))
        checked = opsmith.verify(source, dest)
        row.verified = checked.ok
        scaled = [o.max_abs / o.scale for o in checked.worst if o.scale]
        row.error = max(scaled, default=0.0)
        if not checked.ok:
            row.problem = checked.problems[0]
        if seconds is not None:
            times(row, source, dest, peers, seconds)
        if row.too_large and row.problem is None:
            row.problem = f"compiling took {row.compile_rss >> 20} MiB, stock ONNX Runtime needs {row.stock_rss >> 20}"
    except OpsmithError as error:
        row.problem = str(error)
    return row


def measure_within(name: str, limit: float, arguments: Sequence[str]) -> Row:
    """`measure` in a process group of its own, which is ended when it takes longer than LIMIT seconds."""
    model = next(m for m in zoo_models.zoo() if m.name == name)
    with tempfile.TemporaryDirectory(prefix="opsmith-zoo-") as folder:
        answer, errors = Path(folder) / "row.json", Path(folder) / "errors.txt"
        command = [sys.executable, __file__, "--model", name, "--answer", str(answer), *arguments]
        with errors.open("w") as err:
            child = subprocess.Popen(command, stderr=err, start_new_session=True)
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            return Row(model.name, model.kind, problem=f"ended after {limit:.0f} s")
        finally:  # whatever it started goes with it, also on Ctrl-C
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if answer.exists():
            return Row(**json.loads(answer.read_text(encoding="utf-8")))
        last = errors.read_text(errors="replace").strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
        return Row(model.name, model.kind, problem=last[0])


def stock_memory(source: Path) -> int:
    """Peak resident memory of a process that loads the source and runs it once."""
    order = {"model": str(store.find_model(source)), "runtime": "ort", "threads": machine.cores()}
    with Worker("stock ONNX Runtime", machine.cores()) as worker:
        worker.ask("load", **order, inputs=str(source))
        worker.ask("first")
        return int(worker.ask("quit")["peak_rss"])


def times(row: Row, source: Path, dest: Path, peers: tuple[str, ...], seconds: float) -> None:
    pair = bench([source, dest], seconds=seconds)
    ours, stock = pair.entries[1], pair.entries[0]
    row.stock_ms, row.ours_ms = stock.run.median * 1e3, ours.run.median * 1e3
    ratio = pair.ratio(stock.label, ours.label)
    row.ratio = (ratio.value, ratio.low, ratio.high)
    row.busy = not pair.clean
    for peer in peers:
        try:
            one = bench([source, dest], peer=[peer], seconds=seconds / 2, rtol=1e9, atol=1e9)
        except OpsmithError:
            continue  # the peer does not run this model
        row.peers[peer] = one.ratio(peer, ours.label).value
        errors = [e.max_abs / e.scale for e in one[peer].errors if e.scale]
        row.peer_errors[peer] = max(errors, default=0.0)


# --- the page ---


def page(rows: list[Row]) -> str:
    ratios = [r.ratio[0] for r in rows if r.ratio]
    nodes, native = sum(r.nodes for r in rows), sum(r.native for r in rows)
    lines = [
        "# The zoo",
        "",
        "Real ONNX models from the package registries, none of which Opsmith was made for, each compiled by `opsmith compile MODEL` "
        "without any option. Written by `benchmarks/zoo.py`; the models are fetched by package name and are not part of this "
        "repository. Ratios above 1 mean that Opsmith is faster; inputs are random. The error is the largest over all inputs that are "
        "verified, degenerate ones among them, in units of the output's scale: where a model has steps (quantizers, thresholds) ONNX Runtime "
        "differs from itself by as much.",
        "",
        f"{len(rows)} models: {sum(r.verified for r in rows)} right, {sum(r.native > 0 for r in rows)} with native code, "
        f"{native} of {nodes} nodes native ({100 * native / max(nodes, 1):.0f} %), "
        f"median {statistics.median(ratios):.2f}x stock ONNX Runtime."
        if ratios
        else "",
        "",
        "| model | kind | native nodes | error | stock ORT | Opsmith | times stock ORT (95 %) | times OpenVINO f32 | "
        "times OpenVINO as installed (its error) | compile | memory |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_line(r) for r in sorted(rows, key=lambda r: -(r.ratio[0] if r.ratio else 0))]
    lines += ["", "What stays with ONNX Runtime, and why:", "", "| model | nodes | what |", "|---|---:|---|"]
    for r in rows:
        for what, count in sorted(r.left.items(), key=lambda x: -x[1])[:4]:
            lines.append(f"| {r.name} | {count} | {what.replace('|', '/')} |")
    busy = [r.name for r in rows if r.busy]
    lines += ["", f"Measured on {machine.cpu_name()}, {machine.cores()} threads, {time.strftime('%Y-%m-%d')}."]
    if missing := sorted({m.name for m in zoo_models.zoo()} - {r.name for r in rows}):
        lines.append(f"Not among them: {', '.join(missing)}.")
    if busy:
        lines.append(f"Other processes used the CPU while these were timed: {', '.join(busy)}.")
    return "\n".join(lines) + "\n"


def _line(r: Row) -> str:
    installed = f"{r.peers['openvino']:.2f} ({r.peer_errors['openvino']:.0e})" if "openvino" in r.peers else "-"
    single = f"{r.peers['openvino-f32']:.2f}" if "openvino-f32" in r.peers else "-"
    error = "" if r.error is None else f"{r.error:.0e}{'' if r.verified else ' **wrong**'}"
    stock, ours, ratio = "-", "-", r.problem or "not timed"
    if r.ratio is not None:
        stock, ours = f"{r.stock_ms:.2f} ms", f"{r.ours_ms:.2f} ms"
        ratio = f"**{r.ratio[0]:.2f}** ({r.ratio[1]:.2f} to {r.ratio[2]:.2f})"
    return (
        f"| {r.name} | {r.kind} | {r.native} of {r.nodes} | {error} | {stock} | {ours} | {ratio} | {single} "
        f"| {installed} | {r.compile_s:.0f} s | {r.compile_rss / 2**20:.0f} MiB |"
    )


def progress(row: Row, number: int, count: int, seconds: float) -> str:
    ratio = "-" if row.ratio is None else f"{row.ratio[0]:.2f} ({row.ratio[1]:.2f} to {row.ratio[2]:.2f})"
    native, memory = f"{row.native:5} of {row.nodes:5} native", f"{row.compile_rss >> 20:5} MiB ({row.stock_rss >> 20})"
    state = row.problem or ("right" if row.verified else "not verified")
    return f"{number:2}/{count} {row.name:20} {native}  {ratio:22} {row.compile_s:4.0f} s {memory}  {state}  [{seconds:.0f} s]"


def _kept(path: Path, untimed: bool) -> Row | None:
    """What was measured before; None where a time is wanted and was not taken."""
    if not path.exists():
        return None
    row = Row(**json.loads(path.read_text(encoding="utf-8")))
    return row if untimed or row.ratio is not None or row.problem is not None else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", help="names of zoo.json")
    parser.add_argument("--smallest", type=int, help="only this many, by the size of the file")
    parser.add_argument("--results", type=Path, default=zoo_models.cache() / "results")
    parser.add_argument("--seconds", type=float, default=6.0, help="of measuring per comparison")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--untimed", action="store_true", help="compile with --regions all and verify, nothing more")
    parser.add_argument("--again", action="store_true", help="measure models that were measured before")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one model, all in all")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)  # measure the one model here, and write its row
    options = parser.parse_args()
    models = [m for m in zoo_models.zoo() if not options.model or m.name in options.model]
    seconds = None if options.untimed else options.seconds
    options.results.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what it started is ended, too
    if options.answer:
        own = measure(models[0], options.results, () if options.no_peers else PEERS, seconds)
        options.answer.write_text(json.dumps(dataclasses.asdict(own)), encoding="utf-8")
        return 0
    if options.smallest:
        models = sorted(models, key=lambda m: zoo_models.fetch(m).stat().st_size)[: options.smallest]
    arguments = ["--results", str(options.results), "--seconds", str(options.seconds)]
    arguments += ["--no-peers"] * options.no_peers + ["--untimed"] * options.untimed
    rows = []
    for number, model in enumerate(models, 1):
        started = time.monotonic()
        kept = options.results / f"{model.name}.json"
        row = _kept(kept, options.untimed) if not options.again else None
        if row is None:
            row = measure_within(model.name, options.limit, arguments)
            kept.write_text(json.dumps(dataclasses.asdict(row)), encoding="utf-8")
        rows.append(row)
        print(progress(row, number, len(models), time.monotonic() - started), flush=True)
    if options.write_docs:
        DOCS.write_text(page(rows), encoding="utf-8")
    return 0 if all(r.good for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
