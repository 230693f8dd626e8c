"""How long a denoising step takes with each variant, kept in the cache.

    alone      a picture was made with it: the lowest median of its steps, at some moment
    together   all variants of a pipeline in turn, interleaved by `opsmith bench`: only these may be compared

A measurement that other programs disturbed is marked, and taken again when there is time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opsmith.studio.verbs import run_opsmith

SECONDS, PROCESSES = 8, 2  # of the bench
EXPECTED = SECONDS + 6.0 * PROCESSES  # about what it takes, with the start of its processes


@dataclasses.dataclass(frozen=True)
class Together:
    seconds: Mapping[str, float]  # by the key of the variant
    busy: bool  # other programs used the CPU nearly all the time


class Speeds:
    def __init__(self, file: Path) -> None:
        self.file = file
        kept = _read_json(file)
        self._alone: dict[str, float] = dict(kept.get("alone") or {})
        self._together: dict[str, dict[str, Any]] = dict(kept.get("together") or {})

    def alone(self, key: str) -> float | None:
        return self._alone.get(key)

    def together(self, keys: Sequence[str]) -> Together | None:
        """Of exactly these variants, if they were measured."""
        kept = self._together.get(_joined(keys))
        return None if kept is None else Together(kept["seconds"], kept["busy"])

    def note(self, key: str, step_seconds: Sequence[float]) -> bool:
        """Keep the median of a run, without its first step, which warms up.

        The lowest of all runs stays: other programs can only make a run slower. True if this one is it.
        """
        if len(step_seconds) < 4:
            return False
        now = round(statistics.median(step_seconds[1:]), 5)
        if now >= self._alone.get(key, float("inf")):
            return False
        self._alone[key] = now
        self._write()
        return True

    def measure(
        self,
        variants: Mapping[str, Path],
        feed: Mapping[str, np.ndarray[Any, Any]],
        threads: int | None,
        stopped: Callable[[], bool],
    ) -> Together:
        """Time the variant folders (by key) on FEED, in turn."""
        with tempfile.TemporaryDirectory(prefix="opsmith-speeds-") as folder:
            inputs = Path(folder) / "feed.npz"
            np.savez(inputs, **dict(feed))  # type: ignore[arg-type]  # the stubs know no ** of arrays
            limits = ["--seconds", str(SECONDS), "--processes", str(PROCESSES)]
            more = [] if threads is None else ["--threads", str(threads)]
            paths = [str(path) for path in variants.values()]
            # 1: outputs differ beyond fp32's tolerance, as those of a quantized variant may.
            printed = run_opsmith(["bench", *paths, "--input", str(inputs), "--json", *limits, *more], stopped, (0, 1))
        result = json.loads(printed)
        medians = [round(entry["run"]["median"], 6) for entry in result["entries"]]
        found = Together(dict(zip(variants, medians)), not result["clean"])
        self._together[_joined(list(variants))] = dataclasses.asdict(found)
        self._write()
        return found

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # a full disk costs the memory of a speed, not the picture
            partial = self.file.with_name(f".{self.file.name}.{os.getpid()}.tmp")
            partial.write_text(json.dumps({"alone": self._alone, "together": self._together}, indent=1), "utf-8")
            partial.replace(self.file)


def _joined(keys: Sequence[str]) -> str:
    return " | ".join(sorted(keys))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
