"""opsmith map MODEL INPUT -o OUTPUT. The file is not `map.py`: as a member of this package it would hide the builtin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console, options
from opsmith.errors import OpsmithError

if TYPE_CHECKING:
    from opsmith.batch import Mapped

PANEL = "Applications"
ORDER = 73
JSON = {
    "output": "what was written",
    "rows": "with a result",
    "failed": "rows without one",
    "errors": "the file that lists them with their reasons; null if there are none",
    "kind": "of the model",
    "engine": "as asked for",
    "plan": "processes, threads of each, batch, and the rows per second that were measured for it",
    "seconds": "of this run",
    "computed": "rows of this run; the others were done before",
    "rate": "rows per second of this run",
}
EXAMPLES = (
    "opsmith map models/all-MiniLM-L6-v2 texts.txt -o vectors.parquet",
    "opsmith map models/sd prompts.csv -o pictures --column prompt=caption --set steps=20",
)


def command(
    model: Annotated[Path, typer.Argument(help="A model or pipeline folder, or an .onnx file.")],
    input: Annotated[
        str, typer.Argument(help=".parquet, .csv, .tsv, .jsonl, .txt, a folder, or - for lines on stdin.")
    ],
    output: Annotated[
        Path, typer.Option("--out", "-o", "--output", help=".parquet, .jsonl, or a folder for pictures.")
    ],
    variant: Annotated[
        str | None, typer.Option("--variant", help="A variant; the newest compiled one by default.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="INPUT=COLUMN", help="Which column an input reads; repeatable."),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="COLUMN", help="A column to copy to the output; repeatable.")
    ] = None,
    constants: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="OPTION=VALUE", help="An option of the model for all rows; repeatable."),
    ] = None,
    engine: Annotated[str, typer.Option("--engine", help="local, or ray: on a cluster.")] = "local",
    address: options.Address = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Worker processes.", show_default="measured")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads of each process.", show_default="measured")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Rows at a time; of an encoder: tokens.", show_default="measured"),
    ] = None,
    part: Annotated[
        int | None, typer.Option("--part", min=1, help="Rows that are journaled together.", show_default="by the model")
    ] = None,
    stop_on_error: Annotated[bool, typer.Option("--stop-on-error", help="End at the first row that fails.")] = False,
    strict: Annotated[bool, typer.Option("--strict", hidden=True, help="The older word for --stop-on-error.")] = False,
) -> None:
    """Run a model over every row of a table, file or folder; the same command goes on where it was ended."""
    from opsmith.batch import map

    made = map(
        model,
        input,
        output,
        variant=variant,
        columns=_pairs(column, "--column text=body"),
        keep=keep or (),
        constants=_pairs(constants, "--set steps=20"),
        engine=engine,
        address=address,
        processes=processes,
        threads=threads,
        batch=batch,
        part=part,
        stop_on_error=stop_on_error or strict,
    )
    console.answer(made, lambda: _print(made), written=made.output)
    if made.failed:
        console.remark(f"{made.failed} rows failed; {made.errors} says why")
        raise typer.Exit(1)


def _pairs(given: list[str] | None, example: str) -> dict[str, str]:
    pairs = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise OpsmithError(f"{text!r} is not a pair", example)
        pairs[name] = value
    return pairs


def _print(made: Mapped) -> None:
    console.say(f"wrote {console.escape(str(made.output))}: {made.rows} rows")
    if not made.computed:
        console.remark("it was finished before; nothing was done")
        return
    plan = made.plan
    console.remark(
        f"{made.computed} rows in {made.seconds:.1f} s, {made.rate:.0f} rows/s; "
        f"{plan.processes} x {plan.threads} threads, batch {plan.batch}"
    )
