"""OpenVINO on the same ONNX file, in its latency mode: as installed, held to single precision, and quantized by NNCF."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar

from opsmith import store


class OpenVino:
    """As users install it: where the CPU has bf16 instructions, it computes with them unless told otherwise."""

    precision: ClassVar[dict[str, str]] = {}

    def __init__(self, path: Path, threads: int, settings: dict[str, Any]) -> None:
        import openvino

        # OpenVINO keeps the order of the outputs but gives them names of its own.
        self._names = [output.name for output in store.read_proto(path).graph.output]
        self._properties = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", **self.precision}
        self._core = openvino.Core()
        self._load(path)

    def _load(self, path: Path) -> None:
        self._compile(str(path))

    def _compile(self, model: Any) -> None:
        self._compiled = self._core.compile_model(model, "CPU", self._properties)
        self._request = self._compiled.create_infer_request()

    def prepare(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return inputs

    def run(self, feed: dict[str, Any]) -> Any:
        return self._request.infer(feed, share_inputs=True, share_outputs=True)

    def outputs(self, raw: Any) -> dict[str, Any]:
        return {name: raw[port].copy() for name, port in zip(self._names, self._compiled.outputs)}


class OpenVinoSingle(OpenVino):
    precision: ClassVar[dict[str, str]] = {"INFERENCE_PRECISION_HINT": "f32"}


class OpenVinoInt8(OpenVino):
    """As NNCF's documentation shows it. Calibrated with the very inputs that are measured: the kindest choice for its error."""

    def _load(self, path: Path) -> None:
        self._model = self._core.read_model(str(path))

    def prepare(self, inputs: dict[str, Any]) -> dict[str, Any]:
        import nncf

        nncf.set_log_level(logging.ERROR)
        kinds = {op.get_type_name() for op in self._model.get_ordered_ops()}
        attention = kinds & {"ScaledDotProductAttention", "Softmax"} and "MatMul" in kinds
        kind = nncf.ModelType.TRANSFORMER if attention else None
        self._compile(nncf.quantize(self._model, nncf.Dataset([inputs]), model_type=kind, subset_size=1))
        return inputs
