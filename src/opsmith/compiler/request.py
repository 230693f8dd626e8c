"""What the user asked `compile` for, as one value."""

from __future__ import annotations

import dataclasses
from typing import Any

from opsmith import machine
from opsmith.check.feed import Given
from opsmith.check.inputs import Fixed
from opsmith.compiler import cache_type, geometry
from opsmith.compiler.build import Compiler
from opsmith.compiler.lower import Target
from opsmith.compiler.precision import AUTO, FP32, Precision
from opsmith.compiler.system import System, here
from opsmith.store import ModelLike, PathLike


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asked for. docs/compile.md says what the options mean."""

    src: ModelLike
    dest: PathLike
    regions: str = "auto"
    search: int = 0
    strict: bool = False
    shapes: Fixed | None = None
    inputs: Given | None = None
    verify: bool = True
    tool: Compiler | None = None  # None: only the source is wanted
    precision: Precision = FP32
    cpu: str = geometry.NATIVE  # several are separated by commas
    system: System = dataclasses.field(default_factory=here)
    max_error: float | None = None  # of each output's scale; given where precisions are chosen (auto)
    cache: str = cache_type.FULL  # in which SRC stores its KV cache

    @property
    def targets(self) -> dict[str, Target]:
        """What to compile for, by CPU; the library takes the first that it can run."""
        names = geometry.best_first(self.cpu)
        return {n: Target(geometry.for_cpu(n), self.strict, precision=self.precision) for n in names}

    @property
    def runs_here(self) -> bool:
        """Whether something of what is compiled can be verified and measured on this machine."""
        return any(map(self.runs, self.targets.values()))

    def runs(self, target: Target) -> bool:
        return self.system.runs_here and runs_here(target)

    @property
    def measured(self) -> bool:
        return self.regions == "auto" and self.tool is not None and self.runs_here

    @property
    def options(self) -> dict[str, Any]:
        shapes = {"shapes": dict(self.shapes)} if self.shapes else {}
        precision: dict[str, Any] = {} if self.precision is FP32 else {"precision": self.precision.name}
        if self.max_error is not None:
            precision = {"precision": AUTO, "max_error": self.max_error}
        cache = {} if self.cache == cache_type.FULL else {"cache": self.cache}
        cpu = {} if self.cpu == geometry.NATIVE else {"cpu": self.cpu}
        system = {} if self.system == here() else {"system": dataclasses.asdict(self.system)}
        return {
            "regions": self.regions,
            "search": self.search,
            "strict": self.strict,
            **cpu,
            **system,
            **precision,
            **cache,
            **shapes,
        }


def runs_here(target: Target) -> bool:
    return geometry.needed(target.isa) <= machine.cpu_features()
