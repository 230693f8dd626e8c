"""Texts become vectors of unit length: an encoder, pooled as its folder says.

    encoder = TextEncoder("models/all-MiniLM-L6-v2")
    encoder.embed(["a man plays the guitar", "someone plays guitar"])      -> (2, 384)

Pooling is that of sentence-transformers (1_Pooling/config.json): mean, cls, max, last token; the mean without one. Models that
pool by themselves (CLIP's text_embeds) are taken at their word. Texts of like length run together, so little is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opsmith import session, store
from opsmith.errors import OpsmithError
from opsmith.pipelines.text import choose_variant, read_config
from opsmith.pipelines.tokenizer import encode, load_tokenizer, longest_token

Array = np.ndarray[Any, Any]
BATCH_TOKENS = 4096  # of one run, padding included
_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}


class TextEncoder:
    def __init__(self, folder: store.PathLike, variant: str | None = None, threads: int | None = None) -> None:
        """FOLDER is a model folder with its variants, tokenizer and config.json."""
        self.path = choose_variant(Path(folder), variant)
        self.home = store.home_of(self.path)
        self.session = session.load(self.path, threads=threads)
        self.inputs = [i.name for i in self.session.get_inputs()]
        outputs = [o.name for o in self.session.get_outputs()]
        if "input_ids" not in self.inputs or not {"text_embeds", "last_hidden_state"} & set(outputs):
            raise OpsmithError(f"{self.path} is not a text encoder: it has no input_ids or no last_hidden_state")
        self.output = "text_embeds" if "text_embeds" in outputs else "last_hidden_state"
        self.size: int = next(o.shape[-1] for o in self.session.get_outputs() if o.name == self.output)
        self.pooling = _pooling(self.home)
        self.tokenizer = load_tokenizer(self.home)
        if hasattr(self.tokenizer, "no_padding"):
            self.tokenizer.no_padding()
            self.tokenizer.no_truncation()
        model = self.path.parent.parent if (self.path.parent.parent / "config.json").is_file() else self.home
        limits = (
            read_config(self.home / "sentence_bert_config.json").get("max_seq_length"),
            read_config(model / "config.json").get("max_position_embeddings"),
        )
        self.longest = min((int(n) for n in limits if n), default=512)
        self.longest_token = longest_token(self.tokenizer)

    def embed(self, texts: Sequence[str | Sequence[int]], stopped: Callable[[], bool] = lambda: False) -> Array:
        """(texts, size), float32, each of unit length."""
        return self.embed_tokens([self.encode(t) for t in texts], stopped)

    def encode(self, text: str | Sequence[int]) -> list[int]:
        if isinstance(text, str) and len(text) > self.longest * self.longest_token:
            raise OpsmithError(f"a text has {len(text)} characters, more than {self.longest} tokens hold", "split it")
        ids = encode(self.tokenizer, text) if isinstance(text, str) else list(text)
        if not ids:
            raise OpsmithError("a text is empty", "give at least one word")
        if len(ids) > self.longest:
            raise OpsmithError(f"a text has {len(ids)} tokens, the model holds {self.longest}", "split it")
        size = self.tokenizer.get_vocab_size()
        if wrong := [t for t in ids if not 0 <= t < size]:
            raise OpsmithError(f"there is no token {wrong[0]}", f"0 to {size - 1}")
        return ids

    def encode_many(self, texts: Sequence[str], truncate: Sequence[bool]) -> list[list[int] | OpsmithError]:
        """The tokens of each text, or why it has none; TRUNCATE cuts one that is too long instead of refusing it."""
        encoded: list[list[int] | OpsmithError] = []
        short = [t if len(t) <= self.longest * self.longest_token else "" for t in texts]
        for text, cut, ids in zip(texts, truncate, self._encode_batch(short)):
            try:
                if cut:
                    encoded.append(self._cut(ids or encode(self.tokenizer, text)))
                else:
                    encoded.append(self.encode(text if ids is None or not text or len(ids) > self.longest else ids))
            except OpsmithError as error:
                encoded.append(error)
        return encoded

    def _encode_batch(self, texts: Sequence[str]) -> list[list[int] | None]:
        """None for those that have to be looked at one by one; the texts together are split faster than one by one."""
        try:
            found = self.tokenizer.encode_batch(list(texts))
        except (TypeError, UnicodeEncodeError):  # half a character somewhere
            return [None] * len(texts)
        return [list(one.ids) if text else None for one, text in zip(found, texts)]

    def _cut(self, ids: list[int]) -> list[int]:
        """At most `longest` tokens; the last stays, as it ends every text."""
        return ids if len(ids) <= self.longest else [*ids[: self.longest - 1], ids[-1]]

    def embed_tokens(
        self,
        encoded: Sequence[Sequence[int]],
        stopped: Callable[[], bool] = lambda: False,
        batch_tokens: int = BATCH_TOKENS,
    ) -> Array:
        vectors: dict[int, Array] = {}
        for batch in _batches([len(ids) for ids in encoded], batch_tokens):
            if stopped():
                break
            for i, vector in zip(batch, self._run([encoded[i] for i in batch])):
                vectors[i] = vector
        return np.stack([vectors[i] for i in sorted(vectors)])

    def _run(self, rows: Sequence[Sequence[int]]) -> Array:
        longest = max(map(len, rows))
        ids = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros((len(rows), longest), np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (states,) = session.run(self.session, {n: known[n] for n in self.inputs}, [self.output])
        pooled = states if self.output == "text_embeds" else pool(states, mask, self.pooling)
        length = np.linalg.norm(pooled, axis=1, keepdims=True)
        return np.asarray(pooled / np.maximum(length, 1e-12), np.float32)


def pool(states: Array, mask: Array, how: str) -> Array:
    """states (B,S,C), mask (B,S) with ones first -> (B,C)."""
    keep = mask[:, :, None].astype(states.dtype)
    if how == "cls":
        return np.asarray(states[:, 0])
    if how == "last":
        return np.asarray(states[np.arange(len(states)), mask.sum(axis=1) - 1])
    if how == "max":
        return np.asarray(np.where(keep > 0, states, -np.inf).max(axis=1))
    return np.asarray((states * keep).sum(axis=1) / keep.sum(axis=1))


def _pooling(home: Path) -> str:
    config = read_config(home / "1_Pooling" / "config.json")
    chosen = [how for key, how in _POOLINGS.items() if config.get(key)]
    others = [key for key in config if key.startswith("pooling_mode_") and config[key] and key not in _POOLINGS]
    if others or len(chosen) > 1:
        raise OpsmithError(f"{home / '1_Pooling'} asks for {', '.join(others or chosen)}, which is not supported")
    return chosen[0] if chosen else "mean"


def _batches(lengths: Sequence[int], most: int = BATCH_TOKENS) -> list[list[int]]:
    """Indices, longest first, in groups that fit MOST tokens when padded to their first."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= most:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
