"""Options that several commands have, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Address = Annotated[
    str | None, typer.Option("--address", help="Of a Ray cluster, host:port; one of its own by default.")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option("--allow-host", help="Answer to this name too, such as host.docker.internal; repeatable."),
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option("--allow-origin", help="Let pages of this site use /v1, such as https://a.example; repeatable."),
]
Atol = Annotated[float | None, typer.Option(help="Absolute tolerance of outputs; default 1e-4 for fp32.")]
Calibration = Annotated[
    list[str] | None,
    typer.Option(
        help="Text, .npz file, folder, or `generated`; repeatable. Stored test data and generated ones by default."
    ),
]
CaseShape = Annotated[
    list[str] | None, typer.Option(help="Generate cases of this shape: NAME=1x4x64x64 or SYMBOL=2; repeatable.")
]
Csv = Annotated[
    Path | None, typer.Option("--csv", help="Write the figures to this .csv file; - prints them instead of the table.")
]
Embedder = Annotated[
    Path | None, typer.Option("--embedder", help="A text encoder's folder; the starter's CLIP by default.")
]
Host = Annotated[
    str, typer.Option("--host", help="Address to serve on; others than this machine's own need --password.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", help="Values of inputs: FILE.npz, NAME=16000, NAME=1,2 or NAME=FILE.npy; repeatable."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace DEST even if it was made from another model.")]
Pipeline = Annotated[Path | None, typer.Option("--model", "-m", help="A pipeline folder; the starter's by default.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to serve on; 0 picks a free one.")]
Processes = Annotated[int | None, typer.Option(help="Times each process is started anew; default up to 6.")]
Rtol = Annotated[float | None, typer.Option(help="Relative tolerance of outputs; default 1e-3 for fp32.")]
Samples = Annotated[int, typer.Option(help="Calibration cases made from text or generated.")]
Guidance = Annotated[
    float | None,
    typer.Option("--guidance", help="How strictly to follow the prompt; 1 is none. The pipeline's own, else 7.5."),
]
Masks = Annotated[Path | None, typer.Option("--masks", help="A CLIPSeg-type model folder; the starter's by default.")]
Seconds = Annotated[float, typer.Option(help="Time to spend on measuring, about.")]
Seed = Annotated[int, typer.Option(help="Seed of random inputs.")]
Shape = Annotated[
    list[str] | None, typer.Option(help="Random inputs of this shape: NAME=1x4x64x64 or SYMBOL=2; repeatable.")
]
Threads = Annotated[int | None, typer.Option("--threads", help="Threads of ONNX Runtime; all cores by default.")]
Writer = Annotated[Path | None, typer.Option("--writer", help="A text model folder; the starter's by default.")]


def cases(calibration: list[str] | None) -> str | list[str] | None:
    """What --calibration gave, as the verbs take it."""
    return "generated" if calibration == ["generated"] else calibration or None
