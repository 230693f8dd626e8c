"""OpenVINO on the same ONNX file, in its latency mode: as installed, and held to single precision."""

from __future__ import annotations

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
        properties = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", **self.precision}
        self._compiled = openvino.Core().compile_model(str(path), "CPU", properties)
        self._request = self._compiled.create_infer_request()

    def prepare(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return inputs

    def run(self, feed: dict[str, Any]) -> Any:
        return self._request.infer(feed, share_inputs=True, share_outputs=True)

    def outputs(self, raw: Any) -> dict[str, Any]:
        return {name: raw[port].copy() for name, port in zip(self._names, self._compiled.outputs)}


class OpenVinoSingle(OpenVino):
    precision: ClassVar[dict[str, str]] = {"INFERENCE_PRECISION_HINT": "f32"}
