"""Words that textual inversions bring: which rows each has in each text encoder's table, behind the table's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from opsmith import store
from opsmith.errors import OpsmithError
from opsmith.pipelines import textual_inversion
from opsmith.pipelines.clip_tokenizer import ClipTokenizer
from opsmith.pipelines.diffusion.parts import Parts

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Word:
    file: str
    vectors: Mapping[str, Array]  # text encoder -> [N,X]


class Tokens:
    def __init__(self, parts: Parts, tokenizers: Mapping[str, ClipTokenizer]) -> None:
        """TOKENIZERS of the text encoders, by their names."""
        self._parts, self._tokenizers = parts, tokenizers
        self.on: dict[str, Word] = {}

    def read(self, path: store.PathLike, token: str | None) -> tuple[str, Word]:
        """The word and its vectors, seen to fit."""
        found = textual_inversion.read(path, token)
        if found.token.lower() in (t.lower() for t in self.on):
            raise OpsmithError(f"an embedding {found.token!r} is on already", "give it another word, or unload it")
        if any(t.inner.token_to_id(found.token) is not None for t in self._tokenizers.values()):
            raise OpsmithError(
                f"{found.token!r} is in the tokenizer's vocabulary already", "give the embedding another word"
            )
        return found.token, Word(found.path.name, self._placed(found))

    def _placed(self, found: textual_inversion.Inversion) -> dict[str, Array]:
        """Vectors by text encoder; those that do not tell go to the first whose table is as wide."""
        widths = {name: self._table(name)[1] for name in self._tokenizers}
        placed = {}
        for told, rows in found.vectors.items():
            fits = [n for n, width in widths.items() if width == rows.shape[1] and told in ("", n)]
            if not fits:
                named = [told] if told in widths else list(widths)
                theirs = ", ".join(f"the {n}'s {widths[n]}" for n in named)
                raise OpsmithError(
                    f"{found.path.name} does not fit: its vectors have {rows.shape[1]} numbers, {theirs}",
                    "it was made for another model",
                )
            placed[fits[0]] = rows
        return placed

    def _table(self, name: str) -> tuple[int, int]:
        """Rows and columns of the text encoder's table."""
        weight = textual_inversion.table(store.open_model(self._parts.named(name)))
        assert weight.const_value is not None
        rows, columns = weight.const_value.shape.numpy()
        return int(rows), int(columns)

    def here(self, name: str) -> dict[str, Array]:
        """Words that text encoder NAME learns, and their vectors [N,X]."""
        return {token: word.vectors[name] for token, word in self.on.items() if name in word.vectors}

    def number(self, name: str) -> None:
        """Tell the tokenizer of component NAME, if it has one, which ids its new words have."""
        if name not in self._tokenizers:
            return
        words = self.here(name)
        first = self._table(name)[0] if words else 0
        added = {}
        for token, rows in words.items():
            added[token] = list(range(first, first + len(rows)))
            first += len(rows)
        self._tokenizers[name].added = added

    @property
    def told(self) -> list[dict[str, Any]]:
        """For the settings of a picture."""
        return [{"token": token, "file": word.file} for token, word in self.on.items()]
