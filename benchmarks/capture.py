"""The demo as it runs: its output goes into docs/demo.md and, as an animated picture, into the README.

    python benchmarks/capture.py             runs `opsmith demo` from an empty cache and writes both (on an idle machine, please)

tests/test_demo.py compares what it wrote with the demo of today.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- demo: written by benchmarks/capture.py -->\n```\n", "```\n<!-- /demo -->"
COLUMNS = 104
SECONDS = 20.0  # the picture's time, however long the demo took
LINE, CHARACTER, MARGIN = 17, 7.3, 16  # pixels
SPOKEN = ("model", "inspect", "optimize", "verify")  # stations whose line is the same on every machine, but for numbers


def run() -> str:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "COLUMNS": str(COLUMNS), "OPSMITH_CACHE": f"{folder}/cache"}
        command = [sys.executable, "-m", "opsmith", "demo"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


def stations(text: str) -> list[str]:
    """The output cut before each station; what follows the last one belongs to it."""
    return re.split(r"\n(?=[✓✗-] )", text.rstrip("\n"))


def shape(text: str) -> list[str]:
    """What of an output does not depend on the machine: stations, columns, names, and lines with their numbers taken out."""
    found = []
    for block in stations(text):
        first, *rows = block.splitlines()
        name = first.split()[1]
        spoken = re.sub(r" \(\d+\.\d s\)$", "", first) if name in SPOKEN else f"{first[0]} {name}"
        found.append(re.sub(r"\d[\d.,e+-]*", "0", spoken))
        if name in (*SPOKEN, "bench", "compare"):
            found += [row.split()[0] for row in rows if row.startswith("            ")]
    return found


def transcript(page: str) -> str:
    return page[page.index(BEGIN) + len(BEGIN) : page.index(END)]


def svg(text: str) -> str:
    """The output as a terminal; each station appears when its time has come."""
    blocks = stations(text)
    spent = [float(found[1]) if (found := re.search(r"\((\d+\.\d) s\)", block)) else 0.0 for block in blocks]
    scale = SECONDS / max(sum(spent), 1e-6)
    body, line, clock = [], 0, 0.0
    for block, seconds in zip(blocks, spent):
        clock += seconds * scale
        rows = []
        for row in block.splitlines():
            line += 1
            shown = html.escape(row)
            if row.startswith("✓ "):
                name = html.escape(row.split()[1])
                shown = shown.replace("✓", '<tspan fill="#7ec699">✓</tspan>', 1).replace(
                    name, f'<tspan font-weight="bold" fill="#ffffff">{name}</tspan>', 1
                )
            rows.append(f'<text x="{MARGIN}" y="{MARGIN + line * LINE}" xml:space="preserve">{shown}</text>')
        body.append(f'<g style="animation-delay:{clock:.1f}s">{"".join(rows)}</g>')
    width, height = round(2 * MARGIN + COLUMNS * CHARACTER), 2 * MARGIN + (line + 1) * LINE
    style = "g{animation:show .2s step-end backwards}@keyframes show{from{opacity:0}to{opacity:1}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="12" fill="#d5dbe3" '
        f'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" role="img" aria-label="opsmith demo">'
        f"<style>{style}@media (prefers-reduced-motion:reduce){{g{{animation:none}}}}</style>"
        f'<rect width="{width}" height="{height}" rx="8" fill="#1c2128"/>'
        f'<text x="{MARGIN}" y="{MARGIN + 4}"><tspan fill="#7ec699">$</tspan> opsmith demo</text>{"".join(body)}</svg>\n'
    )


def write(text: str, root: Path) -> None:
    page = root / "docs" / "demo.md"
    old = page.read_text(encoding="utf-8")
    page.write_text(old[: old.index(BEGIN) + len(BEGIN)] + text + old[old.index(END) :], encoding="utf-8")
    (root / "docs" / "pictures" / "demo.svg").write_text(svg(text), encoding="utf-8")


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    write(run(), ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
