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
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from opsmith import session, store
from opsmith.errors import OpsmithError
from opsmith.pipelines.lookup import Guesses, Lookup
from opsmith.pipelines.sampling import Sampling
from opsmith.pipelines.tokenizer import encode, load_tokenizer, longest_token

Array = np.ndarray[Any, Any]
NEW_TOKENS = 64  # unless told otherwise
LONGEST_KEPT = 8192  # tokens that a kept cache has room for
# What configs call the number of tokens that a model was made for.
CONTEXTS = ("n_positions", "max_position_embeddings", "max_seq_len", "seq_length")
CACHE_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8}
GENAI = "genai_config.json"  # beside a model that onnxruntime-genai's builder made
DECODED_BEFORE = 4  # tokens of the prompt that the first new ones are decoded behind


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """A token with its log probability, and the likeliest tokens at its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclasses.dataclass
class Generation:
    """One text: what was asked, what came out, and why it ended."""

    prompt: str | Sequence[int]
    text: str
    tokens: list[int]
    ended: str  # "end" of text, "stop" string, or "length"
    prompt_tokens: int
    likelihoods: list[Likelihood]  # of the tokens that the text shows, if asked for


@dataclasses.dataclass
class Speed:
    """Prompt and decode are different work, so they are timed apart."""

    prompt_tokens: int
    prompt_seconds: float
    decode_tokens: int
    decode_seconds: float
    decode_steps: int = 0  # passes through the model

    def __str__(self) -> str:
        prompt = self.prompt_tokens / max(self.prompt_seconds, 1e-9)
        decode = self.decode_tokens / max(self.decode_seconds, 1e-9)
        return f"prompt {prompt:.0f} tokens/s, decode {decode:.0f} tokens/s"


class TextGenerator:
    def __init__(self, folder: store.PathLike, variant: str | None = None, threads: int | None = None) -> None:
        """FOLDER is a model folder with its variants, tokenizer and config.json; the newest compiled variant is taken by default."""
        self.folder = Path(folder)
        self.path = choose_variant(self.folder, variant)
        self.home = store.home_of(self.path)
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
        # Models of onnxruntime-genai count their keys by the mask (GroupQueryAttention): texts of one batch must be equally long.
        self.counts_keys = (self.home / GENAI).is_file() and "position_ids" not in self.inputs
        self.config = config = read_config(self.home / "config.json") or _of_genai(read_config(self.home / GENAI))
        self.context = next((int(config[name]) for name in CONTEXTS if config.get(name)), 1 << 30)
        self.longest_token = longest_token(self.tokenizer)
        self.vocabulary = int(config.get("vocab_size") or 0)
        # Chat models end a turn with a token of its own, which only generation_config.json names.
        named = [c.get("eos_token_id") for c in (config, read_config(self.home / "generation_config.json"))]
        self.ends = {int(e) for ends in named for e in (ends if isinstance(ends, list) else [ends]) if e is not None}
        self.speed = Speed(0, 0.0, 0, 0.0)
        self._kept: tuple[list[int], Cache] | None = None  # the last text and its cache, if it asked for that

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
        guesses: Guesses | None = None,
        reuse: bool = False,
        on_text: Callable[[int, str], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[Generation]:
        """N texts for each prompt (words or token numbers), all in one batch. `on_text(index, piece)` streams the pieces of each text.

        Without MAX_NEW_TOKENS there are at most NEW_TOKENS, or what the context still holds. ENDS are the tokens that end a text, by
        default the model's own. LOGPROBS asks for the likelihood of every token and of that many others at its place. LOOKUP is how many
        tokens may be guessed at a time from what the text said before (lookup.py), if there is one text only; GUESSES takes its place (draft.py). REUSE keeps its cache for the next prompt that begins like this text and asks for the same.
        """
        given = [prompts] if isinstance(prompts, str) else list(prompts)
        sampling = sampling or Sampling()
        encoded = [self.encode(t) for t in given]
        room = self.room(encoded, max_new_tokens)
        if self.counts_keys and len({len(ids) for ids in encoded}) > 1:
            options: dict[str, Any] = {"sampling": sampling, "n": n, "stop": stop, "ends": ends, "logprobs": logprobs}
            return self._one_by_one(given, on_text, {**options, "max_new_tokens": room, "cancelled": cancelled})
        rows = [Row(self, t, ids, sampling.generator(c)) for t, ids in zip(given, encoded) for c in range(n)]
        wanted = Wanted(sampling, tuple(w for w in stop if w), self.ends if ends is None else ends, logprobs, on_text)
        keeps = reuse and len(rows) == 1 and self.in_place
        cache = self._kept_cache(rows[0].ids, room) if keeps else None
        cache = cache or make_cache(self, len(rows), max(len(r.ids) for r in rows) + room)
        self._write(rows, cache, room, wanted, _guesses_for(rows, lookup, guesses), cancelled)
        if keeps:
            self._kept = [*rows[0].ids, *rows[0].tokens][: cache.mask.shape[1]], cache
        for i, row in enumerate(rows):
            row.show(i, wanted, final=True)
        return [row.generation() for row in rows]

    def _one_by_one(
        self, given: Sequence[str | Sequence[int]], on_text: Callable[[int, str], None] | None, options: dict[str, Any]
    ) -> list[Generation]:
        """Each prompt in a batch of its own."""
        made: list[Generation] = []
        for prompt in given:
            made += self.generate([prompt], on_text=_from_row(len(made), on_text), **options)
        return made

    def _write(
        self,
        rows: list[Row],
        cache: Cache,
        room: int,
        wanted: Wanted,
        guesses: Guesses | None,
        cancelled: Callable[[], bool],
    ) -> None:
        """The prompts, then step by step at most ROOM tokens behind each, until all rows ended or it is CANCELLED."""
        logits = self._prompt(rows, cache)[:, None]  # (rows, 1, vocabulary)
        started = time.perf_counter()
        steps, guess = 0, list[int]()
        while True:
            right = 0
            for i, row in enumerate(rows):
                right = row.take_all(i, logits[i], guess, wanted)
            if guesses is not None:
                guesses.learn(len(guess), right)
            cache.drop(len(guess) - right)
            written = max(len(r.tokens) for r in rows)
            if all(r.ended for r in rows) or cancelled() or written == room:
                break
            # One more token is written whatever becomes of the guess.
            guess = guesses.guess([*rows[0].ids, *rows[0].tokens], room - written - 1) if guesses else []
            logits = self._step(rows, cache, guess)
            steps += 1
        self.speed = dataclasses.replace(
            self.speed,
            decode_tokens=sum(len(r.tokens) for r in rows),
            decode_seconds=time.perf_counter() - started,
            decode_steps=steps,
        )

    def encode(self, prompt: str | Sequence[int], special: bool = True) -> list[int]:
        """The prompt's tokens; what cannot fit is refused before it is split into tokens, which takes long for megabytes."""
        if isinstance(prompt, str):
            if len(prompt) > self.context * self.longest_token:
                raise OpsmithError(
                    f"the prompt has {len(prompt)} characters, more than the model's context of {self.context} tokens holds",
                    "shorten the prompt",
                )
            ids = encode(self.tokenizer, prompt, special)
        else:
            ids = list(prompt)
            if wrong := [t for t in ids if not 0 <= t < (self.vocabulary or 1 << 30)]:
                raise OpsmithError(f"there is no token {wrong[0]}", f"0 to {self.vocabulary - 1}")
        if not ids:
            raise OpsmithError("the prompt is empty", "give at least one word")
        if len(ids) >= self.context:
            raise OpsmithError(
                f"the prompt has {len(ids)} tokens, the model's context holds {self.context}", "shorten the prompt"
            )
        return ids

    def room(self, prompts: Sequence[Sequence[int]], asked: int | None = None) -> int:
        """How many new tokens there may be behind each of the encoded PROMPTS."""
        longest = max(map(len, prompts))
        if asked is None:
            return min(NEW_TOKENS, self.context - longest)
        if longest + asked > self.context:
            raise OpsmithError(
                f"{longest} prompt tokens and {asked} new ones exceed the context of {self.context}",
                f"ask for at most {self.context - longest} new tokens",
            )
        return asked

    def _kept_cache(self, ids: list[int], room: int) -> Cache:
        """A cache that holds as much of IDS as the last text has in common with them."""
        kept, self._kept = self._kept, None  # nobody else gets it meanwhile
        if kept is not None:
            tokens, cache = kept
            common = next((i for i, (a, b) in enumerate(zip(tokens, ids)) if a != b), min(len(tokens), len(ids)))
            common = min(common, len(ids) - 1)  # the last token gives the logits
            if common and cache.room >= len(ids) + room:
                cache.drop(cache.mask.shape[1] - common)
                return cache
        # Room for more turns: what is never written takes no memory.
        return make_cache(self, 1, max(len(ids) + room, min(self.context, LONGEST_KEPT)))

    def _prompt(self, rows: list[Row], cache: Cache) -> Array:
        """All prompts in one pass, padded on the left, without what is cached; logits of the last position (rows, vocabulary)."""
        longest = max(len(r.ids) for r in rows)
        ids = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros((len(rows), longest), np.int64)
        for i, row in enumerate(rows):
            ids[i, longest - len(row.ids) :] = row.ids
            mask[i, longest - len(row.ids) :] = 1
        positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
        known = cache.mask.shape[1]
        started = time.perf_counter()
        logits = cache.run(ids[:, known:], mask, positions[:, known:])
        self.speed = Speed(int(mask[:, known:].sum()), time.perf_counter() - started, 0, 0.0)
        return logits

    def _step(self, rows: list[Row], cache: Cache, guess: list[int]) -> Array:
        """The last token of every row, and the guess behind it: logits (rows, 1 + guess, vocabulary)."""
        ids = np.array([[r.tokens[-1], *guess] for r in rows], np.int64)
        first = np.array([[len(r.ids) + len(r.tokens) - 1] for r in rows], np.int64)
        positions = first + np.arange(1 + len(guess))
        mask = np.concatenate([cache.mask, np.ones_like(ids)], axis=1)
        return cache.run(ids, mask, np.minimum(positions, self.context - 1), every=True)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What holds for all sequences of a batch."""

    sampling: Sampling
    stop: tuple[str, ...]
    ends: Collection[int]
    logprobs: int | None
    on_text: Callable[[int, str], None] | None


class Row:
    """One sequence of the batch."""

    def __init__(
        self, owner: TextGenerator, prompt: str | Sequence[int], ids: list[int], rng: np.random.Generator
    ) -> None:
        self.tokenizer = owner.tokenizer
        self.prompt, self.ids, self.rng = prompt, ids, rng
        self.tokens: list[int] = []
        self.likelihoods: list[Likelihood] = []
        self.starts: list[int] = []  # where in the text each token begins
        self.text = ""
        self.shown = 0  # characters of it
        self.ended: str | None = None
        # Tokens are decoded behind those before them, so that a first word keeps its space.
        self._decoded, self._undecoded = ids[-DECODED_BEFORE:], list[int]()

    def take_all(self, index: int, logits: Array, guess: Sequence[int], wanted: Wanted) -> int:
        """logits (1 + guess, vocabulary): a token, and one more for each that was guessed right. How many were."""
        for i, scores in enumerate(logits):
            if self.ended is None:
                self.take(index, scores, wanted)
            if self.ended is not None or i == len(guess) or self.tokens[-1] != guess[i]:
                return i
        return len(guess)

    def take(self, index: int, logits: Array, wanted: Wanted) -> None:
        token = wanted.sampling.next_token(logits, [*self.ids, *self.tokens], self.rng, len(self.ids))
        self.tokens.append(token)
        if wanted.logprobs is not None:
            self.likelihoods.append(_likelihood(logits, token, wanted.logprobs))
        self.starts.append(len(self.text))
        if token in wanted.ends:
            self.ended = "end"
        else:
            self._undecoded.append(token)
            self._decode()
            found = [(at, word) for word in wanted.stop if (at := self.text.find(word, self.shown)) >= 0]
            if found:
                self.text, self.ended = self.text[: min(found)[0]], "stop"
        self.show(index, wanted, final=self.ended is not None)

    def _decode(self, final: bool = False) -> None:
        """Append what the tokens say, unless they end inside a character."""
        known = self.tokenizer.decode(self._decoded)
        whole = self.tokenizer.decode(self._decoded + self._undecoded)
        if len(whole) > len(known) and (final or not whole.endswith("\ufffd")):
            self.text += whole[len(known) :]
            self._decoded, self._undecoded = self._undecoded, []

    def show(self, index: int, wanted: Wanted, final: bool) -> None:
        """Say what is certain: the end of the text may still become a stop string."""
        if final and self.ended != "stop":
            self._decode(final=True)
        certain = len(self.text) - (0 if final else _undecided(self.text, wanted.stop))
        if certain > self.shown:
            piece, self.shown = self.text[self.shown : certain], certain
            if wanted.on_text is not None:
                wanted.on_text(index, piece)

    def generation(self) -> Generation:
        seen = sum(start < len(self.text) for start in self.starts)
        return Generation(
            self.prompt, self.text, self.tokens, self.ended or "length", len(self.ids), self.likelihoods[:seen]
        )


def _from_row(first: int, on_text: Callable[[int, str], None] | None) -> Callable[[int, str], None] | None:
    """ON_TEXT for a part of the texts, of which the FIRST is that one of all."""
    return None if on_text is None else lambda index, piece: on_text(first + index, piece)


def _guesses_for(rows: Sequence[Row], lookup: int, guesses: Guesses | None) -> Guesses | None:
    """Who guesses the next tokens: nobody for several rows, else GUESSES, else what the text said before."""
    if len(rows) > 1:
        return None
    if guesses is None and lookup > 0:
        return Lookup(lookup)
    return guesses


def _undecided(text: str, stop: Sequence[str]) -> int:
    """How many characters at the end of TEXT begin a stop string."""
    longest = max(map(len, stop), default=1) - 1
    return next(
        (size for size in range(min(longest, len(text)), 0, -1) if any(w.startswith(text[-size:]) for w in stop)), 0
    )


def _likelihood(logits: Array, token: int, others: int) -> Likelihood:
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    best = np.argsort(-scores, kind="stable")[:others]
    return Likelihood(token, float(scores[token]), tuple((int(i), float(scores[i])) for i in best))


class Cache:
    """The KV cache between steps, of a model that joins past and new rows: its presents are the past of the next run."""

    def __init__(self, owner: TextGenerator, rows: int, room: int = 0) -> None:
        """ROWS sequences; ROOM is how long they may become, where memory is taken for all of it at once."""
        self.session = owner.session
        self.inputs = owner.inputs
        self.mask = np.zeros((rows, 0), np.int64)
        self.room = room
        self.values = {
            name: _empty(owner.inputs[name], rows, room, owner.config.get("head_dim")) for name in owner.past
        }
        self.outputs = [o.name for o in self.session.get_outputs()]

    def run(self, ids: Array, mask: Array, positions: Array, every: bool = False) -> Array:
        """Feed (rows, new) tokens after what is cached; logits (rows, vocabulary) of the last position, or of EVERY new one."""
        binding = self.session.io_binding()
        self._bind_tokens(binding, ids, mask, positions)
        for name, value in self.values.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            binding.bind_output(name, "cpu")
        outputs = dict(zip(self.outputs, self._run(binding)))
        self.values = {n: outputs[present_of(n)] for n in self.values}
        self.mask = mask
        return _logits(outputs["logits"], every)

    def drop(self, count: int) -> None:
        """Forget the last COUNT tokens: they stay where they are, unseen."""
        if count:
            self.mask[:, -count:] = 0

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


class CountedCache(Cache):
    """Of a model that takes as many keys as its mask has ones: what is dropped leaves the cache."""

    def drop(self, count: int) -> None:
        if count:
            self.mask = self.mask[:, :-count]
            kept = {n: np.ascontiguousarray(v.numpy()[:, :, :-count]) for n, v in self.values.items()}
            self.values = {n: ort.OrtValue.ortvalue_from_numpy(array) for n, array in kept.items()}


class InPlaceCache(Cache):
    """One buffer per past with room for the whole sequence. It is both past and present: only the new rows are written.

    Memory that was never written takes no room in RAM, so what is resident grows with the sequence.
    """

    def __init__(self, owner: TextGenerator, rows: int, room: int) -> None:
        super().__init__(owner, rows, room)
        self.binding = self.session.io_binding()
        for name, value in self.values.items():
            self.binding.bind_ortvalue_input(name, value)

    def run(self, ids: Array, mask: Array, positions: Array, every: bool = False) -> Array:
        self._bind_tokens(self.binding, ids, mask, positions)
        self.binding.clear_binding_outputs()
        self.binding.bind_output("logits", "cpu")
        for name, value in self.values.items():
            self.binding.bind_ortvalue_output(present_of(name), value)
        outputs = self._run(self.binding)
        self.mask = mask
        return _logits(outputs[0], every)

    def drop(self, count: int) -> None:
        """The next tokens are written over them."""
        self.mask = self.mask[:, : self.mask.shape[1] - count]


def make_cache(owner: TextGenerator, rows: int, room: int) -> Cache:
    if owner.in_place:
        return InPlaceCache(owner, rows, room)
    return CountedCache(owner, rows) if owner.counts_keys else Cache(owner, rows)


def _empty(spec: Any, rows: int, room: int, head_size: int | None = None) -> ort.OrtValue:
    shape = [rows, *spec.shape[1:]]
    shape[2] = room
    if head_size and not isinstance(shape[-1], int):
        shape[-1] = head_size
    if len(shape) != 4 or any(not isinstance(d, int) for d in shape):
        raise OpsmithError(
            f"{spec.name} is {spec.shape}, which does not say how large a cache is",
            "it takes numbers for heads and the size of a head, as `opsmith export` writes them, or a genai_config.json beside it",
        )
    return ort.OrtValue.ortvalue_from_numpy(np.empty(shape, CACHE_TYPES[spec.type]))


def present_of(name: str) -> str:
    return name.replace("past_key_values", "present")


def _logits(logits: ort.OrtValue, every: bool) -> Array:
    found = logits.numpy()
    return np.asarray(found if every else found[:, -1])


def read_config(file: Path) -> dict[str, Any]:
    """A component's config.json; empty if there is none."""
    try:
        config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise OpsmithError(f"{file} is not valid JSON: {error}") from error
    return config if isinstance(config, dict) else {}


def _of_genai(config: dict[str, Any]) -> dict[str, Any]:
    """What genai_config.json of onnxruntime-genai says, under the names of Hugging Face's config.json."""
    model = config.get("model")
    if not isinstance(model, dict):
        return {}
    decoder = model.get("decoder")
    named = {"max_position_embeddings": "context_length", "vocab_size": "vocab_size", "eos_token_id": "eos_token_id"}
    found = {ours: model[theirs] for ours, theirs in named.items() if theirs in model}
    return found | ({"head_dim": decoder["head_size"]} if isinstance(decoder, dict) and "head_size" in decoder else {})


def choose_variant(folder: Path, name: str | None = None) -> Path:
    """A variant by name, or the best there is: the newest compiled one, else the newest."""
    if folder.is_file():
        return store.find_model(folder)
    if name is not None:
        return store.find_model(folder / name)
    if not folder.is_dir():
        raise OpsmithError(f"{folder} does not exist")
    variants = store.variants(folder)
    if not variants:
        return store.find_model(folder)
    compiled = [v for v in variants if (v.record.get("compiled") or {}).get("library")]
    return (compiled or variants)[-1].path
