"""The UNet for the steps of a picture: cut into pieces that are not all run each time, or whole.

unet = Unet(parts, geometry, savings="auto")
steps = unet.steps({"encoder_hidden_states": states}, pictures=B)
output = steps.predict(sample, timestep)      # [B,C,h,w] -> [kB,C,h,w]: k is 2 with guidance
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from opsmith import store
from opsmith.errors import OpsmithError, no_such
from opsmith.pipelines.diffusion import cut, merge, split
from opsmith.pipelines.diffusion.fast import Fast
from opsmith.pipelines.diffusion.geometry import Geometry
from opsmith.pipelines.diffusion.parts import Parts
from opsmith.pipelines.diffusion.pieces import Pieces, Steps, Values

Array = np.ndarray[Any, Any]

SAVINGS = ("auto", "on", "off")


@dataclasses.dataclass
class WholeSteps:
    """The UNet in one, in every step."""

    parts: Parts
    once: Mapping[str, Array]  # [kB,...]
    pictures: int  # B
    can_reuse = False

    def predict(
        self, sample: Array, timestep: float, *, fresh: bool = True, changing: Mapping[str, Array] | None = None
    ) -> Array:
        halves = len(next(iter(self.once.values()))) // self.pictures if self.once else 1
        feeds = {"sample": np.concatenate([sample] * halves), "timestep": np.array([timestep]), **self.once}
        return self.parts.run("unet", feeds | dict(changing or {}))

    def unguided(self) -> WholeSteps:
        """The same pictures without the negative half."""
        return WholeSteps(self.parts, {k: v[-self.pictures :] for k, v in self.once.items()}, self.pictures)


class Unet:
    def __init__(self, parts: Parts, geometry: Geometry, savings: str = "auto") -> None:
        """SAVINGS: on refuses a UNet that cannot be cut, auto runs it whole."""
        if savings not in SAVINGS:
            raise no_such("choice of savings", savings, SAVINGS)
        self._parts, self._geometry, self._savings = parts, geometry, savings
        self._merged: dict[int, Pieces] = {}  # by how many tokens are one

    def steps(
        self,
        once: Mapping[str, Array],
        pictures: int,
        times: dict[tuple[float, int], Values] | None = None,
        stride: int = 1,
    ) -> Steps | WholeSteps:
        """For PICTURES that are made together. TIMES keeps what depends on the timestep alone, for further ones of the same size.
        STRIDE: self-attention sees every such token (merge.py)."""
        if stride > 1:
            return Steps(self._merged[stride], once, pictures, {} if times is None else times)
        if self.pieces is None or self._parts.has_old_pieces("unet"):
            return WholeSteps(self._parts, once, pictures)
        return Steps(self.pieces, once, pictures, {} if times is None else times)

    def check(self, fast: Fast) -> None:
        """Whether the deep features are there to be reused, and the attention to be thinned out."""
        if fast.merge > 1:
            self._merge(fast.merge)
        if fast.reuse > 1 and self.pieces is not None and self._parts.has_old_pieces("unet"):
            raise OpsmithError("deep features of the UNet cannot be reused: its pieces were compiled without the LoRA")
        if fast.reuse > 1 and (self.pieces is None or self.pieces.cut.hidden is None):
            why = self.why_whole or "it has no skip connection around them"
            raise OpsmithError(
                f"deep features of the UNet cannot be reused: {why}", "choose another variant, or reuse 1"
            )

    def _merge(self, stride: int) -> None:
        """Make the pieces that see every STRIDE-th token."""
        if stride in self._merged:
            return
        why = self.why_whole or ("its pieces are compiled" if self._parts.piece_paths else "")
        proto = None if why else store.read_proto(self._parts.paths["unet"])
        if proto is not None and not merge.put(proto, stride):
            why = "no self-attention was found in it"
        if why or proto is None:
            raise OpsmithError(f"tokens of the UNet cannot be merged: {why}", "choose another variant, or merge 1")
        self._merged[stride] = self._in_pieces(cut.plan(proto), stride)

    def _in_pieces(self, planned: cut.Cut, stride: int = 1) -> Pieces:
        smallest = self._geometry.unet_channels, self._geometry.halved
        return Pieces(planned, functools.partial(self._parts.run_piece, "unet", stride), smallest)

    @property
    def cut_or_why(self) -> cut.Cut | str:
        """How it is cut, or why it is run whole."""
        return self.why_whole or self._cut

    @functools.cached_property
    def pieces(self) -> Pieces | None:
        """None if it is run whole; `why_whole` says why."""
        if self.why_whole:
            if self._savings == "on":
                raise OpsmithError(f"the UNet cannot be run in pieces: {self.why_whole}", "leave savings at auto")
            return None
        assert isinstance(self._cut, cut.Cut)
        return self._in_pieces(self._cut)

    @property
    def why_whole(self) -> str:
        """Why it is not run in pieces; empty if it is."""
        if self._savings == "off":
            return "savings are off"
        return self._cut if isinstance(self._cut, str) else ""

    @functools.cached_property
    def _cut(self) -> cut.Cut | str:
        proto = store.read_proto(self._parts.paths["unet"])
        if any(i.name.startswith("down_block_residual") for i in proto.graph.input):
            return "it follows ControlNets"
        try:
            found = cut.plan(proto)
        except OpsmithError as error:
            return str(error)
        if found.saves:
            return found
        compiled = split.stored(self._parts.paths["unet"])
        if isinstance(compiled, str):
            return compiled
        planned, paths = compiled
        self._parts.piece_paths |= {f"unet/{name}": path for name, path in paths.items()}
        return planned
