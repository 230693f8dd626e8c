"""Approximations: less work for another picture, each by choice, and presets of them with the distance that was measured.

reuse   the deep piece of the UNet is run in every REUSE-th step; the steps between use its last result (as DeepCache does)
merge   self-attention over many tokens sees every MERGE-th key and value (merge.py)
guided  the share of the steps, from the first on, that is guided; the later ones follow the prompt alone, at half the work
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from opsmith.errors import OpsmithError
from opsmith.pipelines.diffusion.cut import Cut
from opsmith.pipelines.diffusion.merge import SMALLEST


@dataclasses.dataclass(frozen=True)
class Fast:
    reuse: int = 1
    guided: float = 1.0
    merge: int = 1

    def __post_init__(self) -> None:
        if self.reuse < 1:
            raise OpsmithError(f"deep features cannot be computed in every {self.reuse}th step", "1 is every step")
        if self.merge < 1:
            raise OpsmithError(f"self-attention cannot see every {self.merge}th token", "1 is every token")
        if not 0 <= self.guided <= 1:
            raise OpsmithError(f"a guided share of {self.guided} is not possible", "0 to 1; 1 is all steps")

    @property
    def exact(self) -> bool:
        return self.reuse == 1 and self.guided == 1 and self.merge == 1

    def is_fresh(self, number: int) -> bool:
        """Whether step NUMBER, from 0 on, runs the deep piece."""
        return number % self.reuse == 0

    def guided_steps(self, steps: int) -> int:
        return round(self.guided * steps)

    def kinds(self, steps: int) -> list[StepKind]:
        """What each of STEPS runs."""
        return [StepKind(self.is_fresh(i), i < self.guided_steps(steps)) for i in range(steps)]


class StepKind(NamedTuple):
    """What a step runs of the UNet: its deep piece too, and the negative half too (if there is one)."""

    fresh: bool
    guided: bool


EXACT = Fast()
# Measured by benchmarks/fast_pictures.py; the table is in docs/imagine.md.
PRESETS = {0: EXACT, 1: Fast(reuse=2), 2: Fast(reuse=3, guided=0.6), 3: Fast(reuse=5, guided=0.4)}


def preset(level: int, reuse: int | None = None, guided: float | None = None, merge: int | None = None) -> Fast:
    """Preset LEVEL, with its parts replaced where they are given."""
    if level not in PRESETS:
        raise OpsmithError(f"there is no preset {level}", f"0 (exact) to {max(PRESETS)}")
    chosen = PRESETS[level]
    return Fast(
        chosen.reuse if reuse is None else reuse,
        chosen.guided if guided is None else guided,
        chosen.merge if merge is None else merge,
    )


def explain(cut: Cut | str, fast: Fast, steps: int, guided: bool) -> list[str]:
    """What is done once, reused or left out, a line each. CUT is why the UNet runs whole, if it does."""
    lines = []
    if isinstance(cut, str):
        lines.append(f"the UNet runs whole in every step: {cut}")
    else:
        names = {piece.name: piece for piece in cut.pieces}
        if "text" in names:
            lines.append(f"exact: {len(names['text'].outputs)} values that depend on the prompt alone, once per prompt")
        if "time" in names:
            lines.append(f"exact: {len(names['time'].outputs)} values that depend on the time alone, once per timestep")
        if guided and any(name.endswith("_shared") for name in names):
            lines.append("exact: what both halves of guidance share, up to the first cross-attention, once for both")
    lines.append(
        "exact: both halves of guidance in one batch" if guided else "exact: guidance is 1, so there is no other half"
    )
    if fast.reuse > 1:
        fresh = sum(fast.is_fresh(i) for i in range(steps))
        lines.append(f"approximate: what lies within the outermost skip connection is run in {fresh} of {steps} steps")
    if fast.merge > 1:
        lines.append(f"approximate: self-attention over {SMALLEST} tokens or more sees every {fast.merge}th of them")
    if guided and fast.guided < 1:
        lines.append(f"approximate: the first {fast.guided_steps(steps)} of {steps} steps are guided")
    return lines
