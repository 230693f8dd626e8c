"""Random well-typed graphs of supported operators, for hypothesis.

A graph grows node by node from a few inputs, some with dynamic dims. Every value carries its shape (numbers, or names of dynamic dims), a
bound on its magnitude, and whether its numbers are exact: an operator with jumps (Floor, Less, ArgMax, ...) is only applied to
exact numbers, since elsewhere the last bit of a sum may rightly differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Size = int | str
Draw = Callable[[st.SearchStrategy], object]
LIMIT = 60.0  # largest magnitude that a value may reach
DYNAMIC = ("n", "m")


@dataclasses.dataclass(frozen=True)
class Value:
    name: str
    dtype: int
    shape: tuple[Size, ...]
    bound: float
    exact: bool

    @property
    def rank(self) -> int:
        return len(self.shape)

    def static_axes(self) -> list[int]:
        return [i for i, d in enumerate(self.shape) if isinstance(d, int)]


@dataclasses.dataclass
class Graph:
    model: bytes
    inputs: list[Value]

    def feed(self, seed: int, sizes: dict[str, int]) -> dict[str, np.ndarray]:
        """Multiples of 1/4 between -4 and 4: exact in every sum that the generator calls exact."""
        random = np.random.default_rng(seed)
        arrays = {}
        for v in self.inputs:
            shape = [d if isinstance(d, int) else sizes[d] for d in v.shape]
            whole = np.asarray(random.integers(-16, 17, shape))
            if v.dtype == FLOAT:
                arrays[v.name] = np.asarray(whole / 4, np.float32)
            elif v.dtype == INT:
                arrays[v.name] = np.asarray(whole, np.int64)
            else:
                arrays[v.name] = np.asarray(whole > 0)
        return arrays


class Builder:
    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.values: list[Value] = []

    # --- drawing ---

    def choose(self, options: list) -> object:
        return self.draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))

    def pick(self, test: Callable[[Value], bool]) -> Value | None:
        found = [v for v in self.values if test(v)]
        return self.choose(found) if found else None

    # --- adding ---

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, inputs: list[str], results: list[Value], **attributes: object) -> None:
        self.nodes.append(
            helper.make_node(op, inputs, [r.name for r in results], f"node{len(self.nodes)}", **attributes)
        )
        self.values += results

    def fresh(self, dtype: int, shape: tuple[Size, ...], bound: float, exact: bool, k: int = 0) -> Value:
        return Value(f"t{len(self.nodes)}_{k}", dtype, shape, bound, exact)

    def floats(self, shape: tuple[int, ...]) -> np.ndarray:
        seed = self.number(0, 10**6)
        return (np.random.default_rng(seed).integers(-8, 9, shape) / 8).astype(np.float32)


Step = Callable[[Builder], bool]
STEPS: list[Step] = []


def step(f: Step) -> Step:
    STEPS.append(f)
    return f


def is_float(v: Value) -> bool:
    return v.dtype == FLOAT


# --- elementwise ---


@step
def smooth(b: Builder) -> bool:
    x = b.pick(is_float)
    op = b.choose(["Tanh", "Sigmoid", "Erf", "Softplus", "Sin", "Cos", "Softsign", "HardSwish", "Elu", "Gelu", "Mish"])
    if x is None:
        return False
    b.add(op, [x.name], [b.fresh(FLOAT, x.shape, max(1.0, x.bound), False)])
    return True


@step
def simple(b: Builder) -> bool:
    x = b.pick(is_float)
    op = b.choose(["Neg", "Abs", "Relu", "LeakyRelu", "Identity"])
    if x is None:
        return False
    b.add(op, [x.name], [b.fresh(FLOAT, x.shape, x.bound, x.exact and op != "LeakyRelu")])
    return True


@step
def jumps(b: Builder) -> bool:
    x = b.pick(lambda v: is_float(v) and v.exact)
    op = b.choose(["Floor", "Ceil", "Round", "Sign"])
    if x is None:
        return False
    b.add(op, [x.name], [b.fresh(FLOAT, x.shape, x.bound + 1, True)])
    return True


def broadcast(a: tuple[Size, ...], b: tuple[Size, ...]) -> tuple[Size, ...] | None:
    rank = max(len(a), len(b))
    x, y = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    result: list[Size] = []
    for i, j in zip(x, y):
        if i != j and i != 1 and j != 1:
            return None
        result.append(j if i == 1 else i)
    return tuple(result)


@step
def binary(b: Builder) -> bool:
    x = b.pick(lambda v: v.dtype in (FLOAT, INT))
    if x is None:
        return False
    op = str(b.choose(["Add", "Sub", "Mul", "Max", "Min"]))
    if b.flag():
        y = b.pick(lambda v: v.dtype == x.dtype and broadcast(x.shape, v.shape) is not None)
        assert y is not None
        names, shape, bound, exact = [x.name, y.name], broadcast(x.shape, y.shape), y.bound, y.exact
    else:  # a constant of some shape that broadcasts
        keep = b.number(0, x.rank)
        sizes = tuple(d if isinstance(d, int) and b.flag() else 1 for d in x.shape[keep:])
        array = b.floats(sizes)
        array = (array * 8).astype(np.int64) if x.dtype == INT else array
        names, shape, bound, exact = [x.name, b.constant(array)], x.shape, 8.0 if x.dtype == INT else 1.0, True
        if b.flag():
            names.reverse()
    assert shape is not None
    total = x.bound * bound if op == "Mul" else x.bound + bound if op in ("Add", "Sub") else max(x.bound, bound)
    if total > LIMIT:
        return False
    b.add(op, names, [b.fresh(x.dtype, shape, total, x.exact and exact)])
    return True


@step
def compare(b: Builder) -> bool:
    x = b.pick(lambda v: v.dtype in (FLOAT, INT) and v.exact)
    if x is None:
        return False
    y = b.pick(lambda v: v.dtype == x.dtype and v.exact and broadcast(x.shape, v.shape) is not None)
    assert y is not None
    shape = broadcast(x.shape, y.shape)
    assert shape is not None
    op = b.choose(["Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"])
    b.add(op, [x.name, y.name], [b.fresh(BOOL, shape, 1, True)])
    return True


@step
def logic(b: Builder) -> bool:
    x = b.pick(lambda v: v.dtype == BOOL)
    if x is None:
        return False
    y = b.pick(lambda v: v.dtype == BOOL and broadcast(x.shape, v.shape) is not None)
    assert y is not None
    shape = broadcast(x.shape, y.shape)
    assert shape is not None
    b.add(b.choose(["And", "Or", "Xor"]), [x.name, y.name], [b.fresh(BOOL, shape, 1, True)])
    return True


@step
def where(b: Builder) -> bool:
    c = b.pick(lambda v: v.dtype == BOOL)
    if c is None:
        return False
    x = b.pick(lambda v: v.dtype != BOOL and broadcast(c.shape, v.shape) is not None)
    if x is None:
        return False
    shape = broadcast(c.shape, x.shape)
    y = b.pick(lambda v: v.dtype == x.dtype and broadcast(shape, v.shape) is not None)
    if y is None:
        return False
    result = broadcast(shape, y.shape)
    assert result is not None
    b.add("Where", [c.name, x.name, y.name], [b.fresh(x.dtype, result, max(x.bound, y.bound), x.exact and y.exact)])
    return True


@step
def cast(b: Builder) -> bool:
    x = b.pick(lambda v: v.exact)
    if x is None:
        return False
    to = b.choose([FLOAT, INT, BOOL])
    b.add("Cast", [x.name], [b.fresh(to, x.shape, max(1.0, x.bound), True)], to=to)
    return True


# --- views ---


@step
def transpose(b: Builder) -> bool:
    x = b.pick(lambda v: v.rank >= 2)
    if x is None:
        return False
    perm = list(b.draw(st.permutations(range(x.rank))))
    b.add("Transpose", [x.name], [b.fresh(x.dtype, tuple(x.shape[p] for p in perm), x.bound, x.exact)], perm=perm)
    return True


@step
def unsqueeze(b: Builder) -> bool:
    x = b.pick(lambda v: v.rank <= 3)
    if x is None:
        return False
    axis = b.number(-x.rank - 1, x.rank)
    at = axis % (x.rank + 1)
    shape = (*x.shape[:at], 1, *x.shape[at:])
    b.add("Unsqueeze", [x.name, b.constant(np.array([axis]))], [b.fresh(x.dtype, shape, x.bound, x.exact)])
    return True


@step
def squeeze(b: Builder) -> bool:
    x = b.pick(lambda v: 1 in v.shape)
    if x is None:
        return False
    at = int(b.choose([i for i, d in enumerate(x.shape) if d == 1]))
    axis = at - x.rank if b.flag() else at
    shape = (*x.shape[:at], *x.shape[at + 1 :])
    b.add("Squeeze", [x.name, b.constant(np.array([axis]))], [b.fresh(x.dtype, shape, x.bound, x.exact)])
    return True


@step
def merge(b: Builder) -> bool:
    """Two neighbouring dims become one, written with 0s and a -1."""
    x = b.pick(lambda v: any(isinstance(i, int) and isinstance(j, int) for i, j in zip(v.shape, v.shape[1:])))
    if x is None:
        return False
    at = int(
        b.choose([i for i in range(x.rank - 1) if isinstance(x.shape[i], int) and isinstance(x.shape[i + 1], int)])
    )
    shape = (*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :])  # type: ignore[operator]
    names = [d for d in shape if isinstance(d, str)]
    if len(names) > 1 or (names and 0 in shape):
        return False
    target = [-1 if isinstance(d, str) else d for d in shape]
    if not names and b.flag() and 0 not in shape and target:
        target[b.number(0, len(target) - 1)] = -1
    b.add("Reshape", [x.name, b.constant(np.array(target, np.int64))], [b.fresh(x.dtype, shape, x.bound, x.exact)])
    return True


@step
def split_dim(b: Builder) -> bool:
    x = b.pick(lambda v: v.rank <= 3 and any(isinstance(d, int) and d in (4, 6, 8, 9, 12) for d in v.shape))
    if x is None:
        return False
    at = int(b.choose([i for i, d in enumerate(x.shape) if d in (4, 6, 8, 9, 12)]))
    size = int(x.shape[at])
    first = 3 if size % 3 == 0 and b.flag() else 2 if size % 2 == 0 else 3
    shape = (*x.shape[:at], first, size // first, *x.shape[at + 1 :])
    names = [d for d in shape if isinstance(d, str)]
    if len(names) > 1:
        return False
    target = [-1 if isinstance(d, str) else d for d in shape]
    b.add("Reshape", [x.name, b.constant(np.array(target, np.int64))], [b.fresh(x.dtype, shape, x.bound, x.exact)])
    return True


@step
def reshape_by_shape(b: Builder) -> bool:
    """Flatten everything behind the first dim, with a shape computed from Shape, as exporters write it."""
    x = b.pick(lambda v: v.rank >= 2 and all(isinstance(d, int) for d in v.shape[1:]))
    if x is None:
        return False
    k = len(b.nodes)
    first, shape = f"first{k}", f"shape{k}"
    rest = int(np.prod(x.shape[1:]))
    b.nodes.append(helper.make_node("Shape", [x.name], [f"dims{k}"], f"node{k}s"))
    zero, one = b.constant(np.array([0])), b.constant(np.array([1]))
    b.nodes.append(helper.make_node("Slice", [f"dims{k}", zero, one], [first], f"node{k}t"))
    b.nodes.append(helper.make_node("Concat", [first, b.constant(np.array([rest]))], [shape], f"node{k}c", axis=0))
    b.add("Reshape", [x.name, shape], [b.fresh(x.dtype, (x.shape[0], rest), x.bound, x.exact)])
    return True


@step
def cut(b: Builder) -> bool:
    x = b.pick(lambda v: bool(v.static_axes()))
    if x is None:
        return False
    at = int(b.choose(x.static_axes()))
    size = int(x.shape[at])
    start, end = b.number(-size - 1, size + 1), b.number(-size - 1, size + 1)
    stride = int(b.choose([1, 1, 2, -1, -2]))
    left = len(range(size)[slice(start, end, stride)])
    if stride < 0 and (start < -size or end < -size):  # numpy and ONNX clamp these differently
        return False
    axis = at - x.rank if b.flag() else at
    names = [b.constant(np.array([v])) for v in (start, end, axis, stride)]
    shape = (*x.shape[:at], left, *x.shape[at + 1 :])
    b.add("Slice", [x.name, *names], [b.fresh(x.dtype, shape, x.bound, x.exact)])
    return True


@step
def split(b: Builder) -> bool:
    x = b.pick(lambda v: any(isinstance(d, int) and d >= 2 for d in v.shape))
    if x is None:
        return False
    at = int(b.choose([i for i, d in enumerate(x.shape) if isinstance(d, int) and d >= 2]))
    first = b.number(1, int(x.shape[at]) - 1)
    parts = [first, int(x.shape[at]) - first]
    results = [
        b.fresh(x.dtype, (*x.shape[:at], p, *x.shape[at + 1 :]), x.bound, x.exact, k) for k, p in enumerate(parts)
    ]
    b.add("Split", [x.name, b.constant(np.array(parts))], results, axis=at - x.rank if b.flag() else at)
    return True


@step
def concat(b: Builder) -> bool:
    x = b.pick(lambda v: bool(v.static_axes()))
    if x is None:
        return False
    at = int(b.choose(x.static_axes()))

    def fits(v: Value) -> bool:
        same = v.rank == x.rank and v.dtype == x.dtype and isinstance(v.shape[at], int)
        return same and all(i == at or p == q for i, (p, q) in enumerate(zip(v.shape, x.shape)))

    y = b.pick(fits)
    assert y is not None
    total = int(x.shape[at]) + int(y.shape[at])
    if total > 16:
        return False
    shape = (*x.shape[:at], total, *x.shape[at + 1 :])
    exact = x.exact and y.exact
    b.add("Concat", [x.name, y.name], [b.fresh(x.dtype, shape, max(x.bound, y.bound), exact)], axis=at)
    return True


@step
def expand(b: Builder) -> bool:
    x = b.pick(lambda v: v.rank <= 3 and 1 in v.shape)
    if x is None:
        return False
    target = [b.number(1, 3) if d == 1 else 1 for d in x.shape]
    lead = [2] if b.flag() else []
    shape = (*lead, *(t if d == 1 else d for t, d in zip(target, x.shape)))
    b.add("Expand", [x.name, b.constant(np.array([*lead, *target]))], [b.fresh(x.dtype, shape, x.bound, x.exact)])
    return True


@step
def gather(b: Builder) -> bool:
    x = b.pick(lambda v: any(isinstance(d, int) and d > 0 for d in v.shape))
    if x is None:
        return False
    at = int(b.choose([i for i, d in enumerate(x.shape) if isinstance(d, int) and d > 0]))
    size = int(x.shape[at])
    picked = b.draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=4))
    scalar = len(picked) == 1 and b.flag()
    indices = np.array(picked[0] if scalar else picked, np.int64)
    shape = (*x.shape[:at], *indices.shape, *x.shape[at + 1 :])
    b.add("Gather", [x.name, b.constant(indices)], [b.fresh(x.dtype, shape, x.bound, x.exact)], axis=at)
    return True


@step
def pad(b: Builder) -> bool:
    x = b.pick(lambda v: v.rank >= 1 and len(v.static_axes()) == v.rank and is_float(v))
    if x is None:
        return False
    before, after = ([b.number(0, 2) for _ in x.shape] for _ in range(2))
    shape = tuple(int(d) + p + q for d, p, q in zip(x.shape, before, after))
    if max(shape, default=0) > 16:
        return False
    b.add("Pad", [x.name, b.constant(np.array(before + after))], [b.fresh(x.dtype, shape, x.bound, x.exact)])
    return True


@step
def tile(b: Builder) -> bool:
    x = b.pick(lambda v: v.rank >= 1 and len(v.static_axes()) == v.rank)
    if x is None:
        return False
    repeats = [b.number(1, 2) for _ in x.shape]
    shape = tuple(int(d) * r for d, r in zip(x.shape, repeats))
    if max(shape, default=0) > 16:
        return False
    b.add("Tile", [x.name, b.constant(np.array(repeats))], [b.fresh(x.dtype, shape, x.bound, x.exact)])
    return True


# --- along axes ---


@step
def reduce(b: Builder) -> bool:
    x = b.pick(lambda v: is_float(v) and any(isinstance(d, int) and d > 0 for d in v.shape))
    if x is None:
        return False
    candidates = [i for i, d in enumerate(x.shape) if isinstance(d, int) and d > 0]
    axes = sorted({int(b.choose(candidates)) for _ in range(b.number(1, 2))})
    op = b.choose(["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"])
    keep = b.flag()
    shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes)
    given = [a - x.rank if b.flag() else a for a in axes]
    bound = x.bound * 4 if op == "ReduceL2" else x.bound
    if bound > LIMIT:
        return False
    exact = x.exact and op in ("ReduceMax", "ReduceMin")
    b.add(op, [x.name, b.constant(np.array(given))], [b.fresh(FLOAT, shape, bound, exact)], keepdims=int(keep))
    return True


@step
def arg(b: Builder) -> bool:
    x = b.pick(lambda v: is_float(v) and v.exact and any(isinstance(d, int) and d > 0 for d in v.shape))
    if x is None:
        return False
    at = int(b.choose([i for i, d in enumerate(x.shape) if isinstance(d, int) and d > 0]))
    keep = b.flag()
    shape = tuple(1 if i == at else d for i, d in enumerate(x.shape) if keep or i != at)
    b.add(b.choose(["ArgMax", "ArgMin"]), [x.name], [b.fresh(INT, shape, 16, True)], axis=at, keepdims=int(keep))
    return True


@step
def softmax(b: Builder) -> bool:
    x = b.pick(lambda v: is_float(v) and v.rank >= 1)
    if x is None:
        return False
    axis = b.number(-x.rank, x.rank - 1)
    b.add(b.choose(["Softmax", "LogSoftmax"]), [x.name], [b.fresh(FLOAT, x.shape, 2 * x.bound + 4, False)], axis=axis)
    return True


@step
def linear(b: Builder) -> bool:
    """A product with constant weights, often with a bias behind it."""
    x = b.pick(lambda v: is_float(v) and v.rank >= 2 and isinstance(v.shape[-1], int) and v.shape[-1] > 0)
    if x is None:
        return False
    k, n = int(x.shape[-1]), b.number(1, 9)
    weights = b.floats((k, n)) / np.float32(max(1.0, k / 2))
    result = b.fresh(FLOAT, (*x.shape[:-1], n), 2 * x.bound, False)
    if result.bound > LIMIT:
        return False
    b.add("MatMul", [x.name, b.constant(weights)], [result])
    if b.flag():
        b.add("Add", [result.name, b.constant(b.floats((n,)))], [b.fresh(FLOAT, result.shape, result.bound + 1, False)])
    return True


@step
def product(b: Builder) -> bool:
    """A value times its own transpose: batched, both sides computed."""
    x = b.pick(lambda v: is_float(v) and v.rank >= 2 and isinstance(v.shape[-1], int) and 0 < v.shape[-1] <= 4)
    if x is None or x.bound**2 * 4 > LIMIT:
        return False
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    turned = b.fresh(FLOAT, tuple(x.shape[p] for p in perm), x.bound, x.exact)
    b.add("Transpose", [x.name], [turned], perm=perm)
    shape = (*x.shape[:-1], x.shape[-2])
    b.add("MatMul", [x.name, turned.name], [b.fresh(FLOAT, shape, x.bound**2 * 4, False)])
    return True


@step
def layer_norm(b: Builder) -> bool:
    x = b.pick(lambda v: is_float(v) and v.exact and v.rank >= 1 and isinstance(v.shape[-1], int) and v.shape[-1] >= 4)
    if x is None:
        return False
    n = int(x.shape[-1])
    names = [b.constant(b.floats((n,))) for _ in range(2)]
    b.add("LayerNormalization", [x.name, *names], [b.fresh(FLOAT, x.shape, 8, False)], axis=-1, epsilon=0.01)
    return True


@st.composite
def graphs(draw: Draw, most_nodes: int = 9) -> Graph:
    b = Builder(draw)
    inputs: list[Value] = []
    for i in range(b.number(1, 3)):
        rank = b.number(0 if i else 1, 4)
        shape: list[Size] = [b.choose([1, 2, 3, 4, 6, 9]) for _ in range(rank)]
        for axis in range(rank):
            if b.number(0, 3) == 0:
                shape[axis] = b.choose(list(DYNAMIC))
        dtype = b.choose([FLOAT, FLOAT, FLOAT, INT, BOOL])
        inputs.append(Value(f"x{i}", dtype, tuple(shape), {FLOAT: 4.0, INT: 16.0, BOOL: 1.0}[dtype], True))
    b.values += inputs
    for _ in range(b.number(1, most_nodes)):
        for _ in range(8):  # some steps do not apply to what there is
            if b.choose(STEPS)(b):
                break
    outputs = [v for v in b.values[len(inputs) :] if not any(v.name in n.input for n in b.nodes)]
    if not outputs:
        b.add("Identity", [inputs[0].name], [dataclasses.replace(inputs[0], name="y")])
        outputs = [b.values[-1]]

    def declare(v: Value) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(v.name, v.dtype, list(v.shape))

    body = helper.make_graph(
        b.nodes, "random", [declare(v) for v in inputs], [declare(v) for v in outputs], b.constants
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return Graph(model.SerializeToString(), inputs)
