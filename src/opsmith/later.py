"""Modules that are imported when they are first used: what is slow to import costs only those who need it."""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """Stands for a module; the first attribute that is asked for imports it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)
