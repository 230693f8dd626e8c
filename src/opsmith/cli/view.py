"""opsmith view MODEL"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opsmith.cli import console
from opsmith.errors import OpsmithError

PANEL = "Road"
ORDER = 12
JSON = {"address": "of the page, as soon as it can be opened", "model": "the .onnx file"}
EXAMPLES = (
    "opsmith view model.onnx",
    "opsmith view models/bert/dynamo --port 8080 --no-browser",
)


def command(
    model: Annotated[Path, typer.Argument(help="A variant folder or .onnx file.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on; 0 picks a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open a browser window.")] = True,
) -> None:
    """Open a model's graph in Netron (extra: view). Ends with Ctrl-C."""
    from opsmith import store

    path = store.find_model(model)
    store.read_proto(path)
    try:
        import netron
    except ImportError:
        raise OpsmithError("Netron is not installed", 'pip install ".[view]"') from None
    host, actual = netron.start(str(path), address=("localhost", port) if port else None, browse=browser)
    address = f"http://{host}:{actual}"
    told = f"{path} at {address}, Ctrl-C to end"
    console.answer({"address": address, "model": path}, lambda: console.say(told), written=address)
    netron.wait()
