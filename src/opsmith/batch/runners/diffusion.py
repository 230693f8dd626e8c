"""prompt -> picture: a pipeline folder. A picture depends on its row alone: one at a time, from a seed of its own."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opsmith.batch.rows import Answer, Failed, Option, Traits
from opsmith.batch.runners.values import text_of
from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures
from opsmith.pipelines.diffusion import DiffusionApp

OPTIONS = {
    "negative": Option(str, ""),
    "seed": Option(int),  # the row's number, unless stated
    "steps": Option(int, 25),
    "guidance": Option(float),
    "width": Option(int),
    "height": Option(int),
    "scheduler": Option(str),
}


class Diffusion:
    def __init__(self, folder: Path, variant: str | None, threads: int | None) -> None:
        self.app = DiffusionApp(folder, variant=variant, threads=threads)
        self.traits = Traits("diffusion", ("prompt",), OPTIONS, 4, (1,), {})

    def run(self, rows: Sequence[Mapping[str, Any]], batch: int) -> list[Answer]:
        return [self._make(row) for row in rows]

    def _make(self, row: Mapping[str, Any]) -> Answer:
        prompt = text_of(row["prompt"], "prompt")
        if isinstance(prompt, Failed):
            return prompt
        try:
            made = self.app.generate(
                prompt,
                row["negative"],
                steps=row["steps"],
                guidance=row["guidance"],
                height=row["height"],
                width=row["width"],
                seed=row["row"] if row["seed"] is None else row["seed"],
                scheduler=row["scheduler"] or None,
            )
        except OpsmithError as error:
            return Failed(str(error))
        file = io.BytesIO()
        made.images[0].save(file, "PNG", pnginfo=pictures.notes(made.settings[0]))
        return {"picture": file.getvalue(), "settings": made.settings[0]}
