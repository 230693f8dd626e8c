"""The memory plan: which buffers share memory.

Sizes are only known at run time, so buffers are not given offsets but *slots*: two buffers whose lifetimes do not meet may
share a slot, and a slot is as large as its largest buffer turns out to be. The sharing is decided here once, with typical
sizes put in for the dynamic dims; it is right for every size and tight for similar ones.
"""

from __future__ import annotations

import dataclasses

from opsmith.compiler.program import Buffer, Program
from opsmith.sizes import estimate


@dataclasses.dataclass
class Slot:
    index: int
    typical: int
    free_from: int  # first call at which the slot is free again
    buffers: list[Buffer] = dataclasses.field(default_factory=list)


def plan_memory(program: Program) -> list[Slot]:
    """Greedy best fit in order of first use: linear in the calls, and close to the peak in practice."""
    slots: list[Slot] = []
    waiting = sorted((b for b in program.buffers if b.place == "arena" and b.first >= 0), key=lambda b: b.first)
    for buffer in waiting:
        size = max(1, estimate(buffer.elements)) * int(buffer.dtype.itemsize)
        free = [s for s in slots if s.free_from <= buffer.first]
        # The tightest slot that is large enough; else the largest one, which then grows; else a new one.
        fitting = [s for s in free if size <= s.typical <= 4 * size + 65536]
        slot = min(fitting, key=lambda s: s.typical, default=None)
        if slot is None and free:
            candidate = max(free, key=lambda s: s.typical)
            slot = candidate if candidate.typical < size else None
        if slot is None:
            slot = Slot(len(slots), size, 0)
            slots.append(slot)
        slot.typical = max(slot.typical, size)
        slot.free_from = buffer.last + 1
        slot.buffers.append(buffer)
        buffer.slot = slot.index
    return slots
