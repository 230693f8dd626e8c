"""Messages become a prompt by the model's own chat template, or plainly where it has none.

    chat = load_chat(generator.home)
    prompt = chat.prompt([{"role": "user", "content": "Hello"}])      -> "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"

The template is Jinja from chat_template.jinja or tokenizer_config.json, as Hugging Face has it. It comes with the model, so it runs in a
sandbox: it sees the messages and the names of special tokens, and nothing else.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from opsmith.errors import OpsmithError
from opsmith.pipelines.text import read_config

Messages = Sequence[Mapping[str, str]]
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclasses.dataclass(frozen=True)
class Chat:
    """TEMPLATE is None where the model has none: then roles are written as in a play."""

    template: str | None
    tokens: Mapping[str, str]
    where: Path

    @property
    def stop(self) -> tuple[str, ...]:
        """Where a model that knows no end of a turn begins the next one itself."""
        return () if self.template else ("\nUser:", "\nSystem:")

    @property
    def special(self) -> bool:
        """Whether the tokenizer adds its own tokens: a template has written them already."""
        return self.template is None

    def prompt(self, messages: Messages) -> str:
        """All MESSAGES, and the beginning of the assistant's turn."""
        if self.template is None:
            lines = [f"{m['role'].capitalize()}: {m['content'].strip()}\n" for m in messages]
            return "".join([*lines, "Assistant:"])
        return self._render(self.template, messages)

    def _render(self, template: str, messages: Messages) -> str:
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise OpsmithError("jinja2 is not installed", 'pip install ".[studio]"') from error

        def refuse(message: str) -> NoReturn:
            raise OpsmithError(f"the model's chat template refuses these messages: {message}")

        world = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        world.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        world.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.now().strftime(form))
        try:
            made = world.from_string(template).render(
                messages=[dict(m) for m in messages], add_generation_prompt=True, **self.tokens
            )
        except OpsmithError:
            raise
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            words = " ".join(str(error).split())[:200]
            raise OpsmithError(f"the chat template of {self.where} fails: {words}") from error
        return str(made)


def load_chat(home: Path) -> Chat:
    """HOME is the folder with the tokenizer."""
    config = read_config(home / "tokenizer_config.json")
    file = home / "chat_template.jinja"
    found: Any = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(found, list):  # several under their names
        named = {str(t.get("name")): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    tokens = {name: _content(config.get(name)) for name in _SPECIAL}
    return Chat(found if isinstance(found, str) else None, {n: t for n, t in tokens.items() if t is not None}, home)


def _content(token: Any) -> str | None:
    """A special token is a string, or an object with its flags."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None
