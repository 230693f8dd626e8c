"""Values of a row as a model wants them, or why they cannot be."""

from __future__ import annotations

from typing import Any

from opsmith.batch.rows import Failed, Option
from opsmith.errors import OpsmithError

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0", "")


def text_of(value: Any, name: str) -> str | Failed:
    if value is None or value == "":
        return Failed(f"{name} is empty")
    if isinstance(value, (dict, list, bytes)):
        return Failed(f"{name} is not a text but of type {type(value).__name__}")
    return str(value)


def option_of(value: Any, name: str, option: Option) -> Any:
    """VALUE as the option's type; a missing one is its default."""
    if value is None or (value == "" and option.kind is not str):
        return option.default
    try:
        if option.kind is bool:
            return _bool(value)
        if option.kind is int and isinstance(value, float) and not value.is_integer():
            raise ValueError
        return option.kind(value)
    except (TypeError, ValueError):
        raise OpsmithError(f"{name} is {str(value)[:80]!r}", f"expected {_NAMES[option.kind]}") from None


def _bool(value: Any) -> bool:
    word = str(value).strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError
    return word in _TRUE


_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
