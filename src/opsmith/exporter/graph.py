"""What one exported graph is made of, before any exporter sees it.

A family (causal_lm, encoder, ...) turns a source folder into `Part`s. A part loads its module only when its
turn comes, so that a pipeline never holds two models at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Sizes = Mapping[str, int]  # dynamic dim -> its size in one case, e.g. {"batch": 2, "sequence": 7}
Dims = Mapping[str, Mapping[int, str]]  # input or output -> {axis: its dynamic dim}


@dataclasses.dataclass
class Graph:
    """One graph: what to run, what goes in and out, which dims vary, at which sizes it is proved."""

    model: torch.nn.Module
    inputs: Dims  # in graph order
    outputs: Dims
    forward: Callable[..., Sequence[torch.Tensor]]  # (model, *inputs) -> outputs, as the exporter traces it
    example: Callable[[Sizes, torch.Generator], Sequence[torch.Tensor]]  # seeded inputs of the given sizes
    trace_at: Sizes  # no size is 0 or 1 here: exporters take those for constants
    cases: Sequence[Sizes]  # where ONNX must equal PyTorch; the first becomes test_data_set_0
    original: Callable[..., Sequence[torch.Tensor]] | None = (
        None  # the library's own call, if `forward` prepares inputs
    )

    def reference(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """What the original PyTorch model gives."""
        return (self.original or self.forward)(self.model, *inputs)


@dataclasses.dataclass(frozen=True)
class Part:
    """One model folder to be written."""

    name: str  # folder below the destination; "" for the destination itself
    load: Callable[[], Graph]
    config: Mapping[str, Any] | None = None  # becomes config.json beside the variants
    origin: str | None = None  # the source's folder with its weights, where it is one component of several


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything one export writes: model folders, and files that are copied as they are."""

    parts: Sequence[Part]
    copies: Sequence[Path]  # files and folders of the source, relative to it
    written: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # JSON files, e.g. model_index.json
    reads_text: bool = True  # so that a source without a tokenizer is worth a remark
