"""Opsmith forges ONNX models into native code.

Verbs of the command line that read and write models are functions here, under the same name. They are imported when they are
first used, so that `import opsmith` stays cheap and never pulls in torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from opsmith._version import __version__
from opsmith.errors import NotTheSame, OpsmithError

if TYPE_CHECKING:  # what a type checker sees; at run time `__getattr__` imports the same names
    from opsmith.batch import map as map
    from opsmith.check.verify import verify as verify
    from opsmith.compiler import compile as compile
    from opsmith.compiler.repack import weights as weights
    from opsmith.compress.prune import prune as prune
    from opsmith.compress.quantize import quantize as quantize
    from opsmith.exporter import export as export
    from opsmith.measure.bench import bench as bench
    from opsmith.measure.compare import compare as compare
    from opsmith.measure.distill import distill as distill
    from opsmith.measure.inspect import inspect as inspect
    from opsmith.measure.profile import profile as profile
    from opsmith.measure.report import report as report
    from opsmith.pipelines.accelerate import accelerate as accelerate
    from opsmith.pipelines.accelerate import restore as restore
    from opsmith.pipelines.create import create_stable_diffusion as create_stable_diffusion
    from opsmith.provider import compile_ep as compile_ep
    from opsmith.provider import explain_session as explain_session
    from opsmith.provider import register as register
    from opsmith.provider import session_options as session_options
    from opsmith.provider import swap as swap
    from opsmith.provider import weights_ep as weights_ep
    from opsmith.provider.bundle import pack as pack
    from opsmith.rewriter import optimize as optimize
    from opsmith.session import load as load
    from opsmith.store import Variant as Variant
else:
    # name -> the module that holds it
    _LAZY = {
        "Variant": "opsmith.store",
        "accelerate": "opsmith.pipelines.accelerate",
        "bench": "opsmith.measure.bench",
        "compare": "opsmith.measure.compare",
        "compile": "opsmith.compiler",
        "compile_ep": "opsmith.provider",
        "create_stable_diffusion": "opsmith.pipelines.create",
        "distill": "opsmith.measure.distill",
        "explain_session": "opsmith.provider",
        "export": "opsmith.exporter",
        "inspect": "opsmith.measure.inspect",
        "load": "opsmith.session",
        "map": "opsmith.batch",
        "optimize": "opsmith.rewriter",
        "pack": "opsmith.provider.bundle",
        "profile": "opsmith.measure.profile",
        "prune": "opsmith.compress.prune",
        "quantize": "opsmith.compress.quantize",
        "register": "opsmith.provider",
        "report": "opsmith.measure.report",
        "restore": "opsmith.pipelines.accelerate",
        "session_options": "opsmith.provider",
        "swap": "opsmith.provider",
        "verify": "opsmith.check.verify",
        "weights": "opsmith.compiler.repack",
        "weights_ep": "opsmith.provider",
    }

    __all__ = ["NotTheSame", "OpsmithError", "__version__", *_LAZY]

    def __getattr__(name):
        if name in _LAZY:
            return getattr(importlib.import_module(_LAZY[name]), name)
        # With the module, Python adds the nearest name.
        raise AttributeError(f"module 'opsmith' has no attribute {name!r}", name=name, obj=sys.modules[__name__])

    def __dir__():  # what a console and a notebook complete
        return [*{*globals(), *__all__}]
