"""Results as plain data: what `--json` prints and Python's `json` can write, and what a notebook shows as tables.

A dataclass becomes an object of its fields, unless its class has `to_dict`; paths become text, infinities and NaN null.
"""

from __future__ import annotations

import dataclasses
import enum
import html
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from opsmith.store import Variant


def plain(value: Any) -> Any:
    """VALUE in dicts, lists, text, numbers, booleans and None."""
    if value is None or isinstance(value, (bool, int)):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (Path, str, Variant)):
        return str(value.path if isinstance(value, Variant) else value)
    if isinstance(value, np.integer):
        return int(value)
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no plain form")


def to_json(value: Any) -> str:
    return json.dumps(plain(value), indent=2, ensure_ascii=False)


class Shown:
    """Results that read well at a prompt and in a notebook; dataclasses that inherit it take repr=False."""

    def __repr__(self) -> str:
        words = []
        for key, value in plain(self).items():
            if isinstance(value, (list, dict)):
                words += [f"{key}: {len(value)}"] if value else []
            elif value is not None:
                words.append(f"{key}={value!r}")
        return f"{type(self).__name__}({', '.join(words)})"

    def _repr_html_(self) -> str:
        data = plain(self)
        single = {k: v for k, v in data.items() if not isinstance(v, (list, dict)) and v is not None}
        parts = [f"<b>{type(self).__name__}</b>", _table([single] if single else [])]
        for key, value in data.items():
            rows = value if isinstance(value, list) else [value] if isinstance(value, dict) else []
            if rows and all(isinstance(row, dict) for row in rows):
                parts += [f"<b>{html.escape(key)}</b>", _table(rows)]
            elif rows:
                parts.append(
                    f"<b>{html.escape(key)}</b><br>{'<br>'.join(html.escape(str(row)) for row in rows[:ROWS])}"
                )
        return "".join(parts)


ROWS = 50  # of a table in a notebook


def _table(rows: list[dict[str, Any]]) -> str:
    """Columns are the keys whose values are numbers or words."""
    keys = [k for k in (rows[0] if rows else {}) if not any(isinstance(r.get(k), (list, dict)) for r in rows)]
    head = "".join(f"<th>{html.escape(k)}</th>" for k in keys)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(r.get(k))}</td>' for k in keys)}</tr>" for r in rows[:ROWS])
    more = f"<tr><td>{len(rows) - ROWS} more</td></tr>" if len(rows) > ROWS else ""
    return f"<table><tr>{head}</tr>{body}{more}</table>" if keys else ""


def _cell(value: Any) -> str:
    return "" if value is None else html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))
