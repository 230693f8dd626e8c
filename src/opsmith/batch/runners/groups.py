"""Rows that may run together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def groups(alike: Mapping[int, Any], most: int) -> Iterator[list[int]]:
    """Indices with the same key, in their order, at most MOST at a time: the same rows always run together."""
    sorts: dict[Any, list[int]] = {}
    for i, key in alike.items():
        sorts.setdefault(key, []).append(i)
    for same in sorts.values():
        for first in range(0, len(same), most):
            yield same[first : first + most]
