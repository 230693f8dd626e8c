"""Results as plain data: what `--json` prints and Python's `json` can write.

A dataclass becomes an object of its fields, unless its class has `to_dict`; paths become text, infinities and NaN null.
"""

from __future__ import annotations

import dataclasses
import enum
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
