"""ONNX Runtime on what its own `quantize_dynamic` makes of the model, with that function's defaults."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

from opsmith import session
from opsmith.timing.peers.ort import OnnxRuntime

LARGE = 1 << 30  # bytes; beyond it the weights are written beside the model, as protobuf asks


class OnnxRuntimeInt8(OnnxRuntime):
    def __init__(self, path: Path, threads: int, settings: dict[str, Any]) -> None:
        from onnxruntime.quantization import quantize_dynamic

        logging.getLogger().setLevel(logging.ERROR)  # it advises about preprocessing on every call
        self._folder = tempfile.TemporaryDirectory(prefix="opsmith-int8-")
        quantized = Path(self._folder.name) / "model.onnx"
        quantize_dynamic(path, quantized, use_external_data_format=session.size_on_disk(path) > LARGE)
        super().__init__(quantized, threads, settings)
