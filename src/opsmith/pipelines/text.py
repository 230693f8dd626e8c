"""Text generation through a real KV cache: the prompt in one pass, then one token per step with the model's own presents.

    generator = TextGenerator("models/gpt2")
    generator.generate(["A red apple"], max_new_tokens=40, sampling=Sampling(temperature=0.8, seed=1))

The cache never passes through Python. With a compiled variant it is one buffer per layer, with room for the whole sequence, in which the
model writes the new rows and nothing else (docs/write.md). A model that is not compiled joins past and new rows itself, which
copies the cache once per token; the values then stay with ONNX Runtime from step to step (I/O binding).
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from opsmith import session, store
from opsmith.errors import OpsmithError
from opsmith.pipelines.sampling import Sampling
from opsmith.pipelines.tokenizer import load_tokenizer

Array = np.ndarray[Any, Any]


@dataclasses.dataclass
class Generation:
    """One text: what was asked, what came out, and why it ended."""

    prompt: str
    text: str
    tokens: list[int]
    ended: str  # "end" of text, "stop" string, or "length"


@dataclasses.dataclass
class Speed:
    """Prompt and decode are different work, so they are timed apart."""

    prompt_tokens: int
    prompt_seconds: float
    decode_tokens: int
    decode_seconds: float

    def __str__(self) -> str:
        prompt = self.prompt_tokens / max(self.prompt_seconds, 1e-9)
        decode = self.decode_tokens / max(self.decode_seconds, 1e-9)
        return f"prompt {prompt:.0f} tokens/s, decode {decode:.0f} tokens/s"


class TextGenerator:
    def __init__(self, folder: store.PathLike, variant: str | None = None, threads: int | None = None) -> None:
        """FOLDER is a model folder with its variants, tokenizer and config.json; the newest compiled variant is taken by default."""
        self.folder = Path(folder)
        self.path = choose_variant(self.folder, variant)
        self.home = next(
            (f for f in (self.path.parent, self.path.parent.parent) if _has_tokenizer(f)), self.path.parent.parent
        )
        self.session = session.load(self.path, threads=threads)
        self.inputs = {i.name: i for i in self.session.get_inputs()}
        self.past = [n for n in self.inputs if n.startswith("past_key_values.")]
        if "input_ids" not in self.inputs:
            raise OpsmithError(f"{self.path} is not a text model: it has no input_ids")
        if not self.past:
            raise OpsmithError(
                f"{self.path} has no past_key_values inputs",
                "export it again with `opsmith export`, which keeps the KV cache",
            )
        # Whether the model appends to a cache with room instead of joining a new one.
        self.in_place = (store.read_record(self.path).get("compiled") or {}).get("cache") == "in place"
        self.tokenizer = load_tokenizer(self.home)
        self.config = config = self._config()
        self.context = int(config.get("n_positions") or config.get("max_position_embeddings") or 1 << 30)
        self.vocabulary = int(config.get("vocab_size") or 0)
        ends = config.get("eos_token_id")
        self.ends = {int(e) for e in (ends if isinstance(ends, list) else [ends]) if e is not None}
        self.speed = Speed(0, 0.0, 0, 0.0)

    def _config(self) -> dict[str, Any]:
        file = self.home / "config.json"
        try:
            found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except ValueError as error:
            raise OpsmithError(f"{file} is not valid JSON: {error}") from error
        return found if isinstance(found, dict) else {}

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        max_new_tokens: int = 64,
        sampling: Sampling | None = None,
        n: int = 1,
        stop: Sequence[str] = (),
        on_text: Callable[[int, str], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[Generation]:
        """N texts for each prompt, all in one batch. `on_text(index, piece)` streams the pieces of each text as they come."""
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        sampling = sampling or Sampling()
        encoded = [self._encode(t, max_new_tokens) for t in texts]
        rows = [_Row(t, ids, sampling.generator(c)) for t, ids in zip(texts, encoded) for c in range(n)]
        cache = make_cache(self, len(rows), max(len(r.ids) for r in rows) + max_new_tokens)
        logits = self._prompt(rows, cache)
        started = time.perf_counter()
        decoded = 0
        for step in range(max_new_tokens):
            for i, row in enumerate(rows):
                if row.ended is None:
                    self._take(i, row, logits[i], sampling, stop, on_text)
            decoded += sum(r.ended is None or len(r.tokens) == step + 1 for r in rows)
            if all(r.ended for r in rows) or cancelled() or step + 1 == max_new_tokens:
                break
            logits = self._step(rows, cache)
        self.speed = dataclasses.replace(
            self.speed, decode_tokens=decoded, decode_seconds=time.perf_counter() - started
        )
        for i, row in enumerate(rows):
            self._flush(i, row, on_text, final=True)
        return [Generation(r.prompt, r.shown, r.tokens, r.ended or "length") for r in rows]

    def _encode(self, text: str, room: int) -> list[int]:
        ids = list(self.tokenizer.encode(text).ids)
        if not ids:
            raise OpsmithError("the prompt is empty", "give at least one word")
        if len(ids) >= self.context:
            raise OpsmithError(
                f"the prompt has {len(ids)} tokens, the model's context holds {self.context}", "shorten the prompt"
            )
        if len(ids) + room > self.context:
            raise OpsmithError(
                f"{len(ids)} prompt tokens and {room} new ones exceed the context of {self.context}",
                f"ask for at most {self.context - len(ids)} new tokens",
            )
        return ids

    def _prompt(self, rows: list[_Row], cache: Cache) -> Array:
        """All prompts in one pass, padded on the left; logits of the last position (rows, vocabulary)."""
        longest = max(len(r.ids) for r in rows)
        ids = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros((len(rows), longest), np.int64)
        for i, row in enumerate(rows):
            ids[i, longest - len(row.ids) :] = row.ids
            mask[i, longest - len(row.ids) :] = 1
        positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
        started = time.perf_counter()
        logits = cache.run(ids, mask, positions)
        self.speed = Speed(int(mask.sum()), time.perf_counter() - started, 0, 0.0)
        return logits

    def _step(self, rows: list[_Row], cache: Cache) -> Array:
        ids = np.array([[r.tokens[-1]] for r in rows], np.int64)
        positions = np.array([[len(r.ids) + len(r.tokens) - 1] for r in rows], np.int64)
        mask = np.concatenate([cache.mask, np.ones((len(rows), 1), np.int64)], axis=1)
        return cache.run(ids, mask, np.minimum(positions, self.context - 1))

    def _take(
        self, index: int, row: _Row, logits: Array, sampling: Sampling, stop: Sequence[str], on_text: Any
    ) -> None:
        token = sampling.next_token(logits, [*row.ids, *row.tokens], row.rng)
        row.tokens.append(token)
        if token in self.ends:
            row.ended = "end"
            return
        row.text = self.tokenizer.decode([t for t in row.tokens if t not in self.ends])
        for word in stop:
            if word and word in row.text:
                row.text, row.ended = row.text.split(word)[0], "stop"
        self._flush(index, row, on_text, final=row.ended is not None)

    @staticmethod
    def _flush(index: int, row: _Row, on_text: Any, final: bool) -> None:
        """Show what is certain: a multi-byte character or a stop word may still be incomplete at the end."""
        text = row.text if final else row.text.rstrip("\ufffd")
        if len(text) > len(row.shown):
            piece, row.shown = text[len(row.shown) :], text
            if on_text is not None:
                on_text(index, piece)


@dataclasses.dataclass
class _Row:
    """One sequence of the batch."""

    prompt: str
    ids: list[int]
    rng: np.random.Generator
    tokens: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    shown: str = ""
    ended: str | None = None


class Cache:
    """The KV cache between steps, of a model that joins past and new rows: its presents are the past of the next run."""

    def __init__(self, owner: TextGenerator, rows: int, room: int = 0) -> None:
        """ROWS sequences; ROOM is how long they may become, where memory is taken for all of it at once."""
        self.session = owner.session
        self.inputs = owner.inputs
        self.mask = np.zeros((rows, 0), np.int64)
        self.values = {name: _empty(owner.inputs[name], rows, room) for name in owner.past}
        self.outputs = [o.name for o in self.session.get_outputs()]

    def run(self, ids: Array, mask: Array, positions: Array) -> Array:
        """Feed (rows, new) tokens after what is cached; logits of the last position."""
        binding = self.session.io_binding()
        self._bind_tokens(binding, ids, mask, positions)
        for name, value in self.values.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            binding.bind_output(name, "cpu")
        found = dict(zip(self.outputs, self._run(binding)))
        self.values = {n: found[_present(n)] for n in self.values}
        self.mask = mask
        return _last(found["logits"])

    def _bind_tokens(self, binding: Any, ids: Array, mask: Array, positions: Array) -> None:
        for name, array in (("input_ids", ids), ("attention_mask", mask), ("position_ids", positions)):
            if name in self.inputs:
                binding.bind_cpu_input(name, np.ascontiguousarray(array))

    def _run(self, binding: Any) -> Any:
        try:
            self.session.run_with_iobinding(binding)
        except Exception as error:
            raise OpsmithError(f"ONNX Runtime failed to run the model: {session.one_line(error)}") from error
        return binding.get_outputs()


class InPlaceCache(Cache):
    """One buffer per past with room for the whole sequence. It is both past and present: only the new rows are written.

    Memory that was never written takes no room in RAM, so what is resident grows with the sequence.
    """

    def __init__(self, owner: TextGenerator, rows: int, room: int) -> None:
        super().__init__(owner, rows, room)
        self.binding = self.session.io_binding()
        for name, value in self.values.items():
            self.binding.bind_ortvalue_input(name, value)

    def run(self, ids: Array, mask: Array, positions: Array) -> Array:
        self._bind_tokens(self.binding, ids, mask, positions)
        self.binding.clear_binding_outputs()
        self.binding.bind_output("logits", "cpu")
        for name, value in self.values.items():
            self.binding.bind_ortvalue_output(_present(name), value)
        found = self._run(self.binding)
        self.mask = mask
        return _last(found[0])


def make_cache(owner: TextGenerator, rows: int, room: int) -> Cache:
    return InPlaceCache(owner, rows, room) if owner.in_place else Cache(owner, rows)


def _empty(spec: Any, rows: int, room: int) -> ort.OrtValue:
    shape = [rows, *spec.shape[1:]]
    shape[2] = room
    if any(not isinstance(d, int) for d in shape):
        raise OpsmithError(f"{spec.name} has an unexpected shape {spec.shape}")
    return ort.OrtValue.ortvalue_from_numpy(
        np.empty(shape, np.float16 if spec.type == "tensor(float16)" else np.float32)
    )


def _present(name: str) -> str:
    return name.replace("past_key_values", "present")


def _last(logits: ort.OrtValue) -> Array:
    return np.asarray(logits.numpy()[:, -1])


def choose_variant(folder: Path, name: str | None = None) -> Path:
    """A variant by name, or the best there is: the newest compiled one, else the newest."""
    if folder.is_file():
        return store.find_model(folder)
    if name is not None:
        return store.find_model(folder / name)
    if not folder.is_dir():
        raise OpsmithError(f"{folder} does not exist")
    found = store.variants(folder)
    if not found:
        return store.find_model(folder)
    compiled = [v for v in found if (v.record.get("compiled") or {}).get("library")]
    return (compiled or found)[-1].path


def _has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer.json").is_file() or (folder / "vocab.json").is_file()
