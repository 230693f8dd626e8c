"""opsmith write: text from a model with a real KV cache, or picture prompts from a keyword."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console, options
from opsmith.errors import OpsmithError

if TYPE_CHECKING:
    from opsmith.pipelines.draft import Draft
    from opsmith.pipelines.text import TextGenerator

PANEL = "Applications"
ORDER = 70
JSON = {
    "texts": "the prompts, or with --raw the prompt and what follows it",
    "variant": "the .onnx file that wrote them",
    "speed": "tokens and seconds of prompt and decoding",
}
DRAFTED = 4  # tokens that a draft model guesses at a time
EXAMPLES = (
    'opsmith write "a red apple"',
    'opsmith write --raw "Once upon a time" --n 1 --max-new-tokens 40',
)


def command(
    text: Annotated[str, typer.Argument(help="A keyword or phrase; with --raw, the prompt itself.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="A text model folder; the starter's writer by default.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", help="A variant of it; the newest compiled one by default.")
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", min=1, max=64, help="How many texts, in one batch; 3, or 1 with --raw.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is instead of writing picture prompts.")
    ] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", min=1, help="With --raw: how many tokens at most; 64 or what fits."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="With --raw: 0 is greedy; 0.8 for several texts, else 0.")
    ] = None,
    top_k: Annotated[
        int, typer.Option("--top-k", help="With --raw: draw from the K most likely tokens; 0 is all.")
    ] = 0,
    top_p: Annotated[
        float, typer.Option("--top-p", help="With --raw: draw from the likeliest tokens that hold this share together.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option("--min-p", help="With --raw: drop tokens below this share of the likeliest one.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float,
        typer.Option("--repetition-penalty", help="With --raw: above 1 makes tokens that were there less likely."),
    ] = 1.0,
    no_repeat_ngram: Annotated[
        int, typer.Option("--no-repeat-ngram", help="With --raw: no N tokens in a row twice; 0 is off.")
    ] = 0,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="With --raw: end at this text; repeatable.")] = None,
    lookup: Annotated[
        int, typer.Option("--lookup", min=0, max=64, help="With --raw: tokens to guess at a time from the text so far.")
    ] = 0,
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft", help="With --raw: a smaller model of the same vocabulary guesses --lookup tokens, or 4."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same text.")] = 0,
    prompts: Annotated[Path | None, typer.Option("--prompts", help="Your own prompts.toml.")] = None,
    style: Annotated[str | None, typer.Option("--style", help="A section of prompts.toml.")] = None,
    threads: options.Threads = None,
) -> None:
    """Write text: a keyword becomes picture prompts, or (--raw) a prompt is continued."""
    from opsmith.pipelines.prompts import load_style, write_prompts
    from opsmith.pipelines.sampling import Sampling
    from opsmith.pipelines.text import TextGenerator

    if not text.strip():
        raise OpsmithError("the text is empty", "give a word, a phrase or a prompt")
    with_raw = {
        "--max-new-tokens": max_new_tokens is not None,
        "--temperature": temperature is not None,
        "--top-k": top_k != 0,
        "--top-p": top_p != 1,
        "--min-p": min_p != 0,
        "--repetition-penalty": repetition_penalty != 1,
        "--no-repeat-ngram": no_repeat_ngram != 0,
        "--stop": bool(stop),
        "--lookup": lookup != 0,
        "--draft": draft is not None,
    }
    without_raw = {"--prompts": prompts is not None, "--style": style is not None}
    _refuse_misplaced(without_raw if raw else with_raw, raw)
    generator = TextGenerator(model or _starter(), variant, threads)
    if raw:
        count = n or 1
        heat = _heat(temperature, count)
        sampling = Sampling(heat, top_k, top_p, min_p, repetition_penalty, no_repeat_ngram, seed)
        live = count == 1 and not console.quiet and not console.as_json
        room = _room(generator, text, max_new_tokens)
        guesses = _draft(draft, generator, lookup, threads, count)

        def show(_: int, piece: str) -> None:
            if live:
                print(piece, end="", flush=True)

        if live:
            print(text, end="", flush=True)
        found = generator.generate(
            text,
            max_new_tokens=room,
            sampling=sampling,
            n=count,
            stop=stop or (),
            lookup=lookup,
            guesses=guesses,
            on_text=show,
        )
        lines = [f"{text}{g.text}" for g in found]
    else:
        live = False
        chosen = load_style(style or "general", prompts) if style or prompts else None
        lines = list(write_prompts(generator, text, n=n or 3, seed=seed, style=chosen))
    told = {"texts": lines, "variant": generator.path, "speed": generator.speed}
    console.answer(told, lambda: print() if live else print(*lines, sep="\n"))
    console.remark(f"{generator.path.parent.name}: {generator.speed}")


def _refuse_misplaced(given: dict[str, bool], raw: bool) -> None:
    """Options that would be ignored."""
    if wrong := [name for name, is_given in given.items() if is_given]:
        what = "writes picture prompts, and" if not raw else "continues the text as it is, and"
        raise OpsmithError(
            f"write {'--raw ' if raw else ''}{what} takes no {wrong[0]}", "leave --raw away" if raw else "add --raw"
        )


def _heat(temperature: float | None, count: int) -> float:
    """The temperature asked for, or one at which COUNT texts differ."""
    heat = temperature if temperature is not None else 0.8 if count > 1 else 0.0
    if count > 1 and heat == 0:
        raise OpsmithError(f"{count} greedy texts would all be the same", "--n 1, or --temperature 0.8")
    return heat


def _room(generator: TextGenerator, text: str, asked: int | None) -> int:
    """How many new tokens there may be behind TEXT; says so if they are fewer than usual."""
    from opsmith.pipelines.text import NEW_TOKENS

    room = generator.room([generator.encode(text)], asked)
    if asked is None and room < NEW_TOKENS:
        console.remark(f"at most {room} new tokens: the model's context holds {generator.context}")
    return room


def _draft(folder: str | None, writer: TextGenerator, most: int, threads: int | None, count: int) -> Draft | None:
    """Who guesses for the one text that is written, if a draft model is given."""
    from opsmith.pipelines.draft import Draft, check
    from opsmith.pipelines.text import TextGenerator

    if count > 1 and (folder or most):
        console.remark(f"nothing is guessed: --lookup and --draft are for one text, not for {count}")
    if folder is None or count > 1:
        return None
    small = TextGenerator(folder, threads=threads)
    check(small, writer)
    return Draft(small, most or DRAFTED)


def _starter() -> str:
    from opsmith.starter import in_use

    return str(in_use.folder("writer"))
