"""What `compile` tells of its work: regions, what stayed with ONNX Runtime, speed, error, time."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from opsmith.check.feed import Judged
from opsmith.check.inputs import overridable_weights
from opsmith.check.verify import VerifyResult
from opsmith.compiler import auto, keep
from opsmith.compiler.cut import Cut
from opsmith.compiler.emit import Source as SourceFile
from opsmith.compiler.tune import Tuning
from opsmith.plain import Shown
from opsmith.store import Variant

AROUND = "feeds nodes that stay"


@dataclasses.dataclass
class RegionResult:
    """One line of the table that `compile` prints."""

    name: str
    nodes: list[str]
    calls: int


@dataclasses.dataclass(repr=False)
class CompileResult(Shown):
    variant: Variant | None
    regions: list[RegionResult]
    left: list[tuple[str, str, str]]  # op type, node, reason: what stayed with ORT
    nodes: int  # of the source
    sources: list[SourceFile] = dataclasses.field(default_factory=list)
    verified: VerifyResult | None = None
    judged: Judged | None = None  # the inputs it was measured with
    timing: keep.Timing | None = None  # source and compiled model; None where nothing was measured
    remarks: list[str] = dataclasses.field(default_factory=list)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # where compile's own time went
    tuning: Tuning | None = None  # what was measured and chosen, with search 1 and 2
    choices: list[auto.Choice] = dataclasses.field(default_factory=list)  # of precision auto

    @property
    def native(self) -> int:
        """Nodes of the source that no longer run in ONNX Runtime."""
        return self.nodes - len(self.left)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON; docs/json.md says what the keys mean."""
        return {
            "written": self.variant,
            "nodes": self.nodes,
            "native": self.native,
            "regions": self.regions,
            "left": [{"op": op, "node": node, "why": why} for op, node, why in self.left],
            "judged": None if self.judged is None else self.judged.to_dict(),
            "timing": None if self.timing is None else self.timing.to_dict(),
            "verified": self.verified,
            "tuning": None if self.tuning is None else self.tuning.to_dict(),
            "remarks": self.remarks,
            "seconds": self.seconds,
        }


class Clock:
    """Seconds per step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = round(self.seconds.get(name, 0.0) + now - self._last, 3)
        self._last = now


def summarize(pieces: Cut, clock: Clock) -> CompileResult:
    rows = [
        RegionResult(r.name, [n.name or n.op_type for n in r.nodes], len(p.calls))
        for r, p in zip(pieces.regions, pieces.programs)
    ]
    reasons = {n.name: why for n, why in pieces.reasons.items()}
    left = [(n.op_type, n.name or "", reasons.get(n.name, AROUND)) for n in pieces.left]
    result = CompileResult(None, rows, left, len(pieces.source.nodes()), seconds=clock.seconds)
    if large := overridable_weights(pieces.source.model):
        which = f"{len(large)} of its weights are inputs" if len(large) > 1 else f"its weight {large[0]!r} is an input"
        result.remarks.append(
            f"{which} with a default, which a caller may override: packed, and fast, they are once they are taken out of "
            "the graph's inputs"
        )
    return result
