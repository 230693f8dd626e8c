"""PyTorch, eager and compiled, on the same ONNX graph.

The graph is walked once and written as one Python function of torch calls, node by node, so that `torch.compile` sees
an ordinary function. Only the operators of the models that Opsmith exports are known; another one is a clear error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opsmith.timing.peers import onnx_to_torch


class Torch:
    def __init__(self, path: Path, threads: int, settings: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(threads)
        self._path = path
        self._no_gradients = torch.inference_mode

    def prepare(self, inputs: dict[str, Any]) -> list[Any]:
        import torch

        self._function, names, self._outputs = onnx_to_torch.translate(self._path, inputs)
        return [torch.from_numpy(inputs[name].copy()) for name in names]

    def run(self, feed: list[Any]) -> Any:
        with self._no_gradients():
            return self._function(*feed)

    def outputs(self, raw: Any) -> dict[str, Any]:
        return {
            name: value.float().numpy() if value.is_floating_point() else value.numpy()
            for name, value in zip(self._outputs, raw)
        }


class TorchCompile(Torch):
    """torch.compile with its default settings; it compiles at the first run."""

    def prepare(self, inputs: dict[str, Any]) -> list[Any]:
        import torch

        feed = super().prepare(inputs)
        self._function = torch.compile(self._function)
        return feed


class TorchCompileBf16(TorchCompile):
    """The same under torch's automatic mixed precision: products in bf16."""

    def run(self, feed: list[Any]) -> Any:
        import torch

        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().run(feed)
