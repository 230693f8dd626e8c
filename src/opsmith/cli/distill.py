"""opsmith distill MODEL DEST"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from opsmith.cli import console, options
from opsmith.measure.units import size

if TYPE_CHECKING:
    from opsmith.measure.distill import Distilled

PANEL = "Workbench"
ORDER = 64
JSON = {
    "variants": "each .onnx file that was written",
    "occurrences": "found in the model",
    "different": "kinds of them: same operators, attributes and shapes",
}
EXAMPLES = (
    "opsmith distill models/bert/dynamo tests/parts --function Softmax --max 2",
    "opsmith distill model.onnx parts --pattern attention --light",
)


def command(
    model: Annotated[Path, typer.Argument(help="A variant folder or .onnx file.")],
    dest: Annotated[Path, typer.Argument(help="Folder that gets one model folder per occurrence.")],
    function: Annotated[str | None, typer.Option(help="Cut every call of this function or operator.")] = None,
    nodes: Annotated[str | None, typer.Option(help="Cut what lies between two nodes: FIRST..LAST.")] = None,
    pattern: Annotated[str | None, typer.Option(help="Cut what this rewrite rule would replace.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the folders: NAME_0, NAME_1; what was cut by default.")] = None,
    most: Annotated[int, typer.Option("--max", help="How many occurrences to write, different ones first.")] = 4,
    light: Annotated[bool, typer.Option("--light", help="Random weights of the same statistics.")] = False,
    shape: Annotated[
        list[str] | None, typer.Option(help="Run the model on this shape: NAME=1x4x64x64 or SYMBOL=2; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of random inputs and weights.")] = 0,
    threads: options.Threads = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Cut parts of a real model, with the tensors that flow there, into small models for tests and tuning."""
    from opsmith.check import inputs
    from opsmith.measure.distill import distill

    fixed = inputs.parse_fixed(shape or [])
    result = distill(
        model,
        dest,
        function=function,
        nodes=nodes,
        pattern=pattern,
        name=name,
        max=most,
        light=light,
        shapes=fixed,
        seed=seed,
        threads=threads,
        overwrite=overwrite,
    )
    console.answer(result, lambda: _print(result), written=[v.folder for v in result.variants])


def _print(result: Distilled) -> None:
    from opsmith import session, store

    table = console.table("written", ">nodes", ">size", "inputs")
    for variant in result.variants:
        graph = store.open_model(variant).graph
        given = ", ".join(f"{v.name} {v.shape}" for v in graph.inputs)
        on_disk = size(session.size_on_disk(variant))
        table.add_row(escape(str(variant.folder)), str(len(graph)), on_disk, escape(given))
    console.show(table)
    kinds = f"{result.different} kind{'s' if result.different > 1 else ''}"
    console.say(f"{len(result.variants)} of {result.occurrences} occurrences, of {kinds}")
