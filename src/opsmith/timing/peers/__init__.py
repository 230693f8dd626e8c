"""Runtimes that can run an ONNX model, behind one small interface, so that `bench` can line them up.

An adapter is a class made from (path, threads, settings) with

    prepare(inputs)  named numpy arrays -> whatever `run` wants, outside the timed part
    run(feed)        one inference
    outputs(raw)     named numpy arrays, in the order of the graph's outputs

`ort` is ONNX Runtime, for every variant, compiled ones too. The peers are optional: each says which package it needs.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from opsmith.errors import OpsmithError, no_such

# peer -> (module here, class, packages that must be importable, what to install)
_ADAPTERS = {
    "ort": ("ort", "OnnxRuntime", (), ""),
    "openvino": ("openvino", "OpenVino", ("openvino",), "pip install openvino"),
    "openvino-f32": ("openvino", "OpenVinoSingle", ("openvino",), "pip install openvino"),
    "openvino-int8": ("openvino", "OpenVinoInt8", ("openvino", "nncf"), "pip install openvino nncf"),
    "ort-int8": ("ort_int8", "OnnxRuntimeInt8", (), ""),
    "torch": ("torch", "Torch", ("torch",), "pip install torch"),
    "torch-compile": ("torch", "TorchCompile", ("torch",), "pip install torch"),
    "torch-compile-bf16": ("torch", "TorchCompileBf16", ("torch",), "pip install torch"),
    "mnn": ("mnn", "Mnn", ("MNN",), "pip install MNN"),
}
NAMES = tuple(name for name in _ADAPTERS if name != "ort")


def check(name: str) -> None:
    """One clear line for a peer that is unknown or not installed."""
    if name not in NAMES:
        raise no_such("peer", name, NAMES)
    _, _, packages, install = _ADAPTERS[name]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise OpsmithError(f"peer {name} is not installed", install)


def find(name: str) -> Any:
    module, adapter, _, _ = _ADAPTERS[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), adapter)


def warm_up_imports(name: str) -> None:
    """Import the runtime now, so that the load time measures loading the model."""
    for package in ("onnxruntime", "opsmith.session", *_ADAPTERS[name][2]):
        if name != "ort" and package == "onnxruntime":
            continue
        importlib.import_module(package)
