"""opsmith studio: the application in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from opsmith.cli import console
from opsmith.errors import OpsmithError

PANEL = "Applications"
ORDER = 73


def command(
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="A pipeline folder; the starter's by default.")
    ] = None,
    writer: Annotated[
        Path | None, typer.Option("--writer", help="A text model folder; the starter's by default.")
    ] = None,
    masks: Annotated[
        Path | None, typer.Option("--masks", help="A CLIPSeg-type model folder; the starter's by default.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where pictures go, each with a JSON of its settings.", file_okay=False)
    ] = Path("opsmith_studio"),
    host: Annotated[str, typer.Option("--host", help="Others than this machine's own need --password.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 is any free one.")] = 8417,
    password: Annotated[
        str | None,
        typer.Option("--password", envvar="OPSMITH_STUDIO_PASSWORD", help="Asked for by the page, and as API key."),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    cli: Annotated[bool, typer.Option("--cli", help="The same flow in the terminal, question by question.")] = False,
    threads: Annotated[int | None, typer.Option("--threads", help="Threads of the sessions.")] = None,
) -> None:
    """From an idea to an edited picture, in a browser."""
    if cli:
        from opsmith.studio import terminal
        from opsmith.studio.models import Models

        terminal.converse(Models(model, writer, masks, threads), out)
        return
    start(model, writer, masks, out, host, port, password, threads, page=True, browser=browser)


def start(
    model: Path | None,
    writer: Path | None,
    masks: Path | None,
    out: Path,
    host: str,
    port: int,
    password: str | None,
    threads: int | None,
    *,
    page: bool,
    browser: bool = False,
) -> None:
    try:
        from opsmith.studio import safety, server
    except ImportError as error:
        raise OpsmithError(f"{error.name} is not installed", 'pip install "opsmith[studio]"') from error
    from opsmith.studio.core import Studio
    from opsmith.studio.models import Models

    safety.check_host(host, password)
    studio = Studio(Models(model, writer, masks, threads), out)

    def ready(address: str) -> None:
        what = f"the studio is at {address}" if page else f"the API is at {address}v1"
        console.say(f"{escape(what)} [dim](Ctrl-C ends it)[/]")

    server.run(studio, host=host, port=port, page=page, password=password, open_browser=browser, ready=ready)
