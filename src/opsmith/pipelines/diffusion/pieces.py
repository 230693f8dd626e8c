"""A UNet run in the pieces of `cut`: what does not change between steps, or between the halves of guidance, is computed once.

    unet = Pieces(cut, run, smallest)            # run(piece, feeds) -> what it gives
    steps = Steps(unet, {"encoder_hidden_states": states}, pictures=B, times={})      # states [kB,S,X]: k halves of B pictures
    for t in timesteps:
        output = steps.predict(sample, t)        # sample [B,C,h,w] -> [kB,C,h,w]

With `fresh=False` the deep piece is not run: its result of the last fresh step is used again. That is the one thing here which
changes the picture.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np

from opsmith.pipelines.diffusion.cut import SAMPLE, TIMESTEP, Cut, Piece

Array = np.ndarray[Any, Any]
Values = dict[str, Array]


class Pieces:
    """The pieces, and what runs one of them on its feeds."""

    def __init__(
        self, cut: Cut, run: Callable[[Piece, Mapping[str, Array]], Values], smallest: tuple[int, int]
    ) -> None:
        """SMALLEST is a sample's channels and the smallest height and width that the UNet takes."""
        self.cut, self.run, self._smallest = cut, run, smallest

    @functools.cached_property
    def grows(self) -> frozenset[str] | None:
        """Of what the shared pieces give, the values that have the batch as their first size. None: one has it elsewhere.

        Asked of the pieces themselves, with the smallest sample there is.
        """
        one, two = self._shapes(1), self._shapes(2)
        grown = {name for name, shape in one.items() if shape != two[name]}
        if any(two[name] != (2 * one[name][0], *one[name][1:]) for name in grown):
            return None
        return frozenset(grown)

    def _shapes(self, batch: int) -> dict[str, tuple[int, ...]]:
        channels, side = self._smallest
        values: Values = {
            SAMPLE: np.zeros((batch, channels, side, side), np.float32),
            TIMESTEP: np.array([1]),
        }
        found: dict[str, tuple[int, ...]] = {}
        for piece in self.cut.pieces:
            if piece.is_shared:
                made = self.run(piece, {name: values[name] for name in piece.inputs})
                values |= made
                found |= {name: value.shape for name, value in made.items()}
        return found


@dataclasses.dataclass
class Steps:
    """The steps of pictures that are made together."""

    pieces: Pieces
    once: Mapping[str, Array]  # [kB,...] what does not change from step to step
    pictures: int  # B
    times: MutableMapping[tuple[float, int], Values]  # what the time piece gave, for all pictures of this size
    _text: Values | None = None
    _deep: Values | None = None  # what the deep pieces gave in the last fresh step

    @property
    def halves(self) -> int:
        """1, or 2 with guidance."""
        return len(next(iter(self.once.values()))) // self.pictures if self.once else 1

    @property
    def can_reuse(self) -> bool:
        return self._deep is not None

    def predict(
        self, sample: Array, timestep: float, *, fresh: bool = True, changing: Mapping[str, Array] | None = None
    ) -> Array:
        """[kB,C,h,w] for SAMPLE [B,C,h,w]. CHANGING are further inputs [kB,...] that are new in every step."""
        grows = self.pieces.grows if self.halves > 1 else frozenset()
        together = grows is not None  # shared pieces run for one half
        wide = {SAMPLE: np.concatenate([sample] * self.halves), TIMESTEP: np.array([timestep]), **self.once}
        wide |= changing or {}
        narrow = wide | {SAMPLE: sample} if together else wide
        for piece in self.pieces.cut.pieces:
            if not fresh and piece.name.startswith("deep") and self._deep is not None:
                made = {name: self._deep[name] for name in piece.outputs}
            else:
                made = self._made(piece, narrow if piece.is_shared else wide)
            if piece.is_shared:
                narrow = narrow | made
                made = {k: np.concatenate([v] * self.halves) if k in (grows or ()) else v for k, v in made.items()}
            wide |= made
        if fresh:
            self._deep = {
                name: (narrow if p.is_shared else wide)[name] for p in self._deep_pieces for name in p.outputs
            }
        return np.asarray(wide[self._result])

    def _made(self, piece: Piece, values: Mapping[str, Array]) -> Values:
        feeds = {name: values[name] for name in piece.inputs}
        if piece.name == "text":
            if self._text is None:
                self._text = self.pieces.run(piece, feeds)
            return self._text
        if piece.name == "time":
            key = float(values[TIMESTEP][0]), len(values[SAMPLE])
            if key not in self.times:
                self.times[key] = self.pieces.run(piece, feeds)
            return self.times[key]
        return self.pieces.run(piece, feeds)

    @property
    def _deep_pieces(self) -> list[Piece]:
        return [piece for piece in self.pieces.cut.pieces if piece.name.startswith("deep")]

    @property
    def _result(self) -> str:
        return self.pieces.cut.pieces[-1].outputs[-1]

    def unguided(self) -> Steps:
        """The same pictures without the negative half. What is deep is kept where it can be told apart."""
        if self.halves == 1:
            return self
        kept = {name: value[self.pictures :] for name, value in self.once.items()}
        narrowed = Steps(self.pieces, kept, self.pictures, self.times)
        shared = {name for piece in self._deep_pieces if piece.is_shared for name in piece.outputs}
        deep = self._deep or {}
        if deep and all(len(v) == 2 * self.pictures for k, v in deep.items() if k not in shared):
            narrowed._deep = {k: v if k in shared else v[self.pictures :] for k, v in deep.items()}
        return narrowed
