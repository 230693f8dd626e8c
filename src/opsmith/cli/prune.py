"""opsmith prune SRC DEST"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console, options
from opsmith.cli.quantize import quality_rows
from opsmith.measure.units import size

if TYPE_CHECKING:
    from opsmith.compress.prune import PruneResult

PANEL = "Road"
ORDER = 31
JSON = {
    "variant": "the .onnx file that was written",
    "method": "as asked for",
    "groups": "attentions and hidden layers: units before, units kept",
    "refused": "what cannot be cut, with the reason",
    "weights": "numbers in the model before and after (magnitude: those that are not zero)",
    "before": "bytes on disk",
    "after": "bytes on disk",
    "quality": "as in `opsmith quantize --json`",
    "judged_apart": "on calibration cases that the choice has not seen",
    "note": "for people",
}
EXAMPLES = (
    "opsmith prune models/gpt2/dynamo models/gpt2/smaller --ratio 0.2",
    "opsmith prune model.onnx smaller.onnx --method heads --shrink 0.1 --calibration text.txt",
)


def command(
    src: Annotated[Path, typer.Argument(help="The model: a variant folder or .onnx file.")],
    dest: Annotated[Path, typer.Argument(help="Where to write it: a variant folder or .onnx file.")],
    method: Annotated[str, typer.Option(help="heads, neurons, structured (both) or magnitude.")] = "structured",
    ratio: Annotated[
        float | None, typer.Option(help="Share of the heads' or neurons' weights that goes; this or --shrink.")
    ] = None,
    shrink: Annotated[float | None, typer.Option(help="Instead: share of all weights of the model.")] = None,
    importance: Annotated[str, typer.Option(help="activations, or weights for comparison.")] = "activations",
    repair: Annotated[bool, typer.Option(help="Fit the weights that stay by least squares.")] = True,
    uniform: Annotated[bool, typer.Option("--uniform", help="The same share from every layer.")] = False,
    calibration: options.Calibration = None,
    shape: options.CaseShape = None,
    samples: options.Samples = 64,
    threads: options.Threads = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Remove the attention heads and neurons that matter least, measure what that costs, write portable ONNX."""
    from opsmith.check.inputs import parse_fixed
    from opsmith.compress.prune import prune

    result = prune(
        src,
        dest,
        overwrite=overwrite,
        method=method,
        ratio=ratio,
        shrink=shrink,
        importance_by=importance,
        repair=repair,
        uniform=uniform,
        calibration=options.cases(calibration),
        shapes=parse_fixed(shape or []),
        samples=samples,
        threads=threads,
    )
    console.answer(result, lambda: _print(result), written=result.variant.path)


def _print(result: PruneResult) -> None:
    if result.groups:
        table = console.table("group", "units", ">before", ">kept")
        for row in result.groups:
            table.add_row(console.escape(row.name), row.kind, str(row.units), str(row.kept))
        console.show(table)
    for line in result.refused:
        console.say(f"left as it was: {console.escape(line)}")
    table = console.table("", ">before", ">after")
    table.add_row("size", size(result.before), size(result.after))
    what = "weights that are not zero" if result.method == "magnitude" else "weights"
    table.add_row(what, str(result.weights[0]), str(result.weights[1]))
    quality_rows(table, result.quality)
    console.show(table)
    console.say(
        "judged on calibration cases kept apart"
        if result.judged_apart
        else "judged on the calibration cases themselves"
    )
    if result.note:
        console.say(f"note: {result.note}")
    for remark in result.remarks:
        console.remark(remark)
    console.say(f"wrote {console.escape(str(result.variant.path))}")
