"""opsmith imagine: a prompt becomes pictures."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsmith.cli import console, options
from opsmith.errors import OpsmithError
from opsmith.measure.units import counted, size

if TYPE_CHECKING:
    from opsmith.pipelines.diffusion.estimate import Estimate

PANEL = "Applications"
ORDER = 71
JSON = {
    "pictures": "each file, and all settings that make it again",
    "seconds": "in all",
    "step_seconds": "of each step",
    "peak_memory": "bytes",
    "variants": "component -> the variant that was used",
    "remarks": "lines for people",
}
JSON_WITH = {
    "--explain": {"remarks": "what is computed once, reused or left out"},
    "--estimate": {
        "estimate": "steps, seconds of each part and in all, memory in bytes",
        "variants": "component -> the variant that would be used",
    },
}
EXAMPLES = (
    'opsmith imagine "a red apple on a table"',
    'opsmith imagine "a castle" --model models/sd --steps 20 --seed 7 --out castle.png',
)


def command(
    prompt: Annotated[str | None, typer.Argument(help="What the picture shows.")] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The PNG to write; several get a number.", dir_okay=False)
    ] = Path("picture.png"),
    model: options.Pipeline = None,
    variant: Annotated[
        str | None, typer.Option("--variant", help="A variant of its components; the newest compiled one by default.")
    ] = None,
    vae: Annotated[
        Path | None, typer.Option("--vae", help="A folder with another autoencoder, exported: TAESD is the quick one.")
    ] = None,
    negative: Annotated[str, typer.Option("--negative", help="What the picture does not show.")] = "",
    steps: Annotated[int, typer.Option("--steps", help="Denoising steps.")] = 25,
    guidance: options.Guidance = None,
    height: Annotated[
        int | None, typer.Option("--height", help="A multiple of 8; the pipeline's own by default.")
    ] = None,
    width: Annotated[
        int | None, typer.Option("--width", help="A multiple of 8; the pipeline's own by default.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same picture.")] = 0,
    n: Annotated[int, typer.Option("--n", help="How many pictures.")] = 1,
    batch: Annotated[int, typer.Option("--batch", help="How many of them at a time.")] = 1,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            help="ddim, pndm, euler, euler_a, heun, dpm++, dpm++_karras, dpm++_sde, unipc or lcm; the pipeline's own by default.",
        ),
    ] = None,
    sigmas: Annotated[
        str | None, typer.Option("--sigmas", help="How noise falls: karras, exponential or beta.")
    ] = None,
    eta: Annotated[float, typer.Option("--eta", help="With ddim: the share of fresh noise, 0 to 1.")] = 0.0,
    guidance_rescale: Annotated[
        float, typer.Option("--guidance-rescale", help="0 to 1: takes back the spread that guidance adds.")
    ] = 0.0,
    lora: Annotated[
        list[str] | None, typer.Option("--lora", metavar="FILE[:SCALE]", help="A .safetensors LoRA; repeatable.")
    ] = None,
    embedding: Annotated[
        list[str] | None,
        typer.Option("--embedding", metavar="FILE[:WORD]", help="A .safetensors textual inversion; repeatable."),
    ] = None,
    plain_prompt: Annotated[
        bool, typer.Option("--plain-prompt", help="Brackets are text, and 75 tokens are all, as in diffusers.")
    ] = False,
    clip_skip: Annotated[
        int, typer.Option("--clip-skip", help="How many of the text encoder's last layers the prompt leaves out.")
    ] = 0,
    init: Annotated[Path | None, typer.Option("--init", help="Start from this picture.")] = None,
    strength: Annotated[
        float | None, typer.Option("--strength", help="With --init: how much of it changes, 0 to 1; 0.8 by default.")
    ] = None,
    mask: Annotated[Path | None, typer.Option("--mask", help="With --init: white parts are painted anew.")] = None,
    control: Annotated[
        list[str] | None,
        typer.Option(
            "--control",
            metavar="FILE[:SCALE]",
            help="A picture that a ControlNet of the pipeline follows; repeatable, once for each of them.",
        ),
    ] = None,
    guess: Annotated[bool, typer.Option("--guess", help="With --control: diffusers' guess mode.")] = False,
    torch_noise: Annotated[
        bool, typer.Option("--torch-noise", help="Draw noise as diffusers does, with torch's generator.")
    ] = False,
    low_memory: Annotated[bool, typer.Option("--low-memory", help="Keep one component in memory at a time.")] = False,
    fast: Annotated[
        int,
        typer.Option("--fast", help="Approximate presets: 1, 2 or 3, each faster and further from the plain picture."),
    ] = 0,
    reuse: Annotated[
        int | None, typer.Option("--reuse", help="Compute deep features in every N-th step only; --fast has its own.")
    ] = None,
    guided: Annotated[
        float | None,
        typer.Option("--guided", help="The share of the steps that is guided, 0 to 1; --fast has its own."),
    ] = None,
    merge: Annotated[
        int | None, typer.Option("--merge", help="Self-attention over many tokens sees every N-th of them only.")
    ] = None,
    explained: Annotated[
        bool, typer.Option("--explain", help="Only say what is computed once, reused or left out.")
    ] = False,
    estimated: Annotated[
        bool,
        typer.Option("--estimate", help="Only say what it would take: time and memory, from one step of each kind."),
    ] = False,
    tiles: Annotated[
        str,
        typer.Option(
            "--tiles", help="Decode the picture in tiles that overlap: auto (if memory asks for it), on, off."
        ),
    ] = "auto",
    savings: Annotated[
        str,
        typer.Option("--savings", help="Compute once what does not change: auto, on or off. The picture is the same."),
    ] = "auto",
    threads: options.Threads = None,
    listed: Annotated[bool, typer.Option("--list", help="Say what the starter model can draw.")] = False,
) -> None:
    """Make pictures from a prompt, from a picture (--init), or within a mask (--mask)."""
    if listed:
        _list(model)
        return
    if prompt is None:
        raise OpsmithError("a prompt is needed", 'opsmith imagine "a red apple"; --list says what the starter draws')
    from opsmith import machine, progress
    from opsmith.pipelines import pictures
    from opsmith.pipelines.diffusion import DiffusionApp, Preview
    from opsmith.pipelines.diffusion.control import parse
    from opsmith.pipelines.diffusion.fast import preset
    from opsmith.starter import in_use

    pictures.check_target(out)
    start = pictures.read(init) if init else None
    area = pictures.read(mask, "L") if mask else None
    follows = [parse(text) for text in control or ()]
    followed = [pictures.read(Path(file)) for file, _ in follows]
    app = DiffusionApp(
        model or in_use.folder("pictures"),
        variant=variant,
        threads=threads,
        low_memory=low_memory,
        savings=savings,
        vae=vae,
        tiles=tiles,
    )
    approximations = preset(fast, reuse, guided, merge)
    if explained:
        _explain(app.explain(approximations, steps, guidance))
        return

    for given in lora or ():
        app.load_lora(*_lora(given))
    for given in embedding or ():
        app.load_textual_inversion(*_embedding(given))
    wanted: dict[str, Any] = {
        "negative_prompt": negative,
        "steps": steps,
        "guidance": guidance,
        "height": height,
        "width": width,
        "seed": seed,
        "n": n,
        "batch": batch,
        "scheduler": scheduler,
        "init": start,
        "strength": strength,
        "mask": area,
        "torch_noise": torch_noise,
        "fast": approximations,
        "control": followed,
        "control_scale": [scale for _, scale in follows],
        "guess": guess,
        "sigmas": sigmas,
        "eta": eta,
        "guidance_rescale": guidance_rescale,
        "plain_prompt": plain_prompt,
        "clip_skip": clip_skip,
    }
    if estimated:
        with machine.only_memory_that_is_there():
            _tell_estimate(app.estimate(prompt, **wanted), app.variants)
        return
    with machine.only_memory_that_is_there(), progress.task("imagine", total=100) as step:
        before = time.perf_counter()

        def show(done: int, total: int, _: Preview) -> None:
            nonlocal before
            now = time.perf_counter()
            # Schedulers and start pictures change how many steps there are, so the bar counts percents.
            step(
                f"{_place(done, total, n, batch)}, {now - before:.2f} s",
                100 * done // total - 100 * (done - 1) // total,
            )
            before = now

        made = app.generate(prompt, callback=show, **wanted)
    written = []
    for i, (image, settings) in enumerate(zip(made.images, made.settings)):
        path = out if n == 1 else out.with_name(f"{out.stem}_{i}{out.suffix}")
        written.append(pictures.save(image, path, settings))
    told = {
        "pictures": [{"file": file, "settings": settings} for file, settings in zip(written, made.settings)],
        "seconds": made.seconds,
        "step_seconds": made.step_seconds,
        "peak_memory": machine.peak_memory(),
        "variants": app.variants,
        "remarks": made.remarks,
    }
    console.answer(told, lambda: _print(told), written=written)


def _explain(lines: list[str]) -> None:
    def told() -> None:
        for line in lines:
            print(line)

    console.answer({"remarks": lines}, told)


def _tell_estimate(found: Estimate, variants: dict[str, str]) -> None:
    told = {"estimate": {**dataclasses.asdict(found), "seconds": found.seconds}, "variants": variants}

    def shown() -> None:
        print(
            f"{found.seconds:.1f} s: text {found.text_seconds:.2f}, loading {found.load_seconds:.2f}, "
            f"{found.steps} steps of {found.steps_seconds / found.steps:.3f}, decoding {found.decode_seconds:.2f}"
        )
        print(f"peak memory {size(found.memory)}")

    console.answer(told, shown)


def _lora(given: str) -> tuple[Path, float]:
    """FILE or FILE:scale."""
    file, colon, scale = given.rpartition(":")
    try:
        return (Path(file), float(scale)) if colon and not Path(given).exists() else (Path(given), 1.0)
    except ValueError:
        return Path(given), 1.0


def _embedding(given: str) -> tuple[Path, str | None]:
    """FILE or FILE:word."""
    file, colon, word = given.rpartition(":")
    return (Path(file), word) if colon and not Path(given).exists() else (Path(given), None)


def _place(done: int, total: int, n: int, batch: int) -> str:
    """Which step of which picture the DONE-th of all TOTAL steps is."""
    groups = -(-n // batch)  # pictures that are made together
    each = total // groups
    group, step = divmod(done - 1, each)
    first, last = group * batch + 1, min(n, (group + 1) * batch)
    which = f"picture {first}" if first == last else f"pictures {first} to {last}"
    return f"{which} of {n}, step {step + 1} of {each}" if n > 1 else f"step {step + 1} of {each}"


def _print(told: dict[str, Any]) -> None:
    for picture in told["pictures"]:
        print(picture["file"])
    for line in told["remarks"]:
        console.remark(f"note: {line}")
    times = sorted(told["step_seconds"])
    used = ", ".join(f"{k} {v}" for k, v in told["variants"].items() if k != "vae_encoder")
    console.remark(
        f"{_steps(told)}, median {times[len(times) // 2]:.3f} s; {told['seconds']:.1f} s in all; "
        f"peak memory {size(told['peak_memory'])}; {used}"
    )


def _steps(told: dict[str, Any]) -> str:
    count, pictures = len(told["step_seconds"]), len(told["pictures"])
    return counted(count, "step") + ("" if pictures == 1 else f" for {pictures} pictures")


def _list(model: Path | None) -> None:
    from opsmith import starter

    if model is not None:
        raise OpsmithError(f"{model} does not say what it can draw", "--list is about the starter model; try any words")
    for kind, words in starter.draws().items():
        print(f"{kind}: {', '.join(words)}")
