"""text -> embedding: a text encoder, pooled and scaled to unit length as its folder says (pipelines/embed.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opsmith.batch.rows import Answer, Column, Failed, Option, Traits
from opsmith.batch.runners.values import text_of
from opsmith.errors import OpsmithError
from opsmith.pipelines.embed import BATCH_TOKENS, TextEncoder

# Tokens of one run, padding included.
BATCHES = (BATCH_TOKENS, 512, 1024, 2048, 2 * BATCH_TOKENS)


class Encoder:
    def __init__(self, path: Path, threads: int | None) -> None:
        self.encoder = TextEncoder(path, threads=threads)
        columns = {"embedding": Column("float32", (self.encoder.size,))}
        self.traits = Traits("encoder", ("text",), {"truncate": Option(bool, False)}, 1024, BATCHES, columns)

    def run(self, rows: Sequence[Mapping[str, Any]], batch: int) -> list[Answer]:
        texts = [text_of(row["text"], "text") for row in rows]
        answers: list[Answer] = [t if isinstance(t, Failed) else {} for t in texts]
        there = [(i, t) for i, t in enumerate(texts) if not isinstance(t, Failed)]
        encoded = self.encoder.encode_many([t for _, t in there], [rows[i]["truncate"] for i, _ in there])
        fitting: list[tuple[int, list[int]]] = []
        for (i, _), ids in zip(there, encoded):
            if isinstance(ids, OpsmithError):
                answers[i] = Failed(str(ids))
            else:
                fitting.append((i, ids))
        if fitting:
            vectors = self.encoder.embed_tokens([ids for _, ids in fitting], batch_tokens=batch)
            for (i, _), vector in zip(fitting, vectors):
                answers[i] = {"embedding": vector}
        return answers
