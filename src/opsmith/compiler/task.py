"""What is tuned: a task is one distinct kernel call, a candidate one way to run it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A kernel and the limits of its tasks; 0: the kernel decides. families.py says what rows and panels mean to each."""

    kernel: str
    rows: int = 0
    panels: int = 0

    @property
    def limited(self) -> bool:
        return self.rows > 0 or self.panels > 0

    def __str__(self) -> str:
        return f"{self.kernel} {self.rows}x{self.panels}" if self.limited else self.kernel


@dataclasses.dataclass(frozen=True)
class Task:
    """A kernel family with all its sizes as numbers."""

    family: str
    fields: tuple[tuple[str, int | str], ...]

    def __getitem__(self, name: str) -> int | str:
        return dict(self.fields)[name]

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.fields)

    @staticmethod
    def of(family: str, fields: Mapping[str, int | str]) -> Task:
        return Task(family, tuple(fields.items()))

    @staticmethod
    def parse(family: str, text: str) -> Task:
        """The inverse of str()."""
        pairs = (part.split("=", 1) for part in text.split())
        return Task(family, tuple((name, int(value) if value.isdigit() else value) for name, value in pairs))


@dataclasses.dataclass(frozen=True)
class Measured:
    candidate: Candidate
    seconds: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What is known about a task: the best of each kernel, and each kernel's own choice of limits."""

    level: int
    best: Mapping[str, Measured]  # kernel -> its fastest candidate
    analytical: Mapping[str, float]  # kernel -> seconds with the limits it chooses itself
    tried: int
    disturbed: bool = False  # other programs used the CPU meanwhile: good for now, not to be kept

    def fastest(self) -> Measured:
        return min(self.best.values(), key=lambda m: (m.seconds, m.candidate.kernel))
