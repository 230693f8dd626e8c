"""opsmith quantize SRC DEST"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsmith.cli import console, options
from opsmith.measure.units import size

if TYPE_CHECKING:
    from rich.table import Table

    from opsmith.compress.pipeline import PipelineResult
    from opsmith.compress.quality import Quality
    from opsmith.compress.quantize import QuantizeResult

PANEL = "Road"
ORDER = 30
JSON = {
    "variant": "the .onnx file that was written",
    "method": "as asked for",
    "quantized": "layers, or weights for fp16",
    "left": "what stayed as it was, with the reason",
    "before": "bytes on disk",
    "after": "bytes on disk",
    "quality": "relative and absolute error, cosine similarity, for logits KL divergence and top-1 agreement",
    "sweep": "the error of each layer alone, and the bits it got; empty without --max-error or --min-quality",
}
JSON_WITH = {
    "a pipeline": {
        "folder": "of the pipeline that was written",
        "components": "component -> as of one model",
        "kept": "components that were copied as they are -> why",
    },
}
EXAMPLES = (
    "opsmith quantize models/gpt2/dynamo models/gpt2/int8",
    "opsmith quantize models/sd models/sd-int8 --method int8",
)


def command(
    src: Annotated[Path, typer.Argument(help="The model: a variant folder, .onnx file or whole pipeline.")],
    dest: Annotated[Path, typer.Argument(help="Where to write it: likewise.")],
    method: Annotated[str, typer.Option(help="weight-only (int8, int4), fp16, dynamic or static.")] = "weight-only",
    bits: Annotated[int, typer.Option(help="8 or 4, for weight-only.")] = 8,
    block: Annotated[int, typer.Option(help="Weights that share a scale: 16, 32, 64, 128 or 256.")] = 32,
    symmetric: Annotated[bool, typer.Option("--symmetric/--asymmetric", help="Without or with zero points.")] = True,
    embeddings: Annotated[str, typer.Option(help="Lookup tables under weight-only: fp16 or keep.")] = "fp16",
    calibration: options.Calibration = None,
    ranges: Annotated[str, typer.Option(help="minmax, entropy or percentile, for static.")] = "minmax",
    per_channel: Annotated[bool, typer.Option(help="A scale per column, for dynamic and static.")] = True,
    max_error: Annotated[
        float | None, typer.Option(help="Largest relative error of the outputs; sensitive layers are spared.")
    ] = None,
    min_quality: Annotated[
        float | None, typer.Option(help="Smallest top-1 agreement (logits) or cosine similarity; likewise.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Layers to leave alone, a glob; repeatable.")] = None,
    accuracy_level: Annotated[int, typer.Option(help="Of MatMulNBits; 4 is faster on stock ONNX Runtime.")] = 0,
    spare: Annotated[
        bool, typer.Option("--spare/--no-spare", help="Keep the ends and the time embedding of a diffusion UNet.")
    ] = True,
    shape: options.CaseShape = None,
    samples: options.Samples = 8,
    threads: options.Threads = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Make the weights smaller, measure what that costs, write portable ONNX."""
    from opsmith.check.inputs import parse_fixed
    from opsmith.compress.pipeline import is_pipeline, quantize_pipeline
    from opsmith.compress.quantize import quantize

    wanted: dict[str, Any] = {
        "overwrite": overwrite,
        "method": method,
        "bits": bits,
        "block": block,
        "symmetric": symmetric,
        "embeddings": embeddings,
        "calibration": options.cases(calibration),
        "shapes": parse_fixed(shape or []),
        "ranges": ranges,
        "per_channel": per_channel,
        "max_error": max_error,
        "min_quality": min_quality,
        "exclude": exclude or (),
        "accuracy_level": accuracy_level,
        "samples": samples,
        "spare": spare,
        "threads": threads,
    }
    if is_pipeline(src):
        whole = quantize_pipeline(src, dest, **wanted)
        console.answer(whole, lambda: _print_pipeline(whole), written=whole.folder)
        return
    result = quantize(src, dest, **wanted)
    console.answer(result, lambda: _print(result), written=result.variant.path)


def _print_pipeline(whole: PipelineResult) -> None:
    table = console.table("component", ">before", ">after", ">weights", ">relative error", ">cosine")
    for name, result in whole.components.items():
        quality = result.quality
        figures = (str(result.quantized), f"{quality.error:.2e}", f"{quality.cosine:.6f}")
        table.add_row(console.escape(name), size(result.before), size(result.after), *figures)
    console.show(table)
    for name, why in whole.kept.items():
        console.say(f"{console.escape(name)} is copied as it is: {console.escape(why)}")
    console.say(f"wrote {console.escape(str(whole.folder))}")


def _print(result: QuantizeResult) -> None:
    if result.sweep:
        table = console.table("layer", ">shape", ">error alone", ">bits", title="sensitivity, worst first")
        for row in result.sweep:
            bits_text = "kept" if row.bits == 32 else str(row.bits)
            table.add_row(console.escape(row.layer), f"{row.k}x{row.n}", f"{row.error:.2e}", bits_text)
        console.show(table)
    for line in result.left:
        console.say(f"left as it was: {console.escape(line)}")
    table = console.table("", ">before", ">after")
    table.add_row("size", size(result.before), size(result.after))
    table.add_row("weights quantized", "", str(result.quantized))
    quality_rows(table, result.quality, largest=True)
    console.show(table)
    for remark in result.remarks:
        console.remark(remark)
    console.say(f"wrote {console.escape(str(result.variant.path))}")


def quality_rows(table: Table, quality: Quality, *, largest: bool = False) -> None:
    """What was lost, in the last column of a table of three."""
    table.add_row("relative error", "", f"{quality.error:.2e}")
    if largest:
        table.add_row("max abs error", "", f"{quality.max_abs:.2e}")
    table.add_row("cosine similarity", "", f"{quality.cosine:.6f}")
    if quality.kl is not None and quality.top1 is not None:
        table.add_row("KL divergence, nats", "", f"{quality.kl:.2e}")
        table.add_row("top-1 agreement", "", f"{quality.top1:.1%}")
