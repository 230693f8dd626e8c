"""LSTM, GRU, RNN: X (T, B, I) -> Y (T, D, B, H), Y_h (D, B, H), for LSTM Y_c (D, B, H).

layout 1 has X (B, T, I), Y (B, T, D, H) and states (B, D, H). Directions D: forward, reverse, or both.
"""

from __future__ import annotations

from dataclasses import dataclass

from opsmith.analysis.registry import Node, infers
from opsmith.analysis.values import FLOATS, Abstract, DataType, Unsupported, abstract
from opsmith.sizes import Size

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_INITIAL_C, _PEEPHOLES = 6, 7

# Activation -> its alpha and beta where none are given; None: it takes none.
CURVES: dict[str, tuple[float | None, float | None]] = {
    "affine": (1.0, 0.0),
    "relu": (None, None),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None),
    "tanh": (None, None),
    "scaledtanh": (1.0, 1.0),
    "sigmoid": (None, None),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
    "softsign": (None, None),
    "softplus": (None, None),
}
_STANDARD = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


@dataclass(frozen=True)
class Activation:
    curve: str  # of CURVES
    alpha: float
    beta: float


@dataclass(frozen=True)
class Layer:
    """A recurrent node, its attributes resolved."""

    steps: Size
    batch: Size
    inputs: int
    hidden: int
    directions: int
    gates: int
    batch_first: bool
    reverse: bool  # the only direction runs from the end
    activations: tuple[tuple[Activation, ...], ...]  # per direction
    standard: bool  # all of them are ONNX's defaults


def layer_of(node: Node) -> Layer:
    x, w, r = (node.input(i) for i in range(3))
    if x.rank != 3 or w.rank != 3 or r.rank != 3:
        raise Unsupported(f"{node.op} of rank {x.rank} with weights of rank {w.rank}")
    hidden, inputs = r.dims[2].value, w.dims[2].value
    direction = str(node.attribute("direction", "forward")).lower()
    if hidden is None or inputs is None:
        raise Unsupported("its hidden size is dynamic")
    if hidden < 1 or direction not in ("forward", "reverse", "bidirectional"):
        raise Unsupported(f"{node.op} with {hidden} units, direction {direction}")
    batch_first = node.flag("layout")
    steps, batch = (x.dims[1], x.dims[0]) if batch_first else (x.dims[0], x.dims[1])
    directions = 2 if direction == "bidirectional" else 1
    activations = _activations(node, directions)
    standard = all(tuple(a.curve for a in each) == _STANDARD[node.op] for each in activations)
    reverse = direction == "reverse"
    return Layer(steps, batch, inputs, hidden, directions, GATES[node.op], batch_first, reverse, activations, standard)


def _activations(node: Node, directions: int) -> tuple[tuple[Activation, ...], ...]:
    """Alphas and betas are handed out, in order, to the activations that take one; the others keep their defaults."""
    standard = _STANDARD[node.op]
    names = [str(a).lower() for a in node.attribute("activations") or standard * directions]
    alphas, betas = (iter(node.attribute(a) or []) for a in ("activation_alpha", "activation_beta"))
    if len(names) != len(standard) * directions or any(n not in CURVES for n in names):
        raise Unsupported(f"activations {', '.join(names)}")
    curves = []
    for name in names:
        alpha, beta = (0.0 if d is None else float(next(given, d)) for d, given in zip(CURVES[name], (alphas, betas)))
        curves.append(Activation(name, alpha, beta))
    count = len(standard)
    return tuple(tuple(curves[d * count : (d + 1) * count]) for d in range(directions))


@infers("LSTM", "GRU", "RNN")
def _recurrent(node: Node) -> list[Abstract]:
    layer = layer_of(node)
    x = node.input(0)
    d, h, rows = layer.directions, layer.hidden, layer.gates * layer.hidden
    state: list[Size | int] = [layer.batch, d, h] if layer.batch_first else [d, layer.batch, h]
    for i, value in enumerate(node.inputs):
        if value is not None and value.dtype != (DataType.INT32 if i == 4 else x.dtype):
            raise Unsupported(f"input {i} of {node.op} is {value.dtype.name}")
    if x.dtype not in FLOATS:
        raise Unsupported(f"{node.op} on {x.dtype.name} stays with ONNX Runtime")
    node.expect(x.dims[2], "==", layer.inputs, "the input does not fit the weights")
    wanted: list[tuple[int, list[Size | int]]] = [
        (1, [d, rows, layer.inputs]),
        (2, [d, rows, h]),
        (3, [d, 2 * rows]),
        (4, [layer.batch]),
        (5, state),
        (_INITIAL_C, state),
        (_PEEPHOLES, [d, 3 * h]),
    ]
    for i, dims in wanted:
        if node.has(i):
            node.expect_all(node.input(i).dims, "==", dims, f"input {i} does not fit hidden size and batch")
    if int(node.attribute("hidden_size", h)) != h:
        raise Unsupported("hidden_size differs from the weights'")
    y: list[Size | int] = [layer.batch, layer.steps, d, h] if layer.batch_first else [layer.steps, d, layer.batch, h]
    return [abstract(x.dtype, dims) for dims in (y, state, state)[: len(node.ir.outputs)]]
