"""opsmith serve: the OpenAI HTTP API, without the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opsmith.cli import options
from opsmith.cli.studio import Door, Given, start

PANEL = "Applications"
ORDER = 74
JSON = {"address": "as soon as it answers there; the API is at its `v1`"}
EXAMPLES = (
    "opsmith serve",
    "opsmith serve --model models/sd --writer models/gpt2 --port 9000",
)


def command(
    model: options.Pipeline = None,
    writer: options.Writer = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8417,
    password: Annotated[
        str | None, typer.Option("--password", envvar="OPSMITH_STUDIO_PASSWORD", help="Clients send it as API key.")
    ] = None,
    threads: options.Threads = None,
    embedder: options.Embedder = None,
    allow_host: options.AllowHost = None,
    allow_origin: options.AllowOrigin = None,
) -> None:
    """Serve the OpenAI HTTP API: models, chat, completions, embeddings, pictures."""
    models = Given(model, writer, None, embedder, threads)
    start(models, Path("opsmith_studio"), Door(host, port, password, allow_host or (), allow_origin or ()), page=False)
