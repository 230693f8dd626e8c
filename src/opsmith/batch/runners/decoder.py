"""prompt -> text: a decoder with a KV cache. Prompts of the same number of tokens run together, so that nothing is padded.

Every row draws from a generator of its own, seeded by `seed`: the same prompt and seed give the same text, whatever runs beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opsmith.batch.rows import Answer, Column, Failed, Option, Traits
from opsmith.batch.runners.groups import groups
from opsmith.batch.runners.values import text_of
from opsmith.errors import OpsmithError
from opsmith.pipelines.sampling import Sampling
from opsmith.pipelines.text import TextGenerator

OPTIONS = {
    "max_new_tokens": Option(int),
    "temperature": Option(float, 0.0),
    "top_k": Option(int, 0),
    "top_p": Option(float, 1.0),
    "seed": Option(int, 0),
}
COLUMNS = {"text": Column("str"), "ended": Column("str")}


class Decoder:
    def __init__(self, path: Path, threads: int | None) -> None:
        self.generator = TextGenerator(path, threads=threads)
        self.traits = Traits("decoder", ("prompt",), OPTIONS, 32, (8, 1, 4, 16, 32), COLUMNS)

    def run(self, rows: Sequence[Mapping[str, Any]], batch: int) -> list[Answer]:
        answers: list[Answer] = [Failed("not run")] * len(rows)
        encoded: dict[int, list[int]] = {}
        for i, row in enumerate(rows):
            ids = self._encode(row)
            if isinstance(ids, Failed):
                answers[i] = ids
            else:
                encoded[i] = ids
        alike = {i: (len(ids), *(rows[i][name] for name in OPTIONS)) for i, ids in encoded.items()}
        for group in groups(alike, batch):
            row = rows[group[0]]
            sampling = Sampling(row["temperature"], row["top_k"], row["top_p"], seed=row["seed"])
            made = self.generator.generate(
                [encoded[i] for i in group], max_new_tokens=row["max_new_tokens"], sampling=sampling
            )
            for i, text in zip(group, made):
                answers[i] = {"text": text.text, "ended": text.ended}
        return answers

    def _encode(self, row: Mapping[str, Any]) -> list[int] | Failed:
        prompt = text_of(row["prompt"], "prompt")
        if isinstance(prompt, Failed):
            return prompt
        try:
            return self.generator.encode(prompt)
        except OpsmithError as error:
            return Failed(str(error))
