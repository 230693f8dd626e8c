"""pyarrow, which Parquet needs and nothing else does: the extra `map`."""

from __future__ import annotations

from typing import Any

from opsmith.errors import OpsmithError


def arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.lib
    except ImportError as error:
        raise OpsmithError(
            "Parquet needs pyarrow, which is not installed", 'pip install ".[map]", or use .jsonl or .csv'
        ) from error
    return pyarrow
