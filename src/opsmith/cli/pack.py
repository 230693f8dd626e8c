"""opsmith pack VARIANT --out FILE.opsmith.zip"""

from __future__ import annotations

from typing import Annotated

import typer

from opsmith.cli import console
from opsmith.measure.units import size

PANEL = "Road"
ORDER = 46
JSON = {"file": "the zip that was written", "bytes": "its size"}
EXAMPLES = (
    "opsmith pack models/bert/dynamo_compiled",
    "opsmith pack models/bert/dynamo_compiled --out bert.opsmith.zip",
)


def command(
    variant: Annotated[str, typer.Argument(help="A compiled variant, or a model with its folder for the provider.")],
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", "--output", help="The zip file to write.", show_default="VARIANT's name, .opsmith.zip"
        ),
    ] = None,
) -> None:
    """Put a compiled model, its library, weights, licences, checksums and loaders for C, C++ and Python into one file."""
    from opsmith.provider.bundle import pack

    path = pack(variant, out)
    told = {"file": path, "bytes": path.stat().st_size}
    wrote = f"wrote {console.escape(str(path))} ({size(path.stat().st_size)})"
    console.answer(told, lambda: console.say(wrote), written=[path])
