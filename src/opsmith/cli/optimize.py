"""opsmith optimize SRC DEST"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console, options
from opsmith.errors import OpsmithError
from opsmith.measure.units import duration, faster, size

if TYPE_CHECKING:
    from opsmith.rewriter.engine import RuleResult
    from opsmith.rewriter.rule import Rule
    from opsmith.rewriter.verb import OptimizeResult, Summary

PANEL = "Road"
ORDER = 20
JSON = {
    "variant": "the .onnx file that was written",
    "rules": "how often each rule fired, and its nearest miss",
    "before": "the source: `nodes` per operator, `size` in bytes, `flops`, `milliseconds`",
    "after": "the result, likewise",
    "error": "largest absolute difference of the outputs",
    "drawn": "outputs that were not compared: the source draws random numbers for them",
    "timed_with": "the inputs, where they come from, and the threads",
    "trials": "with --measure: what each rule gained, and whether it was kept",
}
JSON_WITH = {
    "--explain": {
        "rule": "its name",
        "algebra": "what it does",
        "matches": "how often it fires",
        "near_miss": "where it came closest elsewhere: `root` it started from, `depth` in nodes, `node`, `op_type` and `reason` of its stop; or null",
    },
    "--list": {"rules": "name, level, targets and algebra of each"},
}
EXAMPLES = (
    "opsmith optimize model.onnx better.onnx",
    "opsmith optimize model.onnx better.onnx --explain attention",
)


def command(
    src: Annotated[Path | None, typer.Argument(help="The model: a variant folder or .onnx file.")] = None,
    dest: Annotated[Path | None, typer.Argument(help="Where to write it: a variant folder or .onnx file.")] = None,
    level: Annotated[int, typer.Option("-O", "--level", help="0 nothing, 1 simplify, 2 fuse, 3 target's own ops.")] = 2,
    target: Annotated[str, typer.Option(help="portable, ort-cpu or ort-cuda.")] = "portable",
    measure: Annotated[bool, typer.Option("--measure", help="Keep a rule only if it is faster here.")] = False,
    rules: Annotated[Path | None, typer.Option(help="A Python file with rules of your own.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Use only this rule; repeatable.")] = None,
    explain_rule: Annotated[
        str | None, typer.Option("--explain", metavar="RULE", help="Why a rule did not fire; nothing is written.")
    ] = None,
    list_rules: Annotated[bool, typer.Option("--list", help="List the rules and exit.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Do not time the result.")] = False,
    shapes: Annotated[int, typer.Option(min=0, help="How many random shapes to verify with.")] = 3,
    shape: Annotated[
        list[str] | None, typer.Option(help="Verify and time at this shape: NAME=1x4x64x64 or SYMBOL=2; repeatable.")
    ] = None,
    threads: options.Threads = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Find the structure that exporters tore apart; write portable ONNX that computes the same."""
    if list_rules:
        _print_rules()
        return
    if src is None:
        raise OpsmithError("no model given", "opsmith optimize SRC DEST")
    if explain_rule is not None:
        _explain(src, explain_rule, level, target, rules, only)
        return
    if dest is None:
        raise OpsmithError("no destination given", "opsmith optimize SRC DEST")
    from opsmith.check.inputs import parse_fixed
    from opsmith.rewriter.verb import optimize

    result = optimize(
        src,
        dest,
        overwrite=overwrite,
        level=level,
        target=target,
        rules=rules,
        measure=measure,
        only=only,
        timing=not quick,
        shapes=parse_fixed(shape) if shape else shapes,
        threads=threads,
    )
    console.answer(result, lambda: _print(result), written=result.variant.path)


def _print_rules() -> None:
    from opsmith.rewriter import rules as rule_list

    table = console.table("rule", "-O", "targets", "what it does")
    found = []
    for rule in rule_list.ALL:
        found.append({"name": rule.name, "level": rule.level, "targets": rule.targets, "algebra": rule.algebra})
        table.add_row(rule.name, str(rule.level), ", ".join(rule.targets), console.escape(rule.algebra))
    console.answer({"rules": found}, lambda: console.show(table))


def _explain(src: Path, name: str, level: int, target: str, rules: Path | None, only: list[str] | None) -> None:
    from opsmith.rewriter.verb import explain

    rule, result = explain(src, name, level, target, rules, only=only)
    console.answer(
        {"rule": rule.name, "algebra": rule.algebra, "matches": result.matches, "near_miss": result.near_miss},
        lambda: _print_explained(src, rule, result),
    )


def _print_explained(src: Path, rule: Rule, result: RuleResult) -> None:
    console.say(f"[bold]{rule.name}[/]: {console.escape(rule.algebra)}")
    if result.matches:
        console.say(f"fires {result.matches} times in {console.escape(str(src))}")
    near = result.near_miss
    if near is None:
        if not result.matches:
            console.say(f"does not fire: the model has no {' or '.join(rule.roots)} to start from")
        return
    console.say("the nearest miss:" if not result.matches else "the nearest miss elsewhere:")
    console.say(f"  started at {console.escape(near.root)} and matched {near.depth} nodes")
    console.say(f"  stopped at {near.op_type} {console.escape(near.node)}")
    console.say(f"  because {console.escape(near.reason)}")


def _print(result: OptimizeResult) -> None:
    if result.trials:
        trials = console.table("rule", ">matches", ">gained ms", ">± ms", ">error added", "")
        for t in result.trials:
            verdict = f"[green]kept[/]: {t.why}" if t.kept else f"[yellow]dropped[/]: {console.escape(t.why)}"
            trials.add_row(t.rule, str(t.matches), f"{t.gained:+.3f}", f"{t.noise:.3f}", f"{t.error:+.1e}", verdict)
        console.show(trials)
    else:
        fired = console.table("rule", ">matches")
        for r in result.rules:
            if r.matches:
                fired.add_row(r.rule, str(r.matches))
        if fired.row_count:
            console.show(fired)
        else:
            console.say("no rule found anything to change; `--explain RULE` says where one came closest")
    console.say("")
    table = console.table("", ">before", ">after")
    before, after = result.before, result.after
    names = sorted(set(before.nodes) | set(after.nodes), key=lambda n: (-_change(n, before, after), n))
    for name in names:
        a, b = before.nodes.get(name, 0), after.nodes.get(name, 0)
        if a != b:
            table.add_row(name, str(a), str(b))
    table.add_row("[bold]all nodes[/]", str(before.total), str(after.total))
    table.add_row("size", size(before.size), size(after.size))
    table.add_row("FLOPs", _work(before.flops), _work(after.flops))
    if before.milliseconds is not None and after.milliseconds is not None:
        table.add_row("time", duration(before.milliseconds / 1e3), duration(after.milliseconds / 1e3))
        table.add_row("", "", faster(before.milliseconds / after.milliseconds))
    if result.error is not None:
        table.add_row("max abs error", "", f"{result.error:.1e}")
    console.show(table)
    for name in result.drawn:
        console.say(f"[yellow]not compared:[/] {console.escape(name)}: the source draws random numbers for it")
    if result.timed_with is not None:
        console.say(f"timed with {console.escape(result.timed_with)}")
    console.say(f"wrote {console.escape(str(result.variant.path))}")


def _change(name: str, before: Summary, after: Summary) -> int:
    return abs(before.nodes.get(name, 0) - after.nodes.get(name, 0))


def _work(flops: int | None) -> str:
    return "?" if flops is None else console.count_text(flops)
