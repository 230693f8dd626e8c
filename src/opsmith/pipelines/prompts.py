"""A keyword becomes N picture prompts that contain the keyword. Templates live in prompts.toml, which users may replace."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opsmith.errors import OpsmithError
from opsmith.pipelines.sampling import Sampling
from opsmith.pipelines.text import TextGenerator

DEFAULT = Path(__file__).with_name("prompts.toml")
ROUNDS = 4  # batches to try for prompts that hold the keyword, before the best are completed with it


@dataclasses.dataclass(frozen=True)
class Style:
    """One section of prompts.toml."""

    template: str
    stop: tuple[str, ...] = ()
    max_new_tokens: int = 40
    temperature: float = 0.9
    top_p: float = 0.95
    repetition_penalty: float = 1.0


def load_style(name: str | None, file: Path | None = None) -> Style:
    """A section of FILE, by default of the package's own; without a name its first one."""
    path = file or DEFAULT
    try:
        sections: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OpsmithError(f"{path} cannot be read as TOML: {error}") from error
    name = name or next(iter(sections), "")
    if name not in sections:
        raise OpsmithError(f"{path} has no section [{name}]", f"it has {', '.join(sections)}")
    keys = {f.name for f in dataclasses.fields(Style)}
    if unknown := sorted(set(sections[name]) - keys):
        raise OpsmithError(f"{path}: unknown key {unknown[0]!r} in [{name}]", f"known are {', '.join(sorted(keys))}")
    section = {**sections[name], "stop": tuple(sections[name].get("stop", ()))}
    style = Style(**section)
    if "{keyword}" not in style.template:
        raise OpsmithError(f"{path}: the template of [{name}] does not contain {{keyword}}")
    return style


def write_prompts(
    generator: TextGenerator,
    keyword: str,
    *,
    n: int = 3,
    seed: int = 0,
    style: Style | None = None,
    on_text: Callable[[int, str], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[str]:
    """N different prompts with the keyword in them. What the model leaves it out of is asked again with another seed."""
    keyword = " ".join(keyword.split())
    if not keyword:
        raise OpsmithError("the keyword is empty", "give a word or a phrase")
    style = style or style_of(generator)
    prompt = style.template.format(keyword=keyword)
    fitting: list[str] = []
    spare: list[str] = []
    for attempt in range(ROUNDS):
        sampling = Sampling(
            style.temperature, 0, style.top_p, 0.0, style.repetition_penalty, 0, seed + 1000003 * attempt
        )
        stream = on_text if attempt == 0 else None
        texts = generator.generate(
            prompt,
            n=n,
            max_new_tokens=style.max_new_tokens,
            sampling=sampling,
            stop=style.stop,
            on_text=stream,
            cancelled=cancelled,
        )
        for text in (" ".join(t.text.split()) for t in texts):
            target = fitting if contains(text, keyword) else spare
            if text and text not in target:
                target.append(text)
        if len(fitting) >= n or cancelled():
            return fitting[:n]
    return [*fitting, *(f"{keyword}, {text}" for text in spare)][:n]


def contains(text: str, keyword: str) -> bool:
    """Every word of the keyword, as a word or with an ending (apple, apples)."""
    return all(re.search(rf"\b{re.escape(word)}", text, re.IGNORECASE) for word in keyword.split())


def style_of(generator: TextGenerator) -> Style:
    """How a model is asked: by the one section of the prompts.toml in its folder, else as any text model."""
    own = generator.home / DEFAULT.name
    return load_style(None, own) if own.is_file() else load_style("general")
