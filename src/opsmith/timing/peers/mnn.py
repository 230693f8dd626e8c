"""MNN on the same model, converted by MNN's native converter when it is loaded.

Its Python wrapper `mnnconvert` is not used: it installs packages and sends statistics by itself.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from opsmith import store
from opsmith.errors import OpsmithError


class Mnn:
    def __init__(self, path: Path, threads: int, settings: dict[str, Any]) -> None:
        import MNN.nn as nn

        proto = store.read_proto(path)
        weights = {i.name for i in proto.graph.initializer}
        self._inputs = [i.name for i in proto.graph.input if i.name not in weights]
        self._outputs = [o.name for o in proto.graph.output]
        with tempfile.TemporaryDirectory(prefix="opsmith-mnn-") as folder:
            converted = Path(folder) / "model.mnn"
            native = "import sys, _tools; _tools.mnnconvert(['mnnconvert', *sys.argv[1:]])"
            command = [sys.executable, "-c", native, "-f", "ONNX", "--modelFile", str(path)]
            done = subprocess.run(
                [*command, "--MNNModel", str(converted), "--bizCode", "opsmith"], capture_output=True, text=True
            )
            if not converted.is_file():
                why = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["no message"]
                raise OpsmithError(f"MNN cannot convert {path.name}: {why[0]}")
            manager = nn.create_runtime_manager(({"backend": "CPU", "precision": "high", "numThread": threads},))
            self._module = nn.load_module_from_file(
                str(converted), self._inputs, self._outputs, runtime_manager=manager
            )

    def prepare(self, inputs: dict[str, Any]) -> list[Any]:
        import MNN.expr as expr
        import MNN.numpy as mnn_numpy

        feed = []
        for name in self._inputs:
            array = inputs[name]
            kind = mnn_numpy.float32 if array.dtype.kind == "f" else mnn_numpy.int32
            narrow = array.astype("float32" if array.dtype.kind == "f" else "int32")  # MNN has no 64-bit integers
            feed.append(expr.const(narrow.ravel().tolist(), list(array.shape), expr.NCHW, kind))
        return feed

    def run(self, feed: list[Any]) -> list[Any]:
        found = self._module.forward(feed)
        values = list(found) if isinstance(found, (list, tuple)) else [found]
        for value in values:
            value.read()  # MNN computes when a value is read
        return values

    def outputs(self, raw: list[Any]) -> dict[str, Any]:
        import numpy as np

        return {name: np.array(value.read()) for name, value in zip(self._outputs, raw)}
