"""opsmith verify A B"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console, options
from opsmith.errors import OpsmithError
from opsmith.measure.units import counted

if TYPE_CHECKING:
    from opsmith.check.differences import OutputCheck
    from opsmith.check.verify import VerifyResult

PANEL = "Road"
ORDER = 50
JSON = {
    "ok": "whether all cases agree",
    "cases": "each set of inputs: its name, dims, and per output the errors and tolerances",
    "dropped": "inputs that A refuses or B was not made for, and why",
    "drawn": "outputs that were not compared: A draws random numbers for them",
    "next_token": "of a decoder: mean KL divergence of the next token in nats, share of positions with the same most likely token, positions; else null",
    "parting": "with --bisect: the first value that differs, its nodes in A and B, its errors",
    "note": "what --bisect could not do",
    "unchecked": "why nothing was compared, if so",
}
EXAMPLES = (
    "opsmith verify model.onnx model_compiled.onnx",
    "opsmith verify models/bert/dynamo models/bert/int8 --rtol 0.05 --bisect",
)
SHOWN = 6  # differences in full; the table above has the worst of each output


def command(
    a: Annotated[Path, typer.Argument(help="The reference: a variant folder or .onnx file.")],
    b: Annotated[
        Path | None, typer.Argument(help="The model to check; without it, A is compared with its stored outputs.")
    ] = None,
    rtol: options.Rtol = None,
    atol: options.Atol = None,
    seed: options.Seed = 0,
    shapes: Annotated[int, typer.Option(min=0, help="How many random shapes to try.")] = 3,
    shape: Annotated[
        list[str] | None, typer.Option(help="Use this shape: NAME=1x4x64x64 or SYMBOL=2; repeatable.")
    ] = None,
    given: options.Inputs = None,
    precision: Annotated[
        str, typer.Option(help="What B computes in: bf16 and int8 pass within a bound of each output's scale.")
    ] = "fp32",
    bisect: Annotated[bool, typer.Option("--bisect", help="Name the first node where the two part.")] = False,
    threads: options.Threads = None,
    via: Annotated[str | None, typer.Option(help="ep: run B, or A itself, through the execution provider.")] = None,
) -> None:
    """Check that B computes what A does; exit code 1 if not."""
    from opsmith.check import inputs
    from opsmith.check.feed import parse_given
    from opsmith.check.verify import verify

    wanted = inputs.parse_fixed(shape) if shape else shapes
    values = parse_given(given or [])
    result = verify(
        a,
        b,
        rtol=rtol,
        atol=atol,
        seed=seed,
        shapes=wanted,
        inputs=values,
        bisect=bisect,
        threads=threads,
        provider=provider_for(via, b or a),
        precision=precision,
    )
    console.answer(result, lambda: _print(result), written="the same" if result.ok else "differs")
    if not result.ok:
        raise typer.Exit(1)


def provider_for(via: str | None, model: Path) -> Path | None:
    """The provider's library, if the user wants it and it has regions of this model."""
    if via is None:
        return None
    from opsmith import provider

    if via != "ep":
        raise OpsmithError(f"--via {via}: there is only ep, the execution provider")
    return provider.ready(model)


def _print(result: VerifyResult) -> None:
    table = console.table("output", "type", ">max abs", ">max rel", ">cosine", ">needs rtol/atol", "")
    for name, check in _families(result.worst):
        own = "" if check.spread is None else f", A is {check.spread:.2g} from itself"
        verdict = f"[green]ok[/]{own}" if check.ok else f"[red]differs[/]{own}"
        table.add_row(console.escape(name), check.dtype, *_figures(check), verdict)
    console.show(table)
    for dropped in result.dropped:
        console.say(f"[yellow]left out:[/] {console.escape(dropped)}")
    for name in result.drawn:
        console.say(f"[yellow]not compared:[/] {console.escape(name)}: A draws random numbers for it")
    if result.unchecked:
        console.say(f"[yellow]not checked:[/] A runs on none of the inputs tried: {console.escape(result.unchecked)}")
        console.say("give --input, --shape or test data")
        return
    if result.cases and not result.worst and result.ok:
        console.say("[yellow]nothing was compared:[/] A draws random numbers for every output")
        return
    names = "; ".join(case.name for case in result.cases)
    if result.ok:
        console.say(f"[green]the same[/] in {counted(len(result.cases), 'comparison')}: {console.escape(names)}")
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
            f"{parting.compared} values {'are the same in both' if result.note else 'share a name'})"
        )
    if result.note:
        console.say(f"note: {console.escape(result.note)}")


def _families(checks: list[OutputCheck]) -> list[tuple[str, OutputCheck]]:
    """Outputs alike but for a number, such as the layers of a cache, in one row: the worst of them."""
    from opsmith.check.differences import worst_first

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
