"""opsmith score text A B --text FILE"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console, options
from opsmith.errors import OpsmithError
from opsmith.measure.units import size

if TYPE_CHECKING:
    from opsmith.measure.score_pictures import PictureScore
    from opsmith.measure.score_text import TextScore

PANEL = "Workbench"
ORDER = 66
EXAMPLES = {
    "text": (
        "opsmith score text models/gpt2/dynamo models/gpt2/int8 --text book.txt",
        "opsmith score text models/gpt2/dynamo models/gpt2/int4 --text book.txt --csv scores.csv",
    ),
    "pictures": (
        "opsmith score pictures dynamo int8 --model models/sd",
        "opsmith score pictures fp16 fp16@steps=10 --sheet sheet.png",
    ),
}

JSON = {
    "text": {"rows": "one per model: perplexity, KL divergence, agreement, bytes, tokens per second"},
    "pictures": {
        "rows": "one per variant: CLIP score, distances from the first variant's pictures, seconds, bytes",
        "sheet": "the file with all pictures, if one was asked for",
    },
}

app = typer.Typer(help="Quality as a number: is the smaller model still as good?", no_args_is_help=True)


@app.callback()
def top() -> None:
    """Quality as a number: is the smaller model still as good?"""


@app.command("text")
def text_command(
    models: Annotated[list[Path], typer.Argument(help="Variants of a text model; the first is the reference.")],
    text: Annotated[Path, typer.Option("--text", help="A text file in UTF-8.")],
    tokens: Annotated[int, typer.Option(help="How many tokens of it to predict at most.")] = 512,
    window: Annotated[int | None, typer.Option(help="Tokens per pass; 256 or the context if that is less.")] = None,
    decode: Annotated[int, typer.Option(help="Tokens to generate for the speed.")] = 32,
    keyword: Annotated[
        list[str] | None,
        typer.Option(help="Also generate from it: how varied the words are, and how often it occurs; repeatable."),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table to this .md file; - prints that.")] = None,
    csv: options.Csv = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this PNG file.")] = None,
    without_cache: Annotated[
        list[Path] | None, typer.Option(help="One of the models: once more without its KV cache; repeatable.")
    ] = None,
    threads: options.Threads = None,
) -> None:
    """Perplexity, KL divergence, top-1 agreement, size, memory and speed of text models."""
    from opsmith.measure import chart, chart_text
    from opsmith.measure import score_text as scoring

    if plot is not None:
        chart.check_path(plot)
    console.check_table(markdown, "md")
    console.check_table(csv, "csv")
    rows = scoring.score_text(
        models,
        text,
        tokens=tokens,
        window=window,
        decode=decode,
        keywords=keyword or (),
        threads=threads,
        without_cache=without_cache or (),
    )
    tables = {markdown: scoring.markdown(rows), csv: scoring.csv_text(rows)}
    printed = tables.get(console.SCREEN)
    console.answer({"rows": rows}, lambda: print(printed, end="") if printed else _print_text(rows))
    for file, table in tables.items():
        console.write_table(table, file)
    if plot is not None:
        chart_text.plot(rows, plot)


def _print_text(rows: Sequence[TextScore]) -> None:
    from opsmith.measure import score_text as scoring

    shown = [i for i, _ in enumerate(scoring.HEADINGS) if any(scoring.cells(r)[i] for r in rows)]
    table = console.table(*((">" if i else "") + scoring.HEADINGS[i] for i in shown))
    for row in rows:
        table.add_row(*(console.escape(scoring.cells(row)[i]) for i in shown))
    console.show(table)
    console.say(f"{rows[0].predicted} tokens predicted; speeds are medians of {scoring.ROUNDS} rounds, batch 1")


@app.command("pictures")
def pictures_command(
    variants: Annotated[
        list[str], typer.Argument(help="Variants, or VARIANT@steps=10, VARIANT@size=64x64; the first is the reference.")
    ],
    model: options.Pipeline = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", help="What the pictures show; repeatable. Three of the starter's world by default."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Pictures per prompt, with seeds from 0 up.")] = 2,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Denoising steps.")] = 25,
    guidance: options.Guidance = None,
    clip: Annotated[Path | None, typer.Option("--clip", help="An exported CLIP; the starter's by default.")] = None,
    sheet: Annotated[Path | None, typer.Option("--sheet", help="Write all pictures as one PNG.")] = None,
    threads: options.Threads = None,
) -> None:
    """CLIP score of pictures, and their distance from the first variant's pictures of the same seeds."""
    from opsmith.measure import score_pictures as scoring
    from opsmith.pipelines import pictures
    from opsmith.starter import in_use

    if sheet is not None and sheet.suffix.lower() != ".png":
        raise OpsmithError(f"{sheet} does not end in .png")
    rows = scoring.score_pictures(
        model or in_use.folder("pictures"),
        variants,
        prompt or ["a red apple", "a cat on a blue background", "a green frog beside a castle"],
        seeds=range(seeds),
        steps=steps,
        guidance=guidance,
        clip=clip,
        threads=threads,
    )
    told = [{f.name: getattr(r, f.name) for f in dataclasses.fields(r) if f.name != "images"} for r in rows]
    file = None
    if sheet is not None:
        file = pictures.save(scoring.contact_sheet(rows), sheet, {"variants": list(variants), "steps": steps})
    console.answer({"rows": told, "sheet": file}, lambda: _print_pictures(rows, file))


def _print_pictures(rows: Sequence[PictureScore], sheet: Path | None) -> None:
    table = console.table(
        "variant", ">CLIP", ">PSNR", ">SSIM", ">feature distance", ">s/step", ">s/picture", ">peak", ">size"
    )
    for row in rows:
        far = ["", "", ""]
        if row.psnr is not None:
            far = ["same" if row.psnr >= 100 else f"{row.psnr:.1f} dB", f"{row.ssim:.4f}", f"{row.distance:.4f}"]
        cost = (
            f"{row.step_seconds:.3f}",
            f"{row.picture_seconds:.2f}",
            *map(size, (row.peak_rss, row.bytes)),
        )
        table.add_row(console.escape(row.variant), f"{row.clip:.1f}", *far, *cost)
    console.show(table)
    if sheet is not None:
        console.say(str(sheet))
