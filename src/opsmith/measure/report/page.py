"""The page: one section per question."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from opsmith.measure.report import charts
from opsmith.measure.report.style import SCRIPT, STYLE
from opsmith.measure.units import duration, faster, size

OPS_SHOWN = 8  # op types with a colour of their own
NODES_SHOWN = 40
Row = Sequence["str | tuple[str, float]"]  # a cell is HTML, or HTML and the number to sort it by


def page(data: Mapping[str, Any]) -> str:
    """The HTML of a document made by `gather`."""
    sections = [
        _speed(data),
        _time(data),
        _roofline(data),
        _changes(data),
        _errors(data),
        _memory(data),
        _rewrites(data),
        _graph(data),
        _provenance(data),
    ]
    shown = [s for s in sections if s]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in shown)
    body = "".join(f'<section id="{name}"><h2>{title}</h2>{inside}</section>' for name, title, inside in shown)
    title = escape(data["title"])
    embedded = json.dumps(data).replace("<", "\\u003c")  # so that no name in it can end the script
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title} - Opsmith report</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n<body>'
        f'<header><div><h1>{title}</h1><div class="soft">{_about(data)}</div><nav>{links}</nav></div>'
        f'<button id="theme" type="button" title="light or dark">light / dark</button></header>\n'
        f"<main>{_cards(data)}{body}</main>\n"
        f"<footer>Made by Opsmith {escape(data['opsmith'])} on {escape(data['made'])}. "
        f"Every figure is in the JSON document inside this page.</footer>\n"
        f'<script type="application/json" id="data">{embedded}</script><script>{SCRIPT}</script></body></html>\n'
    )


def _about(data: Mapping[str, Any]) -> str:
    bench, machine = data["bench"], data["machine"]
    inputs = ", ".join(f"{escape(n)} {escape(k)}" for n, k in bench["inputs"].items())
    return (
        f"{escape(machine['cpu'])}, {bench['threads']} of {machine['cores']} cores, {size(machine['memory'])} memory; "
        f"{inputs} ({escape(bench['inputs_from'])})"
    )


def _cards(data: Mapping[str, Any]) -> str:
    entries = data["bench"]["entries"]
    best = max(entries, key=lambda e: e["speedup"]["value"])
    cards = [(duration(best["run"]["median"]), f"fastest: {escape(best['label'])}")]
    if best is not entries[0]:
        gain = best["speedup"]
        span = f"{gain['low']:.2f} to {gain['high']:.2f}, 95 % interval"
        cards.append((faster(gain["value"]), f"beside {escape(entries[0]['label'])} ({span})"))
    if best["gflops"] is not None:
        share = "" if best["share_of_peak"] is None else f", {best['share_of_peak']:.0%} of this machine's peak"
        cards.append((f"{best['gflops']:.3g} GFLOP/s", f"{escape(best['label'])}{share}"))
    if len(entries) > 1:
        cards.append(_agreement(entries))
    inside = "".join(f'<div class="card"><b>{value}</b><span>{words}</span></div>' for value, words in cards)
    return f'<div class="cards">{inside}</div>'


def _note(text: str) -> str:
    """A remark of a verb, which writes commands as `opsmith bench --machine`."""
    parts = [f"<code>{escape(part)}</code>" if i % 2 else escape(part) for i, part in enumerate(text.split("`"))]
    return f'<p class="note">{"".join(parts)}</p>'


def _agreement(entries: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    wrong = [e["label"] for e in entries if not e["verified"]]
    verdict = (
        f"{escape(', '.join(wrong))} {'differs' if len(wrong) == 1 else 'differ'}" if wrong else "all variants agree"
    )
    far = max((c["max_abs"] for e in entries for c in e["errors"] if c["max_abs"] is not None), default=0.0)
    return f"{far:.1e}", f"largest difference of an output; {verdict}"


def _speed(data: Mapping[str, Any]) -> tuple[str, str, str]:
    bench = data["bench"]
    entries = bench["entries"]
    columns = "variant >median >p5 >p95 >speed >95 % >load >first run >GFLOP/s >of peak >turns >disturbed >left out"
    rows: list[Row] = []
    for i, e in enumerate(entries):
        gain, run = e["speedup"], e["run"]
        rows.append(
            [
                escape(e["label"]),
                *((duration(run[k]), run[k]) for k in ("median", "p5", "p95")),
                (faster(gain["value"]) if i else "1x", gain["value"]),
                "" if i == 0 else f"{gain['low']:.3f} to {gain['high']:.3f}",
                (duration(e["load"]), e["load"]),
                (duration(e["first"]), e["first"]),
                _number(e["gflops"]),
                _percent(e["share_of_peak"]),
                *(str(e[k]) for k in ("samples", "disturbed", "left_out")),
            ]
        )
    names = columns.replace("first run", "first_run").replace("of peak", "of_peak").replace("left out", "left_out")
    names = names.replace("95 %", "95_%")
    notes = "".join(map(_note, bench["notes"]))
    intro = (
        f"<p class='soft'>One run, median with 5th and 95th percentile. Variants took turns in separate processes, "
        f"{bench['processes']} set{'s' if bench['processes'] > 1 else ''} of them.</p>"
    )
    ratios = ""
    if len(entries) > 1:
        ratios = (
            f"<h3>Ratio to {escape(entries[0]['label'])}</h3><p class='soft'>Left of the line is faster. "
            f"The interval holds the true ratio in 95 of 100 such measurements.</p>{charts.ratios(entries)}"
        )
    table = _table([n.replace("_", " ") for n in names.split(" ")], rows, "speed-table")
    return "speed", "Speed", intro + charts.times(entries) + ratios + notes + table


def _time(data: Mapping[str, Any]) -> tuple[str, str, str]:
    profiles = data["profiles"]
    total: dict[str, float] = {}
    for profile in profiles:
        for row in profile["ops"]:
            total[row["op"]] = total.get(row["op"], 0.0) + row["us"]
    ops = sorted(total, key=lambda op: -total[op])[:OPS_SHOWN]
    parts = ["<p class='soft'>Time inside nodes and kernels, by type, on one scale.</p>", charts.stacks(profiles, ops)]
    for profile in profiles:
        rows: list[Row] = [
            [
                escape(r["op"]),
                str(r["count"]),
                (duration(r["us"] * 1e-6), r["us"]),
                (f"{r['share']:.1%}", r["share"]),
                _number(r["gflops"]),
                "-" if r["bytes"] is None else (size(r["bytes"]), r["bytes"]),
                _percent(r["roofline"]),
            ]
            for r in profile["ops"]
        ]
        between = profile["between_us"]
        name = "(between nodes)" if between >= 0 else "(profiler's own cost)"
        rows.append([name, "", (duration(between * 1e-6), between), "", "", "", ""])
        names = ["op", ">count", ">time", ">share", ">GFLOP/s", ">bytes", ">of roofline"]
        kept = f"{profile['runs'] - profile['left_out']} of {profile['runs']} runs"
        parts.append(f"<h3>{escape(profile['label'])} <span class='soft'>{kept}</span></h3>")
        parts.append(_table(names, rows, f"ops-{len(parts)}"))
        nodes: list[Row] = [
            [
                (f"<span>{escape(n['name'])}</span>", 0.0),
                escape(n["op"]),
                (duration(n["us"] * 1e-6), n["us"]),
                _number(n["gflops"]),
                _percent(n["roofline"]),
                escape(_few(n["origin"])),
            ]
            for n in profile["nodes"][:NODES_SHOWN]
        ]
        heads = ["~node", "op", ">time", ">GFLOP/s", ">of roofline", "~stands for"]
        every = len(profile["nodes"])
        heading = f"all {every} nodes" if every == len(nodes) else f"the {len(nodes)} slowest of {every} nodes"
        parts.append(f"<details><summary>{heading}</summary>{_table(heads, nodes, f'nodes-{len(parts)}')}</details>")
        parts += map(_note, profile["notes"])
    return "time", "Where the time goes", "".join(parts)


def _roofline(data: Mapping[str, Any]) -> tuple[str, str, str] | None:
    machine = data["machine"]
    if not machine["peak_flops"]:
        return None
    drawing = charts.roofline(data["profiles"], machine["peak_flops"], machine["bandwidth"])
    if not drawing:
        return None
    names = [(p["label"], charts.colour(i)) for i, p in enumerate(data["profiles"])]
    legend = "".join(f'<span><i style="background:{shade}"></i>{escape(n)}</span>' for n, shade in names)
    words = (
        "<p class='soft'>Each circle is a node or kernel, larger for more time. On the roof nothing is left to gain; "
        "far below it there is. Weights that stay in the caches can lift a circle above the slanted part.</p>"
    )
    return "roofline", "Distance to the roofline", f'{words}{drawing}<div class="legend">{legend}</div>'


def _changes(data: Mapping[str, Any]) -> tuple[str, str, str] | None:
    if not data["comparisons"]:
        return None
    parts = []
    for number, comparison in enumerate(data["comparisons"]):
        title = f"{escape(comparison['a'])} to {escape(comparison['b'])}"
        rows: list[Row] = [
            [escape(t["op"]), str(t["a_count"]), _us(t["a_us"]), str(t["b_count"]), _us(t["b_us"]), *_difference(t)]
            for t in comparison["types"]
        ]
        heads = ["op", ">A count", ">A time", ">B count", ">B time", ">difference", ">%"]
        parts.append(f"<h3>{title}, by type</h3>{_table(heads, rows, f'types-{number}')}")
        groups: list[Row] = [
            [
                escape(_few(g["nodes"]) or "(no counterpart)"),
                escape(_few(g["a"])),
                _us(g["a_us"]),
                escape(_few(g["b"])),
                _us(g["b_us"]),
                *_difference(g),
            ]
            for g in comparison["nodes"][:NODES_SHOWN]
        ]
        heads = ["~original nodes", "~A", ">A time", "~B", ">B time", ">difference", ">%"]
        parts.append(
            f"<details><summary>{title}, by original node</summary>{_table(heads, groups, f'groups-{number}')}</details>"
        )
    return "changes", "What changed", "".join(parts)


def _errors(data: Mapping[str, Any]) -> tuple[str, str, str]:
    rows: list[Row] = []
    for entry in data["bench"]["entries"]:
        for c in entry["errors"]:
            verdict = (
                '<span class="good">same</span>'
                if c["problem"] is None
                else f'<span class="bad">{escape(c["problem"])}</span>'
            )
            rows.append(
                [
                    escape(entry["label"]),
                    escape(c["name"]),
                    escape(f"{c['dtype']} {list(c['shape'])}"),
                    *(("-", 0.0) if c[k] is None else (f"{c[k]:.2e}", c[k]) for k in ("max_abs", "max_rel")),
                    "-" if c["cosine"] is None else f"{c['cosine']:.7f}",
                    f"{c['rtol']:g} / {c['atol']:g}",
                    verdict,
                ]
            )
    heads = ["variant", "output", "type", ">max abs", ">max rel", ">cosine", ">rtol / atol", "~verdict"]
    words = "<p class='soft'>Outputs on the inputs that were timed, compared with the first variant's.</p>"
    return "outputs", "Do they compute the same?", words + _table(heads, rows, "errors-table")


def _memory(data: Mapping[str, Any]) -> tuple[str, str, str]:
    words = "<p class='soft'>Peak resident memory of the process: grey before the model was loaded, then the model.</p>"
    return "memory", "Memory and size", words + charts.memory(data["bench"]["entries"])


def _rewrites(data: Mapping[str, Any]) -> tuple[str, str, str] | None:
    parts = []
    for number, variant in enumerate(data["variants"]):
        record = variant["record"]
        label = escape(variant["label"])
        if rewrite := record.get("rewrite"):
            rows: list[Row] = [[escape(rule), str(n)] for rule, n in rewrite.get("rules", {}).items()]
            if nodes := rewrite.get("nodes"):
                rows.append(["<b>nodes before and after</b>", f"{nodes[0]} to {nodes[1]}"])
            parts.append(f"<h3>{label}: rewrite rules</h3>{_table(['rule', '>matches'], rows, f'rules-{number}')}")
        if compiled := record.get("compiled"):
            regions: list[Row] = [
                [escape(r["name"]), str(r["nodes"]), str(r["calls"])] for r in compiled.get("regions", [])
            ]
            heads = ["region", ">nodes", ">kernel calls"]
            parts.append(f"<h3>{label}: compiled regions</h3>{_table(heads, regions, f'regions-{number}')}")
            left: list[Row] = [[escape(why), str(n)] for why, n in compiled.get("left_to_ort", {}).items()]
            if left:
                parts.append(_table(["~left to ONNX Runtime", ">nodes"], left, f"left-{number}"))
            if tuned := compiled.get("tuned"):
                parts.append(f"<h3>{label}: tuned kernels</h3>{_tuned(tuned, f'tuned-{number}')}")
    return ("rewrites", "Rewrites and regions", "".join(parts)) if parts else None


def _tuned(tuned: Mapping[str, Any], name: str) -> str:
    """What the tuner chose, and what it measured before and after."""
    words, times = ("kernel", "sizes", "calls", "analytical", "chosen"), ("us_before", "us_after")
    rows: list[Row] = [
        [*(escape(str(choice[key])) for key in words), *(_us(choice[key]) for key in times)]
        for choice in tuned["choices"]
    ]
    text = (
        f"<p>Search {tuned['search']} on {tuned['threads']} threads: {tuned['calls_changed']} calls changed; the tuned kernels take "
        f"{tuned['ms_after']:.2f} ms instead of {tuned['ms_before']:.2f}.</p>"
    )
    heads = ["kernel", "~sizes", ">calls", "analytical choice", "tuned choice", ">time before", ">time after"]
    return text + _table(heads, rows, name)


def _graph(data: Mapping[str, Any]) -> tuple[str, str, str]:
    variants = data["variants"]
    total: dict[str, int] = {}
    for variant in variants:
        for op, count in variant["ops"].items():
            total[op] = max(total.get(op, 0), count)
    heads = ["operator", *(f">{escape(v['label'])}" for v in variants)]
    rows: list[Row] = [
        ["<b>nodes</b>", *((f"{v['nodes']:,}", v["nodes"]) for v in variants)],
        ["<b>parameters</b>", *("packed" if (n := v["parameters"]) is None else (f"{n:,}", n) for v in variants)],
        ["<b>size on disk</b>", *((size(v["size"]), v["size"]) for v in variants)],
    ]
    for op in sorted(total, key=lambda o: (-total[o], o)):
        rows.append([escape(op), *(str(v["ops"].get(op, 0)) for v in variants)])
    return "graph", "Graph", _table(heads, rows, "graph-table")


def _provenance(data: Mapping[str, Any]) -> tuple[str, str, str]:
    parts = []
    for variant in data["variants"]:
        record = variant["record"]
        label = escape(variant["label"])
        if not record:
            parts.append(f"<h3>{label}</h3><p class='soft'>{escape(variant['file'])}, not written by Opsmith</p>")
            continue
        parent = f" from {escape(str(record['parent']))}" if record.get("parent") else ""
        parts.append(
            f"<h3>{label}</h3><p class='soft'>{escape(str(record.get('verb')))}{parent}, "
            f"{escape(str(record.get('created', '')))}, {escape(str(record.get('seconds', '?')))} s, "
            f"{escape(str(record.get('cpu', '')))}</p>"
            f"<details><summary>opsmith.json</summary><pre>{escape(json.dumps(record, indent=2))}</pre></details>"
        )
    return "provenance", "Provenance", "".join(parts)


# --- tables -----------------------------------------------------------------------------------------------


def _table(heads: Sequence[str], rows: Sequence[Row], name: str) -> str:
    """Heads: '>' right-aligned, '~' may wrap. A click on a head sorts."""
    kinds = ["n" if h.startswith(">") else "wrap" if h.startswith("~") else "" for h in heads]
    top = "".join(f'<th class="{k}">{h.lstrip(">~")}</th>' for h, k in zip(heads, kinds))
    body = "".join(f"<tr>{''.join(_cell(c, k) for c, k in zip(row, kinds))}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="sorted" id="{name}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: str | tuple[str, float], kind: str) -> str:
    if isinstance(cell, tuple):
        return f'<td class="{kind}" data-v="{cell[1]!r}">{cell[0]}</td>'
    return f'<td class="{kind}">{cell}</td>'


def _us(us: float) -> tuple[str, float]:
    return duration(us * 1e-6), us


def _difference(change: Mapping[str, Any]) -> tuple[tuple[str, float], str]:
    gap = change["difference"]
    kind = "good" if gap < 0 else "bad" if gap > 0 else ""
    words = f'<span class="{kind}">{"+" if gap > 0 else ""}{duration(gap * 1e-6)}</span>'
    return (words, gap), "" if change["percent"] is None else f"{change['percent']:+.0f}"


def _number(value: float | None) -> str | tuple[str, float]:
    return "-" if value is None else (f"{value:.3g}", value)


def _percent(value: float | None) -> str | tuple[str, float]:
    return "-" if value is None else (f"{value:.0%}", value)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} ... {names[-1]} ({len(names)})"
