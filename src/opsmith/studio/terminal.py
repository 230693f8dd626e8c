"""The studio's flow in a terminal, question by question, for machines without a browser.

idea -> three prompts -> picture -> what to select -> how to change it -> saved, with settings, in the folder
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from opsmith.errors import OpsmithError
from opsmith.pipelines import edit, grammar, masks, pictures
from opsmith.pipelines.prompts import write_prompts
from opsmith.studio.album import Album, Picture
from opsmith.studio.core import Wish
from opsmith.studio.models import Models

Ask = Callable[[str], str]
OWNER = "terminal"


class _Bye(Exception):
    """The user has had enough."""


def converse(models: Models, folder: Path, ask: Ask | None = None, say: Callable[[str], None] = print) -> None:
    """Ask until the user ends it with an empty answer at the first question, `q`, Ctrl-D or the end of the input."""
    album = Album(folder)
    question = _asking(ask or _read)
    try:
        while True:
            prompt = _prompt(models, question, say)
            picture = _picture(models, album, prompt, question, say)
            while picture is not None:
                picture = _edited(models, album, picture, question, say)
    except _Bye:
        say(f"pictures are in {folder}")


def _read(words: str) -> str:
    return input(words)


def _asking(ask: Ask) -> Ask:
    def question(words: str) -> str:
        try:
            answer = ask(words).strip()
        except EOFError:
            raise _Bye from None
        if answer.lower() in ("q", "quit", "exit"):
            raise _Bye
        return answer

    return question


def _prompt(models: Models, ask: Ask, say: Callable[[str], None]) -> str:
    keyword = ask("A word or phrase (empty ends): ")
    if not keyword:
        raise _Bye
    prompts = write_prompts(models.writer(), keyword, n=3, style=models.style())
    for i, text in enumerate(prompts, 1):
        say(f"  {i}  {text}")
    answer = ask(f"Which one (1 to {len(prompts)}), or your own prompt [1]: ") or "1"
    return prompts[int(answer) - 1] if answer.isdigit() and 1 <= int(answer) <= len(prompts) else answer


def _picture(models: Models, album: Album, prompt: str, ask: Ask, say: Callable[[str], None]) -> Picture | None:
    answer = ask("Seed [new]: ")
    if answer and not answer.isdigit():
        say(f"  {answer!r} is not a number; a new seed is taken")
    try:
        wish = Wish(prompt, seed=int(answer) if answer.isdigit() else None).checked(models)
        app = models.app(None)
        made = app.generate(
            wish.prompt,
            steps=wish.steps,
            guidance=wish.guidance or 0.0,
            width=wish.width,
            height=wish.height,
            seed=wish.seed or 0,
            callback=_progress,
        )
    except OpsmithError as error:
        say(f"  {error}")
        return None
    for remark in made.remarks:
        say(f"  {remark}")
    kept = album.add(made.images[0], {**made.settings[0], "studio": "made"}, OWNER, "made")
    say(f"  {kept.path} (seed {wish.seed}, {made.seconds:.1f} s, {app.variants['unet']})")
    return kept


def _edited(models: Models, album: Album, before: Picture, ask: Ask, say: Callable[[str], None]) -> Picture | None:
    """One edit; None goes back to the idea. What is not found or not understood is asked again."""
    words = ask("What to edit, in words (empty: a new idea): ")
    if not words:
        return None
    image = pictures.read(before.path)
    try:
        area = masks.from_words(image, words, models.segmenter())
        overlay = album.add(masks.overlay(image, area), {"of": before.path.name, "select": words}, OWNER, "selection")
        doubt = f" ({area.doubt})" if area.doubt else ""
        say(f"  {area.hard.mean():.1%} of the picture, {area.sure or 0:.0%} sure{doubt}; to look at: {overlay.path}")
        change = ask("What to do with it (make it blue, replace it with a pear, remove it ...; empty: nothing): ")
        if not change:
            return before
        wanted = grammar.parse(change)
        app, how = edit.painter(wanted, lambda: models.app(None))
        edited, _ = edit.edit(image, area, wanted, app=app, guidance=models.guidance, callback=_progress)
    except OpsmithError as error:
        say(f"  {error}")
        return before
    if how:
        say(f"  {how}")
    return _kept(album, edited, before, {"change": change, "kind": wanted.kind, "select": words}, say)


def _kept(
    album: Album, edited: Image.Image, before: Picture, note: dict[str, Any], say: Callable[[str], None]
) -> Picture:
    settings = {**before.settings, "studio": "edited", "edits": [*before.settings.get("edits", []), note]}
    kept = album.add(edited, settings, OWNER, "edited", before)
    say(f"  {kept.path}")
    return kept


def _progress(step: int, total: int, _: object) -> None:
    if sys.stderr.isatty():
        print(f"\r  step {step} of {total}", end="\n" if step == total else "", file=sys.stderr, flush=True)
