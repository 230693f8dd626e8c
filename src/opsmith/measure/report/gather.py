"""All figures of a report as one JSON document."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opsmith import machine, store
from opsmith._version import __version__
from opsmith.measure import peak
from opsmith.measure import profile as profiling
from opsmith.measure.bench import BenchResult, labels
from opsmith.measure.compare import graph_facts
from opsmith.plain import plain


def gather(paths: Sequence[Path], timed: BenchResult, profiles: Sequence[profiling.Profile]) -> dict[str, Any]:
    """What was measured of the variants at PATHS, and what their files say."""
    limits = peak.cached()
    at = limits.at(timed.threads) if limits else None
    data = {
        "title": paths[0].absolute().parent.parent.name if len(paths) > 1 else paths[0].stem,
        "opsmith": __version__,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": machine.cpu_name(),
            "cores": machine.cores(),
            "memory": machine.memory_bytes(),
            "peak_flops": at.flops if at else None,
            "bandwidth": at.bandwidth if at else None,
        },
        "bench": timed.to_dict(),
        **profiling.to_dict(profiles),
        "variants": [_facts(label, path) for label, path in zip(labels(paths), paths)],
    }
    found: dict[str, Any] = plain(data)
    return found


def _facts(label: str, path: Path) -> dict[str, Any]:
    record = store.read_record(path)
    return {"label": label, "file": path.name, **dataclasses.asdict(graph_facts(path)), "record": record}
