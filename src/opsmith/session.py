"""`opsmith.load`: an ONNX Runtime session on any variant, with its compiled library registered."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from opsmith import store
from opsmith.errors import OpsmithError


def load(
    model: str | os.PathLike[str],
    *,
    threads: int | None = None,
    options: ort.SessionOptions | None = None,
    config: Mapping[str, str] | None = None,
    optimize: bool = True,
    profile_prefix: str | None = None,
) -> ort.InferenceSession:
    """Load a variant folder or .onnx file.

    The libraries of a compiled variant are found through its opsmith.json and registered first; a library
    built for CPU features that this machine lacks is refused with a clear error instead of a crash.
    """
    path = store.find_model(model)
    store.check_external_data(path)
    settings = options or ort.SessionOptions()
    settings.log_severity_level = max(settings.log_severity_level, 3)
    if threads is not None:
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
    if not optimize:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if profile_prefix is not None:
        settings.enable_profiling = True
        settings.profile_file_prefix = profile_prefix
    for key, value in (config or {}).items():
        settings.add_session_config_entry(key, value)
    for library in store.libraries(path):
        settings.register_custom_ops_library(str(library))
    try:
        return ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # ORT raises its own family of exceptions for everything it dislikes
        raise OpsmithError(f"ONNX Runtime cannot load {path}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:600]


def run(session: ort.InferenceSession, inputs: Mapping[str, Any]) -> list[Any]:
    """Run all outputs; ORT's errors come back as one line."""
    try:
        return list(session.run(None, dict(inputs)))
    except Exception as error:
        raise OpsmithError(f"ONNX Runtime failed to run the model: {one_line(error)}") from error


def size_on_disk(model: str | os.PathLike[str]) -> int:
    """Bytes of the .onnx file, its external data and its libraries together."""
    path = store.find_model(model)
    files: set[Path] = {path, *store.external_files(path), *store.libraries(path)}
    return sum(f.stat().st_size for f in files if f.exists())
