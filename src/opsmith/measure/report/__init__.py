"""report: everything that is known about a model's variants on one self-contained HTML page.

    gather    bench, profile, graph, records      -> one JSON document     (gather.py)
    page      that document                       -> HTML, inline CSS/SVG  (page.py, charts.py, style.py)

The document is inside the page too, so that every figure on it can be checked and read by a program.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opsmith import store
from opsmith.check.feed import Given
from opsmith.errors import OpsmithError
from opsmith.measure.bench import bench, expand
from opsmith.measure.profile import profile
from opsmith.measure.report.gather import gather
from opsmith.measure.report.page import page


def report(
    folder: store.PathLike,
    dest: store.PathLike | None = None,
    *,
    threads: int | None = None,
    seconds: float = 30.0,
    rounds: int | None = None,
    processes: int | None = None,
    iterations: int | None = None,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    inputs: Given | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
) -> Path:
    """Measure all variants of a model folder and write DEST (default FOLDER/report.html) and its JSON beside it."""
    target = Path(dest) if dest is not None else _default(folder)
    if target.suffix != ".html":
        raise OpsmithError(f"the report is an HTML file, not {target.name!r}", "name it FILE.html")
    if not target.absolute().parent.is_dir():
        raise OpsmithError(f"the folder of {target} does not exist")
    paths = expand(folder)
    timed = bench(
        paths,
        threads=threads,
        seconds=seconds,
        rounds=rounds,
        processes=processes,
        shapes=shapes,
        inputs=inputs,
        seed=seed,
        rtol=rtol,
        atol=atol,
    )
    profiles = profile(paths, threads=threads, iterations=iterations, shapes=shapes, inputs=inputs, seed=seed)
    write(gather(paths, timed, profiles), target)
    return target


def write(data: Mapping[str, Any], target: Path) -> None:
    text = page(data)
    for path, content in ((target, text), (target.with_suffix(".json"), json.dumps(data, indent=2) + "\n")):
        partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        partial.write_text(content, encoding="utf-8")
        partial.replace(path)


def _default(folder: store.PathLike) -> Path:
    path = Path(folder)
    return (path if path.is_dir() else path.parent) / "report.html"
