"""What an .onnx file must hold before anything of it is used: whole weights, in its own folder, and a graph that ONNX's checker takes.

Every check is made once as long as the file stays as it is.
"""

from __future__ import annotations

import contextlib
import functools
import graphlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from opsmith import bounds
from opsmith.errors import OpsmithError
from opsmith.later import Later
from opsmith.model_file import read_proto
from opsmith.nodes import ONNX

if TYPE_CHECKING:
    import onnx_ir as ir
else:
    ir = Later("onnx_ir")  # as in store.py


def check_external_data(path: Path) -> None:
    """Refuse a model whose weights are missing, cut short, or would be read from outside its folder."""
    external_files(path)


def check_values(path: Path) -> None:
    """Refuse to run a model with a value that is larger than this machine's memory."""
    stat = path.stat()
    _check_values(path.absolute(), stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=64)
def _check_values(path: Path, mtime: int, size: int) -> None:
    bounds.check_values(read_proto(path), str(path))


def external_files(path: Path) -> set[Path]:
    """The files that hold the model's external data, checked."""
    stat = path.stat()
    folder = path.parent.resolve()
    files: set[Path] = set()
    for location, (end, name) in _external_needs(path.absolute(), stat.st_mtime_ns, stat.st_size).items():
        target = (folder / location).resolve()
        if not target.is_relative_to(folder):
            raise OpsmithError(
                f"{path}: tensor {name!r} points outside the model's folder ({location!r})",
                "if it is a link that you trust, copy the file into the folder",
            )
        if not target.is_file():
            raise OpsmithError(f"{path} needs the external data file {location}, which is missing")
        status = target.stat()
        if status.st_nlink > 1:  # onnx-ir refuses to read it, as it could be a link to a file elsewhere
            raise OpsmithError(
                f"{path}: {location} has {status.st_nlink} hard links, one of which may lie outside the model's folder",
                f"if you trust it, give the model a copy: cp {location} copy && mv copy {location}",
            )
        if end > status.st_size:
            raise OpsmithError(f"{path}: {location} is too short for tensor {name!r}; the file is cut off")
        files.add(target)
    return files


@functools.lru_cache(maxsize=64)
def _external_needs(path: Path, mtime: int, size: int) -> dict[str, tuple[int, str]]:
    """location -> (the bytes it must have, the tensor that ends there). MTIME and SIZE only make the cache notice."""
    proto = read_proto(path)
    spans: dict[str, list[tuple[int, int, str]]] = {}
    for tensor in tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            _check_embedded(path, tensor)
            continue
        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        # Both kinds of separators count on every system: a model travels.
        parts = location.replace("\\", "/").split("/")
        if not location or ".." in parts or not parts[0] or ":" in parts[0] or "\0" in location:
            raise OpsmithError(f"{path}: tensor {tensor.name!r} points outside the model's folder ({location!r})")
        start, end = _span(path, tensor, entries)
        spans.setdefault(location, []).append((start, end, tensor.name))
    bounds.check_calls(proto, str(path))
    for location, taken in spans.items():
        _refuse_overlap(path, location, sorted(taken))
    return {location: max((end, name) for _, end, name in taken) for location, taken in spans.items()}


# Where the numbers of a tensor are if they are not raw bytes; of every other type they are in int32_data.
_FIELDS = {
    onnx.TensorProto.FLOAT: "float_data",
    onnx.TensorProto.COMPLEX64: "float_data",
    onnx.TensorProto.INT64: "int64_data",
    onnx.TensorProto.DOUBLE: "double_data",
    onnx.TensorProto.COMPLEX128: "double_data",
    onnx.TensorProto.UINT32: "uint64_data",
    onnx.TensorProto.UINT64: "uint64_data",
    onnx.TensorProto.STRING: "string_data",
}


def in_numpy(data_type: int) -> bool:
    """Whether numpy itself has numbers of this type: ONNX counts them first, before bfloat16."""
    beyond, strings = int(onnx.TensorProto.BFLOAT16), int(onnx.TensorProto.STRING)
    return 0 < data_type < beyond and data_type != strings


def _bits(data_type: int) -> int:
    """Of one element; a type without any (strings, those that do not exist) raises TypeError or ValueError."""
    if not in_numpy(data_type):
        return ir.DataType(data_type).bitwidth
    size: int = onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize
    return 8 * size


def _check_embedded(path: Path, tensor: onnx.TensorProto) -> None:
    """Refuse a tensor without a type, or that holds fewer or more numbers than its dims say."""
    if tensor.data_type == onnx.TensorProto.UNDEFINED:
        raise OpsmithError(f"{path}: tensor {tensor.name!r} has no element type")
    if any(dim < 0 for dim in tensor.dims):
        raise OpsmithError(f"{path}: tensor {tensor.name!r} has a negative dim")
    count = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        with contextlib.suppress(ValueError, TypeError):  # a type without bytes: onnx's checker says so
            needed = (count * _bits(tensor.data_type) + 7) // 8
            if len(tensor.raw_data) != needed:
                have = len(tensor.raw_data)
                raise OpsmithError(f"{path}: tensor {tensor.name!r} takes {needed} bytes, the file has {have}")
        return
    needed = count
    if tensor.data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        needed = 2 * count
    elif tensor.data_type != onnx.TensorProto.STRING:
        with contextlib.suppress(ValueError, TypeError):
            bits = _bits(tensor.data_type)
            needed = count if bits >= 8 else (count * bits + 7) // 8  # some elements to a byte, a byte to a number
    have = len(getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data")))
    if have != needed:
        raise OpsmithError(f"{path}: tensor {tensor.name!r} has {count} elements, the file has {have} of its type")


def _span(path: Path, tensor: onnx.TensorProto, entries: Mapping[str, str]) -> tuple[int, int]:
    """Where the tensor's bytes begin and end in its file."""
    numbers = {}
    for key in ("offset", "length"):
        number = entries.get(key) or ("0" if key == "offset" else "")
        if number and not (number.isascii() and number.isdecimal()):
            raise OpsmithError(f"{path}: tensor {tensor.name!r} has a bad external-data {key}: {number!r}")
        numbers[key] = int(number) if number else None
    try:
        bits = _bits(tensor.data_type)
    except (ValueError, TypeError):
        raise OpsmithError(f"{path}: tensor {tensor.name!r} has a type that external data cannot hold") from None
    if any(dim < 0 for dim in tensor.dims):
        raise OpsmithError(f"{path}: tensor {tensor.name!r} has a negative dim")
    needed = (math.prod(tensor.dims) * bits + 7) // 8
    if numbers["length"] not in (None, needed):
        raise OpsmithError(f"{path}: tensor {tensor.name!r} takes {needed} bytes, its entry says {numbers['length']}")
    start = numbers["offset"] or 0
    return start, start + needed


def _refuse_overlap(path: Path, location: str, spans: Sequence[tuple[int, int, str]]) -> None:
    """Tensors may share the same bytes; bytes that belong to two tensors in part are a sign of damage or worse."""
    last: tuple[int, int, str] | None = None
    for span in spans:
        if span[0] == span[1]:
            continue
        if last is not None and span[0] < last[1] and span[:2] != last[:2]:
            raise OpsmithError(f"{path}: tensors {last[2]!r} and {span[2]!r} overlap in {location}")
        if last is None or span[1] > last[1]:
            last = span


def tensors(message: Any) -> Iterator[onnx.TensorProto]:
    """Every tensor anywhere in a message: weights, constants, subgraphs, functions, sparse tensors, training graphs."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in value if isinstance(value, Sequence) or hasattr(value, "add") else (value,):
            yield from tensors(inner)


# ONNX Runtime knows these ops in ONNX's own domain, at any opset; its optimizer writes them.
_KNOWN_TO_ORT = {"LayerNormalization", "SimplifiedLayerNormalization"}


def check_model(path: Path) -> None:
    """Refuse a model that ONNX's checker refuses: unknown op or opset, undefined value, wrong attribute."""
    stat = path.stat()
    _check_model(path.absolute(), stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=64)
def _check_model(path: Path, mtime: int, size: int) -> None:
    proto = read_proto(path)
    newest = onnx.defs.onnx_opset_version()
    for opset in proto.opset_import:
        if opset.domain in ONNX and not 1 <= opset.version <= newest:
            raise OpsmithError(
                f"{path} needs ONNX opset {opset.version}, the installed onnx knows 1 to {newest}",
                "pip install --upgrade onnx onnxruntime",
            )
    try:
        onnx.checker.check_model(_structure(proto))
    except Exception as error:
        raise OpsmithError(f"{path} is not a valid ONNX model: {' '.join(str(error).split())[:300]}") from error


def _structure(proto: onnx.ModelProto) -> onnx.ModelProto:
    """What the checker is to see: weights become inputs, so that gigabytes need not pass through it."""
    declared = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if tensor.name not in declared:
            proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    del proto.graph.initializer[:]
    for tensor in tensors(proto):  # in bodies of nodes: check_external_data has looked at them
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0]))
    _sort(proto.graph)
    for value in proto.graph.output:  # tools that write custom ops leave the rank of their outputs open
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    for node in (*proto.graph.node, *(n for f in proto.functions for n in f.node)):
        if node.op_type in _KNOWN_TO_ORT and node.domain in ONNX:
            node.domain = "com.microsoft"
    for imports in (proto.opset_import, *(f.opset_import for f in proto.functions)):
        if "com.microsoft" not in {opset.domain for opset in imports}:
            imports.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return proto


def _sort(graph: onnx.GraphProto) -> None:
    """Bring nodes into an order that runs, as ONNX Runtime does; what has none is left for the checker to refuse."""
    made = {o: i for i, node in enumerate(graph.node) for o in node.output if o}
    before = {i: {made[v] for v in node.input if v in made} for i, node in enumerate(graph.node)}
    if all(all(b < i for b in needed) for i, needed in before.items()):
        return
    with contextlib.suppress(graphlib.CycleError):
        order = list(graphlib.TopologicalSorter(before).static_order())
        nodes = [onnx.NodeProto.FromString(graph.node[i].SerializeToString()) for i in order]
        del graph.node[:]
        graph.node.extend(nodes)
