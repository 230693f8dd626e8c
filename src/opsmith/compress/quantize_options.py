"""What `quantize` was asked for, checked."""

from __future__ import annotations

import dataclasses

from opsmith.compress.quality import Quality
from opsmith.errors import OpsmithError, no_such

_CHOICES: dict[str, tuple[object, ...]] = {
    "bits": (4, 8),
    "block": (16, 32, 64, 128, 256),
    "embeddings": ("fp16", "keep"),
    "ranges": ("minmax", "entropy", "percentile"),
}
METHODS = ("weight-only", "fp16", "dynamic", "static")
SHORT = {"int8": ("weight-only", 8), "int4": ("weight-only", 4)}  # short words for a method and its bits
# option -> (its default, the methods that it is for)
_ONLY_FOR: dict[str, tuple[object, tuple[str, ...]]] = {
    "bits": (8, ("weight-only",)),
    "block": (32, ("weight-only",)),
    "symmetric": (True, ("weight-only",)),
    "accuracy_level": (0, ("weight-only",)),
    "ranges": ("minmax", ("static",)),
    "per_channel": (True, ("dynamic", "static")),
}


def bits_of(method: str, bits: int) -> tuple[str, int]:
    """The method and bits that METHOD, which may be a short word for both, and BITS stand for."""
    long, own = SHORT.get(method, (method, bits))
    if bits not in (own, 8):
        raise OpsmithError(f"--method {method} has {own} bits, not {bits}", "leave --bits out")
    return long, own


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
        if self.method not in METHODS:
            raise no_such("method", self.method, (*SHORT, *METHODS))
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise OpsmithError(f"{name} {value} is not possible", f"one of {', '.join(map(str, choices))}")
        for name, (default, methods) in _ONLY_FOR.items():
            if getattr(self, name) != default and self.method not in methods:
                option = f"--{name.replace('_', '-')}"
                wrong = f"{option} is for --method {' and '.join(methods)}, and the method is {self.method}"
                raise OpsmithError(wrong, f"leave {option} out")
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
