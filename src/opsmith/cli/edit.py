"""opsmith edit: select a thing in a picture by words, and change it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsmith.cli import console, options
from opsmith.errors import OpsmithError

if TYPE_CHECKING:
    from PIL.Image import Image

    from opsmith.pipelines.edit import Area
    from opsmith.pipelines.masks import Mask

PANEL = "Applications"
ORDER = 72
JSON = {
    "written": "the files: overlay, edited picture, mask, sheet",
    "selected": "share of the picture",
    "painted": "share of the picture that may change; the rest is byte-equal",
    "grown": "pixels by which that is larger than the selection",
    "box": "left, top, right, bottom",
    "sure": "mean probability of what was selected by words; null where it was not",
    "settings": "all that makes it again",
}
JSON_WITH = {
    "--extend or --upscale": {"written": "the picture", "settings": "all that makes it again"},
}
EXAMPLES = (
    'opsmith edit picture.png --select apple --change "make it green" --out green.png',
    'opsmith edit picture.png --extend left=64,right=64 --prompt "a frog on the grass"',
)


def command(
    image: Annotated[Path, typer.Argument(help="The picture.")],
    change: Annotated[
        str | None,
        typer.Option("--change", "-c", help='"make it blue", "replace it with a pear", "remove it", "blur it" ...'),
    ] = None,
    select: Annotated[str | None, typer.Option("--select", "-s", help="What to change, in words.")] = None,
    mask: Annotated[Path | None, typer.Option("--mask", help="The selection as a file: white is selected.")] = None,
    box: Annotated[str | None, typer.Option("--box", help="The selection as left,top,right,bottom.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The edited PNG; default IMAGE_edited.png. Mask and sheet go beside it.", dir_okay=False
        ),
    ] = None,
    threshold: Annotated[float, typer.Option("--threshold", help="How sure the selection must be, 0 to 1.")] = 0.5,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Edit even if the mask model is in doubt about the selection.")
    ] = False,
    min_area: Annotated[
        float | None, typer.Option("--min-area", help="Smaller parts found by words are dropped; in pixels.")
    ] = None,
    feather: Annotated[float, typer.Option("--feather", help="Soft edge around the selection, in pixels.")] = 2.0,
    masks_model: options.Masks = None,
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="The pipeline that paints; the starter's by default.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", help="A variant of its components; the newest compiled one by default.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", help="What to paint: for replace instead of its words, for remove the background."),
    ] = None,
    fill: Annotated[
        str | None,
        typer.Option(
            "--fill", help="For remove: painted, by the pipeline, or smooth, from the surroundings. Painted if it can."
        ),
    ] = None,
    grow: Annotated[
        int | None,
        typer.Option("--grow", help="For replace and remove: how many pixels around the selection are painted too."),
    ] = None,
    extend: Annotated[
        str | None,
        typer.Option(
            "--extend",
            help="Instead of a change: a larger canvas, painted; left=64,right=64 pixels, or 64 for all sides.",
        ),
    ] = None,
    upscale: Annotated[
        Path | None,
        typer.Option("--upscale", help="Instead of a change: a larger picture by this super-resolution ONNX model."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Denoising steps.")] = 25,
    guidance: options.Guidance = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed paints the same.")] = 0,
    threads: options.Threads = None,
) -> None:
    """Change a part of a picture; without --change only show what is selected."""
    from opsmith import machine, progress
    from opsmith.pipelines import edit, grammar, masks, pictures
    from opsmith.pipelines.diffusion import DiffusionApp
    from opsmith.starter import in_use

    if extend is not None or upscale is not None:
        _check_whole(change, select, mask, box, extend, upscale)
        _edit_whole(image, out, extend, upscale, model, variant, prompt, steps, guidance, seed, threads)
        return
    _check(select, mask, box, steps)
    wanted = grammar.parse(change) if change is not None else None
    target = pictures.check_target(out or image.with_name(f"{image.stem}_edited.png"))
    picture = pictures.read(image)
    settings: dict[str, Any] = {"source": image.name, "change": change, "select": select, "box": box}
    if select is not None:
        selection, by = _select_by_words(picture, select, masks_model, threshold, feather, min_area, threads)
        settings |= by
    else:
        selection = _select_by_place(picture, mask, box, feather)
    settings["feather"] = feather
    app, how = None, ""
    if wanted is not None:
        home = model or in_use.folder("pictures")
        app, how = edit.painter(wanted, lambda: DiffusionApp(home, variant=variant, threads=threads), fill)
        settings |= {"fill": "painted" if app else "smooth"} if wanted.kind == "remove" else {}
    touched = edit.area(selection, wanted, grow) if wanted is not None else edit.Area(selection.soft, 0)
    settings |= {"painted": round(touched.share, 4), "grown": touched.grown}
    prompt = prompt if prompt is not None or wanted is None else edit.prompt_of(wanted, pictures.settings_of(image))
    shown = masks.overlay(picture, selection, touched.soft)
    beside = {name: target.with_name(f"{target.stem}_{name}.png") for name in ("overlay", "mask", "sheet")}
    written: list[Path] = []

    def save(picture: Image, path: Path) -> None:
        written.append(pictures.save(picture, path, settings))
        if not console.as_json:
            print(written[-1], flush=True)

    # The overlay comes first, so that it can be looked at while a model paints.
    save(shown, beside["overlay"])
    _tell_selected(selection, touched, how)
    _tell_doubt(selection, beside["overlay"], refuse=wanted is not None and not anyway)
    told = {
        "written": written,
        "selected": float(selection.hard.mean()),
        "painted": touched.share,
        "grown": touched.grown,
        "box": selection.box,
        "sure": selection.sure,
        "settings": settings,
    }
    if wanted is None:
        save(selection.image, beside["mask"])
        console.answer(told, lambda: None)
        return
    with machine.only_memory_that_is_there(), progress.task("edit", total=steps) as step:
        edited, made = edit.edit(
            picture,
            selection,
            wanted,
            app=app,
            prompt=prompt,
            steps=steps,
            guidance=guidance,
            seed=seed,
            grow=grow,
            callback=lambda done, total, _: step(f"step {done} of {total}"),
        )
    settings.update({"kind": wanted.kind, "seed": seed}, **(made.settings[0] if made is not None else {}))
    save(edited, target)
    save(masks.Mask(touched.soft > 0, touched.soft).image, beside["mask"])
    save(pictures.sheet([picture, shown, edited], ["before", select or "selection", change or ""]), beside["sheet"])
    console.answer(told, lambda: None)


def _select_by_place(picture: Image, mask: Path | None, box: str | None, feather: float) -> Mask:
    from opsmith.pipelines import masks

    return (
        masks.from_file(picture, mask, feather)
        if mask is not None
        else masks.from_box(picture, _box(box or ""), feather)
    )


def _check_whole(
    change: str | None, select: str | None, mask: Path | None, box: str | None, extend: str | None, upscale: Path | None
) -> None:
    given = {"--change": change, "--select": select, "--mask": mask, "--box": box}
    if extend is not None and upscale is not None:
        raise OpsmithError("--extend and --upscale are not possible at once", "give one, then the other")
    for name, value in given.items():
        if value is not None:
            raise OpsmithError(f"{name} is not possible here", "--extend and --upscale are about the whole picture")


def _edit_whole(
    image: Path,
    out: Path | None,
    extend: str | None,
    upscale: Path | None,
    model: Path | None,
    variant: str | None,
    prompt: str | None,
    steps: int,
    guidance: float | None,
    seed: int,
    threads: int | None,
) -> None:
    """A larger canvas, or a larger picture."""
    from opsmith import machine, progress
    from opsmith.pipelines import extend as extending
    from opsmith.pipelines import pictures
    from opsmith.pipelines.diffusion import DiffusionApp
    from opsmith.pipelines.upscale import Upscaler
    from opsmith.starter import in_use

    target = pictures.check_target(out or image.with_name(f"{image.stem}_edited.png"))
    picture = pictures.read(image)
    before = pictures.settings_of(image)
    settings: dict[str, Any] = {"source": image.name}
    with machine.only_memory_that_is_there(), progress.task("edit", total=100) as step:
        if upscale is not None:
            upscaler = Upscaler(upscale, threads=threads)
            made = upscaler(picture)
            settings |= {"upscale": upscaler.path.name, "factor": upscaler.factor}
            settings |= {"prompt": before["prompt"]} if before.get("prompt") else {}
        else:
            sides = extending.Sides.parse(extend or "")
            app = DiffusionApp(model or in_use.folder("pictures"), variant=variant, threads=threads)
            words = prompt if prompt is not None else str(before.get("prompt") or "")

            def show(done: int, total: int, _: object) -> None:
                step(f"step {done} of {total}", 100 * done // total - 100 * (done - 1) // total)

            made, painted = extending.extended(
                picture, sides, app, words, steps=steps, guidance=guidance, seed=seed, callback=show
            )
            settings |= painted.settings[0] | {"extend": dataclasses.asdict(sides)}
    settings |= {"width": made.width, "height": made.height}
    written = pictures.save(made, target, settings)

    def told() -> None:
        print(written)
        console.remark(f"{picture.width}x{picture.height} became {made.width}x{made.height}")

    console.answer({"written": [written], "settings": settings}, told)


def _select_by_words(
    picture: Image,
    words: str,
    model: Path | None,
    threshold: float,
    feather: float,
    min_area: float | None,
    threads: int | None,
) -> tuple[Mask, dict[str, Any]]:
    """What the mask model finds for WORDS, and the settings that find it again."""
    from opsmith.pipelines import masks
    from opsmith.starter import in_use

    segmenter = masks.Segmenter(model or in_use.folder("masks"), threads=threads)
    selection = masks.from_words(picture, words, segmenter, threshold, feather, min_area)
    return selection, {
        "sure": round(selection.sure or 0, 3),
        "threshold": threshold,
        "masks_model": f"{segmenter.path.parent.name} {segmenter.hash}",
    }


def _check(select: str | None, mask: Path | None, box: str | None, steps: int) -> None:
    if sum(x is not None for x in (select, mask, box)) != 1:
        raise OpsmithError("one selection is needed", "--select WORDS, --mask FILE or --box L,T,R,B")
    if steps < 1:
        raise OpsmithError(f"{steps} steps are not possible", "give 1 or more")


def _tell_selected(selection: Mask, touched: Area, how: str) -> None:
    sure = "" if selection.sure is None else f", {selection.sure:.0%} sure"
    console.remark(f"selected: {selection.hard.mean():.1%} of the picture, within {selection.box}{sure}")
    if touched.grown:
        around = f"the selection and {touched.grown} pixels around it"
        console.remark(f"painted: {touched.share:.1%} of the picture, {around}")
    if how:
        console.remark(how)


def _tell_doubt(selection: Mask, overlay: Path, refuse: bool) -> None:
    """What is doubtful about the selection, if anything is: a note, or the end if it is to REFUSE."""
    if not selection.doubt:
        return
    if refuse:
        raise OpsmithError(
            f"nothing was changed: {selection.doubt}",
            f"look at {overlay}; --anyway takes it, or try other words, --threshold, --box or --mask",
        )
    console.remark(f"note: {selection.doubt}")


def _box(text: str) -> tuple[int, int, int, int]:
    try:
        left, top, right, bottom = (int(part) for part in text.split(","))
    except ValueError:
        raise OpsmithError(f"the box {text!r} is not understood", "left,top,right,bottom in pixels") from None
    return left, top, right, bottom
