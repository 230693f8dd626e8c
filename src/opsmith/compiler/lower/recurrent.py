"""LSTM, GRU, RNN: the inputs' part of all steps is one product, then one kernel walks the steps.

x (T, B, I) @ W^T (I, D * G * H) -> projected (T, B, D, G, H); h (B, H) @ R^T (H, G * H) and the gates, step by step
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from opsmith.analysis.recurrent import Activation, Layer, layer_of
from opsmith.analysis.registry import Node
from opsmith.analysis.values import Constant, DataType
from opsmith.compiler import pack
from opsmith.compiler.kernel import SPACE, Kernel, Space, Struct, read, size, sizes, struct, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.lower.matmul import multiply, product_of
from opsmith.compiler.lower.products import even_rows
from opsmith.compiler.lower.registry import lowers
from opsmith.compiler.program import Argument, Buffer, Enumerator, StructValue, View, even, permuted
from opsmith.sizes import ONE, Size, as_size, contiguous

RECURRENT_SHAPE = Struct(
    "RecurrentShape",
    "recurrent.hpp",
    (
        "steps",
        "batch",
        "hidden",
        "directions",
        "reverse",
        "x_step",
        "x_batch",
        "y_step",
        "y_direction",
        "y_batch",
        "state_direction",
        "state_batch",
        "clip",
        "input_forget",
        "activations",
    ),
    singles=("clip",),
)
_FLOAT = DataType.FLOAT
RECURRENT = Kernel(
    "recurrent",
    "recurrent.hpp",
    [
        struct("shape", RECURRENT_SHAPE),
        read("projected"),
        read("packed"),
        *(read(n, dtype=t) for n, t in (("bias", _FLOAT), ("lengths", DataType.INT32))),
        *(read(n, dtype=_FLOAT) for n in ("h0", "c0", "peepholes")),
        *(write(n, dtype=_FLOAT) for n in ("y", "y_h", "y_c")),
        SPACE,
    ],
    "a recurrent layer, step by step",
    Space("recurrent_workspace", ("shape",)),
)
PACK_RECURRENT = Kernel(
    "pack_recurrent",
    "recurrent.hpp",
    [*sizes("directions", "gates", "hidden"), read("r"), write("packed")],
    "recurrent weights in the order of use",
)
LENGTHS_FIT = Kernel(
    "lengths_fit",
    "recurrent.hpp",
    [size("batch"), size("steps"), read("lengths")],
    pool=False,
    inline=True,
    check="a sequence is longer than the input",
)

_CURVES = {
    "leakyrelu": "leaky_relu",
    "thresholdedrelu": "thresholded_relu",
    "scaledtanh": "scaled_tanh",
    "hardsigmoid": "hard_sigmoid",
}


@lowers("LSTM", "GRU", "RNN")
def _recurrent(node: Node, builder: Builder) -> None:
    layer = layer_of(node)
    x, by_batch = _even_sequences(builder.as_float(builder.tensor(node.ir.inputs[0])), layer, builder)
    projected = _project(node, layer, x, builder)
    optional = dict(enumerate(node.ir.inputs))

    def operand(index: int) -> View | None:
        value = optional.get(index)
        return None if value is None else builder.dense(builder.as_float(builder.tensor(value)))

    lengths = None
    if node.has(4):
        lengths = builder.rows(node.ir.inputs[4])
        builder.call(LENGTHS_FIT, batch=layer.batch, steps=layer.steps, lengths=lengths)
    results = [_Result(v, builder, layer, i == 0) for i, v in enumerate(node.ir.outputs)]
    y, y_h, y_c = (results[i].view if i < len(results) else None for i in range(3))
    builder.call(
        RECURRENT,
        templates=(Enumerator(f"Cell::{_cell(node)}"), layer.standard),
        shape=StructValue(RECURRENT_SHAPE, _shape(node, layer, by_batch, y)),
        projected=projected,
        packed=_pack(node, layer, builder),
        bias=operand(3),
        lengths=lengths,
        h0=operand(5),
        c0=operand(6),
        peepholes=operand(7),
        y=y,
        y_h=y_h,
        y_c=y_c,
        label=node.op.lower(),
        comment=f"{layer.steps} steps of {layer.batch} x {layer.hidden} units, {layer.directions} directions",
        flops=layer.steps * layer.batch * (2 * layer.directions * layer.gates * layer.hidden * layer.hidden),
    )
    for result in results:
        result.finish()


def _even_sequences(x: View, layer: Layer, builder: Builder) -> tuple[View, bool]:
    """x as rows that one stride walks over, and whether the steps of a sequence follow each other: the order in which they lie
    already is taken, as a Transpose to (T, B, I) is often all that came before."""
    swapped = permuted(x, (1, 0, 2))
    if not even(x.strides[:2], x.dims[:2]) and even(swapped.strides[:2], swapped.dims[:2]):
        return even_rows(swapped, builder), not layer.batch_first
    return even_rows(x, builder), layer.batch_first


def _project(node: Node, layer: Layer, x: View, builder: Builder) -> View:
    """(T, B, I) @ (I, D * G * H), or with T and B swapped."""
    columns = layer.directions * layer.gates * layer.hidden
    target = builder.allocate([*x.dims[:2], as_size(columns)], _FLOAT, hint=f"{node.op.lower()}_inputs")
    weights = node.input(1).constant
    if weights is not None:
        inputs = layer.inputs
        flat = weights.map("columns", (inputs, columns), lambda w: w.reshape(columns, inputs).T)
        multiply(builder, x, flat, target)
        return target
    w = builder.dense(builder.as_float(builder.tensor(node.ir.inputs[1])))
    rows, k, n = x.dims[0] * x.dims[1], as_size(layer.inputs), as_size(columns)
    left = x.with_((ONE, rows, k), (ONE, x.strides[1], ONE))
    right = w.with_((ONE, k, n), (ONE, ONE, k))
    product_of(builder, left, right, target, rows, n, k, ONE)
    return target


def _pack(node: Node, layer: Layer, builder: Builder) -> View | Buffer:
    """R (D, G * H, H) as recurrent.hpp reads it: when compiling if it is known, else at run time."""
    d, g, h = layer.directions, layer.gates, layer.hidden
    isa = builder.target.isa
    size = d * g * h * isa.padded(h)
    weights = node.input(2).constant
    if weights is not None:
        stored: Constant = weights.stored or weights
        read = lambda: pack.pack_recurrent(np.asarray(stored.read()).reshape(d, g, h, h), isa)  # noqa: E731
        return builder.packed(f"recurrent({stored.key})", stored.dtype, size, read)
    r = builder.dense(builder.as_float(builder.tensor(node.ir.inputs[2])))
    packed = builder.allocate([as_size(size)], _FLOAT, hint="recurrent_weights")
    builder.call(PACK_RECURRENT, directions=d, gates=g, hidden=h, r=r, packed=packed)
    return packed


class _Result:
    """An output in fp32, which the kernel writes; None if nobody wants it."""

    def __init__(self, value: ir.Value, builder: Builder, layer: Layer, sequence: bool) -> None:
        self._builder, self._final = builder, None
        self.view: View | None = None
        if not value.uses() and not builder.is_output(value):
            return
        # Both directions side by side, as the usual Transpose and Reshape behind a layer want them.
        order = (0, 2, 1, 3) if sequence and layer.directions == 2 and not layer.batch_first else None
        self.view = builder.result(value, None if builder.is_output(value) else order)
        if self.view.dtype != _FLOAT:
            self._final = self.view
            self.view = builder.allocate(self._final.dims, _FLOAT, hint=f"{self._final.buffer.name}_f32")

    def finish(self) -> None:
        if self._final is not None and self.view is not None:
            self._builder.copy_into(self.view, self._final)


def _cell(node: Node) -> str:
    return "gru_linear" if node.op == "GRU" and node.flag("linear_before_reset") else node.op.lower()


def _shape(node: Node, layer: Layer, by_batch: bool, y: View | None) -> dict[str, Argument]:
    d, h = as_size(layer.directions), as_size(layer.hidden)
    if y is not None:
        strides = y.strides
    else:
        strides = contiguous(node.outputs[0].dims)
    y_batch, y_step, y_direction = strides[:3] if layer.batch_first else (strides[2], strides[0], strides[1])
    state: tuple[Size, Size] = (h, d * h) if layer.batch_first else (layer.batch * h, h)
    curves: list[list[Argument]] = [_curve(a) for each in layer.activations for a in _three(each)]
    return {
        "steps": layer.steps,
        "batch": layer.batch,
        "hidden": h,
        "directions": d,
        "reverse": layer.reverse,
        "x_step": ONE if by_batch else layer.batch,
        "x_batch": layer.steps if by_batch else ONE,
        "y_step": y_step,
        "y_direction": y_direction,
        "y_batch": y_batch,
        "state_direction": state[0],
        "state_batch": state[1],
        "clip": float(node.attribute("clip", 0.0)) or math.inf,
        "input_forget": node.flag("input_forget"),
        "activations": curves,
    }


def _three(activations: tuple[Activation, ...]) -> tuple[Activation, ...]:
    """f, g, h of a direction; those that a cell does not have repeat the last."""
    return (*activations, *activations[-1:] * (3 - len(activations)))


def _curve(a: Activation) -> list[Argument]:
    return [
        Enumerator(f"Curve::{_CURVES.get(a.curve, a.curve)}"),
        float(np.float32(a.alpha)),
        float(np.float32(a.beta)),
    ]
