"""opsmith serve: the OpenAI HTTP API, without the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opsmith.cli.studio import Door, Given, start

PANEL = "Applications"
ORDER = 74
JSON = {"address": "as soon as it answers there; the API is at its `v1`"}
EXAMPLES = (
    "opsmith serve",
    "opsmith serve --model models/sd --writer models/gpt2 --port 9000",
)


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
    embedder: Annotated[
        Path | None, typer.Option("--embedder", help="A text encoder's folder; the starter's CLIP by default.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="Answer to this name too, such as host.docker.internal.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", help="Let pages of this site use /v1, such as https://a.example."),
    ] = None,
) -> None:
    """Serve the OpenAI HTTP API: models, chat, completions, embeddings, pictures."""
    models = Given(model, writer, None, embedder, threads)
    start(models, Path("opsmith_studio"), Door(host, port, password, allow_host or (), allow_origin or ()), page=False)
