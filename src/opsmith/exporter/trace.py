"""One graph -> one ONNX file that is proved to equal PyTorch.

The order is what keeps memory low: PyTorch's answers first, then the file, written straight from torch's own
storage, then the module is freed, and only then ONNX Runtime opens the file.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from opsmith import machine, session, store
from opsmith.check.differences import TOLERANCES
from opsmith.errors import NotTheSame, OpsmithError
from opsmith.exporter.graph import Graph, Sizes
from opsmith.exporter.tidy import identifier, tidy
from opsmith.rewriter import passes

if TYPE_CHECKING:
    import torch

EXPORTERS = ("dynamo", "torchscript")
RTOL, ATOL = TOLERANCES["float32"]
Arrays = dict[str, np.ndarray[Any, Any]]


def write(
    load: Callable[[], Graph],
    draft: store.Draft,
    *,
    exporter: str,
    opset: int | None = None,
    seed: int,
    verbose: bool,
    step: Callable[..., None],
    change: Callable[[ir.Model], None] | None = None,
) -> None:
    """Export into the draft with test data, and store what was proved in its record. OPSET None: the exporter's own.

    CHANGE is applied to the graph before it is written; what it makes of it is proved equal to PyTorch, too.
    """
    import torch

    clock = _Clock()
    step("loading", advance=0)
    with quiet(verbose):
        graph = load()
        clock("load")
        step("running PyTorch", advance=0)
        cases = [(sizes, *_run_pytorch(graph, sizes, seed + i)) for i, sizes in enumerate(graph.cases)]
        clock("pytorch")
        # Beside the model, so that gigabytes move within one file system.
        with tempfile.TemporaryDirectory(prefix="exporter.", dir=draft.folder) as scratch:
            step("exporting", advance=0)
            model = _run_exporter(exporter, graph, opset, seed, Path(scratch))
            tidy(model, graph, cases[0][1] | cases[0][2])
            if change is not None:
                change(model)
            clock("export")
            step("writing", advance=0)
            store.save_model(model, draft.path)
            _free_weights(graph, model)
        store.write_test_data(draft.folder, cases[0][1], cases[0][2])
        clock("write")
    outputs = list(graph.outputs)
    del graph, model
    machine.release_memory()
    step("verifying", advance=0)
    results = _verify(draft.path, cases, outputs)
    clock("verify")
    draft.record["versions"]["torch"] = torch.__version__
    draft.record["timings"] = clock.seconds
    draft.record["verified"] = {"against": "PyTorch", "rtol": RTOL, "atol": ATOL} | results


class _Clock:
    """Seconds since the last call, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def __call__(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = round(now - self._last, 2)
        self._last = now


def _run_pytorch(graph: Graph, sizes: Sizes, seed: int) -> tuple[Arrays, Arrays]:
    import torch

    inputs = graph.example(sizes, torch.Generator().manual_seed(seed))
    before = [t.clone() for t in inputs]
    with torch.no_grad():
        outputs = graph.reference(inputs)
    arrays = {name: t.numpy() for name, t in zip(graph.inputs, before)}
    return arrays, {name: t.contiguous().numpy() for name, t in zip(graph.outputs, outputs)}


# --- the two exporters -----------------------------------------------------------------------------------


def _module(graph: Graph) -> torch.nn.Module:
    import torch

    class Traced(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
        def __init__(self) -> None:
            super().__init__()
            self.model = graph.model

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(graph.forward(self.model, *inputs))

    return Traced().eval()


def _run_exporter(exporter: str, graph: Graph, opset: int | None, seed: int, scratch: Path) -> ir.Model:
    import torch

    inputs = tuple(graph.example(graph.trace_at, torch.Generator().manual_seed(seed)))
    try:
        with torch.no_grad():
            model = _EXPORT[exporter](graph, inputs, opset, scratch)
    except (OpsmithError, MemoryError, OSError):
        raise
    except Exception as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise OpsmithError(
            f"the {exporter} exporter failed: {type(error).__name__}: {first[:300]}",
            "try the other --exporter; --verbose shows its log",
        ) from error
    made = model.opset_imports.get("")
    if opset is not None and made != opset:  # the dynamo exporter keeps its own where it cannot convert
        raise OpsmithError(
            f"the {exporter} exporter gave opset {made}, not {opset}", "leave out --opset, or try the other --exporter"
        )
    return model


def _dynamo(graph: Graph, inputs: tuple[torch.Tensor, ...], opset: int | None, scratch: Path) -> ir.Model:
    import torch

    program = torch.onnx.export(
        _module(graph),
        inputs,
        dynamo=True,
        input_names=list(graph.inputs),
        output_names=list(graph.outputs),
        dynamic_shapes={"inputs": tuple({a: identifier(n) for a, n in d.items()} for d in graph.inputs.values())},
        opset_version=opset,
        verbose=False,
    )
    assert program is not None
    model: ir.Model = program.model  # its weights are views of torch's storage
    return model


def _torchscript(graph: Graph, inputs: tuple[torch.Tensor, ...], opset: int | None, scratch: Path) -> ir.Model:
    import torch

    torch.onnx.export(
        _module(graph),
        inputs,
        str(scratch / "model.onnx"),  # weights beyond protobuf's 2 GB become files beside it
        dynamo=False,
        input_names=list(graph.inputs),
        output_names=list(graph.outputs),
        dynamic_axes={name: {a: identifier(n) for a, n in d.items()} for name, d in graph.inputs.items() if d},
        opset_version=opset or 18,
        verbose=False,
    )
    return ir.load(scratch / "model.onnx")


_EXPORT: dict[str, Callable[[Graph, tuple[torch.Tensor, ...], int | None, Path], ir.Model]] = {
    "dynamo": _dynamo,
    "torchscript": _torchscript,
}


# --- verification ----------------------------------------------------------------------------------------


def _verify(path: Path, cases: Sequence[tuple[Sizes, Arrays, Arrays]], outputs: Sequence[str]) -> dict[str, Any]:
    """Run every case on ONNX Runtime; raise where an element is off by more than atol + rtol * |expected|."""
    runner = session.load(path)
    names = [o.name for o in runner.get_outputs()]
    if names != list(outputs):
        raise OpsmithError(f"the exporter gave the outputs {names}, not {list(outputs)}")
    reports, worst = [], 0.0
    for sizes, inputs, expected in cases:
        results = dict(zip(names, session.run(runner, inputs)))
        report = {name: _compare(name, results[name], expected[name], sizes) for name in names}
        worst = max(worst, *report.values())
        reports.append({"sizes": dict(sizes), "max_abs_error": max(report.values())})
    return {"max_abs_error": worst, "cases": reports}


def _compare(name: str, got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], sizes: Sizes) -> float:
    """The largest absolute error of one output."""
    where = f"{name} at {', '.join(f'{k}={v}' for k, v in sizes.items())}"
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise NotTheSame(f"{where}: ONNX gives {got.dtype}{got.shape}, PyTorch {expected.dtype}{expected.shape}")
    if not np.isfinite(expected).all():
        raise NotTheSame(f"{where}: PyTorch gives NaN or infinity")
    error = np.abs(got - expected)
    over = error - (ATOL + RTOL * np.abs(expected))
    if not (over <= 0).all():  # NaN fails too
        worst = np.unravel_index(int(np.nanargmax(over)), over.shape) if not np.isnan(over).all() else ()
        place = [int(i) for i in worst]
        raise NotTheSame(
            f"{where}: ONNX differs from PyTorch beyond rtol {RTOL} atol {ATOL}: "
            f"{got[worst]:.6g} against {expected[worst]:.6g} at {place}"
        )
    return float(error.max(initial=0.0))


# --- housekeeping ----------------------------------------------------------------------------------------


def _free_weights(graph: Graph, model: ir.Model) -> None:
    """The dynamo exporter's rewrite rules keep references to the last graph they saw, and so to its weights."""
    import torch

    for weight in model.graph.initializers.values():
        weight.const_value = None
    for tensor in (*graph.model.parameters(), *graph.model.buffers()):
        tensor.data = torch.empty(0, dtype=tensor.dtype)


@contextlib.contextmanager
def quiet(verbose: bool) -> Iterator[None]:
    """Silence what torch and its friends say on the way, unless it was asked for."""
    if verbose:
        yield
        return
    libraries = ("torch", "torch.onnx", "torch.export", "transformers", "diffusers")
    with warnings.catch_warnings(), _no_bars(), passes.quiet(*libraries):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """transformers and diffusers draw progress bars of their own."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    switches = [m for m in (transformers_logging, diffusers_logging) if m.is_progress_bar_enabled()]
    for switch in switches:
        switch.disable_progress_bar()
    try:
        yield
    finally:
        for switch in switches:
            switch.enable_progress_bar()
