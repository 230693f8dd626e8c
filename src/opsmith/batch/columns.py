"""Which column of the input is which input of the model.

1. `--column text=body` says so.
2. A column has the name of the input.
3. The model has one input, and the input a column that stands for it: lines are its text, files are its pictures, a table has only one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from opsmith.batch.rows import Source, Traits
from opsmith.errors import OpsmithError


def bind(traits: Traits, source: Source, asked: Mapping[str, str], keep: Sequence[str]) -> dict[str, str]:
    """Input or option of the model -> column."""
    names = (*traits.inputs, *traits.options)
    for name, column in asked.items():
        if name not in names:
            raise OpsmithError(f"the model has no input {name!r}", f"it has: {', '.join(names)}")
        _check(column, source)
    for column in keep:
        _check(column, source)
        if column == source.natural == "picture":
            raise OpsmithError("pictures themselves are not kept", "--keep file")
        if column == "row" or column in traits.columns:
            raise OpsmithError(f"the column {column!r} cannot be kept: the output has one of that name")
    mapping = {name: asked.get(name, name) for name in names if name in asked or name in source.columns}
    for name in traits.inputs:
        if name not in mapping:
            mapping[name] = _standing_for(name, traits, source)
    return mapping


def _standing_for(name: str, traits: Traits, source: Source) -> str:
    if len(traits.inputs) == 1:
        if source.natural is not None:
            return source.natural
        if len(source.columns) == 1:
            return source.columns[0]
    raise OpsmithError(
        f"the input has no column {name!r}; it has {', '.join(source.columns)}", f"--column {name}=COLUMN"
    )


def _check(column: str, source: Source) -> None:
    if column not in source.columns:
        near = difflib.get_close_matches(column, source.columns, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(source.columns)}"
        raise OpsmithError(f"the input has no column {column!r}", hint)
