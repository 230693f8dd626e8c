"""opsmith tune: what the tuner has measured on this machine, to look at and to carry to machines with the same CPU."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith import machine
from opsmith.cli import console, options
from opsmith.errors import OpsmithError

if TYPE_CHECKING:
    from opsmith.compiler.tune.database import Database

PANEL = "Workbench"
ORDER = 65
JSON = {
    "results": "each kernel and its sizes: CPU, threads, what was tried, the best and the compiler's own choice, in seconds",
}
JSON_WITH = {
    "--export": {"written": "the file", "count": "of results"},
    "--import": {
        "read": "the file",
        "count": "of results in it",
        "usable": "results in the database for this CPU and these kernels",
    },
    "--merge": {
        "read": "file -> results in it",
        "count": "of results in the database",
        "cpus": "CPU -> results for it",
    },
    "--engine": {"cpus": "CPU -> results from it"},
}
EXAMPLES = (
    "opsmith tune --show",
    "opsmith tune --export zen4.jsonl",
)


def command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="With --merge: exports or databases; with --engine: a model.", show_default=False
        ),
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Add the results of all FILEs.")] = False,
    engine: Annotated[
        str | None, typer.Option("--engine", help="ray: measure a model on one node of every kind of CPU.")
    ] = None,
    address: options.Address = None,
    show: Annotated[bool, typer.Option("--show", help="List what was measured.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", metavar="FILE", help="Write all results to FILE, one JSON line each.", show_default=False
        ),
    ] = None,
    load: Annotated[
        Path | None, typer.Option("--import", metavar="FILE", help="Add the results of FILE.", show_default=False)
    ] = None,
) -> None:
    """Show, export, import or merge what `compile --search 1` and `--search 2` measured, or measure on a cluster."""
    from opsmith.compiler.tune.database import Database

    if show + merge + sum(wish is not None for wish in (export, load, engine)) != 1:
        raise OpsmithError(
            "opsmith tune needs one of --show, --export FILE, --import FILE, --merge FILE FILE and --engine ray MODEL",
            "tuning itself is `opsmith compile --search 2`",
        )
    if (merge or engine is not None) != bool(files):
        raise OpsmithError("files go with --merge, a model with --engine", "opsmith tune --merge a.jsonl b.jsonl")
    if address is not None and engine is None:
        raise OpsmithError("an address is for the ray engine", "--engine ray")
    database = Database()
    if engine is not None:
        _fleet(engine, files or [], address)
    elif merge:
        _merge(database, files or [])
    elif export is not None:
        number = database.export(export)
        told = f"wrote {number} results to {export}"
        console.answer({"written": export, "count": number}, lambda: console.say(told), written=export)
    elif load is not None:
        count = database.load(load)
        usable = sum(row.current for row in database.rows())
        told = f"read {count} results; the database now has {usable} for this CPU and these kernels"
        console.answer({"read": load, "count": count, "usable": usable}, lambda: console.say(told), written=count)
    else:
        _show()


def _fleet(engine: str, models: list[Path], address: str | None) -> None:
    from opsmith.batch.fleet import tune

    if engine != "ray" or len(models) != 1:
        raise OpsmithError("a fleet is tuned by the ray engine, one model at a time", "opsmith tune MODEL --engine ray")
    counts = tune(models[0], address)
    lines = [f"{count} results from {cpu}" for cpu, count in counts.items()]
    console.answer({"cpus": counts}, lambda: console.say("\n".join(lines)), written=sum(counts.values()))


def _merge(database: Database, files: list[Path]) -> None:
    counts = {str(file): database.load(file) for file in files}
    rows = database.rows()
    cpus = collections.Counter(row.cpu for row in rows)
    told = {"read": counts, "count": len(rows), "cpus": dict(cpus)}
    lines = [f"{count} results for {cpu}" for cpu, count in cpus.most_common()]
    console.answer(told, lambda: console.say("\n".join(lines)), written=len(rows))


def _show() -> None:
    from opsmith.compiler.tune import describe
    from opsmith.compiler.tune.database import Database

    rows = Database().rows()
    if console.as_json:
        found = [
            {
                "cpu": r.cpu,
                "threads": r.threads,
                "kernels": r.version,
                "current": r.current,
                "family": r.task.family,
                "task": str(r.task),
                "level": r.outcome.level,
                "tried": r.outcome.tried,
                "best": {str(m.candidate): m.seconds for m in r.outcome.best.values()},
                "analytical": dict(r.outcome.analytical),
            }
            for r in rows
        ]
        console.answer({"results": found}, lambda: None)
        return
    current = [r for r in rows if r.current]
    table = console.table("kernel", "sizes", ">threads", ">search", ">tried", "best", ">us", ">own choice us", ">gain")
    for row in current:
        best = row.outcome.fastest()
        own = row.outcome.analytical.get(best.candidate.kernel, best.seconds)
        searched = (row.threads, row.outcome.level, row.outcome.tried, best.candidate)
        times = (f"{best.seconds * 1e6:.1f}", f"{own * 1e6:.1f}", f"{own / best.seconds - 1:.1%}")
        table.add_row(row.task.family, describe(row.task), *map(str, searched), *times)
    if current:
        console.show(table)
    else:
        console.say("nothing was measured for this CPU yet; `opsmith compile MODEL --search 2` measures")
    others = collections.Counter(r.cpu for r in rows if not r.current)
    for cpu, count in others.most_common():
        console.say(
            f"{count} more for {cpu} with other versions of the kernels"
            if cpu == machine.cpu_model()
            else f"{count} more for {cpu}"
        )
