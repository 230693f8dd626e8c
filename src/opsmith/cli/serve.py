"""opsmith serve: the OpenAI HTTP API, without the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opsmith.cli.studio import start

PANEL = "Applications"
ORDER = 74


def command(
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="A pipeline folder; the starter's by default.")
    ] = None,
    writer: Annotated[
        Path | None, typer.Option("--writer", help="A text model folder; the starter's by default.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Others than this machine's own need --password.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 is any free one.")] = 8417,
    password: Annotated[
        str | None, typer.Option("--password", envvar="OPSMITH_STUDIO_PASSWORD", help="Clients send it as API key.")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Threads of the sessions.")] = None,
) -> None:
    """Serve the OpenAI HTTP API: models, images/generations, images/edits, completions."""
    start(model, writer, None, Path("opsmith_studio"), host, port, password, threads, page=False)
