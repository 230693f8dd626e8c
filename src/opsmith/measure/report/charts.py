"""Charts: bars as HTML, so that their words stay readable on any width; the roofline as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from opsmith.measure.units import duration, faster, size

COLOURS = 9  # --c0 ... --c8; --c9 is for "other"


def colour(index: int) -> str:
    return f"var(--c{index % COLOURS})"


def times(entries: Sequence[dict[str, Any]]) -> str:
    """Median time of one run per variant, with whiskers from the 5th to the 95th percentile."""
    # A wild 95th percentile would flatten everything else: the scale ends at twice the largest median.
    top = max(min(e["run"]["p95"], 2 * e["run"]["median"]) for e in entries) * 1.04
    rows = []
    for i, entry in enumerate(entries):
        run = entry["run"]
        low, high = run["p5"] / top, min(run["p95"] / top, 1.0)
        whisker = (
            f'<div class="whisker{" open" if run["p95"] > top else ""}" '
            f'style="left:{low:.3%};width:{max(high - low, 0.002):.3%}"></div>'
        )
        bar = f'<div class="bar" style="width:{run["median"] / top:.3%};background:{colour(i)}"></div>'
        rows.append(_row(entry["label"], bar + whisker, f"<b>{duration(run['median'])}</b> {_ratio(entry, i)}"))
    return _bars(rows)


def ratios(entries: Sequence[dict[str, Any]]) -> str:
    """The speed beside the first variant on a logarithmic scale, with its 95 % interval: further right is faster."""
    reach = max(abs(math.log(x)) for e in entries for x in (e["speedup"]["low"], e["speedup"]["high"], 1.05)) * 1.1

    def place(ratio: float) -> float:
        return 0.5 + 0.5 * math.log(ratio) / reach

    rows = []
    for i, entry in enumerate(entries[1:], 1):
        ratio = entry["speedup"]
        low, high = place(ratio["low"]), place(ratio["high"])
        marks = (
            f'<div class="middle" style="left:50%"></div>'
            f'<div class="whisker" style="left:{low:.3%};width:{max(high - low, 0.002):.3%}"></div>'
            f'<div class="dot" style="left:{place(ratio["value"]):.3%};background:{colour(i)}"></div>'
        )
        words = f"{ratio['value']:.3f} <span class='soft'>({ratio['low']:.3f} to {ratio['high']:.3f})</span>"
        rows.append(_row(entry["label"], marks, words))
    edge = math.exp(reach)
    ends = f"<span>{1 / edge:.2f}</span><span>1</span><span>{edge:.2f}</span>"
    return _bars([*rows, f'<div class="name"></div><div class="scale">{ends}</div><div class="value"></div>'])


def _ratio(entry: dict[str, Any], index: int) -> str:
    if index == 0:
        return "<span class='soft'>the reference</span>"
    ratio = entry["speedup"]
    kind = "good" if ratio["low"] > 1 else "bad" if ratio["high"] < 1 else "soft"
    word = "no difference" if kind == "soft" else faster(ratio["value"])
    return f"<span class='{kind}'>{word}</span>"


def stacks(profiles: Sequence[dict[str, Any]], ops: Sequence[str]) -> str:
    """Where each variant's latency goes: one stacked bar per variant, all on the same scale."""
    top = max(max(p["latency_us"], p["kernels_us"]) for p in profiles)
    rows = []
    for profile in profiles:
        by_op = {row["op"]: row["us"] for row in profile["ops"]}
        parts = [(op, by_op.get(op, 0.0), colour(i)) for i, op in enumerate(ops)]
        parts.append(("other", sum(us for op, us in by_op.items() if op not in ops), "var(--c9)"))
        bar = "".join(
            f'<div class="bar" style="width:{us / top:.3%};background:{shade}" title="{escape(op)}: {duration(us * 1e-6)}">'
            "</div>"
            for op, us, shade in parts
            if us > 0
        )
        words = f"<b>{duration(profile['latency_us'] * 1e-6)}</b> <span class='soft'>{_between(profile)}</span>"
        rows.append(_row(profile["label"], bar, words))
    names = [(op, colour(i)) for i, op in enumerate(ops)] + [("other", "var(--c9)")]
    legend = "".join(f'<span><i style="background:{shade}"></i>{escape(op)}</span>' for op, shade in names)
    return f'{_bars(rows)}<div class="legend">{legend}</div>'


def _between(profile: dict[str, Any]) -> str:
    return f"{duration(profile['between_us'] * 1e-6)} between nodes" if profile["between_us"] > 0 else ""


def memory(entries: Sequence[dict[str, Any]]) -> str:
    """Peak resident memory: the runtime's share grey, the model's in colour; the file's size in words."""
    top = max(e["peak_rss"] for e in entries) * 1.02
    rows = []
    for i, entry in enumerate(entries):
        model = entry["peak_rss"] - entry["base_rss"]
        bar = (
            f'<div class="bar" style="width:{entry["base_rss"] / top:.3%};background:var(--c9)"></div>'
            f'<div class="bar" style="width:{model / top:.3%};background:{colour(i)}"></div>'
        )
        words = f"<b>{size(entry['peak_rss'])}</b> <span class='soft'>file {size(entry['size'])}</span>"
        rows.append(_row(entry["label"], bar, words))
    return _bars(rows)


def _bars(rows: Sequence[str]) -> str:
    return f'<div class="bars">{"".join(rows)}</div>'


def _row(name: str, inside: str, words: str) -> str:
    return f'<div class="name">{escape(name)}</div><div class="track">{inside}</div><div class="value">{words}</div>'


# --- roofline ---------------------------------------------------------------------------------------------


def roofline(profiles: Sequence[dict[str, Any]], peak: float, bandwidth: float) -> str:
    """Each node by its arithmetic intensity and speed, under the machine's roof; once wide, once for narrow screens."""
    return _roofline(profiles, peak, bandwidth, 900, 400, "wide") + _roofline(
        profiles, peak, bandwidth, 380, 340, "narrow"
    )


def _roofline(
    profiles: Sequence[dict[str, Any]], peak: float, bandwidth: float, width: int, height: int, kind: str
) -> str:
    points = [
        (i, row["flops"] / row["bytes"], row["flops"] / row["us"] / 1e3, row, profile["latency_us"])
        for i, profile in enumerate(profiles)
        for row in profile["nodes"]
        if row["flops"] and row["bytes"] and row["us"]
    ]
    if not points:
        return ""
    left, right, top, bottom = 52, 14, 16, 44
    corner = peak / bandwidth  # FLOPs per byte where the roof bends
    xs = [p[1] for p in points] + [corner * 4, corner / 8]
    ys = [p[2] for p in points] + [peak / 1e9 * 1.5, peak / 1e9 / 100]
    x0, x1 = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs)))
    y0, y1 = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x0) / (x1 - x0)
        up = (math.log10(y) - y0) / (y1 - y0)
        return left + across * (width - left - right), height - bottom - up * (height - top - bottom)

    parts = []
    for power in range(x0, x1 + 1):
        x, _ = at(10**power, 10**y0)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - bottom + 17}" text-anchor="middle">{_power(power)}</text>')
    for power in range(y0, y1 + 1):
        _, y = at(10**x0, 10**power)
        parts.append(f'<line class="axis" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 7}" y="{y + 4:.1f}" text-anchor="end">{_power(power)}</text>')
    low = max(10**x0, 10**y0 * 1e9 / bandwidth)
    corners = [at(low, low * bandwidth / 1e9), at(corner, peak / 1e9), at(10**x1, peak / 1e9)]
    parts.append(f'<polyline class="roof" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in corners)}"/>')
    x, y = corners[2]
    parts.append(
        f'<text class="strong" x="{x - 4:.1f}" y="{y - 7:.1f}" text-anchor="end">{peak / 1e9:.0f} GFLOP/s</text>'
    )
    x, y = at(math.sqrt(low * corner), math.sqrt(low * corner) * bandwidth / 1e9)
    parts.append(
        f'<text class="strong" x="{x - 6:.1f}" y="{y - 6:.1f}" text-anchor="end">{bandwidth / 1e9:.0f} GB/s</text>'
    )
    for i, intensity, speed, row, latency in sorted(points, key=lambda p: -p[3]["us"]):
        x, y = at(intensity, speed)
        radius = 3 + 9 * math.sqrt(row["us"] / latency)
        label = (
            f"{profiles[i]['label']}: {row['name']} ({row['op']}), {duration(row['us'] * 1e-6)}, {speed:.3g} GFLOP/s"
        )
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour(i)}" fill-opacity="0.6" '
            f'stroke="{colour(i)}"><title>{escape(label)}</title></circle>'
        )
    parts.append(
        f'<text x="{(left + width - right) / 2}" y="{height - 7}" text-anchor="middle">FLOP per byte moved</text>'
    )
    parts.append(f'<text x="{left}" y="{top - 5}" text-anchor="start">GFLOP/s</text>')
    return f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="roofline">{"".join(parts)}</svg>'


def _power(power: int) -> str:
    return f"{10**power:g}"
