"""How much each layer suffers from quantization, and which layers to spare.

The weights of all layers become inputs of one session, so a trial costs one run and no loading: feed one layer its
dequantized weight and all others their own, and see how far the outputs move. Sparing follows from that order: the
worst layers get finer integers first (4 -> 8 bits), then keep their floats, until the whole model is good enough.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnx_ir.passes import common

from opsmith import progress, session
from opsmith.compress import quality
from opsmith.compress.blocks import Blocks, dequantize_blocks, quantize_blocks
from opsmith.compress.layers import Layer, find_layers, find_tables, stored
from opsmith.compress.quality import Feed, Quality
from opsmith.compress.quantize_options import QuantizeOptions
from opsmith.errors import OpsmithError

Array = np.ndarray[Any, Any]
KEPT = 32  # stands for "not quantized" among the bits


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """One row of the table: the layer alone quantized, and what it got in the end."""

    layer: str
    k: int
    n: int
    error: float
    bits: int


class Bench:
    """A session whose layer weights are inputs. Layers are known by their place in find_layers."""

    def __init__(self, model: ir.Model, feeds: Sequence[Feed], *, tables: bool, threads: int | None) -> None:
        self.layers = find_layers(model, casts=True)
        self.names = quality.judged_outputs(model)
        self.logits = self.names == ["logits"]
        self.feeds = feeds
        open_model = model.clone()
        for i, layer in enumerate(find_layers(open_model, casts=True)):
            _make_input(open_model, layer, f"opsmith.layer.{i}")
        if tables:  # tables are stored in half precision whatever happens to the layers
            for i, (node, table) in enumerate(find_tables(open_model)):
                rounded = stored(table).numpy().astype(np.float16).astype(np.float32)
                value = ir.Value(name=f"opsmith.table.{i}", const_value=ir.tensor(rounded, name=f"opsmith.table.{i}"))
                open_model.graph.register_initializer(value)
                node.replace_input_with(0, value)
        common.RemoveUnusedNodesPass()(open_model)
        self.session = session.load(open_model, threads=threads, optimize=True)
        self.own = [_value(layer.matrix()) for layer in self.layers]
        self.reference: list[list[Array]] = []

    def run(self, changed: Mapping[int, ort.OrtValue]) -> list[list[Array]]:
        weights = {f"opsmith.layer.{i}": changed.get(i, own) for i, own in enumerate(self.own)}
        answers = []
        for feed in self.feeds:
            values = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(a)) for name, a in feed.items()}
            try:
                results = self.session.run_with_ort_values(self.names, {**values, **weights})
            except Exception as error:
                raise OpsmithError(f"ONNX Runtime failed to run the model: {session.one_line(error)}") from error
            answers.append([r.numpy() for r in results])
        return answers

    def judge(self, changed: Mapping[int, ort.OrtValue], *, full: bool) -> Quality:
        """KL and top-1 agreement cost more than the run itself for a large vocabulary: only where they are asked for."""
        return quality.compare(self.reference, self.run(changed), logits=full and self.logits)


def choose_bits(
    model: ir.Model,
    feeds: Sequence[Feed],
    reference: list[list[Array]],
    options: QuantizeOptions,
    chosen: Callable[[Layer], bool],
    threads: int | None = None,
) -> list[Sensitivity]:
    """Bits for every chosen layer, so that the whole model reaches the goal with as few spared layers as the order allows."""
    bits, goal = options.bits, options.goal
    assert goal is not None
    bench = Bench(model, feeds, tables=options.halves_tables, threads=threads)
    bench.reference = reference
    picked = [i for i, layer in enumerate(bench.layers) if chosen(layer)]
    alone: dict[int, float] = {}
    packed: dict[tuple[int, int], Blocks] = {}

    def rounded(i: int, to: int) -> ort.OrtValue:
        if (i, to) not in packed:
            packed[i, to] = quantize_blocks(bench.layers[i].matrix(), to, options.block, options.symmetric)
        return _value(dequantize_blocks(packed[i, to]))

    with progress.task("sensitivity", total=len(picked)) as step:
        for i in picked:
            alone[i] = bench.judge({i: rounded(i, bits)}, full=False).error
            step(bench.layers[i].name)
    worst_first = sorted(picked, key=lambda i: -alone[i])
    rungs = [8, KEPT] if bits == 4 else [KEPT]
    moves = [(i, rung) for rung in rungs for i in worst_first]

    def after(count: int) -> dict[int, int]:
        return dict.fromkeys(picked, bits) | dict(moves[:count])

    def good(count: int) -> bool:
        changed = {i: rounded(i, b) for i, b in after(count).items() if b != KEPT}
        return goal.reached(bench.judge(changed, full=goal.min_quality is not None))

    low, high = 0, len(moves)
    if not good(high):
        raise OpsmithError(f"{goal} cannot be reached, not even with every layer left as it is", "ask for less")
    with progress.task("sparing layers"):
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if good(middle) else (middle + 1, high)
    final = after(low)
    return [
        Sensitivity(bench.layers[i].name, *bench.layers[i].shape, error=alone[i], bits=final[i]) for i in worst_first
    ]


def _make_input(model: ir.Model, layer: Layer, name: str) -> None:
    value = ir.Value(
        name=name, type=ir.TensorType(layer.dtype or stored(layer.weight).dtype), shape=ir.Shape(layer.shape)
    )
    model.graph.inputs.append(value)
    layer.node.replace_input_with(1, value)
    if layer.node.op_type == "Gemm" and layer.transposed:
        layer.node.attributes["transB"] = ir.AttrInt64("transB", 0)


def _value(array: Array) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
