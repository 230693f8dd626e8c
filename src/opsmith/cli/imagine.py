"""opsmith imagine: a prompt becomes pictures."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from opsmith.cli import console
from opsmith.errors import OpsmithError

PANEL = "Applications"
ORDER = 71
EXAMPLES = (
    'opsmith imagine "a red apple on a table"',
    'opsmith imagine "a castle" --model models/sd --steps 20 --seed 7 --out castle.png',
)


def command(
    prompt: Annotated[str | None, typer.Argument(help="What the picture shows.")] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The PNG to write; several get a number.", dir_okay=False)
    ] = Path("picture.png"),
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="A pipeline folder; the starter's by default.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", help="A variant of its components; the newest compiled one by default.")
    ] = None,
    negative: Annotated[str, typer.Option("--negative", help="What the picture does not show.")] = "",
    steps: Annotated[int, typer.Option("--steps", help="Denoising steps.")] = 25,
    guidance: Annotated[
        float | None,
        typer.Option("--guidance", help="How strictly to follow; 1 is none. The pipeline's own, else 7.5."),
    ] = None,
    height: Annotated[int | None, typer.Option("--height", help="A multiple of 8.")] = None,
    width: Annotated[int | None, typer.Option("--width", help="A multiple of 8.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same picture.")] = 0,
    n: Annotated[int, typer.Option("--n", help="How many pictures.")] = 1,
    batch: Annotated[int, typer.Option("--batch", help="How many of them at a time.")] = 1,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", help="ddim, pndm, euler, euler_a, dpm++, dpm++_karras or lcm.")
    ] = None,
    init: Annotated[Path | None, typer.Option("--init", help="Start from this picture.")] = None,
    strength: Annotated[
        float | None, typer.Option("--strength", help="With --init: how much of it changes, 0 to 1.")
    ] = None,
    mask: Annotated[Path | None, typer.Option("--mask", help="With --init: white parts are painted anew.")] = None,
    torch_noise: Annotated[
        bool, typer.Option("--torch-noise", help="Draw noise as diffusers does, with torch's generator.")
    ] = False,
    low_memory: Annotated[bool, typer.Option("--low-memory", help="Keep one component in memory at a time.")] = False,
    threads: Annotated[int | None, typer.Option("--threads", help="Threads of the sessions.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Say what the starter model can draw.")] = False,
) -> None:
    """Make pictures from a prompt."""
    if listed:
        _list(model)
        return
    if prompt is None:
        raise OpsmithError("a prompt is needed", 'opsmith imagine "a red apple"; --list says what the starter draws')
    from opsmith import machine, progress
    from opsmith.pipelines import pictures
    from opsmith.pipelines.diffusion import DiffusionApp, Preview
    from opsmith.starter import in_use

    pictures.check_target(out)
    start = pictures.read(init) if init else None
    area = pictures.read(mask, "L") if mask else None
    app = DiffusionApp(model or in_use.folder("pictures"), variant=variant, threads=threads, low_memory=low_memory)
    with machine.only_memory_that_is_there(), progress.task("imagine", total=100) as step:
        before = time.perf_counter()

        def show(done: int, total: int, _: Preview) -> None:
            nonlocal before
            now = time.perf_counter()
            # Schedulers and start pictures change how many steps there are, so the bar counts percents.
            step(f"step {done} of {total}, {now - before:.2f} s", 100 * done // total - 100 * (done - 1) // total)
            before = now

        made = app.generate(
            prompt,
            negative,
            steps=steps,
            guidance=guidance,
            height=height,
            width=width,
            seed=seed,
            n=n,
            batch=batch,
            scheduler=scheduler,
            init=start,
            strength=strength,
            mask=area,
            callback=show,
            torch_noise=torch_noise,
        )
    for i, (image, settings) in enumerate(zip(made.images, made.settings)):
        path = out if n == 1 else out.with_name(f"{out.stem}_{i}{out.suffix}")
        print(pictures.save(image, path, settings))
    if not console.quiet:
        for remark in made.remarks:
            print(f"note: {remark}", file=sys.stderr)
        times = sorted(made.step_seconds)
        used = ", ".join(f"{k} {v}" for k, v in app.variants.items() if k != "vae_encoder")
        print(
            f"{len(times)} steps, median {times[len(times) // 2]:.3f} s; {made.seconds:.1f} s in all; "
            f"peak memory {console.bytes_text(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)}; {used}",
            file=sys.stderr,
        )


def _list(model: Path | None) -> None:
    from opsmith import starter

    if model is not None:
        raise OpsmithError(f"{model} does not say what it can draw", "--list is about the starter model; try any words")
    for kind, words in starter.draws().items():
        print(f"{kind}: {', '.join(words)}")
