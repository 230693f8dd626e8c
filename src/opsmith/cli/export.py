"""`opsmith export SOURCE DEST`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console, options
from opsmith.measure.units import size

if TYPE_CHECKING:
    from opsmith.exporter import Exported

PANEL = "Road"
ORDER = 10
JSON = {
    "folder": "the model or pipeline folder",
    "variants": "each .onnx file that was written",
    "remarks": "lines for people",
    "max_abs_error": "largest difference from PyTorch over all checked shapes",
}
EXAMPLES = (
    "opsmith export openai-community/gpt2 models/gpt2",
    "opsmith export ./my-bert models/bert --exporter torchscript --shape batch=1 --opset 17",
)


class Exporter(StrEnum):
    dynamo = "dynamo"
    torchscript = "torchscript"


class Dtype(StrEnum):
    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"


def command(
    source: Annotated[str, typer.Argument(help="A Hugging Face id, a folder in its layout, or a GGUF file.")],
    dest: Annotated[Path, typer.Argument(help="The model or pipeline folder to write.")],
    exporter: Annotated[Exporter, typer.Option(help="PyTorch's exporter; names the variant.")] = Exporter.dynamo,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Draw the weights; only the config is needed.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of random weights and of the test data.")] = 0,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    opset: Annotated[
        int | None, typer.Option(help="ONNX opset of the graph; the exporter's own (18 or newer) by default.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option("--shape", help="Fix a dim: SYMBOL=32 or NAME=1x32; repeatable.")
    ] = None,
    dtype: Annotated[
        Dtype, typer.Option(help="Round the weights to this type and store them so; fp32 is computed in any case.")
    ] = Dtype.fp32,
    task: Annotated[
        str | None,
        typer.Option(help="What a BERT type is for: feature-extraction (default), fill-mask, text-classification."),
    ] = None,
    floats: Annotated[
        bool, typer.Option("--floats", help="Weights that a GGUF file has in blocks of 8 or 4 bits become floats.")
    ] = False,
    overwrite: options.Overwrite = False,
) -> None:
    """Export a model to ONNX with test data, proved equal to PyTorch."""
    import opsmith
    from opsmith.check.inputs import parse_fixed

    result = opsmith.export(
        source,
        dest,
        overwrite=overwrite,
        exporter=exporter.value,
        random_weights=random_weights,
        seed=seed,
        revision=revision,
        opset=opset,
        shapes=parse_fixed(shape or []),
        dtype=dtype.value,
        task=task,
        floats=floats,
        verbose=console.verbose,
    )
    console.answer(result, lambda: _print(result), written=result.folder)


def _print(result: Exported) -> None:
    from opsmith import session

    table = console.table("variant", ">size", ">shapes checked", ">max abs error", ">seconds")
    for variant in result.variants:
        verified = variant.record["verified"]
        table.add_row(
            str(variant.folder.relative_to(result.folder)),
            size(session.size_on_disk(variant)),
            str(len(verified["cases"])),
            f"{verified['max_abs_error']:.1e}",
            f"{sum(variant.record['timings'].values()):.1f}",
        )
    console.say(str(result.folder))
    console.show(table)
    for remark in result.remarks:
        console.say(f"note: {remark}")
