"""opsmith compile: regions of the graph become native custom ops."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console
from opsmith.errors import OpsmithError

if TYPE_CHECKING:
    from opsmith.compile.tune import Tuning

PANEL = "Road"
ORDER = 40


def command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A variant folder or .onnx file.")],
    dest: Annotated[
        str | None,
        typer.Argument(metavar="DEST", help="The variant folder (or .onnx file) to write.", show_default=False),
    ] = None,
    regions: Annotated[
        str,
        typer.Option("--regions", help="auto, all, whole, or names and globs of nodes or functions, comma-separated."),
    ] = "auto",
    search: Annotated[
        int | None,
        typer.Option("--search", min=0, max=2, help="How much to tune: 0 none, 1 a little, 2 a lot.", show_default="0"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="No algorithm that rounds differently (Winograd).")] = False,
    compiler: Annotated[
        str | None, typer.Option("--compiler", help="g++, clang++ or zig; found in this order.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; write nothing.")] = False,
    emit_only: Annotated[bool, typer.Option("--emit-only", help="Write the C++ source; build nothing.")] = False,
    shape: Annotated[
        list[str] | None, typer.Option("--shape", help="Specialise: NAME=1x4x64x64; may be given several times.")
    ] = None,
    explain: Annotated[
        str | None, typer.Option("--explain", help="Show the journey of one node; write nothing.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Compare with SRC before writing DEST.")] = True,
) -> None:
    """Compile a model's graph, or chosen parts of it, into one native library that ONNX Runtime loads."""
    from opsmith.compile import compile

    if explain is not None:
        from opsmith.compile.explain import explain as journey

        for stop in journey(source, explain, strict=strict):
            console.out.print(f"[bold]{stop.station:>10}[/bold]  ", end="")
            console.out.print(stop.text, markup=False, soft_wrap=True)
        return
    if dest is None:
        dest = str(default_dest(source))
    result = compile(
        source, dest, regions=regions, search=search, strict=strict, compiler=compiler, dry_run=dry_run,
        emit_only=emit_only, verify=verify, shapes=parse_shapes(shape or []),
    )  # fmt: skip
    table = console.table("region", ">nodes", ">kernel calls", ">before ms", ">after ms", "kept")
    for row in result.regions:
        table.add_row(
            row.name, str(len(row.nodes)), str(row.calls), _number(row.before_ms), _number(row.after_ms), "yes" if row.kept else f"no: {row.why}",
        )  # fmt: skip
    console.show(table)
    if result.left:
        left = console.table("left to ONNX Runtime", ">nodes", "why")
        counts = collections.Counter((op, why) for op, _, why in result.left)
        for (op, why), count in counts.most_common():
            left.add_row(op, str(count), why)
        console.show(left)
    if result.tuning is not None:
        _say_tuning(result.tuning)
    if result.verified is not None:
        worst = max((o.max_abs for o in result.verified.worst), default=0.0)
        console.say(f"verified against the source: largest absolute error {worst:.1e}")
    if result.variant is not None:
        console.say(f"wrote {result.variant.folder}")


def _say_tuning(tuning: Tuning) -> None:
    stopped = " (stopped)" if tuning.stopped else ""
    console.say(
        f"tuned{stopped}: {tuning.measured} distinct kernel calls measured, {tuning.known} known before; {tuning.changed} calls changed, "
        f"their kernels take {tuning.after * 1e3:.2f} ms instead of {tuning.before * 1e3:.2f}"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def default_dest(source: str) -> Path:
    """Beside the source: `<variant>_compiled`."""
    from opsmith import store

    path = store.find_model(source)
    return (
        path.with_name(f"{path.stem}_compiled.onnx")
        if source.endswith(".onnx")
        else path.parent.with_name(f"{path.parent.name}_compiled")
    )


def parse_shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for text in texts:
        name, _, dims = text.rpartition("=")
        try:
            shapes[name] = tuple(int(d) for d in dims.split("x"))
        except ValueError:
            raise OpsmithError(f"--shape {text} is not of the form NAME=1x4x64x64") from None
        if not name or any(d < 0 for d in shapes[name]):
            raise OpsmithError(f"--shape {text} is not of the form NAME=1x4x64x64")
    return shapes
