"""Opsmith forges ONNX models into native code.

Every verb of the command line is a function here, under the same name. Verbs are imported when they are
first used, so that `import opsmith` stays cheap and never pulls in torch.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from opsmith._version import __version__
from opsmith.errors import NotTheSame, OpsmithError

if TYPE_CHECKING:
    from opsmith.session import load
    from opsmith.store import Variant

# verb -> the module that holds the function of that name
_VERBS = {
    "Variant": "opsmith.store",
    "load": "opsmith.session",
    "export": "opsmith.export",
    "inspect": "opsmith.measure.inspect",
    "verify": "opsmith.measure.verify",
    "optimize": "opsmith.rewrite",
    "compile": "opsmith.compile",
    "quantize": "opsmith.compress.quantize",
    "prune": "opsmith.compress.prune",
    "bench": "opsmith.measure.bench",
    "profile": "opsmith.measure.profile",
    "compare": "opsmith.measure.compare",
    "report": "opsmith.measure.report",
    "distill": "opsmith.measure.distill",
    "accelerate": "opsmith.pipelines.accelerate",
    "restore": "opsmith.pipelines.accelerate",
    "create_stable_diffusion": "opsmith.pipelines.create",
}

__all__ = ["NotTheSame", "OpsmithError", "Variant", "__version__", "load"]


def __getattr__(name: str) -> Any:
    if name in _VERBS:
        return getattr(importlib.import_module(_VERBS[name]), name)
    raise AttributeError(f"module 'opsmith' has no attribute {name!r}")


class _Package(types.ModuleType):
    """Keeps `opsmith.export` the verb: the import system would overwrite it with the folder of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _VERBS and isinstance(value, types.ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
