"""What `quantize` was asked for, checked."""

from __future__ import annotations

import dataclasses

from opsmith.compress.quality import Quality
from opsmith.errors import OpsmithError

_CHOICES: dict[str, tuple[object, ...]] = {
    "method": ("weight-only", "fp16", "dynamic", "static"),
    "bits": (4, 8),
    "block": (16, 32, 64, 128, 256),
    "embeddings": ("fp16", "keep"),
    "ranges": ("minmax", "entropy", "percentile"),
}


@dataclasses.dataclass(frozen=True)
class Goal:
    max_error: float | None = None
    min_quality: float | None = None

    def reached(self, quality: Quality) -> bool:
        return (self.max_error is None or quality.error <= self.max_error) and (
            self.min_quality is None or quality.score >= self.min_quality
        )

    def __str__(self) -> str:
        parts = [f"an error of {self.max_error:g}"] if self.max_error is not None else []
        parts += [f"a quality of {self.min_quality:g}"] if self.min_quality is not None else []
        return " and ".join(parts)


@dataclasses.dataclass(frozen=True)
class QuantizeOptions:
    """The options of `quantize` that shape the result; they go into opsmith.json as they are."""

    method: str
    bits: int
    block: int
    symmetric: bool
    embeddings: str
    ranges: str
    per_channel: bool
    max_error: float | None
    min_quality: float | None
    exclude: list[str]
    accuracy_level: int
    spare: bool

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise OpsmithError(f"{name} {value!r} is not known", f"one of {', '.join(map(str, choices))}")
        if self.max_error is not None and not self.max_error > 0:
            raise OpsmithError(f"a largest error of {self.max_error} makes no sense", "give a number above 0, say 0.05")
        if self.min_quality is not None and not 0 < self.min_quality <= 1:
            wrong = f"a smallest quality of {self.min_quality} makes no sense"
            raise OpsmithError(wrong, "give a number up to 1, say 0.95")

    @property
    def goal(self) -> Goal | None:
        asked = self.max_error is not None or self.min_quality is not None
        return Goal(self.max_error, self.min_quality) if asked else None

    @property
    def halves_tables(self) -> bool:
        return self.embeddings == "fp16"

    @property
    def one_shape(self) -> bool:
        """ONNX Runtime's histogram calibrators stack what they see."""
        return self.method == "static" and self.ranges != "minmax"
