"""opsmith explain-session MODEL"""

from __future__ import annotations

from typing import Annotated

import typer

from opsmith.cli import console

PANEL = "Workbench"
ORDER = 85
EXAMPLES = (
    "opsmith explain-session model.onnx",
    "opsmith explain-session models/bert/dynamo",
)
JSON = {"lines": "one per compiled region: what became of it and why"}


def command(model: Annotated[str, typer.Argument(help="A .onnx file or variant folder.")]) -> None:
    """Open a model through the execution provider, and say what became of each compiled region and why."""
    from opsmith import provider

    lines = provider.explain_session(model) or ["nothing of this model was worth compiling"]
    console.answer({"lines": lines}, lambda: console.show(console.escape("\n".join(lines))))
