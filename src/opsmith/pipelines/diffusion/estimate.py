"""What a picture will take, told from one step of each kind instead of all of them.

The prompt is read, the UNet runs a step of every kind that the job has (with and without the negative half, with and without what is
deep; the first of them twice, because its first run also loads), and a latent is decoded. Loading, reading and decoding therefore
take what they will take, and so does the memory; only steps, and pictures, are multiplied.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import time
from collections.abc import Sequence

from opsmith.pipelines.diffusion.fast import StepKind
from opsmith.pipelines.diffusion.loop import Loop
from opsmith.pipelines.diffusion.noise import Noise
from opsmith.pipelines.diffusion.pieces import Steps
from opsmith.pipelines.diffusion.request import Job
from opsmith.pipelines.diffusion.unet import Unet, WholeSteps
from opsmith.pipelines.diffusion.words import Conditions


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Of one call of `generate`."""

    steps: int  # of all pictures
    steps_seconds: float  # of all of them
    load_seconds: float  # of the UNet: what first runs take beyond the others; a start picture is encoded
    text_seconds: float = 0.0
    decode_seconds: float = 0.0  # of all pictures
    memory: int = 0  # bytes: the most that this process held

    @property
    def seconds(self) -> float:
        return self.text_seconds + self.load_seconds + self.steps_seconds + self.decode_seconds


def together(each: Sequence[Estimate]) -> Estimate:
    """Prompts one after the other; what the first one loads the others find."""
    return Estimate(
        steps=sum(e.steps for e in each),
        steps_seconds=sum(e.steps_seconds for e in each),
        load_seconds=sum(e.load_seconds for e in each),
        text_seconds=sum(e.text_seconds for e in each),
        decode_seconds=sum(e.decode_seconds for e in each),
        memory=max(e.memory for e in each),
    )


class Clock:
    def __init__(self) -> None:
        self._since = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last one."""
        now = time.perf_counter()
        self._since, before = now, self._since
        return now - before


def estimated_steps(
    job: Job, conditions: Conditions, groups: Sequence[list[Noise]], loop: Loop, unet: Unet
) -> Estimate:
    """The steps of all GROUPS of pictures that are made together."""
    by_size: dict[int, Estimate] = {}  # the last group may be smaller
    for sources in groups:
        if len(sources) not in by_size:
            by_size[len(sources)] = _of_one_group(job, conditions, sources, loop, unet)
    each = [by_size[len(sources)] for sources in groups]
    return Estimate(
        steps=sum(e.steps for e in each),
        steps_seconds=sum(e.steps_seconds for e in each),
        load_seconds=sum(e.load_seconds for e in by_size.values()),
    )


def _of_one_group(job: Job, conditions: Conditions, sources: list[Noise], loop: Loop, unet: Unet) -> Estimate:
    clock = Clock()
    batch = loop.start(job, sources)
    load, seconds = clock.lap(), 0.0
    first, last = job.first_step * batch.plans[0].order, len(batch.plans[0].timesteps)
    kinds = collections.Counter(job.fast.kinds(last - first))
    both = unet.steps(conditions.repeated(len(sources)), len(sources), stride=job.fast.merge)
    places = itertools.cycle(range(first, last))  # what depends on the time alone is computed for each

    def timed(steps: Steps | WholeSteps, kind: StepKind) -> float:
        clock.lap()
        loop.predict(job, batch, next(places), steps, fresh=kind.fresh)
        return clock.lap()

    for guided, group in itertools.groupby(sorted(kinds, key=_order), key=lambda kind: kind.guided):
        steps = both if guided else both.unguided()
        for i, kind in enumerate(group):
            cold = timed(steps, kind)
            warm = timed(steps, kind) if i == 0 and kinds[kind] > 1 else cold
            load += max(0.0, cold - warm)
            seconds += kinds[kind] * min(cold, warm)
    return Estimate(last - first, seconds, load)


def _order(kind: StepKind) -> tuple[bool, bool]:
    """What is reused must be there."""
    return not kind.guided, not kind.fresh
