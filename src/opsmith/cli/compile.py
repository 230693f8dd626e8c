"""opsmith compile: regions of the graph become native custom ops."""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsmith.cli import console, options
from opsmith.errors import OpsmithError
from opsmith.measure.units import counted, duration, faster

if TYPE_CHECKING:
    from opsmith.check.verify import VerifyResult
    from opsmith.compiler import CompileResult
    from opsmith.compiler.auto import Choice
    from opsmith.compiler.explain import Stop
    from opsmith.compiler.tune import Tuning

PANEL = "Road"
ORDER = 40
JSON = {
    "written": "the .onnx file; with --ep the folder beside the model; null if nothing was written",
    "nodes": "of the source",
    "native": "of them, those that no longer run in ONNX Runtime",
    "regions": "each native region: its name, the nodes of the source in it, its kernel calls",
    "left": "what stays with ONNX Runtime: operator, node, reason",
    "judged": "what it was measured with: `dims`, `origin` (test data, --shape, typical sizes) and the shapes of the inputs",
    "timing": "seconds of the source and of the compiled model, `speedup`, `busy`, `taken` (how often); null where nothing was measured",
    "verified": "as `opsmith verify --json`; null with --no-verify, and where the model stays as it is",
    "tuning": "with --search: calls measured, known and changed, seconds before and after",
    "remarks": "lines for people",
    "seconds": "where compile's own time went",
}
JSON_WITH = {
    "--ep": {**JSON, "session": "as `lines` of `opsmith explain-session --json`"},
    "--explain": {"stops": "the journey of the node: `station` and `text` of each stop"},
}
EXAMPLES = (
    "opsmith compile model.onnx",
    "opsmith compile models/bert/dynamo models/bert/fast --shape sequence=128 --search 1",
)


def command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A variant folder or .onnx file.")],
    dest: Annotated[
        str | None,
        typer.Argument(
            metavar="DEST",
            help="The variant folder (or .onnx file) to write; by default SRC's name with _compiled, beside it.",
            show_default=False,
        ),
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
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            help="Products in fp32, bf16, int8 or auto: each as cheap as --max-error allows.",
            show_default="fp32",
        ),
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            help="With --precision auto: largest error, as a share of each output's scale.",
            show_default="0.02",
        ),
    ] = None,
    cache: Annotated[
        str,
        typer.Option(
            "--cache", help="How a decoder stores its KV cache: fp32, fp16 in half the memory, int8 in a quarter."
        ),
    ] = "fp32",
    compiler: Annotated[
        str | None, typer.Option("--compiler", help="g++, clang++ or zig; found in this order.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; write nothing.")] = False,
    emit_only: Annotated[bool, typer.Option("--emit-only", help="Write the C++ source; build nothing.")] = False,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            help="Fix a size in the code: NAME=1x4x64x64 or SYMBOL=2; repeatable. All sizes stay open by default.",
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="Judge it with these: FILE.npz, NAME=16000, NAME=1,2 or NAME=FILE.npy; repeatable."
        ),
    ] = None,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="NODE", help="Show the journey of one node; write nothing.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Compare with SRC before writing DEST.")] = True,
    cpu: Annotated[
        str,
        typer.Option(
            "--cpu",
            help="What to compile for: native, x86-64-v3, x86-64-v4, zen4, sapphirerapids or aarch64; several, comma-separated, in one library.",
        ),
    ] = "native",
    system: Annotated[
        str | None,
        typer.Option("--os", help="Build for linux, windows or macos (by zig).", show_default="this one"),
    ] = None,
    glibc: Annotated[
        str | None, typer.Option("--glibc", help="The oldest C library of Linux to run on, such as 2.17 (by zig).")
    ] = None,
    ep: Annotated[
        bool,
        typer.Option("--ep", help="For the execution provider: writes the folder SRC.opsmith; SRC stays as it is."),
    ] = False,
    overwrite: options.Overwrite = False,
) -> None:
    """Compile a model's graph, or chosen parts of it, into one native library that ONNX Runtime loads."""
    from opsmith.check.feed import parse_given
    from opsmith.check.inputs import parse_fixed
    from opsmith.compiler import compile

    if explain is not None:
        from opsmith.compiler.explain import explain as journey

        stops = list(journey(source, explain, strict=strict, precision=precision))
        console.answer({"stops": stops}, lambda: _show_journey(stops))
        return
    if ep:
        _compile_for_provider(
            source,
            dest,
            shape,
            dry_run or emit_only or cache != "fp32",
            regions=regions,
            search=search,
            strict=strict,
            compiler=compiler,
            precision=precision,
            max_error=max_error,
            verify=verify,
            inputs=parse_given(given or []),
            cpu=cpu,
            os=system,
            glibc=glibc,
        )
        return
    if dest is None:
        dest = str(default_dest(source))
    result = compile(
        source,
        dest,
        overwrite=overwrite,
        regions=regions,
        search=search,
        strict=strict,
        precision=precision,
        max_error=max_error,
        cache=cache,
        cpu=cpu,
        os=system,
        glibc=glibc,
        compiler=compiler,
        dry_run=dry_run,
        emit_only=emit_only,
        verify=verify,
        shapes=parse_fixed(shape or []),
        inputs=parse_given(given or []),
    )
    console.answer(result, lambda: show(result), written=result.variant.place if result.variant else None)


def _show_journey(stops: list[Stop]) -> None:
    for stop in stops:
        console.out.print(f"[bold]{stop.station:>10}[/bold]  ", end="")
        console.out.print(stop.text, markup=False, soft_wrap=True)


def _compile_for_provider(
    source: str, dest: str | None, shape: list[str] | None, writes_nothing: bool, **options: Any
) -> None:
    from opsmith import provider, store

    if dest is not None or shape or writes_nothing:
        raise OpsmithError("--ep excludes DEST, --shape, --cache, --dry-run and --emit-only: the model stays as it is")
    result = provider.compile_ep(source, **options)
    folder = provider.sidecar(store.find_model(source))
    session = provider.explain_session(source) if result.regions else []  # the remarks say why there are none

    def tell() -> None:
        show(result)
        for line in session:
            console.say(console.escape(line))
        console.say(f"wrote {console.escape(str(folder))}")

    console.answer({**result.to_dict(), "written": folder, "session": session}, tell, written=folder)


def show(result: CompileResult) -> None:
    """One screen: what became native, what did not and why, how much faster at which sizes, how exact."""
    share = f" ({100 * result.native / result.nodes:.0f} %)" if result.nodes else ""
    calls = sum(r.calls for r in result.regions)
    console.say(
        f"{result.native} of {result.nodes} nodes{share} run natively: {counted(calls, 'kernel call')} in "
        f"{counted(len(result.regions), 'region')}"
    )
    if result.left:
        _show_left(result)
    if result.tuning is not None:
        _say_tuning(result.tuning)
    if result.choices:
        _show_choices(result.choices)
    if result.regions:
        _say_speed(result)
    if result.verified is not None:
        _say_verified(result.verified)
    for remark in result.remarks:
        console.say(remark)
    if result.variant is not None:
        console.say(f"wrote {console.escape(str(result.variant.place))}")


def _show_left(result: CompileResult) -> None:
    left = console.table("left to ONNX Runtime", ">nodes", "why")
    counts = collections.Counter((op, _short(why)) for op, _, why in result.left)
    for (op, why), count in counts.most_common(MOST_REASONS):
        left.add_row(console.escape(op), str(count), console.escape(why))
    if len(counts) > MOST_REASONS:
        rest = sum(n for _, n in counts.most_common()[MOST_REASONS:])
        left.add_row("...", str(rest), f"{len(counts) - MOST_REASONS} more reasons, all in opsmith.json")
    console.show(left)


def _show_choices(choices: Sequence[Choice]) -> None:
    """What auto chose, the largest gains first."""
    table = console.table("product", "precision", ">saves, of all products in fp32", ">its own error")
    for c in choices[:MOST_CHOICES]:
        table.add_row(console.escape(c.node), c.precision, f"{c.gain:.1%}", f"{c.error:.1e}" if c.error else "-")
    console.show(table)
    counts = collections.Counter(c.precision for c in choices)
    more = f"; {len(choices) - MOST_CHOICES} more in opsmith.json" if len(choices) > MOST_CHOICES else ""
    console.say(f"chosen: {', '.join(f'{n} in {p}' for p, n in counts.items())}{more}")


MOST_CHOICES = 16


def _say_speed(result: CompileResult) -> None:
    """How much faster, at which sizes."""
    judged, timing = result.judged, result.timing
    if judged is None:
        return
    if timing is not None:
        word = faster(timing.ratio)
        busy = "; the machine was busy, measure again with `opsmith bench`" if timing.busy else ""
        times = f"{duration(timing.after)} instead of {duration(timing.before)}"
        console.say(f"{word}: {times} with {judged.sizes} ({judged.origin}), {counted(timing.threads, 'thread')}{busy}")
    elif judged.feed is None:
        console.say(f"not timed: no inputs were found that the model runs on ({judged.problem}); give --input")


def _say_verified(verified: VerifyResult) -> None:
    for name in verified.drawn:
        console.say(f"[yellow]not compared:[/] {console.escape(name)}: the source draws random numbers for it")
    if worst := verified.worst:
        (show_error if any(o.bound is not None for o in worst) else _say_error)(verified)


def _say_error(verified: VerifyResult) -> None:
    console.say(
        f"verified: same outputs as the source in {counted(len(verified.cases), 'case')}, "
        f"largest error {verified.of_scale:.1e} of an output's scale{_own_spread(verified)}"
    )


def show_error(verified: VerifyResult) -> None:
    """How far the outputs of a model in less than fp32 are from the source's, the worst of all cases."""
    checks = sorted(verified.worst, key=lambda o: -o.of_scale)
    table = console.table("output", ">largest error, of its scale", ">cosine", ">allowed")
    for o in checks[:MOST_OUTPUTS]:
        allowed = "equal" if o.bound is None else f"{o.bound:g}" if o.spread is None else "its own spread"
        table.add_row(console.escape(o.name), f"{o.of_scale:.1e}", f"{o.cosine:.6f}", allowed)
    console.show(table)
    more = f"; {len(checks) - MOST_OUTPUTS} more outputs are closer" if len(checks) > MOST_OUTPUTS else ""
    console.say(
        f"verified: within these errors of the source in {counted(len(verified.cases), 'case')}{more}"
        f"{_own_spread(verified)}"
    )
    if (expected := verified.next_token) is not None:
        console.say(
            f"next token: KL {expected.kl:.1e} nats, the most likely one the same at {expected.top1:.1%} of "
            f"{counted(expected.positions, 'position')}"
        )


MOST_OUTPUTS = 8


def _own_spread(verified: VerifyResult) -> str:
    own = max((spread for o in verified.worst if (spread := o.spread_of_scale) is not None), default=None)
    return "" if own is None else f"; by rounding alone the source is {own:.1e} from itself"


MOST_REASONS = 12


def _short(why: str) -> str:
    """Reasons that differ in the names of values only are one line."""
    return re.sub(r"reads \S+, which", "reads what", re.sub(r"input \S+ is unknown", "input is unknown", why))


def _say_tuning(tuning: Tuning) -> None:
    stopped = " (stopped)" if tuning.stopped else ""
    console.say(
        f"tuned{stopped}: {tuning.measured} distinct kernel calls measured, {tuning.known} known before; {tuning.changed} calls changed, "
        f"their kernels take {tuning.after * 1e3:.2f} ms instead of {tuning.before * 1e3:.2f}"
    )
    if tuning.disturbed:
        console.say(
            f"other programs disturbed {tuning.disturbed} of these measurements: used now, taken anew next time"
        )


def default_dest(source: str) -> Path:
    """Beside the source: `<variant>_compiled`."""
    from opsmith import store

    path = store.find_model(source)
    return (
        path.with_name(f"{path.stem}_compiled.onnx")
        if source.endswith(".onnx")
        else path.parent.with_name(f"{path.parent.name}_compiled")
    )
