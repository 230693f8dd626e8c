"""Many requests write at once: every step through the model takes all texts that are being written one token further.

    shared = SharedWriter(generator)
    shared.generate(["A red apple"], max_new_tokens=40)      from any number of threads

The KV cache is cut into slots of one text each, and bounded: who finds no free slot waits, first come, first served. Texts in the
slots have different lengths (compiler/cache.py: a new row goes where its mask ends). A prompt is read in pieces between the steps of
the others. What a slot holds stays when its text ends, and a prompt that begins like any slot's text takes that part over.

There is no thread of its own: whoever waits for a text leads a step when nobody else does.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from opsmith import machine
from opsmith.errors import OpsmithError
from opsmith.pipelines.lookup import Lookup
from opsmith.pipelines.sampling import Sampling
from opsmith.pipelines.text import (
    CACHE_TYPES,
    LONGEST_KEPT,
    Array,
    Generation,
    Row,
    Speed,
    TextGenerator,
    Wanted,
    present_of,
)

SLOTS = 8
PIECE = 64  # tokens of a prompt between two steps of the others
LEAST_SHARED = 8  # tokens at the beginning that are worth copying
SHARE_OF_MEMORY = 0.25  # what all slots together may take


@dataclasses.dataclass(eq=False)
class _Request:
    """What one caller waits for."""

    wanted: Wanted
    room: int  # new tokens of each text
    cancelled: Callable[[], bool]
    rows: list[Row]
    left: int  # texts that are not done
    error: BaseException | None = None
    speed: Speed = dataclasses.field(default_factory=lambda: Speed(0, 0.0, 0, 0.0))


@dataclasses.dataclass(eq=False)
class _Text:
    """One text of a request, in a slot or waiting for one."""

    request: _Request
    index: int
    guesses: Lookup | None

    @property
    def row(self) -> Row:
        return self.request.rows[self.index]


@dataclasses.dataclass(eq=False)
class _Slot:
    """One text's part of the cache."""

    number: int
    tokens: list[int] = dataclasses.field(default_factory=list)  # whose keys and values it holds
    text: _Text | None = None
    begun: bool = False  # the prompt is being read
    used: float = 0.0

    @property
    def reads(self) -> bool:
        """Whether some of the prompt is still to be read."""
        return self.text is not None and not self.text.row.tokens

    def common(self, ids: Sequence[int]) -> int:
        return next((i for i, (a, b) in enumerate(zip(self.tokens, ids)) if a != b), min(len(self.tokens), len(ids)))


class SharedWriter:
    def __init__(self, generator: TextGenerator, slots: int = SLOTS) -> None:
        self.generator = generator
        self._turn = threading.Condition()
        self._leading = False
        self._waiting: deque[_Text] = deque()
        self._cache: _Slots | None = None
        if generator.in_place and all(generator.inputs[name].type in CACHE_TYPES for name in generator.past):
            cache = _Slots(generator, slots)
            self._cache = cache if cache.keeps_texts_apart() else None

    @property
    def slots(self) -> int:
        """How many texts are written at once; 1 if the model cannot share a step (it is not compiled, or not by us)."""
        return len(self._cache.slots) if self._cache else 1

    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        *,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        n: int = 1,
        stop: Sequence[str] = (),
        ends: Collection[int] | None = None,
        logprobs: int | None = None,
        lookup: int = 0,
        on_text: Callable[[int, str], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> tuple[list[Generation], Speed]:
        """As TextGenerator.generate, with what it took. The texts are those that it writes for this request alone."""
        writer = self.generator
        given = [prompts] if isinstance(prompts, str) else list(prompts)
        sampling = sampling or Sampling()
        encoded = [writer.encode(t) for t in given]
        room = writer.room(encoded, max_new_tokens)
        if self._cache is None or max(map(len, encoded)) + room > self._cache.room:
            with self._alone():
                made = writer.generate(
                    given, max_new_tokens=room, sampling=sampling, n=n, stop=stop, ends=ends, logprobs=logprobs,
                    lookup=lookup, reuse=True, on_text=on_text, cancelled=cancelled,
                )  # fmt: skip
                return made, writer.speed
        rows = [Row(writer, t, ids, sampling.generator(c)) for t, ids in zip(given, encoded) for c in range(n)]
        wanted = Wanted(sampling, tuple(w for w in stop if w), writer.ends if ends is None else ends, logprobs, on_text)
        request = _Request(wanted, room, cancelled, rows, len(rows))
        with self._turn:
            self._waiting.extend(_Text(request, i, Lookup(lookup) if lookup else None) for i in range(len(rows)))
        self._wait_for(request)
        if request.error is not None:
            raise request.error
        return [row.generation() for row in rows], request.speed

    # --- whose turn it is --------------------------------------------------------------------------------

    def _wait_for(self, request: _Request) -> None:
        with self._turn:
            while request.left:
                if self._leading:
                    self._turn.wait()
                    continue
                self._leading = True
                self._turn.release()
                try:
                    self._step()
                finally:
                    self._turn.acquire()
                    self._leading = False
                    self._turn.notify_all()

    def _alone(self) -> Any:
        return _Alone(self)

    # --- one step ----------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Everybody who can goes one token further; of one prompt a piece is read. Only the leader is here."""
        assert self._cache is not None
        try:
            self._drop_cancelled()
            self._admit()
            reading = [s for s in self._cache.slots if s.reads]
            writing = [s for s in self._cache.slots if s.text is not None and not s.reads]
            if reading:
                self._read(min(reading, key=lambda s: s.used))
            together = []
            for slot in writing:
                guess = self._guess(slot)
                if guess:
                    self._write_alone(slot, guess)
                else:
                    together.append(slot)
            if together:
                self._write(together)
        except BaseException as error:  # a failed pass: nobody's text can go on
            for text in [*(s.text for s in self._cache.slots if s.text is not None), *self._waiting]:
                self._fail(text, error)
            if not isinstance(error, Exception):
                raise

    def _drop_cancelled(self) -> None:
        assert self._cache is not None
        for slot in self._cache.slots:
            if slot.text is not None and slot.text.request.cancelled():
                self._finish(slot.text)
        for text in [t for t in self._waiting if t.request.cancelled()]:
            self._finish(text)

    def _admit(self) -> None:
        assert self._cache is not None
        while self._waiting and (slot := self._cache.free_for(self._waiting[0].row.ids)) is not None:
            with self._turn:
                slot.text, slot.begun, slot.used = self._waiting.popleft(), False, time.monotonic()

    def _read(self, slot: _Slot) -> None:
        assert self._cache is not None and slot.text is not None
        ids, request = slot.text.row.ids, slot.text.request
        if not slot.begun:
            self._cache.take_over(slot, ids)
            slot.begun = True
        started = time.perf_counter()
        piece = ids[len(slot.tokens) : len(slot.tokens) + PIECE]
        logits = self._cache.run_one(slot, piece)
        request.speed.prompt_tokens += len(piece)
        request.speed.prompt_seconds += time.perf_counter() - started
        if len(slot.tokens) == len(ids):
            self._take(slot, logits[-1:], [])

    def _guess(self, slot: _Slot) -> list[int]:
        assert slot.text is not None
        text, row = slot.text, slot.text.row
        if text.guesses is None:
            return []
        return text.guesses.guess([*row.ids, *row.tokens], text.request.room - len(row.tokens) - 1)

    def _write_alone(self, slot: _Slot, guess: list[int]) -> None:
        assert self._cache is not None and slot.text is not None
        started = time.perf_counter()
        logits = self._cache.run_one(slot, [slot.text.row.tokens[-1], *guess])
        _count(slot.text.request, time.perf_counter() - started, 1)
        self._take(slot, logits, guess)

    def _write(self, slots: Sequence[_Slot]) -> None:
        assert self._cache is not None
        started = time.perf_counter()
        logits = self._cache.run_together(slots)
        seconds = time.perf_counter() - started
        for slot, scores in zip(slots, logits):
            assert slot.text is not None
            _count(slot.text.request, seconds / len(slots), int(slot is slots[0]))
            self._take(slot, scores[None], [])

    def _take(self, slot: _Slot, logits: Array, guess: Sequence[int]) -> None:
        """logits (1 + guess, vocabulary)"""
        text = slot.text
        assert text is not None
        row, request = text.row, text.request
        try:
            right = row.take_all(text.index, logits, guess, request.wanted)
        except Exception as error:  # the caller's own callback: it ends its request, not the others'
            self._fail(text, error)
            return
        if text.guesses is not None:
            text.guesses.learn(len(guess), right)
        if wrong := len(guess) - right:
            del slot.tokens[-wrong:]
        request.speed.decode_tokens += right + 1
        if row.ended or len(row.tokens) >= request.room:
            self._finish(text)

    # --- ends --------------------------------------------------------------------------------------------

    def _finish(self, text: _Text) -> None:
        try:
            text.row.show(text.index, text.request.wanted, final=True)
        except Exception as error:
            self._fail(text, error)
            return
        self._leave(text)

    def _fail(self, text: _Text, error: BaseException) -> None:
        """With all texts of its request."""
        assert self._cache is not None
        text.request.error = text.request.error or error
        inside = [s.text for s in self._cache.slots if s.text is not None]
        for other in [t for t in (*inside, *self._waiting) if t.request is text.request]:
            self._leave(other)

    def _leave(self, text: _Text) -> None:
        assert self._cache is not None
        with self._turn:
            text.request.left -= 1
            if text in self._waiting:
                self._waiting.remove(text)
        for slot in self._cache.slots:
            if slot.text is text:
                slot.text, slot.used = None, time.monotonic()
                del slot.tokens[self._cache.room - 1 :]  # an idle slot is written behind its last token


class _Alone:
    """While the model writes for one caller only."""

    def __init__(self, owner: SharedWriter) -> None:
        self.owner = owner

    def __enter__(self) -> None:
        with self.owner._turn:
            self.owner._turn.wait_for(lambda: not self.owner._leading)
            self.owner._leading = True

    def __exit__(self, *_: object) -> None:
        with self.owner._turn:
            self.owner._leading = False
            self.owner._turn.notify_all()


def _count(request: _Request, seconds: float, steps: int) -> None:
    request.speed.decode_seconds += seconds
    request.speed.decode_steps += steps


class _Slots:
    """The cache of all slots: for every past one array (slots, heads, room, size), of which a run of slots is a batch."""

    def __init__(self, owner: TextGenerator, slots: int) -> None:
        self.owner = owner
        self.room = min(owner.context, LONGEST_KEPT)
        shapes = {name: list(owner.inputs[name].shape) for name in owner.past}
        kinds = {name: CACHE_TYPES[owner.inputs[name].type] for name in owner.past}
        text = sum(s[1] * s[3] * np.dtype(kinds[n]).itemsize for n, s in shapes.items()) * self.room
        count = max(1, min(slots, int(SHARE_OF_MEMORY * (machine.memory_bytes() or 1 << 40) // text)))
        # Zeros: memory that was never written takes no room in RAM, and what is not seen must not be NaN.
        self.arrays = {n: np.zeros((count, s[1], self.room, s[3]), kinds[n]) for n, s in shapes.items()}
        self.slots = [_Slot(i) for i in range(count)]

    def free_for(self, ids: Sequence[int]) -> _Slot | None:
        """The free slot that holds most of IDS; else one beside those that are in use, the least recently used of them."""
        free = [s for s in self.slots if s.text is None]
        if not free:
            return None
        best = max(free, key=lambda s: s.common(ids))
        if best.common(ids) >= LEAST_SHARED:
            return best
        busy = [s.number for s in self.slots if s.text is not None]
        return min(free, key=lambda s: (min((abs(s.number - b) for b in busy), default=0), s.used))

    def take_over(self, slot: _Slot, ids: Sequence[int]) -> None:
        """What another slot holds of the beginning of IDS, or this one; the last token is always read: it gives the logits."""
        best = max(self.slots, key=lambda s: (s.common(ids), s is slot))
        common = min(best.common(ids), len(ids) - 1)
        if common < LEAST_SHARED:
            common = 0
        elif best is not slot:
            for array in self.arrays.values():
                array[slot.number, :, :common] = array[best.number, :, :common]
        slot.tokens = list(ids[:common])

    def run_one(self, slot: _Slot, tokens: Sequence[int]) -> Array:
        """TOKENS behind what the slot holds: logits (tokens, vocabulary)."""
        before = len(slot.tokens)
        mask = np.ones((1, before + len(tokens)), np.int64)
        positions = np.arange(before, before + len(tokens))[None]
        logits = self._run(slot.number, slot.number + 1, np.array([tokens], np.int64), mask, positions)
        slot.tokens.extend(tokens)
        return np.asarray(logits[0])

    def run_together(self, slots: Sequence[_Slot]) -> Iterator[Array]:
        """The last token of each slot's text: its logits (vocabulary), slot by slot."""
        first, last = slots[0].number, slots[-1].number
        run = self.slots[first : last + 1]
        ids = np.zeros((len(run), 1), np.int64)
        mask = np.zeros((len(run), max(len(s.tokens) for s in run) + 1), np.int64)
        positions = np.array([[len(s.tokens)] for s in run], np.int64)
        writing = set(slots)
        for i, slot in enumerate(run):
            mask[i, len(slot.tokens)] = 1  # who only stands between writes behind what is held, and sees nothing else
            if slot in writing and slot.text is not None:
                mask[i, : len(slot.tokens)] = 1
                ids[i] = slot.text.row.tokens[-1]
        logits = self._run(first, last + 1, ids, mask, positions)
        for slot in slots:
            assert slot.text is not None
            slot.tokens.append(slot.text.row.tokens[-1])
        return (logits[s.number - first, -1] for s in slots)

    def _run(self, first: int, last: int, ids: Array, mask: Array, positions: Array) -> Array:
        binding = self.owner.session.io_binding()
        for name, array in (("input_ids", ids), ("attention_mask", mask), ("position_ids", positions)):
            if name in self.owner.inputs:
                binding.bind_cpu_input(name, np.ascontiguousarray(array))
        binding.bind_output("logits", "cpu")
        for name, array in self.arrays.items():
            part = array[first:last]
            place = (part.dtype.type, part.shape, part.ctypes.data)
            binding.bind_input(name, "cpu", 0, *place)
            binding.bind_output(present_of(name), "cpu", 0, *place)
        try:
            self.owner.session.run_with_iobinding(binding)
        except Exception as error:
            raise OpsmithError(f"ONNX Runtime failed to run the model: {error}") from error
        return np.asarray(binding.get_outputs()[0].numpy())

    def keeps_texts_apart(self) -> bool:
        """Tried with two texts of different lengths: models from elsewhere may build their masks in another way."""
        if len(self.slots) < 2 or self.room < 8:
            return False
        ids = [int(t) for t in np.arange(5) % max(1, self.owner.vocabulary or 1)]
        long, short = self.slots[:2]
        self.run_one(long, ids)
        alone = [self.run_one(short, [ids[0]])[-1], self.run_one(short, [ids[1]])[-1]][1]
        del short.tokens[1:]
        mask = np.array([[1] * 6, [1, 1, 0, 0, 0, 0]], np.int64)
        both = self._run(0, 2, np.array([[ids[1]]] * 2, np.int64), mask, np.array([[5], [1]], np.int64))
        for slot in (long, short):
            slot.tokens.clear()
        scale = float(np.abs(alone).max()) or 1.0
        return bool(np.isfinite(both).all()) and math.isclose(
            0, float(np.abs(both[1, -1] - alone).max()), abs_tol=1e-3 * scale
        )
