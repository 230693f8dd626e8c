"""What a model may ask for. A file of 200 bytes can describe a vector of 10^12 elements, or 2^24 nested calls.

    check_calls    functions that call each other without end, or so often that nobody could ever inline them; text and shapes
                   that ONNX's own inference does not survive
    check_values   values that would not fit into this machine's memory, and a Loop without end
    infer_shapes   ONNX's shape inference, which follows the elements of shape vectors only while they are short, in a process of its
                   own where it may abort

The budgets of folding (rewriter/passes) and of shape arithmetic (analysis) stand where that is done.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx
import onnx.numpy_helper

from opsmith import machine
from opsmith.errors import OpsmithError
from opsmith.nodes import ONNX, subgraphs

_EQUATION = re.compile(rb"[A-Za-z., ]*(->[A-Za-z. ]*)?")
MOST_NODES = 200_000  # with all functions inlined, as ONNX Runtime does when it loads a model


def _check_text(node: onnx.NodeProto, what: str) -> None:
    """ONNX's strings are UTF-8; bytes that are not would be no string to whoever reads the attribute."""
    for attribute in node.attribute:
        for text in (attribute.s, *attribute.strings):
            try:
                text.decode()
            except UnicodeDecodeError:
                raise OpsmithError(f"{what}: attribute {attribute.name!r} of a {node.op_type} is not UTF-8") from None
        # Other equations keep ONNX's inference busy for ever.
        if node.op_type == "Einsum" and not _EQUATION.fullmatch(attribute.s):
            raise OpsmithError(f"{what}: {attribute.s.decode()!r} is no equation of an Einsum")


def _check_shapes(proto: onnx.ModelProto, what: str) -> None:
    """Refuse constant shapes with sizes below -1, which ONNX's inference computes with until it aborts the process."""
    constants = {t.name: t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.INT64}
    for node in proto.graph.node:
        at = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}.get(node.op_type)
        tensor = constants.get(node.input[at]) if at is not None and len(node.input) > at else None
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        sizes = onnx.numpy_helper.to_array(tensor)
        if sizes.size and sizes.min() < -1:
            raise OpsmithError(f"{what}: {node.op_type} to a shape with the size {sizes.min()}")


_NAMED = ("Split", "If", "Loop", "Scan", "SequenceMap")  # any number of outputs, and each has a name


def _check_outputs(node: onnx.NodeProto, what: str) -> None:
    """Refuse outputs without names where they end ONNX Runtime's process; as optional ones of other operators they are none."""
    training = node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute)
    if (node.op_type in _NAMED or training) and node.domain in ONNX and not all(node.output):
        raise OpsmithError(
            f"{what}: a {node.op_type} has an output without a name", "give it one; nobody needs to read it"
        )


def _check_attributes(node: onnx.NodeProto, what: str) -> None:
    """Refuse numbers of groups and blocks below 1, by which ONNX Runtime divides before it looks at them; two values of one
    constant."""
    for attribute in node.attribute:
        if attribute.name in ("group", "blocksize", "num_groups") and attribute.i < 1 and not attribute.ref_attr_name:
            raise OpsmithError(f"{what}: a {node.op_type} whose {attribute.name} is {attribute.i}")
    if node.op_type == "Constant" and node.domain in ONNX and len(node.attribute) != 1:
        raise OpsmithError(f"{what}: a Constant with {len(node.attribute)} values")


MOST_DENSE = 1 << 26  # elements of a sparse weight once it is written out: a file of 200 bytes can name any number


def check_sparse(sparse: onnx.SparseTensorProto, what: str) -> None:
    """Refuse a sparse weight that nobody should write out, as ONNX Runtime does when it loads one."""
    if math.prod(sparse.dims) > MOST_DENSE:
        size = " x ".join(map(str, sparse.dims))
        raise OpsmithError(f"{what}: the sparse weight {sparse.values.name!r} of {size} is too large to be written out")


def _sparse_values(node: onnx.NodeProto) -> list[onnx.SparseTensorProto]:
    return [t for a in node.attribute for t in (a.sparse_tensor, *a.sparse_tensors)]


def check_calls(proto: onnx.ModelProto, what: str) -> None:
    """Refuse functions that call themselves, or each other so often that nobody could ever inline them."""
    bodies = {(f.domain, f.name, f.overload): f.node for f in proto.functions}
    sizes: dict[tuple[str, str, str], int] = {}
    open_calls: set[tuple[str, str, str]] = set()

    def size(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            _check_text(node, what)
            _check_outputs(node, what)
            _check_attributes(node, what)
            if not open_calls and any(a.ref_attr_name for a in node.attribute):
                raise OpsmithError(f"{what}: a {node.op_type} asks for the attribute of a function and is in none")
            call = (node.domain, node.op_type, node.overload)
            if call in open_calls:
                raise OpsmithError(f"{what}: the function {node.op_type} calls itself")
            if call in bodies and call not in sizes:
                open_calls.add(call)
                sizes[call] = size(bodies[call])
                open_calls.remove(call)
            inner = [g for g in subgraphs(node) if g.node]
            for sparse in (*(t for g in inner for t in g.sparse_initializer), *_sparse_values(node)):
                check_sparse(sparse, what)
            total += sizes.get(call, 1) + sum(size(g.node) for g in inner)
        return total

    _check_shapes(proto, what)
    for sparse in proto.graph.sparse_initializer:
        check_sparse(sparse, what)
    for value in (*proto.graph.input, *proto.graph.output):
        texts = (value.name, *(d.dim_param for d in value.type.tensor_type.shape.dim))
        if any(isinstance(text, bytes) for text in texts):  # as protobuf gives what it cannot decode
            raise OpsmithError(f"{what}: the name of an input, an output or a dim is not UTF-8")
    if (nodes := size(proto.graph.node)) > MOST_NODES:
        raise OpsmithError(f"{what} has {nodes:,} nodes once its functions are inlined, more than {MOST_NODES:,}")


def check_values(proto: onnx.ModelProto, what: str) -> None:
    """Refuse what cannot run: a value of known size larger than this machine's memory, a Loop without end. PROTO loses its weights."""
    _check_loops(proto.graph, what)
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) > _SMALL:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
    try:
        inferred = _infer(proto)
    except Exception:  # stale or wrong shapes: ONNX Runtime will say so, or does not mind
        return
    for name, dims in _sizes(inferred.graph):
        if math.prod(dims) > (machine.memory_bytes() or math.inf):
            size = " x ".join(map(str, dims))
            raise OpsmithError(f"{what}: the value {name!r} has {size} elements, more than this machine's memory holds")
    if (made := _bytes_of_constants(inferred.graph)) > (machine.memory_bytes() or math.inf):
        raise OpsmithError(
            f"{what}: what its nodes make of constants takes {made >> 30:,} GiB, more than this machine's memory holds"
        )


def _bytes_of_constants(graph: onnx.GraphProto) -> int:
    """What ONNX Runtime computes when it loads a model, and holds together until it has: values of nodes that read no input."""
    inputs = {value.name for value in graph.input}
    constant = {"", *(tensor.name for tensor in graph.initializer if tensor.name not in inputs)}
    made: set[str] = set()
    for node in graph.node:  # one without inputs is a Constant, which the file holds, or draws random numbers
        inside = any(a.HasField("g") for a in node.attribute)
        if node.op_type == "Constant" or (node.input and not inside and constant.issuperset(node.input)):
            constant.update(node.output)
            made.update(node.output if node.input else ())
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
    return sum(math.prod(dims) * _width(kinds[name]) for name, dims in _sizes(graph) if name in made)


def _width(kind: int) -> int:
    """Bytes of an element; 1 where nobody knows."""
    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
    except (KeyError, TypeError):
        return 1


MOST_ROUNDS = 1 << 40  # of a Loop; at 100 ns for each they take more than a day


def _check_loops(graph: onnx.GraphProto, what: str) -> None:
    """Refuse a Loop of the main graph, which surely runs, with a vast constant count and a condition that stays true."""
    loops = [node for node in graph.node if node.op_type == "Loop" and len(node.input) >= 2]
    constants = _single_numbers(graph) if loops else {}
    for node in loops:
        rounds, start = (
            constants.get(name) if name else default for name, default in zip(node.input, (math.inf, True))
        )
        body = next((a.g for a in node.attribute if a.name == "body"), None)
        if rounds is None or rounds <= MOST_ROUNDS or not start or body is None:
            continue
        if _stays_true(body, constants):
            raise OpsmithError(f"{what}: the Loop that makes {list(node.output)} has no end: {rounds} rounds")


def _stays_true(body: onnx.GraphProto, outside: Mapping[str, float]) -> bool:
    """Whether a Loop's body hands the condition on as it came, or a constant that is true."""
    if len(body.input) < 2 or not body.output:
        return False
    copies = {
        node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity" and node.input and node.output
    }
    name = body.output[0].name
    for _ in range(len(copies)):
        name = copies.get(name, name)
    return name == body.input[1].name or bool({**outside, **_single_numbers(body)}.get(name))


def _single_numbers(graph: onnx.GraphProto) -> dict[str, float]:
    """The constants of one whole number or truth value; an input's default is none."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    tensors |= {
        n.output[0]: a.t
        for n in graph.node
        if n.op_type == "Constant" and n.output
        for a in n.attribute
        if a.name == "value"
    }
    inputs = {value.name for value in graph.input}
    numbers: dict[str, float] = {}
    for name, tensor in tensors.items():
        whole = tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.BOOL) and math.prod(tensor.dims) == 1
        if whole and name not in inputs and tensor.data_location != onnx.TensorProto.EXTERNAL:
            with contextlib.suppress(ValueError):  # it holds less than it says
                numbers[name] = onnx.numpy_helper.to_array(tensor).item()
    return numbers


def infer_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with the shapes that ONNX can infer. It keeps every element of a vector as an object of its own."""
    inferred = _infer(proto)
    if sum(dims[0] for _, dims in _sizes(inferred.graph) if len(dims) == 1) > FOLLOWED:
        return inferred
    return _infer(proto, data_prop=True)


def _infer(proto: onnx.ModelProto, data_prop: bool = False) -> onnx.ModelProto:
    """A Slice of a negative size, as a window makes that is larger than its image, aborts the process that infers."""
    infer = functools.partial(onnx.shape_inference.infer_shapes, data_prop=data_prop)
    if sys.platform == "win32" or not _slices(proto):
        return infer(proto)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        gc.freeze()  # sessions of the parent's have threads that are not here: to collect one would wait for them for ever
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where it says that it aborts
            faulthandler.disable()
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(infer(proto).SerializeToString())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        inferred = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise OpsmithError("ONNX cannot infer the model's shapes: a size is negative, or two do not fit")
    return onnx.ModelProto.FromString(inferred)


def _slices(message: Any) -> bool:
    """Whether there is a Slice in a model, its functions or the graphs in it."""
    nodes = (
        message.node
        if hasattr(message, "node")
        else (*message.graph.node, *(n for f in message.functions for n in f.node))
    )
    return any(n.op_type == "Slice" or any(_slices(g) for g in subgraphs(n)) for n in nodes)


_SMALL = 4096  # bytes; larger weights are no shapes
FOLLOWED = 1 << 20  # elements of all vectors together


def _sizes(graph: onnx.GraphProto) -> Iterator[tuple[str, list[int]]]:
    for value in (*graph.value_info, *graph.output):
        shape = value.type.tensor_type.shape
        if all(d.HasField("dim_value") for d in shape.dim):
            yield value.name, [d.dim_value for d in shape.dim]
