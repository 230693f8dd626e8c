"""Follow sizes through the graph: Shape, Gather, Concat, Mul ... on small integer vectors become symbolic sizes.

    Shape(x)[2] / 4  with x [batch, seq, 32]   ->  8
    Reshape(x, Concat(Shape(x)[0], Shape(x)[1], 4, 8))  ->  Reshape(x, [0, 0, 4, 8])

Exporters emit hundreds of such nodes for every dynamic dimension, and ONNX's own inference forgets the sizes on the
way. What is found here is used three times: (1) a vector that turns out constant becomes a constant, (2) a Reshape
whose target only copies or regroups dimensions gets a constant target, (3) every value gets a shape in which equal
sizes have equal names, which the rules rely on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from opsmith.rewrite import dims
from opsmith.rewrite.dims import Dim, Size
from opsmith.rewrite.rule import attribute, input_of, ints_of, is_op, name_of, tensor_of

_LONGEST = 16  # integer vectors up to this length are followed
_TO_THE_END = 2**31 - 1  # exporters write "up to the end" as the largest int32 or int64

_UNKNOWN = "unknown_"  # names of sizes that nothing is known about begin with this

_SAME_SHAPE = {
    *("Abs", "Cast", "Ceil", "Clip", "Cos", "CumSum", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
    *("HardSwish", "Identity", "IsNaN", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "Neg", "Not", "Relu"),
    *("Reciprocal", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Sqrt", "Tanh", "Trilu"),
    *("InstanceNormalization", "BatchNormalization", "GroupNormalization", "CastLike", "RMSNormalization"),
}
_BROADCAST = {
    *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul"),
    *("Or", "Pow", "Sub", "Where", "Xor", "PRelu"),
}


class _Sizes:
    """What is known: the sizes of every value, and the contents of small integer vectors."""

    def __init__(self) -> None:
        self.shapes: dict[ir.Value, list[Size]] = {}
        self.contents: dict[ir.Value, list[Size]] = {}
        self._fresh = 0

    def fresh(self) -> Dim:
        self._fresh += 1
        return dims.symbol(f"{_UNKNOWN}{self._fresh}")

    def shape(self, value: ir.Value | None) -> list[Size] | None:
        """The sizes of VALUE; unknown dimensions get a name that stays theirs."""
        if value is None:
            return None
        if value not in self.shapes:
            if value.shape is None:
                tensor = tensor_of(value)
                if tensor is None:
                    return None
                self.shapes[value] = [int(d) for d in tensor.shape]  # type: ignore[arg-type]
            else:
                self.shapes[value] = [self._declared(d) for d in value.shape]
        return self.shapes[value]

    def _declared(self, dim: int | ir.SymbolicDim) -> Size:
        if isinstance(dim, int):
            return dim
        return self.fresh() if dim.value is None else dims.parse(dim.value)

    def content(self, value: ir.Value | None) -> list[Size] | None:
        """The elements of a small integer constant or of a vector computed from sizes; a scalar counts as one."""
        if value is None:
            return None
        if value not in self.contents:
            tensor = tensor_of(value)
            if tensor is None or tensor.size > _LONGEST or len(tensor.shape) > 1:
                return None
            if tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
                return None
            self.contents[value] = [int(i) for i in np.asarray(tensor.numpy()).reshape(-1)]
        return self.contents[value]

    def set_shape(self, value: ir.Value, found: Sequence[Size] | None) -> None:
        """Computed sizes win over declared names; declared numbers, and names instead of unknowns, win over those."""
        if found is None:
            return
        declared = value.shape
        if declared is not None and len(declared) == len(found):
            found = [self._better(d, f) for d, f in zip(declared, found)]
        self.shapes[value] = list(found)

    def _better(self, declared: int | ir.SymbolicDim, found: Size) -> Size:
        if isinstance(declared, int):
            return declared
        if declared.value is not None and any(s.startswith(_UNKNOWN) for s in dims.symbols(found)):
            return dims.parse(declared.value)
        return found


def infer(model: ir.Model) -> bool:
    """Follow sizes through the main graph, fold what became constant, name all dimensions. True if it changed nodes."""
    known = _Sizes()
    changed = False
    for node in list(model.graph):
        _visit(node, known)
        if is_op(node, "Reshape"):
            changed |= _constant_target(node, known)
        elif is_op(node, "Expand"):
            changed |= _drop_expand(node, known)
    changed |= _fold(model.graph, known)
    _write_shapes(model.graph, known)
    return changed


def _visit(node: ir.Node, known: _Sizes) -> None:
    if node.domain not in ("", "ai.onnx") or not node.outputs:
        return
    out = node.outputs[0]
    content = _CONTENT.get(node.op_type)
    if content is not None:
        elements = content(node, known)
        if elements is not None and len(elements) <= _LONGEST:
            known.contents[out] = elements
    shape = _SHAPE.get(node.op_type)
    if shape is not None:
        known.set_shape(out, shape(node, known))
    elif node.op_type in _SAME_SHAPE:
        known.set_shape(out, known.shape(input_of(node, 0)))
    elif node.op_type in _BROADCAST:
        known.set_shape(out, _broadcast([known.shape(i) for i in node.inputs], known))
    elif node.op_type == "Split":
        _split(node, known)


# --- contents of integer vectors -------------------------------------------------------------------------


def _shape_content(node: ir.Node, known: _Sizes) -> list[Size] | None:
    shape = known.shape(input_of(node, 0))
    if shape is None:
        return None
    return shape[slice(attribute(node, "start", 0), attribute(node, "end", None))]


def _size_content(node: ir.Node, known: _Sizes) -> list[Size] | None:
    shape = known.shape(input_of(node, 0))
    return None if shape is None else [dims.product(shape)]


def _gather_content(node: ir.Node, known: _Sizes) -> list[Size] | None:
    elements, indices = known.content(input_of(node, 0)), ints_of(input_of(node, 1))
    source = known.shape(input_of(node, 0))
    index_rank = known.shape(input_of(node, 1))
    if elements is None or indices is None or source is None or len(source) != 1 or len(index_rank or []) > 1:
        return None
    return [elements[i] for i in indices] if all(-len(elements) <= i < len(elements) for i in indices) else None


def _slice_content(node: ir.Node, known: _Sizes) -> list[Size] | None:
    elements, start, end = known.content(input_of(node, 0)), ints_of(input_of(node, 1)), ints_of(input_of(node, 2))
    step = ints_of(input_of(node, 4)) or [1]
    if elements is None or not start or not end or len(start) != 1 or step != [1]:
        return None
    return elements[start[0] : end[0]]


def _concat_content(node: ir.Node, known: _Sizes) -> list[Size] | None:
    parts = [known.content(i) for i in node.inputs]
    return None if any(p is None for p in parts) else [e for p in parts if p is not None for e in p]


def _same_content(node: ir.Node, known: _Sizes) -> list[Size] | None:
    out = node.outputs[0].dtype
    if out is not None and out not in (ir.DataType.INT64, ir.DataType.INT32):
        return None
    return known.content(input_of(node, 0))


def _reshape_content(node: ir.Node, known: _Sizes) -> list[Size] | None:
    target = ints_of(input_of(node, 1))
    return known.content(input_of(node, 0)) if target is not None and len(target) <= 1 else None


def _arithmetic(operation: Callable[[Size, Size], Size | None]) -> Callable[[ir.Node, _Sizes], list[Size] | None]:
    def content(node: ir.Node, known: _Sizes) -> list[Size] | None:
        a, b = known.content(input_of(node, 0)), known.content(input_of(node, 1))
        if a is None or b is None or (len(a) != len(b) and 1 not in (len(a), len(b))):
            return None
        length = max(len(a), len(b)) if a and b else 0
        a, b = (a * length if len(a) == 1 else a), (b * length if len(b) == 1 else b)
        found = [operation(x, y) for x, y in zip(a, b)]
        return None if any(f is None for f in found) else [f for f in found if f is not None]

    return content


def _constant_of_shape_content(node: ir.Node, known: _Sizes) -> list[Size] | None:
    length = known.content(input_of(node, 0))
    value = attribute(node, "value")
    if length is None or len(length) != 1 or not isinstance(length[0], int) or length[0] > _LONGEST:
        return None
    if value is None or value.dtype != ir.DataType.INT64:
        return None
    return [int(value.numpy().reshape(-1)[0])] * length[0]


def _where_content(node: ir.Node, known: _Sizes) -> list[Size] | None:
    """Where(Equal(target, -1), 1, target): how exporters spell expand(-1). A size is never -1."""
    condition = input_of(node, 0)
    equal = condition.producer() if condition is not None else None
    if equal is None or not is_op(equal, "Equal"):
        return None
    left, right = known.content(input_of(equal, 0)), known.content(input_of(equal, 1))
    yes, no = known.content(input_of(node, 1)), known.content(input_of(node, 2))
    if left is None or right is None or yes is None or no is None:
        return None
    if not len(left) == len(right) == len(yes) == len(no):
        return None
    chosen: list[Size] = []
    for a, b, y, n in zip(left, right, yes, no):
        if a == b:
            chosen.append(y)
        elif (isinstance(a, int) and isinstance(b, int)) or any(isinstance(x, int) and x < 0 for x in (a, b)):
            chosen.append(n)
        else:
            return None
    return chosen


_CONTENT: dict[str, Callable[[ir.Node, _Sizes], list[Size] | None]] = {
    "Shape": _shape_content,
    "Size": _size_content,
    "Gather": _gather_content,
    "Slice": _slice_content,
    "Concat": _concat_content,
    "Squeeze": _same_content,
    "Unsqueeze": _same_content,
    "Identity": _same_content,
    "Cast": _same_content,
    "Reshape": _reshape_content,
    "Add": _arithmetic(dims.add),
    "Sub": _arithmetic(dims.subtract),
    "Mul": _arithmetic(dims.multiply),
    "Div": _arithmetic(dims.floor_divide),
    "ConstantOfShape": _constant_of_shape_content,
    "Where": _where_content,
}


# --- shapes ----------------------------------------------------------------------------------------------


def _broadcast(shapes: Sequence[list[Size] | None], known: _Sizes) -> list[Size] | None:
    if any(s is None for s in shapes):
        return None
    present = [s for s in shapes if s is not None]
    rank = max(len(s) for s in present)
    padded: list[list[Size]] = [[*[1] * (rank - len(s)), *s] for s in present]
    return [_broadcast_dim({s[i] for s in padded} - {1}, known) for i in range(rank)]


def _broadcast_dim(sizes: set[Size], known: _Sizes) -> Size:
    if not sizes:
        return 1
    numbers = [s for s in sizes if isinstance(s, int)]
    if numbers:
        return numbers[0]
    return next(iter(sizes)) if len(sizes) == 1 else known.fresh()


def _reshape(node: ir.Node, known: _Sizes) -> list[Size] | None:
    source, target = known.shape(input_of(node, 0)), known.content(input_of(node, 1))
    if target is None:
        return None
    result: list[Size] = list(target)
    if not attribute(node, "allowzero", 0):
        for i, size in enumerate(target):
            if size == 0:
                if source is None or i >= len(source):
                    return None
                result[i] = source[i]
    if -1 in result:
        missing = None if source is None else _quotient(source, [s for s in result if s != -1])
        result[result.index(-1)] = known.fresh() if missing is None else missing
    return result


def _quotient(sizes: list[Size], divisors: list[Size]) -> Size | None:
    """The product of SIZES by that of DIVISORS; equal factors cancel first, since a sum divides only itself."""
    left, rest = list(sizes), []
    for divisor in divisors:
        if divisor in left:
            left.remove(divisor)
        else:
            rest.append(divisor)
    return dims.divide(dims.product(left), dims.product(rest))


def _expand(node: ir.Node, known: _Sizes) -> list[Size] | None:
    return _broadcast([known.shape(input_of(node, 0)), known.content(input_of(node, 1))], known)


def _transpose(node: ir.Node, known: _Sizes) -> list[Size] | None:
    shape = known.shape(input_of(node, 0))
    if shape is None:
        return None
    return [shape[i] for i in attribute(node, "perm", list(reversed(range(len(shape)))))]


def _unsqueeze(node: ir.Node, known: _Sizes) -> list[Size] | None:
    shape, axes = known.shape(input_of(node, 0)), ints_of(input_of(node, 1))
    if shape is None or axes is None:
        return None
    rank = len(shape) + len(axes)
    places = {a % rank for a in axes}
    rest = iter(shape)
    return [1 if i in places else next(rest) for i in range(rank)]


def _squeeze(node: ir.Node, known: _Sizes) -> list[Size] | None:
    shape, axes = known.shape(input_of(node, 0)), ints_of(input_of(node, 1))
    if shape is None or (axes is None and any(isinstance(s, Dim) for s in shape)):
        return None
    places = {i for i, s in enumerate(shape) if s == 1} if axes is None else {a % len(shape) for a in axes}
    return [s for i, s in enumerate(shape) if i not in places]


def _matmul(node: ir.Node, known: _Sizes) -> list[Size] | None:
    a, b = known.shape(input_of(node, 0)), known.shape(input_of(node, 1))
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    batch = _broadcast([a[:-2], b[:-2]], known)
    return None if batch is None else [*batch, a[-2], b[-1]]


def _gemm(node: ir.Node, known: _Sizes) -> list[Size] | None:
    a, b = known.shape(input_of(node, 0)), known.shape(input_of(node, 1))
    if a is None or b is None:
        return None
    return [a[1 if attribute(node, "transA", 0) else 0], b[0 if attribute(node, "transB", 0) else 1]]


def _concat(node: ir.Node, known: _Sizes) -> list[Size] | None:
    shapes = [known.shape(i) for i in node.inputs]
    if any(s is None for s in shapes):
        return None
    present = [s for s in shapes if s is not None]
    axis = attribute(node, "axis") % len(present[0])
    total: Size = 0
    for shape in present:
        total = dims.add(total, shape[axis])

    def pick(i: int) -> Size:
        numbers = [s[i] for s in present if isinstance(s[i], int)]
        return numbers[0] if numbers else present[0][i]

    return [total if i == axis else pick(i) for i in range(len(present[0]))]


def _slice(node: ir.Node, known: _Sizes) -> list[Size] | None:
    shape = known.shape(input_of(node, 0))
    if shape is None:
        return None
    starts, ends = known.content(input_of(node, 1)), known.content(input_of(node, 2))
    axes = ints_of(input_of(node, 3)) if input_of(node, 3) is not None else None
    steps = ints_of(input_of(node, 4)) if input_of(node, 4) is not None else None
    if starts is None or ends is None:
        return None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    result = list(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps):
        result[axis] = _sliced(shape[axis], start, end, step, known)
    return result


def _sliced(size: Size, start: Size, end: Size, step: int, known: _Sizes) -> Size:
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int) and step:
        return len(range(*slice(start, None if step < 0 and end <= -_TO_THE_END else end, step).indices(size)))
    if step == 1 and isinstance(end, int) and end >= _TO_THE_END:
        if start == 0:
            return size
        if isinstance(start, int) and start > 0:
            return known.fresh()  # size - start may be negative: nothing to say
    return known.fresh()


def _gather(node: ir.Node, known: _Sizes) -> list[Size] | None:
    data, indices = known.shape(input_of(node, 0)), known.shape(input_of(node, 1))
    if data is None or indices is None:
        return None
    axis = attribute(node, "axis", 0) % len(data)
    return [*data[:axis], *indices, *data[axis + 1 :]]


def _conv(node: ir.Node, known: _Sizes) -> list[Size] | None:
    x, weight = known.shape(input_of(node, 0)), known.shape(input_of(node, 1))
    if x is None or weight is None or attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", ""):
        return None
    rank = len(x) - 2
    pads = attribute(node, "pads", [0] * 2 * rank)
    strides, dilations = attribute(node, "strides", [1] * rank), attribute(node, "dilations", [1] * rank)
    result: list[Size] = [x[0], weight[0]]
    for i in range(rank):
        kernel = weight[2 + i]
        size = x[2 + i]
        if not isinstance(kernel, int):
            return None
        grows = pads[i] + pads[i + rank] - dilations[i] * (kernel - 1) - 1
        if isinstance(size, int):
            result.append((size + grows) // strides[i] + 1)
        else:
            steps = dims.floor_divide(dims.add(size, grows), strides[i])
            result.append(known.fresh() if steps is None else dims.add(steps, 1))
    return result


def _resize(node: ir.Node, known: _Sizes) -> list[Size] | None:
    shape, scales = known.shape(input_of(node, 0)), tensor_of(input_of(node, 2))
    sizes = known.content(input_of(node, 3))
    if sizes is not None and attribute(node, "axes") is None:
        return sizes
    if shape is None or scales is None or scales.size != len(shape):
        return None
    factors = [float(f) for f in np.asarray(scales.numpy()).reshape(-1)]
    result: list[Size] = []
    for size, factor in zip(shape, factors):
        if isinstance(size, int):
            result.append(math.floor(size * factor))
        else:
            result.append(dims.multiply(size, int(factor)) if factor == int(factor) else known.fresh())
    return result


def _reduce(node: ir.Node, known: _Sizes) -> list[Size] | None:
    shape = known.shape(input_of(node, 0))
    axes = attribute(node, "axes") or ints_of(input_of(node, 1))
    if shape is None or axes is None:
        return None
    places = {a % len(shape) for a in axes}
    keep = attribute(node, "keepdims", 1)
    return [1 if i in places else s for i, s in enumerate(shape) if keep or i not in places]


def _constant_of_shape(node: ir.Node, known: _Sizes) -> list[Size] | None:
    return known.content(input_of(node, 0))


def _range(node: ir.Node, known: _Sizes) -> list[Size] | None:
    start, limit, step = (known.content(i) for i in node.inputs)
    if start != [0] or step != [1] or limit is None:
        return None
    return limit


_SHAPE: dict[str, Callable[[ir.Node, _Sizes], list[Size] | None]] = {
    "Reshape": _reshape,
    "Expand": _expand,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "Conv": _conv,
    "Resize": _resize,
    "ReduceMean": _reduce,
    "ReduceSum": _reduce,
    "ReduceMax": _reduce,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
}


def _split(node: ir.Node, known: _Sizes) -> None:
    shape, parts = known.shape(input_of(node, 0)), ints_of(input_of(node, 1))
    if shape is None:
        return
    axis = attribute(node, "axis", 0) % len(shape)
    if parts is None:
        if not isinstance(shape[axis], int) or shape[axis] % len(node.outputs):
            return
        parts = [shape[axis] // len(node.outputs)] * len(node.outputs)
    for value, part in zip(node.outputs, parts):
        known.set_shape(value, [part if i == axis else s for i, s in enumerate(shape)])


# --- using what was found --------------------------------------------------------------------------------


def _constant_target(node: ir.Node, known: _Sizes) -> bool:
    """(2) Give a Reshape the target [0, -1, 8 ...]: 0 copies a dimension, one -1 is worked out at run time."""
    target, source = known.content(input_of(node, 1)), known.shape(input_of(node, 0))
    if target is None or source is None or tensor_of(input_of(node, 1)) is not None:
        return False
    if attribute(node, "allowzero", 0) and 0 in target:
        return False
    constant = [_target_entry(size, i, source) for i, size in enumerate(target)]
    if constant.count(-1) > 1:
        return False
    node.replace_input_with(1, _constant(node, constant, name_of(node.outputs[0])))
    node.attributes["allowzero"] = ir.AttrInt64("allowzero", 0)
    return True


def _target_entry(size: Size, axis: int, source: list[Size]) -> int:
    if isinstance(size, int):
        return size
    return 0 if axis < len(source) and source[axis] == size else -1


def _constant(node: ir.Node, elements: list[int], name: str, scalar: bool = False) -> ir.Value:
    tensor = ir.tensor(np.array(elements[0] if scalar else elements, np.int64), name=f"{name}_sizes")
    constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])
    value = constant.outputs[0]
    value.const_value, value.type = tensor, ir.TensorType(ir.DataType.INT64)
    value.shape = ir.Shape([] if scalar else [len(elements)])
    assert node.graph is not None
    node.graph.insert_before(node, constant)
    return value


def _drop_expand(node: ir.Node, known: _Sizes) -> bool:
    """Expand to the shape that the value has already."""
    source, value = input_of(node, 0), node.outputs[0]
    if source is None or known.shape(source) != known.shape(value) or value.is_graph_output():
        return False
    if source.dtype is None or known.shape(source) is None:
        return False
    value.replace_all_uses_with(source)
    return True


def _fold(graph: ir.Graph, known: _Sizes) -> bool:
    """(1) A vector that turned out constant becomes a constant."""
    changed = False
    for node in list(graph):
        value = node.outputs[0] if node.outputs else None
        if value is None or is_op(node, "Constant") or value.is_graph_output() or value.dtype != ir.DataType.INT64:
            continue
        elements = known.contents.get(value)
        rank = len(value.shape) if value.shape is not None else None
        if elements is None or rank is None or any(isinstance(e, Dim) for e in elements) or not value.uses():
            continue
        if rank == 0 and len(elements) != 1:
            continue
        numbers = [e for e in elements if isinstance(e, int)]
        value.replace_all_uses_with(_constant(node, numbers, name_of(value), scalar=rank == 0))
        changed = True
    return changed


def _write_shapes(graph: ir.Graph, known: _Sizes) -> None:
    """(3) Write the sizes into the values; inputs and outputs of the graph keep their declared names."""
    fixed: set[Any] = {*graph.inputs, *graph.outputs}
    for node in graph:
        for value in node.outputs:
            found = known.shapes.get(value)
            if found is None or value in fixed:
                continue
            value.shape = ir.Shape([s if isinstance(s, int) else ir.SymbolicDim(str(s)) for s in found])
