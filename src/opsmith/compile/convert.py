"""Convert: regions become single custom-op nodes, weights go into one external-data file that ORT memory-maps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from opsmith.compile.lower.program import Program
from opsmith.compile.partition import Region

PAGE = 4096


@dataclasses.dataclass(frozen=True)
class Blob:
    """The packed weights of one region inside the data file."""

    offset: int
    bytes: int
    checksum: int


def write_weights(
    programs: Sequence[Program], path: Path, on_step: Callable[[str], None] = lambda _: None
) -> list[Blob]:
    """Pack and write one weight at a time: the peak is one tensor, not the model."""
    blobs: list[Blob] = []
    with path.open("wb") as file:
        for program in programs:
            start = _align(file, PAGE)
            for weight in sorted(program.weights.values(), key=lambda w: w.offset):
                file.seek(start + weight.offset)
                data = np.ascontiguousarray(weight.write())
                if data.nbytes > weight.bytes:
                    raise AssertionError(f"{weight.key}: {data.nbytes} bytes packed, {weight.bytes} planned")
                file.write(data.view(np.uint8).reshape(-1).data if data.nbytes else b"")
                on_step(weight.key)
            size = _round_up(program.weight_bytes, 8)
            file.truncate(max(file.seek(0, 2), start + size))
            blobs.append(Blob(start, size, 0))
    return [dataclasses.replace(b, checksum=sample_checksum(path, b.offset, b.bytes)) for b in blobs]


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _align(file: BinaryIO, step: int) -> int:
    end = file.seek(0, 2)
    file.truncate(_round_up(end, step))
    return file.seek(0, 2)


def sample_checksum(path: Path, offset: int, count: int) -> int:
    """FNV-1a over at most 4096 words, in evenly spread runs; the same as sample_checksum in ort_abi.hpp."""
    value = 1469598103934665603

    def mix(word: int) -> None:
        nonlocal value
        value = ((value ^ word) * 1099511628211) & 0xFFFFFFFFFFFFFFFF

    mix(count)
    words = count // 8
    runs, length = (1, words) if words <= 4096 else (64, 64)
    if words:
        data = np.memmap(path, np.uint64, "r", offset, (words,))
        for run in range(runs):
            start = words // runs * run
            for word in data[start : start + length].tolist():
                mix(word)
    return value


def region_node(
    region: Region, blob: Blob, domain: str, data: Path, inputs: Sequence[ir.Value]
) -> tuple[ir.Node, ir.Value | None]:
    """The custom-op node of a region, and its packed weights as an initializer in the data file."""
    weights = None
    if blob.bytes:
        name, shape = f"{region.name}.weights", ir.Shape([blob.bytes])
        tensor = ir.ExternalTensor(
            data.name, blob.offset, blob.bytes, ir.DataType.UINT8, shape=shape, name=name, base_dir=data.parent
        )
        weights = ir.Value(name=name, type=ir.TensorType(ir.DataType.UINT8), shape=shape, const_value=tensor)
    operands = [*inputs, *([weights] if weights is not None else [])]
    return ir.Node(domain, region.name, operands, num_outputs=len(region.outputs), name=region.name), weights


def replace_regions(model: ir.Model, regions: Sequence[Region], blobs: Sequence[Blob], domain: str, data: Path) -> None:
    """Each region's nodes become one node `domain::region<i>`; names, types and shapes of all values stay."""
    graph = model.graph
    replaced: dict[ir.Value, ir.Value] = {}
    for region, blob in zip(regions, blobs):
        node, weights = region_node(region, blob, domain, data, [replaced.get(v, v) for v in region.inputs])
        if weights is not None:
            graph.register_initializer(weights)
        graph.insert_before(region.nodes[0], node)
        for old, new in zip(region.outputs, node.outputs):
            name, new.type, new.shape = old.name, old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            old.name = f"{name}.replaced"
            new.name = name
            replaced[old] = new
        graph.remove(region.nodes, safe=True)
    graph.sort()
    model.opset_imports[domain] = 1
    graph.opset_imports[domain] = 1
    passes.RemoveUnusedNodesPass()(model)
    passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    _lower_versions(model)


# What every ORT that the libraries need (1.24) reads.
OLD_OPSET, OLD_IR = 17, 10


def _lower_versions(model: ir.Model) -> None:
    """A model whose every node was compiled uses no standard operator: it loads wherever the library does, whatever it was made with."""
    nodes = [*ir.traversal.RecursiveGraphIterator(model.graph), *(n for f in model.functions.values() for n in f)]
    if any(n.domain in ("", "ai.onnx") for n in nodes):
        return
    model.opset_imports[""] = min(model.opset_imports.get("", OLD_OPSET), OLD_OPSET)
    model.ir_version = min(model.ir_version, OLD_IR)


def save_converted(model: ir.Model, path: Path, data: Path) -> None:
    """Write the model; initializers that stay with ORT follow the packed weights in the data file if they are large."""
    with data.open("r+b") as file:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or (isinstance(tensor, ir.ExternalTensor) and Path(tensor.path) == data):
                continue
            if tensor.nbytes < 65536 or tensor.dtype == ir.DataType.STRING:
                if isinstance(tensor, ir.ExternalTensor):
                    value.const_value = ir.tensor(tensor.numpy(), dtype=tensor.dtype, name=value.name)
                continue
            start = _align(file, PAGE)
            file.write(tensor.tobytes())
            value.const_value = ir.ExternalTensor(
                data.name,
                start,
                tensor.nbytes,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=value.name or "",
                base_dir=data.parent,
            )
        empty = file.seek(0, 2) == 0
    if empty:
        data.unlink()
    ir.save(model, path)
