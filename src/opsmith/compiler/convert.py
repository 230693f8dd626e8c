"""Convert: regions become single custom-op nodes, weights go into one external-data file that ORT memory-maps."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from opsmith import model_file
from opsmith.compiler.partition import Region, Step, bodies
from opsmith.compiler.program import Program
from opsmith.compiler.source import Source
from opsmith.nodes import ONNX
from opsmith.rewriter.passes.unused import keeping_outputs

PAGE = 4096


@dataclasses.dataclass(frozen=True)
class Blob:
    """The packed weights of one region inside the data file, with their seal."""

    offset: int
    bytes: int


def write_weights(
    programs: Sequence[Program], path: Path, on_step: Callable[[str], None] = lambda _: None
) -> list[Blob]:
    """Pack and write one weight at a time: the peak is one tensor, not the model. Forms of one region that pack alike share."""
    blobs: list[Blob] = []
    forms = collections.Counter(p.name for p in programs)
    written: dict[tuple[str, bytes], Blob] = {}
    with path.open("w+b") as file:
        for program in programs:
            start = _align(file, PAGE)
            for weight in sorted(program.weights.values(), key=lambda w: w.offset):
                file.seek(start + weight.offset)
                data = np.ascontiguousarray(weight.write())
                if data.nbytes > weight.bytes:
                    raise AssertionError(f"{weight.key}: {data.nbytes} bytes packed, {weight.bytes} planned")
                file.write(data.view(np.uint8).reshape(-1).data if data.nbytes else b"")
                on_step(weight.key)
            size = _round_up(program.weight_bytes, 8) + SEAL_BYTES if program.weight_bytes else 0
            file.truncate(max(file.seek(0, 2), start + size))
            blob = Blob(start, size)
            if forms[program.name] > 1 and size:
                blob = written.setdefault((program.name, _digest(file, blob)), blob)
                if blob.offset != start:
                    file.truncate(start)
            blobs.append(blob)
    return blobs


def _digest(file: BinaryIO, blob: Blob) -> bytes:
    digest = hashlib.sha256()
    file.seek(blob.offset)
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.digest()


SEAL_BYTES, SEAL_MARK = 64, b"OPSMITHW"


def library_id(domain: str) -> int:
    """What the seals of a library's weights say."""
    return int.from_bytes(hashlib.sha256(domain.encode()).digest()[:8], "little")


def seal_weights(path: Path, blobs: Sequence[Blob], domain: str) -> None:
    """End each region's weights with the library they belong to and their checksum: struct Seal in ort_abi.hpp."""
    with path.open("r+b") as file:
        for blob in blobs:
            if blob.bytes:
                inner = blob.bytes - SEAL_BYTES
                file.seek(blob.offset + inner)
                file.write(
                    SEAL_MARK + struct.pack("<2Q", library_id(domain), sample_checksum(path, blob.offset, inner))
                )


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
    region: Region, blobs: Sequence[Blob], domain: str, data: Path, inputs: Sequence[ir.Value]
) -> tuple[ir.Node, list[ir.Value]]:
    """The custom-op node of a region, and its packed weights as initializers in the data file: BLOBS, as `weight_inputs` gives them."""
    weights = []
    for i, blob in enumerate(blobs):
        name, shape = f"{region.name}.{i}.weights" if i else f"{region.name}.weights", ir.Shape([blob.bytes])
        tensor = ir.ExternalTensor(
            data.name, blob.offset, blob.bytes, ir.DataType.UINT8, shape=shape, name=name, base_dir=data.parent
        )
        weights.append(ir.Value(name=name, type=ir.TensorType(ir.DataType.UINT8), shape=shape, const_value=tensor))
    operands = [*inputs, *weights]
    return ir.Node(domain, region.name, operands, num_outputs=len(region.outputs), name=region.name), weights


def weight_inputs(blobs: Sequence[Sequence[Blob]]) -> list[list[Blob]]:
    """For each region the packed weights that its node reads: BLOBS are those of one form of the code after the other.

    Forms that pack alike share them; the others have one each, of which a machine maps what it runs."""
    return [list(dict.fromkeys(b for b in of_region if b.bytes)) for of_region in zip(*blobs, strict=True)]


def replace_regions(
    source: Source, regions: Sequence[Region], blobs: Sequence[Sequence[Blob]], domain: str, data: Path
) -> ir.Model:
    """The source with one node `domain::region<i>` in place of what each region computes; all else stays as it is.

    BLOBS: the weights of the regions, for each form of the code."""
    model = source.model.clone()
    scopes = {path: _find(model.graph, path) for path in {(), *(r.path for r in regions)}}
    for region, packed in zip(regions, weight_inputs(blobs)):
        graph, values = scopes[region.path]
        node, weights = region_node(region, packed, domain, data, [values[v.name] for v in region.inputs])
        for value in weights:
            graph.register_initializer(value)
        graph.append(node)
        for output, new in zip(region.outputs, node.outputs):
            old = values[output.name]
            name, new.type, new.shape = old.name, old.type or output.type, old.shape or output.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            old.name = f"{name}.replaced"
            new.name = name
            for _, seen in scopes.values():  # a body may read what a region around it gives
                if seen.get(name) is old:
                    seen[name] = new
    with keeping_outputs(model.graph.all_nodes()):
        passes.RemoveUnusedNodesPass()(model)
    passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    for graph, _ in scopes.values():
        graph.sort()
    if regions:
        model.opset_imports[domain] = 1
        model.graph.opset_imports[domain] = 1
        _lower_versions(model)
    return model


def _find(graph: ir.Graph, path: tuple[Step, ...]) -> tuple[ir.Graph, dict[str | None, ir.Value]]:
    """The graph at the end of a path, and every value that it can read, by name."""
    values: dict[str | None, ir.Value] = {}
    for step in (*path, None):
        values |= {v.name: v for v in (*graph.inputs, *(o for n in graph for o in n.outputs))}
        if step is not None:
            node = next(n for n in graph if n.name == step.node)
            graph = next(g for a, i, g in bodies(node) if (a, i) == (step.attribute, step.place))
    return graph, values


# What every ORT that the libraries need (1.24) reads.
OLD_OPSET, OLD_IR = 17, 10


def _lower_versions(model: ir.Model) -> None:
    """A model whose every node was compiled uses no standard operator: it loads wherever the library does, whatever it was made with."""
    nodes = [*ir.traversal.RecursiveGraphIterator(model.graph), *(n for f in model.functions.values() for n in f)]
    if any(n.domain in ONNX for n in nodes):
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
    model_file.write_model(model, path)
