"""opsmith verify A B"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from opsmith.cli import console
from opsmith.measure import inputs
from opsmith.measure.verify import OutputCheck, VerifyResult, verify, worst_first

PANEL = "Road"
ORDER = 50
SHOWN = 6  # differences in full; the table above has the worst of each output


def command(
    a: Annotated[Path, typer.Argument(help="The reference: a variant folder or .onnx file.")],
    b: Annotated[Path | None, typer.Argument(help="The model to check; without it, A's stored outputs are.")] = None,
    rtol: Annotated[float | None, typer.Option(help="Relative tolerance; default 1e-3 for fp32.")] = None,
    atol: Annotated[float | None, typer.Option(help="Absolute tolerance; default 1e-4 for fp32.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    shapes: Annotated[int, typer.Option(min=0, help="How many random shapes to try.")] = 3,
    shape: Annotated[
        list[str] | None, typer.Option(help="Use this shape: NAME=1x4x64x64 or SYMBOL=2; repeatable.")
    ] = None,
    bisect: Annotated[bool, typer.Option("--bisect", help="Name the first node where the two part.")] = False,
    threads: Annotated[int | None, typer.Option(help="Threads for ONNX Runtime.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check that B computes what A does; exit code 1 if not."""
    wanted = inputs.parse_fixed(shape) if shape else shapes
    result = verify(a, b, rtol=rtol, atol=atol, seed=seed, shapes=wanted, bisect=bisect, threads=threads)
    if as_json:
        console.out.print_json(json.dumps(_as_json(result)))
    else:
        _print(result)
    if not result.ok:
        raise typer.Exit(1)


def _print(result: VerifyResult) -> None:
    table = console.table("output", "type", ">max abs", ">max rel", ">cosine", ">needs rtol/atol", "")
    for name, check in _families(result.worst):
        verdict = "[green]ok[/]" if check.ok else "[red]differs[/]"
        table.add_row(console.escape(name), check.dtype, *_figures(check), verdict)
    console.show(table)
    for dropped in result.dropped:
        console.say(f"[yellow]shape dropped, the reference refuses it:[/] {console.escape(dropped)}")
    names = "; ".join(case.name for case in result.cases)
    if result.ok:
        console.say(f"[green]the same[/] in {_plural(len(result.cases), 'comparison')}: {console.escape(names)}")
        return
    for problem in result.problems[:SHOWN]:
        console.say(f"[red]differs:[/] {console.escape(problem)}")
    if len(result.problems) > SHOWN:
        console.say(f"and {len(result.problems) - SHOWN} more; --json has them all")
    if result.parting is not None:
        parting = result.parting
        console.say(
            f"they part at [bold]{console.escape(parting.value)}[/]: {console.escape(parting.node_a)} in A, "
            f"{console.escape(parting.node_b)} in B (max abs {parting.check.max_abs:.3g}, {parting.check.problem}; "
            f"{parting.compared} values share a name)"
        )
    if result.note:
        console.say(f"note: {console.escape(result.note)}")


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def _families(checks: list[OutputCheck]) -> list[tuple[str, OutputCheck]]:
    """Outputs alike but for a number, such as the layers of a cache, in one row: the worst of them."""
    groups: dict[tuple[str, str], list[OutputCheck]] = {}
    for check in checks:
        groups.setdefault((console.family(check.name), check.dtype), []).append(check)
    rows = []
    for (name, _), members in groups.items():
        if len(members) <= 2:
            rows += [(m.name, m) for m in members]
        else:
            rows.append((f"{name} (worst of {len(members)})", worst_first(members)[0]))
    return rows


def _figures(check: OutputCheck) -> tuple[str, str, str, str]:
    needs = f"{check.needed_rtol:.1e} / {check.needed_atol:.1e}"
    return f"{check.max_abs:.3g}", f"{check.max_rel:.3g}", f"{check.cosine:.6f}", needs


def _as_json(result: VerifyResult) -> dict[str, object]:
    return {"ok": result.ok, **dataclasses.asdict(result, dict_factory=_finite)}


def _finite(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON has no infinity."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in pairs}
