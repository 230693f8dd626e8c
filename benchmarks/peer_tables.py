"""The tables, the chart and the pages that `benchmarks/peers.py` makes of its results."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer_cases import CASES, CLASSES, OUR_COLOUR, OURS, RUNTIMES, STOCK, Case, Goal, label, over_best, title

Results = Sequence[tuple[Case, dict[str, Any]]]


def load_results(folder: Path) -> list[tuple[Case, dict[str, Any]]]:
    files = ((case, folder / f"{case.name}.json") for case in CASES)
    return [(case, json.loads(file.read_text(encoding="utf-8"))) for case, file in files if file.is_file()]


@dataclasses.dataclass(frozen=True)
class Row:
    """One variant of ours beside the fastest runtime of its error class or a finer one."""

    case: Case
    variant: str
    result: dict[str, Any]
    rival: str
    ratio: float  # above 1: ours is faster
    low: float
    high: float

    @property
    def precision(self) -> str:
        return OURS[self.variant].precision

    @property
    def ours(self) -> dict[str, Any]:
        return dict(self.result["runtimes"][label(self.variant)])

    def time(self, name: str) -> str:
        row = self.result["runtimes"].get(name)
        return _time(row["seconds"]) if row else "-"

    @property
    def name(self) -> str:
        idle = "" if self.result["clean"] else " (machine not idle)"
        return f"{self.case.title}{idle}"

    @property
    def has_equals(self) -> bool:
        """Whether a runtime of the very same class was measured."""
        return any(name in RUNTIMES and RUNTIMES[name].precision == self.precision for name in self.result["runtimes"])

    @property
    def word(self) -> str:
        return "faster" if self.ratio >= 1 else "**slower**"

    @property
    def verdict(self) -> str:
        return f"{self.ratio:.2f}x {self.word} ({self.low:.2f} to {self.high:.2f})"


def judge(goal: Goal, result: dict[str, Any]) -> tuple[str, float, float, float] | None:
    """The fastest of the runtimes of a goal, and our ratio to it with its interval; None where none was measured."""
    ours, runtimes = label(goal.variant), result["runtimes"]
    ratios = {n: runtimes[n]["speedups"][ours] for n in goal.over if ours in runtimes.get(n, {}).get("speedups", {})}
    if not ratios:
        return None
    name = min(ratios, key=lambda n: ratios[n][0])
    return name, *ratios[name]


def rows(results: Results) -> list[Row]:
    found = []
    for case, result in results:
        for variant in case.variants:
            if (judged := judge(over_best(variant, 1.0), result)) is not None:
                found.append(Row(case, variant, result, *judged))
    return found


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _error(row: dict[str, Any]) -> str:
    return f"{row['error']:.0e}"


def class_table(results: Results, precision: str) -> str:
    """All variants of ours of one error class, and every runtime of it or finer that was measured."""
    mine = [row for row in rows(results) if row.precision == precision]
    if not mine:
        return ""
    names = [n for n in over_best(mine[0].variant, 1.0).over if any(n in row.result["runtimes"] for row in mine)]
    lines = [
        f"| case | {' | '.join(title(n) for n in names)} | Opsmith | over the best of them (95 %) | error: theirs | ours |",
        "|---|" + "---:|" * (len(names) + 4),
    ]
    for row in mine:
        what = "" if row.variant == precision else f", {OURS[row.variant].title}"
        times = " | ".join(row.time(n) for n in names)
        theirs = f"{_error(row.result['runtimes'][row.rival])} ({title(row.rival)})"
        lines.append(
            f"| {row.name}{what} | {times} | **{_time(row.ours['seconds'])}** | {row.verdict} | {theirs} | {_error(row.ours)} |"
        )
    return "\n".join(lines)


SHORT = 4  # rows from either end that the README shows


def short_table(results: Results) -> str:
    """The rows where we are furthest ahead of the best peer of the same error class, and those where least or behind; none for
    which no peer of just that class was measured."""
    ordered = sorted((row for row in rows(results) if row.has_equals), key=lambda row: -row.ratio)
    kept = ordered if len(ordered) <= 2 * SHORT else [*ordered[:SHORT], *ordered[-SHORT:]]
    lines = [
        "| | precision | ONNX Runtime | best peer of that error class | Opsmith | over it (95 %) |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in kept:
        peer = f"{row.time(row.rival)} ({title(row.rival)}, error {_error(row.result['runtimes'][row.rival])})"
        ours = f"**{_time(row.ours['seconds'])}** (error {_error(row.ours)})"
        lines.append(
            f"| {row.name} | {OURS[row.variant].title} | {row.time(STOCK)} | {peer} | {ours} | {row.verdict} |"
        )
    return "\n".join(lines)


# What the README begins with: these, faster or slower; chosen before they were measured.
FIRST = (("bert_b1", "bf16"), ("unet_64_b1", "bf16"), ("unet_64_b1", "fp32"))


def first_sentence(results: Results) -> str:
    """The times of a few rows, each with the peer that comes next and both errors; empty if none of them was measured."""
    found = {(row.case.name, row.variant): row for row in rows(results)}
    parts = []
    for row in (found[key] for key in FIRST if key in found):
        theirs = row.result["runtimes"][row.rival]
        parts.append(
            f"{row.name} takes {_time(row.ours['seconds'])} in {OURS[row.variant].title} where {title(row.rival)} takes "
            f"{row.time(row.rival)} ({row.ratio:.2f}x {row.word}; errors {_error(row.ours)} and {_error(theirs)})"
        )
    return f"**Why:** on the same cores, {'; '.join(parts)}." if parts else ""


def goal_table(results: Results) -> str:
    lines = ["| case | goal | measured | over | holds |", "|---|---|---:|---|---|"]
    for case, result in results:
        for goal in case.goals:
            judged = judge(goal, result)
            if judged is None:
                lines.append(f"| {case.title} | {goal} | not measured | | |")
                continue
            name, value, low, high = judged
            holds = "yes" if value >= goal.factor else "no"
            lines.append(f"| {case.title} | {goal} | {value:.2f} ({low:.2f} to {high:.2f}) | {title(name)} | {holds} |")
    return "\n".join(lines)


def detail_table(results: Results) -> str:
    lines = ["| case | runtime | time | load | peak memory | error |", "|---|---|---:|---:|---:|---:|"]
    for case, result in results:
        for name, row in result["runtimes"].items():
            memory = f"{row['peak_rss'] / 2**30:.2f} GiB"
            lines.append(
                f"| {case.title} | {title(name)} | {_time(row['seconds'])} | {row['load_s']:.2f} s | {memory} | {_error(row)} |"
            )
        for name, why in result["failed"].items():
            lines.append(f"| {case.title} | {title(name)} | does not run: {why.replace('|', '/')[:160]} | | | |")
    return "\n".join(lines)


def machine_text(results: Results) -> str:
    texts = []
    for _, result in results:
        m = result["machine"]
        versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
        widest = next((f for f in ("avx512f", "avx2", "asimd") if f in m["features"]), "")
        text = f"{m['cpu']}, {result['threads']} threads of {m['cores']} cores, {m['memory'] / 2**30:.0f} GiB, {widest}; {versions}"
        if text not in texts:
            texts.append(text)
    return f"Measured on {'; and on '.join(texts)}. {_dates(results)}."


def _dates(results: Results) -> str:
    """Kernels change from day to day: of cases that were measured on several, each day names its own, the largest share last."""
    days: dict[str, list[str]] = {}
    for case, result in results:
        days.setdefault(result["measured"][:10], []).append(case.title)
    *few, most = sorted(days, key=lambda day: len(days[day]))
    return "".join(f"{'; '.join(days[day])}: {day}. All others: " for day in few) + most


def chart(results: Results) -> str:
    """Speed relative to stock ONNX Runtime, one group of bars per case, as SVG."""
    bars: list[tuple[str, str, float, str]] = []  # case, runtime, speed, colour
    for case, result in results:
        runtimes = result["runtimes"]
        for name in [n for n in (*RUNTIMES, *map(label, case.variants)) if n in runtimes]:
            colour = RUNTIMES[name].colour if name in RUNTIMES else OUR_COLOUR
            bars.append((case.title, title(name), runtimes[STOCK]["seconds"] / runtimes[name]["seconds"], colour))
    top = max((speed for *_, speed, _ in bars), default=1.0)
    left, width, step = 150, 420, 16
    parts, y, before = [], 26, ""
    for case_title, runtime, speed, fill in bars:
        if case_title != before:
            y += 12
            parts.append(f'<text x="0" y="{y + 10}" font-weight="bold">{case_title}</text>')
            y, before = y + 18, case_title
        length = width * speed / top
        parts.append(f'<text x="{left - 8}" y="{y + 10}" text-anchor="end">{runtime}</text>')
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
WHY, WHY_END = "<!-- why: written by benchmarks/peers.py -->", "<!-- /why -->"
_HEADINGS = {
    "fp32": "Single precision",
    "bf16": "16 bits",
    "int8": "8 bits",
    "int4": "4 bits",
}


def class_tables(results: Results) -> str:
    parts = [(precision, class_table(results, precision)) for precision in CLASSES]
    return "\n\n".join(f"## {_HEADINGS[precision]}\n\n{table}" for precision, table in parts if table)


def page(results: Results) -> str:
    command = "    python benchmarks/peers.py MODELS RESULTS --write"
    return (
        f"# How fast: Opsmith and its peers\n\nWritten by\n\n{command}\n\nAll runtimes of a case run in turns on the same inputs; "
        "ratios are of paired rounds. A variant of ours is held against the fastest runtime of its own error class or a finer one: fp32, 16 "
        "bits, 8 bits, 4 bits. The error is the largest difference from ONNX Runtime over the output's scale. The weights of "
        "Stable Diffusion, GPT-2 and BERT are random: right for speed and parity. Decoding is measured as every runtime can do it, with a "
        "past that comes in and a present that goes out; the generator lets compiled variants grow their cache in place, which "
        f"benchmarks/decode.py measures. What a model reads is in memory before it is timed.\n\n{machine_text(results)}\n\n"
        f"{class_tables(results)}\n\n![chart](pictures/peers.svg)\n\n## Goals\n\n{goal_table(results)}\n\n"
        f"## Everything measured\n\n{detail_table(results)}\n"
    )


def write(results: Results, root: Path) -> None:
    """README.md between its marks (the table is added at the end if they are not there), docs/benchmarks.md and the chart."""
    picture = root / "docs" / "pictures" / "peers.svg"
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(chart(results), encoding="utf-8")
    short = f"{BEGIN}\n{short_table(results)}\n\n{machine_text(results)}\n{END}"
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    if BEGIN in text and END in text:
        text = text[: text.index(BEGIN)] + short + text[text.index(END) + len(END) :]
    else:
        text = f"{text.rstrip()}\n\n## How fast\n\n{short}\n"
    sentence = first_sentence(results)
    if sentence and WHY in text and WHY_END in text:
        text = f"{text[: text.index(WHY)]}{WHY}\n{sentence}\n{text[text.index(WHY_END) :]}"
    readme.write_text(text, encoding="utf-8")
    (root / "docs" / "benchmarks.md").write_text(page(results), encoding="utf-8")
    index = root / "docs" / "index.md"
    if index.is_file() and "(benchmarks.md)" not in index.read_text(encoding="utf-8"):
        line = "| [benchmarks](benchmarks.md) | Opsmith and its peers, measured |\n"
        index.write_text(index.read_text(encoding="utf-8").rstrip("\n") + "\n" + line, encoding="utf-8")
