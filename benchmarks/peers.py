"""Opsmith against the runtimes a user could pick instead: one command, one table.

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
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import opsmith
from opsmith import machine, session, store
from opsmith.compiler.build import headers_digest
from opsmith.errors import OpsmithError
from opsmith.measure.bench import BenchResult, bench
from opsmith.timing import peers as adapters

ROOT = Path(__file__).parents[1]
STOCK, OPTIMIZED = "ort", "ort-optimizer"
PEERS = (OPTIMIZED, "openvino-f32", "openvino", "torch-compile", "mnn")
TITLES = {
    STOCK: "ONNX Runtime",
    OPTIMIZED: "ORT + its optimizer",
    "openvino-f32": "OpenVINO f32",
    "openvino": "OpenVINO as installed",
    "torch-compile": "torch.compile",
    "mnn": "MNN",
}
BEST = "best"  # in a goal: the fastest of ONNX Runtime, its optimizer, OpenVINO and torch.compile
# As installed, OpenVINO may compute in bf16: it is shown with its error, and is no rival in single precision.
RIVALS = (STOCK, OPTIMIZED, "openvino-f32", "torch-compile")
SHARE_OF_MEMORY = 0.85


@dataclasses.dataclass(frozen=True)
class Goal:
    variant: str
    over: str  # a runtime, or BEST
    factor: float

    def __str__(self) -> str:
        return f"{self.variant} {self.factor:g}x {'the best peer' if self.over == BEST else TITLES[self.over]}"


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    title: str
    source: str  # folder inside MODELS, or the name of a real model
    sizes: dict[str, int]
    goals: tuple[Goal, ...]
    variants: tuple[str, ...] = ("fp32",)
    kind: str = ""  # what ONNX Runtime's transformers optimizer calls this model; empty: it knows none


def _bf16(factor: float) -> Goal:
    """Against OpenVINO as users run it, in bf16 where the CPU has it."""
    return Goal("bf16", "openvino", factor)


_BOTH = ("fp32", "bf16")


def _unet(latent: int, batch: int, *goals: Goal, variants: tuple[str, ...] = ("fp32",)) -> Case:
    sizes = {"batch": batch, "height": latent, "width": latent, "sequence": 77}
    title = f"SD v1.4 UNet, {8 * latent} px, batch {batch}"
    return Case(f"unet_{latent}_b{batch}", title, "stable-diffusion-v1-4/unet", sizes, goals, variants, "unet")


def _vae(latent: int) -> Case:
    sizes = {"batch": 1, "height": latent, "width": latent}
    goals = (Goal("fp32", STOCK, 2.5), Goal("fp32", "openvino-f32", 2.5), Goal("fp32", "mnn", 1.1), _bf16(2.0))
    title = f"SD v1.4 VAE decoder, {8 * latent} px"
    return Case(f"vae_{latent}", title, "stable-diffusion-v1-4/vae_decoder", sizes, goals, _BOTH, kind="vae")


def _gpt2(name: str, title: str, sequence: int, past: int, *goals: Goal, variants: tuple[str, ...] = ("fp32",)) -> Case:
    sizes = {"batch": 1, "sequence": sequence, "past": past}
    return Case(name, f"GPT-2 medium, {title}", "gpt2-medium", sizes, goals, variants, "gpt2")


def _bert(batch: int, factor: float) -> Case:
    sizes = {"batch": batch, "sequence": 128}
    goals = (Goal("fp32", BEST, factor), _bf16(1.15))
    title = f"BERT-base, batch {batch}, 128 tokens"
    return Case(f"bert_b{batch}", title, "bert-base-uncased", sizes, goals, _BOTH, kind="bert")


_DECODE = (Goal("fp32", STOCK, 1.1), Goal("int8", STOCK, 3.5), Goal("int4", STOCK, 5.0))
CASES = (
    _unet(64, 1, Goal("fp32", BEST, 1.6), _bf16(1.35), variants=_BOTH),
    _unet(64, 2, Goal("fp32", BEST, 1.6)),
    _unet(32, 1, Goal("fp32", BEST, 1.5)),
    _unet(32, 2, Goal("fp32", BEST, 1.5)),
    _unet(8, 1, Goal("fp32", BEST, 1.25), Goal("fp16", BEST, 2.0), _bf16(1.25), variants=("fp32", "fp16", "bf16")),
    _unet(8, 2, Goal("fp32", BEST, 1.25), Goal("fp16", BEST, 2.0), variants=("fp32", "fp16")),
    _vae(32),
    _vae(64),
    Case(
        "clip",
        "CLIP text encoder",
        "stable-diffusion-v1-4/text_encoder",
        {"batch": 1, "sequence": 77},
        (Goal("fp32", BEST, 1.15), _bf16(1.15)),
        _BOTH,
        kind="clip",
    ),
    _bert(1, 1.2),
    _bert(8, 1.1),
    _gpt2("gpt2_prompt", "prompt of 128", 128, 0, Goal("fp32", BEST, 1.2), _bf16(1.15), variants=_BOTH),
    _gpt2("gpt2_decode_128", "decode at 128", 1, 128, *_DECODE, variants=("fp32", "int8", "int4")),
    _gpt2("gpt2_decode_512", "decode at 512", 1, 512, *_DECODE, variants=("fp32", "int8", "int4")),
    Case("terrain", "terrain UNet (trained)", "terrain", {"batch": 1}, (Goal("fp32", STOCK, 1.5),)),
    Case(
        "minilm",
        "MiniLM (trained), batch 8, 128 tokens",
        "minilm",
        {"batch": 8, "sequence": 128},
        (Goal("fp32", STOCK, 1.15),),
        kind="bert",
    ),
)


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
        """The compiled variant, made anew if kernels changed; each search level has its own."""
        home = self._home(case)
        name = f"opsmith-{variant}" + (f"-search{self.search}" if self.search else "")
        dest, mark = home / name, home / f"{name}.made"
        wanted = f"kernels {headers_digest()}"
        if dest.is_dir() and mark.is_file() and mark.read_text() == wanted:
            return dest
        shutil.rmtree(dest, ignore_errors=True)
        precision = "bf16" if variant == "bf16" else "fp32"
        opsmith.compile(self.plain(case, variant), dest, search=self.search, precision=precision)
        mark.write_text(wanted)
        return dest

    def plain(self, case: Case, variant: str) -> Path:
        """What a variant is compiled from."""
        source = self.source(case)
        return source if variant in ("fp32", "bf16") else self._quantized(source, self._home(case), variant)

    def _quantized(self, source: Path, home: Path, variant: str) -> Path:
        dest = home / variant
        if not dest.is_dir():
            options: dict[str, Any] = (
                {"method": "fp16"} if variant == "fp16" else {"bits": int(variant.removeprefix("int"))}
            )
            opsmith.quantize(source, dest, **options)
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


# --- measuring ---


def measure(
    case: Case, workshop: Workshop, peers: Sequence[str], seconds: float, rounds: int | None, threads: int
) -> dict[str, Any]:
    """All runtimes of one case. A runtime that cannot run the model is left out, with its reason."""
    source = workshop.source(case)
    ours = {f"opsmith-{v}": workshop.ours(case, v) for v in case.variants}
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


# --- the table ---


def load_results(folder: Path) -> list[tuple[Case, dict[str, Any]]]:
    found = []
    for case in CASES:
        file = folder / f"{case.name}.json"
        if file.is_file():
            found.append((case, json.loads(file.read_text(encoding="utf-8"))))
    return found


def verdict(goal: Goal, result: dict[str, Any]) -> tuple[str, list[float]] | None:
    """The runtime that a goal is judged by, and the ratio with its interval; None where it was not measured."""
    ours = f"opsmith-{goal.variant}"
    rows = result["runtimes"]
    names = [n for n in (RIVALS if goal.over == BEST else (goal.over,)) if n in rows and ours in rows[n]["speedups"]]
    if not names:
        return None
    name = min(names, key=lambda n: rows[n]["speedups"][ours][0])
    return name, rows[name]["speedups"][ours]


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _ours(case: Case, result: dict[str, Any], cell: Callable[[dict[str, Any]], str]) -> str:
    """One line per variant of ours inside a cell."""
    rows = [(v, result["runtimes"][f"opsmith-{v}"]) for v in case.variants if f"opsmith-{v}" in result["runtimes"]]
    return "<br>".join(cell(row) + (f" {v}" if len(case.variants) > 1 else "") for v, row in rows)


def main_table(found: Sequence[tuple[Case, dict[str, Any]]]) -> str:
    """Times of all, and the ratio to the fastest rival."""
    names = [n for n in TITLES if any(n in r["runtimes"] for _, r in found)]
    lines = [
        "| case | "
        + " | ".join(TITLES[n] for n in names)
        + " | Opsmith | times the best peer (95 % interval) | error |",
        "|---|" + "---:|" * (len(names) + 3),
    ]
    for case, result in found:
        rows = result["runtimes"]
        cells = [_time(rows[n]["seconds"]) if n in rows else "-" for n in names]
        best = []
        for v in case.variants:
            if judged := verdict(Goal(v, BEST, 0.0), result):
                value, low, high = judged[1]
                best.append(f"**{value:.2f}** ({low:.2f} to {high:.2f}){f' {v}' if len(case.variants) > 1 else ''}")
        ours, error = (
            _ours(case, result, c) for c in (lambda r: f"**{_time(r['seconds'])}**", lambda r: f"{r['error']:.0e}")
        )
        mark = "" if result["clean"] else " (machine not idle)"
        lines.append(f"| {case.title}{mark} | {' | '.join(cells)} | {ours} | {'<br>'.join(best) or '-'} | {error} |")
    return "\n".join(lines)


SHORT = 3  # rows from either end that the README shows
AGREE = 0.06  # a ratio of medians and the median of paired ratios differ by less than this


def short_table(table: str) -> str:
    """Of a main table the rows where fp32 is furthest ahead of the best peer, and those where it is least or behind."""
    head, _, *rows = table.splitlines()
    titles = [c.strip() for c in head.strip("|").split("|")]
    peers = titles[1 : titles.index("Opsmith")]
    found = []
    for row in rows:
        cells = [c.strip().split("<br>")[0] for c in row.strip("|").split("|")]
        measured = re.match(r"\*\*([\d.]+)\*\* (\([^)]*\))", cells[titles.index("Opsmith") + 1])
        if measured is None:
            continue
        times = {peer: _seconds(cell) for peer, cell in zip(peers, cells[1:]) if cell != "-"}
        best = min(times, key=lambda peer: times[peer])
        ours = re.sub(r" fp32$", "", cells[titles.index("Opsmith")])
        ratio, interval = float(measured[1]), f" {measured[2]}"
        mine = _seconds(ours)
        if mine and abs(times[best] / mine / ratio - 1) > AGREE:  # the interval is over another peer
            ratio, interval = times[best] / mine, ""
        word = "faster" if ratio >= 1 else "**slower**"
        peer = f"{cells[1 + peers.index(best)]} ({best})"
        found.append((ratio, f"| {cells[0]} | {cells[1]} | {peer} | {ours} | {ratio:.2f}x {word}{interval} |"))
    found.sort(key=lambda item: -item[0])
    kept = found if len(found) <= 2 * SHORT else [*found[:SHORT], *found[-SHORT:]]
    lines = [
        "| in single precision | ONNX Runtime | best peer | Opsmith | over the best peer (95 %) |",
        "|---|---:|---:|---:|---:|",
    ]
    return "\n".join([*lines, *(shown for _, shown in kept)])


def _seconds(cell: str) -> float:
    value, unit = cell.strip("*").split()[:2]
    return float(value) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]


def goal_table(found: Sequence[tuple[Case, dict[str, Any]]]) -> str:
    lines = ["| case | goal | measured | over | holds |", "|---|---|---:|---|---|"]
    for case, result in found:
        for goal in case.goals:
            judged = verdict(goal, result)
            if judged is None:
                lines.append(f"| {case.title} | {goal} | not measured | | |")
                continue
            name, (value, low, high) = judged
            holds = "yes" if value >= goal.factor else "no"
            lines.append(
                f"| {case.title} | {goal} | {value:.2f} ({low:.2f} to {high:.2f}) | {TITLES[name]} | {holds} |"
            )
    return "\n".join(lines)


def detail_table(found: Sequence[tuple[Case, dict[str, Any]]]) -> str:
    lines = ["| case | runtime | time | load | peak memory | error |", "|---|---|---:|---:|---:|---:|"]
    for case, result in found:
        for name, row in result["runtimes"].items():
            memory = f"{row['peak_rss'] / 2**30:.2f} GiB"
            title = TITLES.get(name, name.replace("opsmith-", "Opsmith "))
            lines.append(
                f"| {case.title} | {title} | {_time(row['seconds'])} | {row['load_s']:.2f} s | {memory} | {row['error']:.0e} |"
            )
        for name, why in result["failed"].items():
            lines.append(f"| {case.title} | {TITLES[name]} | does not run: {why.replace('|', '/')[:160]} | | | |")
    return "\n".join(lines)


def machine_text(found: Sequence[tuple[Case, dict[str, Any]]]) -> str:
    texts = []
    for _, result in found:
        m = result["machine"]
        versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
        widest = next((f for f in ("avx512f", "avx2", "asimd") if f in m["features"]), "")
        text = f"{m['cpu']}, {result['threads']} threads of {m['cores']} cores, {m['memory'] / 2**30:.0f} GiB, {widest}; {versions}"
        if text not in texts:
            texts.append(text)
    dates = sorted({result["measured"][:10] for _, result in found})
    return f"Measured on {'; and on '.join(texts)}. {dates[0] if len(dates) == 1 else f'{dates[0]} to {dates[-1]}'}."


def chart(found: Sequence[tuple[Case, dict[str, Any]]]) -> str:
    """Speed relative to stock ONNX Runtime, one group of bars per case, as SVG."""
    colours = {
        STOCK: "#9aa5b1",
        OPTIMIZED: "#7b8794",
        "openvino-f32": "#5b8def",
        "openvino": "#3b5ba5",
        "torch-compile": "#e8833a",
        "mnn": "#8f6bc4",
    }
    bars: list[tuple[str, str, float, str]] = []  # case, label, speed, colour
    for case, result in found:
        rows = result["runtimes"]
        for name in [n for n in (*TITLES, *(f"opsmith-{v}" for v in case.variants)) if n in rows]:
            label = TITLES.get(name, name.replace("opsmith-", "Opsmith "))
            bars.append(
                (case.title, label, rows[STOCK]["seconds"] / rows[name]["seconds"], colours.get(name, "#2f9e6e"))
            )
    top = max((speed for *_, speed, _ in bars), default=1.0)
    left, width, step = 150, 420, 16
    parts, y, before = [], 26, ""
    for title, label, speed, fill in bars:
        if title != before:
            y += 12
            parts.append(f'<text x="0" y="{y + 10}" font-weight="bold">{title}</text>')
            y, before = y + 18, title
        length = width * speed / top
        parts.append(f'<text x="{left - 8}" y="{y + 10}" text-anchor="end">{label}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="12" rx="2" fill="{fill}"/>')
        parts.append(f'<text x="{left + length + 6:.1f}" y="{y + 10}">{speed:.2f}</text>')
        y += step
    line = left + width / top
    parts.append(f'<path d="M{line:.1f} 26V{y}" stroke="#52606d" stroke-dasharray="3 3"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {y + 12}" font-family="sans-serif" font-size="11">'
        f'<rect width="640" height="{y + 12}" fill="#ffffff"/>'
        f'<text x="0" y="14" font-size="13">Speed relative to ONNX Runtime (higher is better)</text>{"".join(parts)}</svg>\n'
    )


BEGIN, END = "<!-- peers: written by benchmarks/peers.py -->", "<!-- /peers -->"


def write(found: Sequence[tuple[Case, dict[str, Any]]], root: Path) -> None:
    """README.md between its two marks (added at the end if they are not there), docs/benchmarks.md and the chart."""
    picture = root / "docs" / "pictures" / "peers.svg"
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(chart(found), encoding="utf-8")
    command = "    python benchmarks/peers.py MODELS RESULTS --write"
    short = f"{BEGIN}\n{short_table(main_table(found))}\n\n{machine_text(found)}\n{END}"
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    if BEGIN in text and END in text:
        text = text[: text.index(BEGIN)] + short + text[text.index(END) + len(END) :]
    else:
        text = f"{text.rstrip()}\n\n## How fast\n\n{short}\n"
    readme.write_text(text, encoding="utf-8")
    page = (
        f"# How fast: Opsmith and its peers\n\nWritten by\n\n{command}\n\nAll runtimes of a case run in turns on the same inputs; "
        "ratios are of paired rounds. The error is the largest difference from ONNX Runtime over the output's scale. The weights of "
        "Stable Diffusion, GPT-2 and BERT are random: right for speed and parity. Decoding is measured as every runtime can do it, with a "
        "past that comes in and a present that goes out; the generator lets compiled variants grow their cache in place, which "
        f"benchmarks/decode.py measures. What a model reads is in memory before it is timed.\n\n{machine_text(found)}\n\n{main_table(found)}\n\n"
        f"![chart](pictures/peers.svg)\n\n## Goals\n\n{goal_table(found)}\n\n## Everything measured\n\n{detail_table(found)}\n"
    )
    (root / "docs" / "benchmarks.md").write_text(page, encoding="utf-8")
    index = root / "docs" / "index.md"
    if index.is_file() and "(benchmarks.md)" not in index.read_text(encoding="utf-8"):
        line = "| [benchmarks](benchmarks.md) | Opsmith and its peers, measured |\n"
        index.write_text(index.read_text(encoding="utf-8").rstrip("\n") + "\n" + line, encoding="utf-8")


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
    found = load_results(options.results)
    if found:
        print(f"{main_table(found)}\n\n{goal_table(found)}\n\n{machine_text(found)}")
        if options.write:
            write(found, root)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
