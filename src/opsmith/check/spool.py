"""Arrays that wait on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from opsmith import session


def keep(folder: Path, case: int, index: int, output: Any) -> Any:
    """Large arrays go to disk and come back memory-mapped, so that they do not crowd out the second model."""
    if not isinstance(output, np.ndarray) or output.nbytes < 1 << 20 or output.dtype.kind not in "fiubc":
        return session.detached(output)
    path = folder / f"{case}_{index}.npy"
    np.save(path, output)
    return np.load(path, mmap_mode="r")


def keep_all(folder: Path, case: int, outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: keep(folder, case, i, output) for i, (name, output) in enumerate(outputs.items())}
