"""The Opsmith execution provider: ONNX Runtime runs an untouched model.onnx, with what was compiled for it in its place.

    opsmith compile model.onnx --ep                          writes the folder model.onnx.opsmith
    options = opsmith.session_options()                      the provider, registered and chosen
    session = onnxruntime.InferenceSession("model.onnx", options)

provider.cpp is the provider itself. It is generic: it finds a model's compiled regions by the model's content. native.py builds it,
folder.py writes what it reads.
"""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

from opsmith import session, store
from opsmith.errors import OpsmithError
from opsmith.provider.folder import compile_ep as compile_ep
from opsmith.provider.folder import found
from opsmith.provider.folder import sidecar as sidecar
from opsmith.provider.native import last_report, library
from opsmith.provider.reweigh import swap as swap
from opsmith.provider.reweigh import weights_ep as weights_ep


def register(path: store.PathLike | None = None) -> list[ort.OrtEpDevice]:
    """Register the provider with ONNX Runtime, once per process; its devices, for `options.add_provider_for_devices`.

    PATH: the provider's library, where it is not to be built here.
    """
    return session.register_provider(Path(path) if path is not None else library())


def session_options(
    model: store.PathLike | None = None, *, compile: bool = False, threads: int | None = None, target: str | None = None
) -> ort.SessionOptions:
    """Session options with the provider in them. COMPILE: compile MODEL first if that was not done before.

    TARGET names one of the CPUs that the model was compiled for; the best that runs here is taken by itself.
    """
    if compile:
        if model is None:
            raise OpsmithError("session_options(compile=True) needs the model's file")
        path = store.find_model(model)
        if found(path) is None:
            compile_ep(path, cache=True)
    options = ort.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    session.choose_provider(options, library(), target)
    return options


def ready(model: store.PathLike) -> Path:
    """The provider's library, after a look whether it has regions of this model."""
    lines = explain_session(model)
    if not _natively(lines):
        why = lines[0].removeprefix("Opsmith: ") if lines else "nothing of it was worth compiling"
        again = "" if lines else " --regions all"
        raise OpsmithError(f"{model} would run on ONNX Runtime alone: {why}", f"opsmith compile {model} --ep{again}")
    return library()


def _natively(lines: list[str]) -> bool:
    return any("runs natively" in line for line in lines)


def explain_session(model: store.PathLike) -> list[str]:
    """Make a session through the provider, and say what became of each compiled region and why."""
    session.load(store.find_model(model), provider=library())
    return last_report()
