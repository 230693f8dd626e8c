"""opsmith studio: the application in a browser."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from opsmith.cli import console, options
from opsmith.errors import OpsmithError

PANEL = "Applications"
ORDER = 73
JSON = {"address": "as soon as it answers there"}
EXAMPLES = (
    "opsmith studio",
    "opsmith studio --model models/sd --no-browser",
)


def command(
    model: options.Pipeline = None,
    writer: options.Writer = None,
    masks: options.Masks = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where pictures go, each with a JSON of its settings.", file_okay=False)
    ] = Path("opsmith_studio"),
    host: options.Host = "127.0.0.1",
    port: options.Port = 8417,
    password: Annotated[
        str | None,
        typer.Option("--password", envvar="OPSMITH_STUDIO_PASSWORD", help="Asked for by the page, and as API key."),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    cli: Annotated[bool, typer.Option("--cli", help="The same flow in the terminal, question by question.")] = False,
    threads: options.Threads = None,
    embedder: options.Embedder = None,
    allow_host: options.AllowHost = None,
    allow_origin: options.AllowOrigin = None,
) -> None:
    """From an idea to an edited picture, in a browser."""
    if cli:
        from opsmith.studio import terminal
        from opsmith.studio.models import Models

        terminal.converse(Models(model, writer, masks, threads), out)
        return
    models = Given(model, writer, masks, embedder, threads)
    start(models, out, Door(host, port, password, allow_host or (), allow_origin or ()), page=True, browser=browser)


@dataclasses.dataclass(frozen=True)
class Given:
    """Model folders; None is the starter's."""

    pictures: Path | None
    writer: Path | None
    masks: Path | None
    embedder: Path | None
    threads: int | None


@dataclasses.dataclass(frozen=True)
class Door:
    """Where the server listens, and whom it lets in."""

    host: str
    port: int
    password: str | None
    hosts: Sequence[str]
    origins: Sequence[str]


def start(given: Given, out: Path, door: Door, *, page: bool, browser: bool = False) -> None:
    try:
        from opsmith.studio import safety, server
    except ImportError as error:
        raise OpsmithError(f"{error.name} is not installed", 'pip install ".[studio]"') from error
    from opsmith.studio.core import Studio
    from opsmith.studio.models import Models

    safety.check_host(door.host, door.password)
    safety.check_origins(door.origins)
    studio = Studio(Models(**dataclasses.asdict(given)), out)

    def ready(address: str) -> None:
        what = f"the studio is at {address}" if page else f"the API is at {address}v1"
        told = f"{escape(what)} [dim](Ctrl-C ends it)[/]"
        console.answer({"address": address}, lambda: console.say(told), written=address)

    server.run(studio, page=page, open_browser=browser, ready=ready, **dataclasses.asdict(door))
